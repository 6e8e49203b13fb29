"""The tables of the picture of a step, and the one that says it in numbers."""

from __future__ import annotations

from tracelens.table import Column, Schema

COMMUNICATION, WAITING, IDLE = "communication", "waiting", "idle"
"""States besides the classes of kernels, copies and memsets."""

_TIMES = (
    Column("ts_ns", "int64", "ns", "since the first instant shown, by one clock for all ranks"),
    Column("dur_ns", "int64", "ns"),
)

SHARES = Schema(
    "GPU time of each rank by activity",
    (
        Column("rank", "int64"),
        Column(
            "state",
            "category",
            doc=f"kernel class, copy, fill (memset), {COMMUNICATION}, {WAITING} or {IDLE}",
        ),
        Column("dur_ns", "int64", "ns"),
        Column("fraction", "float64", "fraction", "of the rank's recorded time"),
    ),
    doc="Each nanosecond counts once: computation hides communication, communication hides copies. "
    f"{COMMUNICATION.capitalize()} moves data; {WAITING} is the time until the last rank arrives.",
)
STEPS = Schema(
    "Steps in the picture",
    (
        Column("step", "str", doc="'' for a recording without step marks"),
        *_TIMES,
        Column("kernels", "int64", "count", "its kernels, copies and memsets on all ranks"),
        Column("shown", "bool", doc="whether these are in the table `kernels`"),
    ),
    doc="A step runs from its first start to its last end on any rank.",
    drawn=True,
)
STATES = Schema(
    "Activity of each rank",
    (
        Column("rank", "int64"),
        *_TIMES,
        Column("state", "category", doc="as in `shares`"),
        Column(
            "detail",
            "category",
            doc="op of a kernel; direction of a copy; collective and group; late rank and cause; cause of "
            "idle time",
        ),
    ),
    doc="Divides each rank's time without overlaps or gaps.",
    drawn=True,
)
KERNELS = Schema(
    "Kernels, copies and memsets",
    (
        Column("rank", "int64"),
        Column("stream", "int64"),
        *_TIMES,
        Column("name", "category"),
        Column("category", "category", doc="kernel class"),
        Column("op", "category", doc="innermost op around the launch call"),
        Column("shapes", "category", doc="of its arguments"),
        Column(
            "module",
            "category",
            doc="innermost nn.Module, else record_function scope; of backward work around the forward op",
        ),
        Column("stage", "category", doc="of the MoE layer"),
        Column("source", "category", doc="innermost frame of the user's program, if recorded with stacks"),
    ),
    drawn=True,
)
TRACES = Schema(
    "Traces in the picture",
    (
        Column("rank", "int64"),
        Column("host", "category", doc="name of the machine, '' where the trace does not say"),
        Column("first_event_offset_ns", "int64", "ns", "its first event by the clock of the other tables"),
    ),
    doc="Perfetto shows times since the first event of a trace.",
    drawn=True,
)
MARKS = Schema(
    "Steps, passes and layers",
    (
        Column("rank", "int64"),
        Column("kind", "category", doc="step, serving, pipeline or moe_layer"),
        Column("name", "category"),
        *_TIMES,
        Column("depth", "int64", "count", "0 outermost"),
    ),
    drawn=True,
)
MESSAGES = Schema(
    "Messages between ranks",
    (
        Column("from_rank", "int64"),
        Column("from_ts_ns", "int64", "ns", "start of the send, by the clock of the other tables"),
        Column("to_rank", "int64"),
        Column("to_ts_ns", "int64", "ns", "end of the receive"),
        Column("name", "category", doc="process group and size"),
    ),
    drawn=True,
)
