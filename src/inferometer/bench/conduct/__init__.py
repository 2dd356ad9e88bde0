"""A study's run: the conductor, and a process a column that keeps a model loaded."""
