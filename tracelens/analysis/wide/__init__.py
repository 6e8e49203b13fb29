"""Wide tables: every kernel, op call and collective in a row, with all that the analyzers know of it."""

from tracelens.analysis.wide.tables import (
    COLLECTIVES,
    KERNELS,
    OPS,
    collective_frame,
    kernel_frame,
    op_frame,
    select,
)

__all__ = [
    "COLLECTIVES",
    "KERNELS",
    "OPS",
    "collective_frame",
    "kernel_frame",
    "op_frame",
    "select",
]
