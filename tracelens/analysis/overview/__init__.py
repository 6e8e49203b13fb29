"""The whole run: timeline, breakdown, steps, annotations, ops and kernels."""

from tracelens.analysis.overview.breakdown import NO_OP, shape_texts

__all__ = ["NO_OP", "shape_texts"]
