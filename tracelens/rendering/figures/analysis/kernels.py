"""Kernels with the most GPU time."""

from __future__ import annotations

from tracelens.rendering.figures.base import needs, top_bars
from tracelens.rendering.figures.figure import Figure, figure
from tracelens.table import Table


@figure("kernels")
@needs("kernels", "rank", "name", "category", "count", "sum_ns")
def kernels(per_kernel: Table) -> list[Figure]:
    """Table `kernels`: the top kernels by `sum_ns` as bars, coloured by category."""
    return top_bars(per_kernel, "sum_ns", "Kernels")
