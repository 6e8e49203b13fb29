"""Kernels that are grouped, fused, not repeated, of another size, or take another time."""
