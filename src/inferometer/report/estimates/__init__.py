"""Estimates and their errors as documents and plots."""
