"""Operators with the most GPU time."""

from __future__ import annotations

from tracelens.rendering.figures.base import table, top_bars
from tracelens.rendering.figures.figure import Figure, figure
from tracelens.table import Result


@figure("ops")
def ops(result: Result) -> list[Figure]:
    """Table `ops`: the top operators by `dur_ns` as bars, coloured by category."""
    per_op = table(result, "ops", "rank", "name", "category", "count", "dur_ns")
    return [] if per_op is None else top_bars(per_op, "dur_ns", "Operators")
