"""Records as documents: pure functions from records to text."""
