"""Schemas of the bounds."""

from __future__ import annotations

from tracelens.table import Column, Schema

_RESOURCES = (
    Column("gemm_ns", "float64", "ns", "FLOPs of a GPU at its GEMM rate"),
    Column("memory_ns", "float64", "ns", "bytes of a GPU at its memory bandwidth", intensive=True),
    Column("link_ns", "float64", "ns", "bytes of a GPU over its links", intensive=True),
)
_BOUNDS = (
    Column("overlapped_ns", "float64", "ns", "bound with perfect overlap: the busiest resource"),
    Column("serial_ns", "float64", "ns", "bound without overlap: max(GEMM, memory) + links"),
)
_LIMIT = Column("limited_by", "category", doc="the busiest resource: GEMM, memory or links")

_MOVED = (
    Column("memory_bytes", "float64", "bytes", "per GPU, read and written"),
    Column("message_bytes", "float64", "bytes", "full buffer of each message, as nccl-tests count"),
)
ALL_TO_ALL = Schema(
    "MoE dispatch and combine",
    (
        Column(
            "operation",
            "category",
            doc="a token goes once to each of its experts, or once to each GPU that has some of them",
        ),
        Column("experts", "int64", "count", "on all GPUs"),
        Column("topk", "int64", "count", "experts per token"),
        Column("hidden", "int64", "count", "elements per token"),
        Column("tokens", "int64", "count", "on each GPU"),
        Column("dtype", "category", doc="element type"),
        *_RESOURCES[1:],
        *_BOUNDS,
        _LIMIT,
        *_MOVED,
    ),
    doc="Two all-to-alls without the experts between them, balanced routing. No launch, latency or "
    "synchronization is in a bound.",
    key=("operation", "experts", "topk", "hidden", "tokens", "dtype"),
    leading="overlapped_ns",
)
GEMMS = Schema(
    "GEMMs with a collective",
    (
        Column("operation", "category", doc="what all GPUs of a node do together"),
        Column("m", "int64", "count", "rows of the result"),
        Column("n", "int64", "count", "columns of the result; divided among the GPUs behind an all-gather"),
        Column("k", "int64", "count", "inner size; divided among the GPUs before a reduce-scatter"),
        Column("dtype", "category", doc="element type"),
        *_RESOURCES,
        *_BOUNDS,
        _LIMIT,
        Column("flops", "float64", "flops", "per GPU"),
        *_MOVED,
    ),
    doc="FLOPs and bytes of a GPU over its rates. No launch, latency or synchronization is in a bound.",
    key=("operation", "m", "n", "k", "dtype"),
    leading="overlapped_ns",
)
MEANS = Schema(
    "Geometric means",
    (
        Column("operation", "category", doc="all shapes of an operation"),
        Column("shapes", "int64", "count", "shapes of the operation"),
        *_BOUNDS,
    ),
    doc="Over the shapes of an operation, as the AMD Developer Challenge 2025 ranks them.",
)
PUBLISHED = Schema(
    "Published times",
    (
        Column("operation", "category", doc="of the challenge"),
        Column("implementation", "str", doc="what was measured"),
        Column("dur_ns", "float64", "ns", "time as published, taken for the geometric mean over the shapes"),
        Column("bound_ns", "float64", "ns", "geometric mean of the bounds with overlap"),
        Column("achieved", "float64", "efficiency", "bound / time"),
        Column("note", "str", doc="source", prose=True),
    ),
)
ALL_REDUCE = Schema(
    "All-reduce by message size",
    (
        Column("nodes", "int64", "count", "nodes of the group"),
        Column("gpus", "int64", "count", "GPUs of the group"),
        Column("size", "category", doc="buffer of each GPU"),
        Column("bytes", "int64", "bytes", "the same"),
        Column("ring_ns", "float64", "ns", "flat rings over all GPUs"),
        Column("one_shot_ns", "float64", "ns", "each GPU sends its whole buffer to all others"),
        Column("two_shot_ns", "float64", "ns", "direct reduce-scatter, then direct all-gather"),
        Column(
            "hierarchical_ns", "float64", "ns", "reduce inside nodes, between them, and gather; -1: one node"
        ),
        Column("fastest", "category", doc="algorithm of the shortest time"),
        Column("speedup", "float64", doc="ring / fastest", intensive=True),
    ),
    doc="Latency of the steps plus bytes over the busiest link. Launch and skew are the same for all.",
)
ALGORITHMS = Schema(
    "Latency and bandwidth by algorithm",
    (
        Column("nodes", "int64", "count", "nodes of the group"),
        Column("algorithm", "category", doc="of the all-reduce"),
        Column("link_steps", "int64", "count", "steps over links on the longest path"),
        Column("nic_steps", "int64", "count", "steps between nodes on that path"),
        Column("alpha_ns", "float64", "ns", "latency of all steps"),
        Column("beta_bytes_per_s", "float64", "bytes/s", "buffer / transfer time"),
    ),
    doc="Time = alpha + bytes / beta.",
)
CROSSOVERS = Schema(
    "Fastest algorithm",
    (
        Column("nodes", "int64", "count", "nodes of the group"),
        Column("algorithm", "category", doc="fastest for these buffers"),
        Column("sizes", "str", doc="of the buffer of each GPU"),
        Column("from_bytes", "int64", "bytes", "the smallest"),
        Column("to_bytes", "int64", "bytes", "the size at which the next one is as fast; -1: no limit"),
    ),
)
ASSUMED = Schema(
    "Rates and assumptions",
    (
        Column("name", "str", doc="what is assumed"),
        Column("value", "str", doc="its value, with the unit in the name"),
        Column("note", "str", doc="meaning and source", prose=True),
    ),
)

