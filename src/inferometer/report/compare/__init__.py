"""Old records against new ones."""
