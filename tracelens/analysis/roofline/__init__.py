"""Roofline: what each op call must do, how fast the device could do it, and how fast it was."""

from tracelens.analysis.roofline.bounds import BOUNDS, bounds, least_ns
from tracelens.analysis.roofline.costing import Costing, Counted, costing
from tracelens.analysis.roofline.gemm_flops import MatrixFlops, matrix_flops
from tracelens.analysis.roofline.gemm_rate import gemm_rate
from tracelens.analysis.roofline.op_calls import OpCalls
from tracelens.analysis.roofline.reasons import with_surroundings
from tracelens.analysis.roofline.repeat import repeats
from tracelens.analysis.roofline.transfers import direction

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
