"""The columns of the wide tables.

As in all tables of this package, absent numbers are -1 here; `frames` makes missing values of them.
"""

from __future__ import annotations

from tracelens.analysis.moe import PHASES, STAGES
from tracelens.table import RANK, Column, Schema
from tracelens.trace import WORK_KINDS

_STEP = Column("step", "category", doc="the step that launched it: name of its mark")
_PROGRAM = (
    Column("stage", "category", doc=f"of the MoE layer: {', '.join(STAGES)}; '' outside MoE layers"),
    Column(
        "layer",
        "int64",
        doc="among the MoE layers of all chunks of the rank, from 0; missing outside them",
    ),
    Column("microbatch", "int64", doc="of the MoE layer, in the step, from 0; missing outside MoE layers"),
    Column(
        "phase",
        "category",
        doc=f"{', '.join(PHASES)} (forward work that runs again in the backward pass); '' for neither, "
        "such as the optimizer, or unknown",
    ),
    Column(
        "module",
        "category",
        doc="innermost nn.Module, else record_function scope; of backward work around the forward op",
    ),
    Column("source", "category", doc="innermost frame of the user's program; '' unless recorded with stacks"),
)
_SHAPES = Column(
    "shapes",
    "category",
    doc="types and sizes of the op's tensor arguments; with ~ those of another batch size; "
    "'' if not recorded",
)
_FORWARD_OP = Column(
    "forward_op", "category", doc="of backward work: the forward op whose gradient it computes"
)
_COSTS = (
    Column("dtype", "category", doc="element type of the arithmetic, which determines the peak"),
    Column("flops", "int64", "flops", "what it has to compute; missing where `uncounted` says why"),
    Column("read_bytes", "int64", "bytes", "what it has to read, each tensor once"),
    Column("write_bytes", "int64", "bytes", "what it has to write"),
    Column("link_bytes", "int64", "bytes", "what it has to send over the link to the host or other GPUs"),
    Column("flops_per_s", "float64", "flops/s", "achieved", intensive=True),
    Column("bytes_per_s", "float64", "bytes/s", "achieved; on the link if that is the bound", intensive=True),
    Column("roofline_ns", "float64", "ns", "least time on the device; missing without its peaks"),
    Column("efficiency", "float64", "efficiency", "roofline time / measured time", intensive=True),
    Column("bound", "category", doc="limit: compute, memory, host link, gpu link; '' if unknown"),
    Column("uncounted", "category", doc="why its FLOPs and bytes are unknown; '' otherwise"),
)

_OP_SOURCE = Column(
    "op_source",
    "category",
    doc="where the op is recorded: trace; capture or twin for what a graph replayed, with "
    "`, inferred` where its shapes are of another batch size; empty for no op",
)

KERNELS = Schema(
    "Every kernel, copy and memset",
    (
        RANK,
        _STEP,
        *_PROGRAM,
        Column("kind", "category", doc=", ".join(WORK_KINDS)),
        Column("category", "category", doc="kernel class; copy and fill for copies and memsets"),
        Column("op", "category", doc="innermost op around the launch call"),
        _FORWARD_OP,
        Column("name", "category", doc="of the kernel, copy or memset"),
        _SHAPES,
        Column("device", "int64", doc="GPU index, -1 on a host without GPU"),
        Column("stream", "int64", doc="of the GPU; the thread on a host without GPU"),
        Column("ts_ns", "int64", "ns", "start, by the clock of the rank's own trace"),
        Column("dur_ns", "int64", "ns", "duration of the kernel, copy or memset"),
        Column(
            "exclusive_ns",
            "int64",
            "ns",
            "wall time of its own: of overlapping work each nanosecond goes to one row, as in the breakdown",
        ),
        Column("launch_ts_ns", "int64", "ns", "start of the launch call, missing if not recorded"),
        *_COSTS,
        Column("kernel_id", "int64", doc="row in the trace's `events`"),
        Column("op_id", "int64", doc="row of the op in the trace's `events`, missing for none"),
        _OP_SOURCE,
    ),
    doc="In order of rank and start. FLOPs, bytes and roofline time of an op call with several kernels are "
    "divided among these by their time, so they add up and have the call's rate and efficiency.",
    key=(),
)