TABLES = {
    "all_to_all": ALL_TO_ALL,
    "gemms": GEMMS,
    "geometric_means": MEANS,
    "published": PUBLISHED,
    "all_reduce": ALL_REDUCE,
    "algorithms": ALGORITHMS,
    "crossovers": CROSSOVERS,
    "assumptions": ASSUMED,
}

TRANSFERS = Schema(
    "Collectives against their links",
    (
        Column("collective", "category", doc="as the trace names it; send/recv: a send with its receive"),
        Column("group", "category", doc="process group"),
        Column("from_bytes", "int64", "bytes", "message sizes from this up to twice as much"),
        Column("count", "int64", "count", "collectives"),
        Column("ranks", "int64", "count", "ranks in the process group"),
        Column("nodes", "int64", "count", "nodes that they are on"),
        Column("latency_ns", "float64", "ns", "median, without waiting: of the last rank to arrive"),
        Column("bound_ns", "float64", "ns", "median of the bounds of their links"),
        Column("achieved", "float64", "efficiency", "sum of the bounds / sum of the latencies"),
        Column("excess_ns", "float64", "ns", "latencies - bounds, of all of them"),
        Column(
            "limited_by", "category", doc="links, network, or latency where its steps take longer than that"
        ),
        Column("note", "str", doc="reason for an efficiency above 100%"),
    ),
    doc="Bound: bytes over the busiest link, with the split sizes of each message where recorded.",
    key=("collective", "group", "from_bytes"),
    leading="excess_ns",
    descending=True,
)
FITTED = Schema(
    "Fitted bandwidth against the links",
    (
        Column("collective", "category", doc="as the trace names it"),
        Column("group", "category", doc="process group"),
        Column("collectives", "int64", "count", "collectives behind the fit"),
        Column("alpha_ns", "float64", "ns", "fitted latency of an empty message"),
        Column("beta_bytes_per_s", "float64", "bytes/s", "fitted asymptotic bandwidth"),
        Column("link_bytes_per_s", "float64", "bytes/s", "largest message / bound of its links"),
        Column("achieved", "float64", "efficiency", "fitted bandwidth / that of the links"),
        Column("note", "str", doc="reason for an efficiency above 100%"),
    ),
    doc="Fit of latency = alpha + bytes / beta to the run's own collectives.",
)
PAIRS = Schema(
    "GEMMs next to collectives",
    (
        Column("operation", "category", doc="the collective and the GEMM that takes or makes its data"),
        Column("group", "category", doc="process group"),
        Column("shape", "str", doc="m x n x k of the GEMM on one GPU"),
        Column("dtype", "category", doc="element type"),
        Column("count", "int64", "count", "pairs on all ranks"),
        Column("gemm_dur_ns", "float64", "ns", "median duration of the GEMM"),
        Column("latency_ns", "float64", "ns", "median latency of the collective, without waiting"),
        Column(
            "compute_ns", "float64", "ns", "bound of the GEMM: its FLOPs, or its bytes if they take longer"
        ),
        _RESOURCES[2],
        *_BOUNDS,
        Column("achieved", "float64", "efficiency", "bound with overlap / (GEMM + latency)"),
        _LIMIT,
        Column("note", "str", doc="reason for an efficiency above 100%"),
    ),
    doc="The next GEMM behind an all-gather of whose operands one has the gathered size, and the last one "
    "before a reduce-scatter or all-reduce whose result has the size of the message.",
    key=("operation", "group", "shape", "dtype"),
    leading="gemm_dur_ns",
)

TRACE_TABLES = {"collectives": TRANSFERS, "fit": FITTED, "pairs": PAIRS, "assumptions": ASSUMED}
