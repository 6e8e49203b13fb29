"""Roofline: what each op call must do, how fast the device could do it, and how fast it was."""

from tracelens.analysis.roofline.bounds import BOUNDS, MatrixFlops, bounds, gemm_rate, least_ns, matrix_flops
from tracelens.analysis.roofline.costing import (
    Costing,
    Counted,
    OpCalls,
    costing,
    direction,
    repeats,
    with_surroundings,
)

__all__ = [
    "BOUNDS",
    "Costing",
    "Counted",
    "MatrixFlops",
    "OpCalls",
    "bounds",
    "costing",
    "direction",
    "gemm_rate",
    "least_ns",
    "matrix_flops",
    "repeats",
    "with_surroundings",
]
