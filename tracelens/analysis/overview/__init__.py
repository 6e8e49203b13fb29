"""The whole run: timeline, breakdown, steps, annotations, ops and kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.lazy import lazy

if TYPE_CHECKING:
    from tracelens.analysis.overview.breakdown import NO_OP, NO_SHAPE, shape_texts
    from tracelens.analysis.overview.scopes import MODULE_MARK, module_frames, program_scopes
    from tracelens.analysis.overview.steps import NO_PACE, PACE_META, PaceSummary, pace_summary

__all__ = [
    "MODULE_MARK",
    "NO_OP",
    "NO_PACE",
    "NO_SHAPE",
    "PACE_META",
    "PaceSummary",
    "module_frames",
    "pace_summary",
    "program_scopes",
    "shape_texts",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "analysis.overview.breakdown": "NO_OP NO_SHAPE shape_texts",
        "analysis.overview.scopes": "MODULE_MARK module_frames program_scopes",
        "analysis.overview.steps": "NO_PACE PACE_META PaceSummary pace_summary",
    },
)
