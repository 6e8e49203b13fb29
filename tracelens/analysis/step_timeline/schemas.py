"""The tables of the picture of a step, and the one that says it in numbers."""

from __future__ import annotations

from tracelens.table import RANK, Column, Schema

COMMUNICATION, WAITING, IDLE = "communication", "waiting", "idle"
"""States besides the classes of kernels, copies and memsets."""

_TIMES = (
    Column("ts_ns", "int64", "ns", "since the first instant shown, by one clock for all ranks"),
    Column("dur_ns", "int64", "ns", "from there to the end"),
)

SHARES = Schema(
    "GPU time of each rank by activity",
    (
        RANK,
        Column(
            "state",
            "category",
            doc=f"kernel class, copy, fill (memset), {COMMUNICATION}, {WAITING} or {IDLE}",
        ),
        Column("dur_ns", "int64", "ns", "time in this state"),
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
        RANK,
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
        RANK,
        Column("stream", "int64", doc="stream of the GPU"),
        *_TIMES,
        Column("name", "category", doc="kernel, or kind and direction of a copy"),
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
        RANK,
        Column("host", "category", doc="name of the machine, '' where the trace does not say"),
        Column("first_event_offset_ns", "int64", "ns", "its first event by the clock of the other tables"),
    ),
    doc="Perfetto shows times since the first event of a trace.",
    drawn=True,
)
MARKS = Schema(
    "Steps, passes and layers",
    (
        RANK,
        Column("kind", "category", doc="step, serving, pipeline or moe_layer"),
        Column("name", "category", doc="step mark, label of a serving step, pass or layer"),
        *_TIMES,
        Column("depth", "int64", "count", "0 outermost"),
    ),
    drawn=True,
)
MESSAGES = Schema(
    "Messages between ranks",
    (
        Column("from_rank", "int64", doc="rank that sends"),
        Column("from_ts_ns", "int64", "ns", "start of the send, by the clock of the other tables"),
        Column("to_rank", "int64", doc="rank that receives"),
        Column("to_ts_ns", "int64", "ns", "end of the receive"),
        Column("name", "category", doc="process group and size"),
    ),
    drawn=True,
)

TABLES = {
    "shares": SHARES,
    "steps": STEPS,
    "states": STATES,
    "kernels": KERNELS,
    "traces": TRACES,
    "marks": MARKS,
    "messages": MESSAGES,
}
