"""The tables of a scaling projection."""

from __future__ import annotations

from tracelens.planner.step_time import ASSUMED
from tracelens.table import Column, Schema

_DISPATCH = Column("dispatch", "category", doc="how tokens reach the experts")
_EP = Column("ep", "int64", doc="ranks that share the experts")

SCALING = Schema(
    "Throughput by expert parallelism",
    (
        _DISPATCH,
        _EP,
        Column("step_ns", "int64", "ns", "lower bound of the step time"),
        Column("tokens_per_s", "float64", doc="per GPU"),
        Column("relative", "float64", "ratio", "tokens/s / those with the fewest ranks, same dispatch"),
        Column("speedup", "float64", "ratio", "tokens/s / those of the first dispatch, same ranks"),
        Column("mfu", "float64", "fraction", "model FLOPs / the data-sheet peak"),
    ),
    doc="Step times are lower bounds (roofline) from FLOPs, bytes and messages; see the assumptions.",
)
BREAKDOWN = Schema(
    "Time of a step",
    (
        _DISPATCH,
        _EP,
        Column("part", "category", doc="see `PARTS_OF`: compute, all-to-all, p2p, other, bubble"),
        Column("ns", "int64", "ns", "time of the part per step, on the slowest stage"),
        Column("fraction", "float64", "fraction", "of the step"),
    ),
    doc="all-to-all: exposed dispatch and combine; p2p: messages between stages, and waiting for the slowest "
    "rank; other: gradients, optimizer, context and tensor parallelism.",
)
EXCHANGE = Schema(
    "One dispatch",
    (
        _DISPATCH,
        _EP,
        Column("nodes", "int64", "count", "nodes that share the experts"),
        Column("ranks_per_token", "float64", doc="distinct ranks with an expert of a token"),
        Column("nodes_per_token", "float64", doc="distinct nodes with an expert of a token"),
        Column("nic_bytes", "int64", "bytes", "that a rank sends to other nodes"),
        Column("link_bytes", "int64", "bytes", "that a rank sends over the links of its node"),
        Column("dur_ns", "int64", "ns", "of the dispatch of a micro-batch in one layer, hidden or not"),
    ),
    doc="Balanced routing. A combine sends as much in the other direction, and each has a backward.",
)
PUBLISHED = Schema(
    "Time of a step as published",
    (
        _DISPATCH,
        _EP,
        Column("part", "category", doc="as in the breakdown"),
        Column("projected_fraction", "float64", "fraction", "of the projected step"),
        Column("measured_fraction", "float64", "fraction", "of the measured step, read from a chart"),
        Column("source", "str", doc="where it was published", folded=True),
    ),
    doc="A measurement of the same model on as many GPUs, whose layout and batch were not published.",
)
TABLES = {
    "scaling": SCALING,
    "breakdown": BREAKDOWN,
    "exchange": EXCHANGE,
    "published": PUBLISHED,
    "assumptions": ASSUMED,
}
