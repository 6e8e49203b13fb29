"""The tables of a scaling projection."""

from __future__ import annotations

from tracelens.planner.step_time import ASSUMED
from tracelens.table import Column, Schema

_DISPATCH = Column("dispatch", "category", doc="how tokens reach the experts")
_EP = Column("ep", "int64", doc="ranks that share the experts")

_PARTS = (
    Column("compute", "float64", "fraction", "of the step: forward, backward, recomputation"),
    Column("all_to_all", "float64", "fraction", "of the step: exposed dispatch and combine"),
    Column("p2p", "float64", "fraction", "of the step: between stages, waiting for slow ranks"),
    Column("other", "float64", "fraction", "of the step: gradients, optimizer, context, tensor"),
    Column("bubble", "float64", "fraction", "of the step: waiting for other pipeline stages"),
)
PARTS = tuple(column.name for column in _PARTS)
"""Parts of a step, as in figure 11 of AMD's MoE training guide."""

SCALING = Schema(
    "Throughput by expert parallelism",
    (
        _DISPATCH,
        _EP,
        Column("step_ns", "int64", "ns", "step time"),
        Column("tokens_per_s", "float64", doc="per GPU"),
        Column("relative", "float64", "fraction", "tokens/s / those with the fewest ranks, same dispatch"),
        Column("speedup", "float64", doc="tokens/s / those of the first dispatch, same ranks"),
        Column("mfu", "float64", "fraction", "model FLOPs / the data-sheet peak"),
    ),
    doc="Step times follow from FLOPs, bytes, messages and launches; see the assumptions.",
)
BREAKDOWN = Schema(
    "Time of a step",
    (_DISPATCH, _EP, Column("step_ns", "int64", "ns", "step time"), *_PARTS),
    doc="Parts of the slowest stage's step.",
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
    doc="A combine sends as much in the other direction, and each has a backward.",
)
PUBLISHED = Schema(
    "Time of a step as published",
    (
        _DISPATCH,
        _EP,
        Column("figures", "category", doc="projected, or published: read from a chart"),
        *_PARTS,
        Column("source", "str", doc="where it was published", folded=True),
    ),
    doc="The published layout and batch are unknown; congestion of the network is not modeled.",
)
TABLES = {
    "scaling": SCALING,
    "breakdown": BREAKDOWN,
    "exchange": EXCHANGE,
    "published": PUBLISHED,
    "assumptions": ASSUMED,
}
