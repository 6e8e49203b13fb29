"""The tables of a search."""

from __future__ import annotations

from tracelens.table import Column, Schema

LAYOUTS = Schema(
    "Layouts",
    (
        Column("device", "category"),
        Column("place", "int64", "count", "1 for the shortest step of those that fit; -1 does not fit"),
        Column("pp", "int64", doc="pipeline stages"),
        Column("vpp", "int64", doc="model chunks a stage"),
        Column("ep", "int64", doc="ranks that share the experts"),
        Column("cp", "int64", doc="ranks that share a sequence"),
        Column("tp", "int64", doc="ranks that share each matrix"),
        Column("dp", "int64", doc="data-parallel ranks"),
        Column("micro_batch", "int64", doc="sequences"),
        Column("recompute", "category", doc="layers of each chunk that are computed again"),
        Column("step_ns", "int64", "ns", "of a step at least"),
        Column("mfu", "float64", "fraction", "model FLOPs / the data-sheet peak"),
        Column("bytes", "int64", "bytes", "of the fullest GPU"),
        Column("left_bytes", "int64", "bytes", "of the device, after the reserve; below 0 it does not fit"),
        Column("computing", "float64", "fraction", "of the step: forward, backward, recomputation"),
        Column("exchanging", "float64", "fraction", "of the step: messages that nothing hides"),
        Column("bubble", "float64", "fraction", "of the step: waiting for other pipeline stages"),
        Column("tokens_per_s", "float64", doc="of each GPU"),
        Column("micro_batches", "int64", doc="of a step, on each data-parallel rank"),
    ),
    doc="Step times are a roofline: the least that FLOPs, bytes and messages take; see the assumptions.",
)
PARTS = Schema(
    "Where the time goes",
    (
        Column("device", "category"),
        Column("place", "int64", "count", "of the layout; -1 does not fit"),
        Column("layout", "str"),
        Column("part", "category", doc="of the slowest stage's step"),
        Column("ns", "int64", "ns"),
    ),
    detail=True,
)
REFUSED = Schema(
    "What cannot be, or does not fit",
    (
        Column("device", "category", doc="empty: on any"),
        Column("reason", "str", doc="N stands for numbers", prose=True),
        Column("count", "int64", "count", "of layouts"),
        Column("example", "str", doc="one of them", prose=True),
    ),
)
ASSUMED = Schema(
    "Assumptions of the step time",
    (
        Column("name", "str"),
        Column("value", "str"),
        Column("device", "category", doc="empty: all"),
        Column("about", "str", doc="what it is, and where it is from", prose=True),
    ),
)
