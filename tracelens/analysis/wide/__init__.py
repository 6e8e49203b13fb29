"""Wide tables: every kernel, op call and collective in a row, with all that the analyzers know of it."""

from tracelens.analysis.wide.tables import (
    ALWAYS_KNOWN,
    COLLECTIVES,
    KERNELS,
    OPS,
    collective_frame,
    kernel_frame,
    op_frame,
    select,
)

__all__ = [
    "ALWAYS_KNOWN",
    "COLLECTIVES",
    "KERNELS",
    "OPS",
    "collective_frame",
    "kernel_frame",
    "op_frame",
    "select",
]
