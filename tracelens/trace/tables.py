"""The declared schemas of a trace's tables."""

from __future__ import annotations

from tracelens.table import Column, Schema

EVENT_KINDS = (
    "op",
    "launch",
    "kernel",
    "memcpy",
    "memset",
    "annotation",
    "gpu_annotation",
    "python",
    "sync",
    "overhead",
    "instant",
    "slice",
    "node",
)
"""What an event is, whatever its profiler calls it.

`slice` is anything not known better; `node` the launch call behind a node of a replayed graph, copied from
where the graph was captured (see trace/graphs).
"""

EVENT_SOURCES = ("trace", "capture", "twin")
"""Where an event comes from: recorded in the trace, or copied under a graph launch, see trace/graphs."""

GPU_KINDS = ("kernel", "memcpy", "memset")
"""Kinds that are GPU work; annotations and syncs drawn on GPU rows are not."""

GPU_SIGNS = (*GPU_KINDS, "gpu_annotation")
"""Kinds of which one is enough to say that a GPU did the work; a call that launches some says so as well."""

STACK_KINDS = ("python", "annotation", "slice", "op", "launch")
"""Kinds that nest on CPU threads, outermost first where two have the same extent."""

EVENTS = Schema(
    "events",
    (
        Column("event_id", "int64", doc="row number: event i is row i"),
        Column("kind", "category", doc="one of: " + ", ".join(EVENT_KINDS)),
        Column("category", "category", doc="the profiler's own category"),
        Column("name", "category", doc="as the profiler recorded it"),
        Column("ts_ns", "int64", "ns", "start, on the trace's own clock"),
        Column("dur_ns", "int64", "ns", "0 for an instant"),
        Column("pid", "int64", doc="process; non-numeric names are numbered from -2 downwards"),
        Column("tid", "int64", doc="thread, or stream of a GPU row"),
        Column("device", "int64", doc="GPU index of GPU work, else -1"),
        Column("stream", "int64", doc="stream of GPU work, else -1"),
        Column(
            "bytes",
            "int64",
            "bytes",
            "bytes of a copy or memset; for a memory event, total bytes then allocated on its GPU; else -1",
        ),
        Column(
            "blocks", "int64", "count", "thread blocks of a kernel or its launch call, -1 if not recorded"
        ),
        Column("parent_id", "int64", doc="enclosing event on the same thread, -1 at the top"),
        Column("depth", "int64", "count", "number of enclosing events"),
        Column("correlation_id", "int64", doc="joins a launch call and its GPU work, -1 if none"),
        Column(
            "linked", "bool", doc="GPU work with a flow arrow from a launch call in the trace: scope linked"
        ),
        Column(
            "source",
            "category",
            doc="trace; or capture, twin: copied under a graph launch from the capture of the graph or from "
            "an eager run, without duration",
        ),
    ),
)

OPS = Schema(
    "ops",
    (
        Column("event_id", "int64", doc="row of the op in `events`"),
        Column("shapes", "category", doc="JSON text of the argument dimensions, '' where not recorded"),
        Column("dtypes", "category", doc="JSON text of the argument types"),
        Column("strides", "category", doc="JSON text of the argument strides"),
        Column("values", "category", doc="JSON text of the scalar arguments"),
        Column(
            "inferred",
            "category",
            doc="types and sizes of the tensor arguments where a graph was captured for another batch size, "
            "else ''; then the columns above are empty",
        ),
        Column("sequence", "int64", doc="autograd sequence number, -1 if none"),
        Column("forward_thread", "int64", doc="profiler's number of the forward thread; >0 on backward ops"),
    ),
)

LAUNCHES = Schema(
    "launches",
    (
        Column("event_id", "int64", doc="row of the launch call in `events`"),
        Column("kernel", "category", doc="the kernel that it launches, where the call names it (ROCm)"),
    ),
)

COLLECTIVES = Schema(
    "collectives",
    (
        Column("event_id", "int64", doc="the CPU record, or the kernel if only that carries the metadata"),
        Column("kernel_id", "int64", doc="its GPU kernel (for gloo the annotation), -1 if not in the trace"),
        Column("collective", "category", doc="allreduce, all_to_allv, ..."),
        Column("group", "category", doc="process group name"),
        Column(
            "group_description", "category", doc="what the program calls the group, '' where not recorded"
        ),
        Column("group_ranks", "category", doc="JSON text; may be cut by the profiler"),
        Column("group_size", "int64", "count", "ranks in the group, -1 if not recorded"),
        Column("dtype", "category", doc="element type, as the profiler writes it"),
        Column("in_bytes", "int64", "bytes", "input of this rank, -1 if not recorded"),
        Column("out_bytes", "int64", "bytes", "output of this rank, -1 if not recorded"),
        Column("in_split", "category", doc="JSON text of the split sizes sent, elements"),
        Column("out_split", "category", doc="JSON text of the split sizes received, elements"),
        Column("order", "int64", "count", "position among the collectives of its group, by start"),
        Column("peer", "int64", doc="the other rank of a send or receive, -1 if not recorded"),
    ),
)

LINKS = Schema(
    "links",
    (
        Column(
            "kernel_id",
            "int64",
            doc="GPU work: kernels, copies and memsets; in a CPU-only trace ops and gloo's communication",
        ),
        Column("launch_id", "int64", doc="the runtime or driver call, -1 if not in the trace"),
        Column("call_id", "int64", doc="copied launch call of a node that a graph replays, -1 if none"),
        Column("op_id", "int64", doc="innermost op around the launch call, -1 if none"),
        Column("forward_op_id", "int64", doc="forward op whose gradient this computes, -1 if none"),
    ),
)
