"""The summary of a report on a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tracelens.summary.figures import RunFigures
from tracelens.summary.guarded import guarded
from tracelens.summary.tiles import Pace, run_tiles
from tracelens.summary.verdict import run_verdict
from tracelens.table import Result, Summary


def run_summary(results: Sequence[Result], meta: Mapping[str, Any]) -> Summary | None:
    """Verdict and tiles of a run; None without the analyzer "steps", or where no rank did anything.

    Args:
        results: of its analyzers. Without some of them their figures are left out.
        meta: of its report: ranks, devices, setup, pace, trust and options.
    """
    steps = next((result.data.get("steps") for result in results if result.analyzer == "steps"), None)
    if steps is None or not len(steps):
        return None
    return guarded(_summary, RunFigures(results), meta)


def _summary(figures: RunFigures, meta: Mapping[str, Any]) -> Summary:
    times = figures.step_times()
    pace = Pace.of(meta, times)
    return Summary(
        run_verdict(figures, meta, times, pace),
        tuple(run_tiles(figures, meta, times, pace)),
    )
