"""The page: one HTML file with charts and a table that sorts and filters."""
