"""Wide tables: every kernel, op call and collective in a row, with all that the analyzers know of it."""

from tracelens.session.wide.collectives import collective_rows, matches
from tracelens.session.wide.frames import wide_frame
from tracelens.session.wide.kernels import kernel_rows
from tracelens.session.wide.ops import op_rows
from tracelens.session.wide.schemas import COLLECTIVES, KERNELS, OPS

__all__ = [
    "COLLECTIVES",
    "KERNELS",
    "OPS",
    "collective_rows",
    "kernel_rows",
    "matches",
    "op_rows",
    "wide_frame",
]
