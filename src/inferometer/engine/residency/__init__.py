"""Weights that live elsewhere than on the device: host memory and disk, the copies that bring them, the ring that they run in."""
