"""Operators with the most GPU time."""

from __future__ import annotations

from tracelens.rendering.figures.base import needs, top_bars
from tracelens.rendering.figures.figure import Figure, figure
from tracelens.table import Table


@figure("ops")
@needs("ops", "rank", "name", "category", "count", "dur_ns")
def ops(per_op: Table) -> list[Figure]:
    """Table `ops`: the top operators by `dur_ns` as bars, coloured by category."""
    return top_bars(per_op, "dur_ns", "Operators")
