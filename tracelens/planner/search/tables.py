"""The tables of a search."""

from __future__ import annotations

from tracelens.planner.step_time import ASSUMED
from tracelens.table import Column, Schema

LAYOUTS = Schema(
    "Layouts",
    (
        Column("device", "category", doc="device that the layout runs on"),
        Column("position", "int64", "count", "rank by step time among those that fit; -1: does not fit"),
        Column("pp", "int64", doc="pipeline stages"),
        Column("vpp", "int64", doc="model chunks per stage"),
        Column("ep", "int64", doc="ranks that share the experts"),
        Column("cp", "int64", doc="ranks that share a sequence"),
        Column("tp", "int64", doc="ranks that share each matrix"),
        Column("dp", "int64", doc="data-parallel ranks"),
        Column("micro_batch", "int64", doc="sequences per micro-batch"),
        Column("recompute", "category", doc="recomputed layers per chunk"),
        Column("step_ns", "int64", "ns", "projected step time"),
        Column("mfu", "float64", "fraction", "model FLOPs / the data-sheet peak"),
        Column("bytes", "int64", "bytes", "memory that the fullest GPU needs"),
        Column("free_bytes", "int64", "bytes", "free after the reserve; negative: does not fit"),
        Column("compute_fraction", "float64", "fraction", "of the step: forward, backward, recomputation"),
        Column("comm_fraction", "float64", "fraction", "of the step: exposed communication"),
        Column("bubble", "float64", "fraction", "of the step: waiting for other pipeline stages"),
        Column("tokens_per_s", "float64", doc="per GPU"),
        Column("micro_batches", "int64", doc="micro-batches per step on each data-parallel rank"),
    ),
    doc="Step times are projected from FLOPs, bytes, messages and launches; see the assumptions.",
)
PARTS = Schema(
    "Where the time goes",
    (
        Column("device", "category", doc="device that the layout runs on"),
        Column("position", "int64", "count", "of the layout, as in `layouts`; -1: does not fit"),
        Column("layout", "str", doc="sizes of the layout"),
        Column("part", "category", doc="part of the slowest stage's step"),
        Column("ns", "int64", "ns", "time of the part per step"),
    ),
    detail=True,
)
REFUSED = Schema(
    "Invalid, or does not fit",
    (
        Column("device", "category", doc="device without room for them; '': invalid on any device"),
        Column("reason", "str", doc="why they are left out; N stands for numbers", prose=True),
        Column("count", "int64", "count", "layouts"),
        Column("example", "str", doc="one of these layouts", prose=True),
    ),
    kind="entries",
)
TABLES = {"layouts": LAYOUTS, "parts": PARTS, "refused": REFUSED, "assumptions": ASSUMED}
