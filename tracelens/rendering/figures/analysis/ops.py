"""Operators with the most GPU time."""

from __future__ import annotations

from tracelens.rendering.figures.base import table, top_bars
from tracelens.rendering.figures.figure import Figure, figure
from tracelens.table import Result


@figure("ops")
def ops(result: Result) -> list[Figure]:
    """Table `ops`: the top operators by `dur_ns` as bars, coloured by category."""
    found = table(result, "ops", "rank", "name", "category", "count", "dur_ns")
    return [] if found is None else top_bars(found, "dur_ns", "Operators")
