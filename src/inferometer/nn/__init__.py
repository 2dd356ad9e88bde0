"""The torch transformer, its weights and their formats."""
