"""The whole run: timeline, breakdown, steps, annotations, ops and kernels."""
