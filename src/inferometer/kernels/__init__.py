"""Triton kernels, each beside its plain torch reference. Triton is imported when the first kernel is launched, never before."""