OPS = Schema(
    "Every op call with GPU work",
    (
        RANK,
        _STEP,
        *_PROGRAM,
        Column("category", "category", doc="kernel class of its longest kernel"),
        Column("name", "category", doc="of the op"),
        _FORWARD_OP,
        _SHAPES,
        Column("thread", "int64", doc="on the host"),
        Column("host_ts_ns", "int64", "ns", "start on the host, by the clock of the rank's own trace"),
        Column("host_dur_ns", "int64", "ns", "on the host, with the ops that it calls; unknown in graphs"),
        Column("ts_ns", "int64", "ns", "first start of its GPU work, by the clock of the rank's own trace"),
        Column("dur_ns", "int64", "ns", "GPU time: union of its kernels, copies and memsets"),
        Column("kernels", "int64", "count", "kernels, copies and memsets that it launched"),
        *_COSTS,
        Column("op_id", "int64", doc="row in the trace's `events`"),
        _OP_SOURCE,
    ),
    doc="GPU work belongs to the innermost op around its launch call, so each kernel is in one row and sums "
    "count nothing twice. In order of rank and call. Stage, layer, phase, module and step are those of the "
    "longest kernel.",
    key=(),
)

COLLECTIVES = Schema(
    "Every collective by rank",
    (
        RANK,
        _STEP,
        *_PROGRAM,
        Column("collective", "category", doc="send/recv: a send with its receive; '' if unknown"),
        Column("role", "category", doc="what the process group is for, such as EP, else its own name"),
        Column("group", "category", doc="process group: what it is for, and its ranks"),
        Column("group_size", "int64", "count", "ranks of the process group"),
        Column(
            "order", "int64", "count", "position among the collectives of the group; missing if not matched"
        ),
        Column("dtype", "category", doc="element type"),
        Column("bytes", "int64", "bytes", "largest message of any rank; for all-gather the whole buffer"),
        Column("sent_bytes", "int64", "bytes", "what this rank puts in"),
        Column("received_bytes", "int64", "bytes", "what this rank gets out"),
        Column("ts_ns", "int64", "ns", "start of the kernel, by the clock of the first rank"),
        Column("local_ts_ns", "int64", "ns", "start of the kernel, by the clock of the rank's own trace"),
        Column("dur_ns", "int64", "ns", "of the kernel: waiting + moving data"),
        Column(
            "wait_ns", "int64", "ns", "part waiting for the last rank; missing if not matched across ranks"
        ),
        Column("comm_ns", "int64", "ns", "part moving data; missing if not matched across ranks"),
        Column("exposed_ns", "int64", "ns", "part of dur_ns that is exposed: the GPU computes nothing then"),
        Column(
            "exposed_comm_ns",
            "int64",
            "ns",
            "part moving data and exposed; missing if not matched across ranks",
        ),
        Column(
            "latency_ns",
            "int64",
            "ns",
            "time on the wire: shortest duration of any rank, since the last to arrive does not wait; "
            "missing if not matched",
        ),
        Column("start_skew_ns", "int64", "ns", "last start - first start; missing if not matched"),
        Column("algbw_bytes_per_s", "float64", "bytes/s", "bytes / latency", intensive=True),
        Column(
            "busbw_bytes_per_s",
            "float64",
            "bytes/s",
            "algbw x share of the data that crosses links, by the conventions of nccl-tests",
            intensive=True,
        ),
        Column("last_rank", "int64", doc="last to arrive; missing if not matched"),
        Column("ranks", "int64", "count", "ranks of the run that recorded it"),
        Column("link_bytes", "int64", "bytes", "what the kernel has to send over the link to other GPUs"),
        Column(
            "roofline_ns", "float64", "ns", "least time on the link; missing without the device's figures"
        ),
        Column("host", "category", doc="machine of the rank, '' if not recorded"),
        Column("name", "category", doc="of the kernel"),
        Column("stream", "int64", doc="stream of the kernel; the thread on a host without GPU"),
        Column("group_name", "category", doc="the program's identifier for the group, often a number"),
        Column("kernel_id", "int64", doc="row in the trace's `events`"),
    ),
    doc="In order of rank and start. A kernel that serves several sends and receives has a row for each; "
    "`drop_duplicates(['rank', 'kernel_id'])` keeps one of them.",
    key=(),
)
