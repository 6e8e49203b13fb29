"""The summary of a report that is one result of its own: a comparison or a projection."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tracelens.summary.bounds import bounds_summary, trace_bounds_summary
from tracelens.summary.comparisons import diff_summary, ladder_summary
from tracelens.summary.guarded import guarded
from tracelens.summary.projections import (
    bubble_summary,
    memory_summary,
    pipeline_summary,
    scaling_summary,
    search_summary,
    whatif_summary,
)
from tracelens.table import Result, Summary

SUMMARIES: Mapping[str, Callable[[Result], Summary | None]] = {
    "bounds": bounds_summary,
    "bubble": bubble_summary,
    "diff": diff_summary,
    "ladder": ladder_summary,
    "memory": memory_summary,
    "pipeline_schedule": pipeline_summary,
    "scaling": scaling_summary,
    "search": search_summary,
    "trace_bounds": trace_bounds_summary,
    "whatif": whatif_summary,
}
"""By the name that the result has."""


def result_summary(result: Result) -> Summary | None:
    """Verdict and tiles of a comparison or projection; None for other results."""
    make = SUMMARIES.get(result.analyzer)
    return guarded(make, result) if make else None
