"""The whole run: timeline, breakdown, steps, annotations, ops and kernels."""

from tracelens.analysis.overview.breakdown import NO_OP, shape_texts
from tracelens.analysis.overview.step_windows import busiest, step_windows

__all__ = ["NO_OP", "busiest", "shape_texts", "step_windows"]
