"""The whole run: timeline, breakdown, steps, annotations, ops and kernels."""

from tracelens.analysis.overview.breakdown import NO_OP, shape_texts
from tracelens.analysis.overview.pace import NO_PACE, PACE_META, PaceSummary, pace_summary

__all__ = ["NO_OP", "NO_PACE", "PACE_META", "PaceSummary", "pace_summary", "shape_texts"]
