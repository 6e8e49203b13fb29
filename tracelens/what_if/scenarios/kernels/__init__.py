"""Kernels that are fused, not repeated, or of another size."""
