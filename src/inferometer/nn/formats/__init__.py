"""Weights in few bits: how they are laid out, rounded, read and written."""
