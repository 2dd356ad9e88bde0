"""A study's records in its document's layout: tables and plots, measured beside predicted and published."""
