"""Schemas of the tables of simulated schedules."""

from __future__ import annotations

from tracelens.planner.pipeline.schedule import PHASES
from tracelens.table import Column, Schema

SUMMARY = Schema(
    "Schedules",
    (
        Column("schedule", "category"),
        Column("chunks", "int64", "count", "VPP, model chunks per stage"),
        Column("makespan_ns", "int64", "ns", "from the first forward to the last pass of any stage"),
        Column("step_ns", "int64", "ns", "makespan plus the rest of a measured step"),
        Column("speedup", "float64", doc="makespan of the first schedule / this makespan"),
        Column("bubble_fraction", "float64", "fraction", "idle share of the makespan, mean over stages"),
        Column("bubble_ideal_ratio", "float64", "ratio", "idle time / time of the passes"),
        Column(
            "longest_ns",
            "int64",
            "ns",
            "longest time from the first to the last pass of a stage: the makespan if each stage begins the "
            "next step as soon as it is done",
        ),
        Column("peak_chunks", "int64", "count", "in flight, worst stage"),
        Column("peak_microbatches", "float64", doc="peak_chunks / chunks"),
        Column("peak_bytes", "int64", "bytes", "activations in flight, worst stage"),
    ),
    doc="The bubble is the idle time of stages, of the makespan or, as in Megatron-LM, relative to the "
    "time of the passes. A micro-batch chunk is in flight from its forward to the end of its backward.",
)
STAGES = Schema(
    "Stages",
    (
        Column("schedule", "category"),
        Column("stage", "int64"),
        Column("forward_ns", "int64", "ns", "all forwards; overlapped pairs in proportion"),
        Column("backward_ns", "int64", "ns", "all backwards"),
        Column("idle_ns", "int64", "ns", "of the makespan"),
        Column("idle_fraction", "float64", "fraction", "of the makespan"),
        Column("start_ns", "int64", "ns", "of the first pass"),
        Column("end_ns", "int64", "ns", "of the last pass"),
        Column("peak_chunks", "int64", "count", "in flight at once"),
        Column("peak_bytes", "int64", "bytes", "activations in flight at once"),
    ),
    doc="Idle time before, between and after the passes of a stage.",
    brief=True,
)
PARTITION = Schema(
    "Partition",
    (
        Column("schedule", "category"),
        Column("place", "int64", doc="position of the chunk in the model"),
        Column("stage", "int64"),
        Column("chunk", "int64", doc="number on its stage"),
        Column("first_layer", "int64", doc="-1 if it has none, or layers are unknown"),
        Column("layers", "int64", "count", "-1 if unknown"),
        Column("forward_ns", "int64", "ns", "per micro-batch, mean"),
        Column("backward_ns", "int64", "ns", "per micro-batch, mean"),
    ),
    doc="The first chunk includes the embedding, the last one head and loss.",
    brief=True,
)
SPANS = Schema(
    "Passes",
    (
        Column("schedule", "category"),
        Column("rank", "int64", doc="stage, one rank each"),
        Column("stage", "int64"),
        Column("chunk", "int64", doc="number on its stage"),
        Column("microbatch", "int64"),
        Column("phase", "category", doc=", ".join(PHASES)),
        Column("ts_ns", "int64", "ns", "since the first forward"),
        Column("dur_ns", "int64", "ns"),
        Column("paired", "bool", doc="overlaps with another pass of the stage"),
    ),
    detail=True,
)
IN_FLIGHT = Schema(
    "In flight over time",
    (
        Column("schedule", "category"),
        Column("rank", "int64", doc="stage, one rank each"),
        Column("ts_ns", "int64", "ns", "from here on"),
        Column("chunks", "int64", "count"),
        Column("bytes", "int64", "bytes", "-1 if unknown"),
    ),
    detail=True,
)
CHECK = Schema(
    "Simulation check",
    (
        Column("ranks", "category", doc="of the pipeline's stages"),
        Column("step", "category"),
        Column("times", "category", doc="of the passes: as measured, or means"),
        Column("measured_ns", "int64", "ns", "from the first forward to the last backward"),
        Column("simulated_ns", "int64", "ns", "the same by simulation"),
        Column("offset", "float64", "ratio", "simulated / measured - 1"),
    ),
    doc="The recorded order with the measured time of each pass reproduces the measured phase, except for "
    "waits that no pass and no message explains. The mean of equal layers shows how far to trust another "
    "partition: it assumes that a layer is equally fast on all ranks.",
)
