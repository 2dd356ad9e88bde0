"""Plots as SVG images of our own."""
