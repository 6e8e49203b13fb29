"""Kernels with the most GPU time."""

from __future__ import annotations

from tracelens.rendering.figures.base import table, top_bars
from tracelens.rendering.figures.figure import Figure, figure
from tracelens.table import Result


@figure("kernels")
def kernels(result: Result) -> list[Figure]:
    """Table `kernels`: the top kernels by `sum_ns` as bars, coloured by category."""
    per_kernel = table(result, "kernels", "rank", "name", "category", "count", "sum_ns")
    return [] if per_kernel is None else top_bars(per_kernel, "sum_ns", "Kernels")
