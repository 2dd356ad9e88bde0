"""Stacks that run a model: what is asked of them, the entries that say what each takes, and a file for each behind one protocol."""
