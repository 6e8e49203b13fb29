"""What the tables of simulated schedules hold."""

from __future__ import annotations

from tracelens.planner.pipeline.schedule import PHASES
from tracelens.table import Column, Schema

SUMMARY = Schema(
    "Schedules",
    (
        Column("schedule", "category"),
        Column("chunks", "int64", "count", "VPP, of the model on each stage"),
        Column("makespan_ns", "int64", "ns", "from the first forward to the last pass of any stage"),
        Column("step_ns", "int64", "ns", "makespan and what a measured step has besides the pipeline"),
        Column("speedup", "float64", doc="makespan of the first schedule / that of this one"),
        Column("bubble_fraction", "float64", "fraction", "of the makespan, idle, mean of the stages"),
        Column("bubble_ideal_ratio", "float64", "ratio", "the same idle time / time of the passes"),
        Column(
            "longest_ns",
            "int64",
            "ns",
            "from the first to the last pass of the stage where that is longest: the makespan of a step that "
            "each stage begins as soon as it is done with the one before",
        ),
        Column("peak_chunks", "int64", "count", "in flight, on the stage with most"),
        Column("peak_microbatches", "float64", doc="the same, in shares of all chunks of a stage"),
        Column("peak_bytes", "int64", "bytes", "of activations in flight, on the stage with most"),
    ),
    doc="The bubble is idle time of stages, of the whole makespan or, as in Megatron-LM, against the time of "
    "the passes. A chunk of a micro-batch is in flight from its forward to the end of its backward.",
)
STAGES = Schema(
    "Stages",
    (
        Column("schedule", "category"),
        Column("stage", "int64"),
        Column("forward_ns", "int64", "ns", "of all its forwards; of an overlapped pair its share"),
        Column("backward_ns", "int64", "ns", "of all its backwards"),
        Column("idle_ns", "int64", "ns", "of the makespan"),
        Column("idle_fraction", "float64", "fraction", "of the makespan"),
        Column("start_ns", "int64", "ns", "of its first pass"),
        Column("end_ns", "int64", "ns", "of its last pass"),
        Column("peak_chunks", "int64", "count", "in flight at once"),
        Column("peak_bytes", "int64", "bytes", "of activations in flight at once"),
    ),
    doc="Idle time lies before, between and behind the passes of a stage.",
    brief=True,
)
PARTITION = Schema(
    "Partition",
    (
        Column("schedule", "category"),
        Column("place", "int64", doc="of the chunk in the model"),
        Column("stage", "int64"),
        Column("chunk", "int64", doc="of the stage's chunks"),
        Column("first_layer", "int64", doc="-1 where it has none, or the layers are not known"),
        Column("layers", "int64", "count", "-1 where they are not known"),
        Column("forward_ns", "int64", "ns", "of a micro-batch, mean"),
        Column("backward_ns", "int64", "ns", "of a micro-batch, mean"),
    ),
    doc="The first chunk has the embedding as well, the last one head and loss.",
    brief=True,
)
SPANS = Schema(
    "Passes",
    (
        Column("schedule", "category"),
        Column("rank", "int64", doc="stage: one rank of each"),
        Column("stage", "int64"),
        Column("chunk", "int64", doc="of the stage's chunks"),
        Column("microbatch", "int64"),
        Column("phase", "category", doc=", ".join(PHASES)),
        Column("ts_ns", "int64", "ns", "since the first forward"),
        Column("dur_ns", "int64", "ns"),
        Column("paired", "bool", doc="it runs beside another pass of the stage"),
    ),
    detail=True,
)
IN_FLIGHT = Schema(
    "In flight over time",
    (
        Column("schedule", "category"),
        Column("rank", "int64", doc="stage: one rank of each"),
        Column("ts_ns", "int64", "ns", "from here on"),
        Column("chunks", "int64", "count"),
        Column("bytes", "int64", "bytes", "-1 where those of a chunk are not known"),
    ),
    detail=True,
)
CHECK = Schema(
    "The measured pipelines, simulated",
    (
        Column("ranks", "category", doc="of the pipeline's stages"),
        Column("step", "category"),
        Column("times", "category", doc="of the passes: as each was, or the mean of what"),
        Column("measured_ns", "int64", "ns", "from the first forward to the last backward"),
        Column("simulated_ns", "int64", "ns", "the same by simulation"),
        Column("offset", "float64", "ratio", "of the simulated from the measured time"),
    ),
    doc="The recorded order of passes with their own times gives back the measured phase: what is left are "
    "waits that no pass and no message explains. The mean of equal layers tells how far to trust another cut "
    "of the model: it takes a layer to be as fast on one rank as on another.",
)
