"""Roofline: what each op call must do, how fast the device could do it, and how fast it was."""

from tracelens.analysis.roofline.bounds import (
    BOUNDS,
    MatrixFlops,
    bounds,
    gemm_rate,
    least_ns,
    matrix_flops,
    on_matrix_units,
)
from tracelens.analysis.roofline.costing import (
    CostColumns,
    Costing,
    Counted,
    OpCalls,
    costing,
    direction,
    repeats,
    with_surroundings,
)
from tracelens.analysis.roofline.slow import SLOW_RATIO, SlowCalls, reachable_time, slow_calls

__all__ = [
    "BOUNDS",
    "SLOW_RATIO",
    "CostColumns",
    "Costing",
    "Counted",
    "MatrixFlops",
    "OpCalls",
    "SlowCalls",
    "bounds",
    "costing",
    "direction",
    "gemm_rate",
    "least_ns",
    "matrix_flops",
    "on_matrix_units",
    "reachable_time",
    "repeats",
    "slow_calls",
    "with_surroundings",
]
