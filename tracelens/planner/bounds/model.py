"""The speed of light of a platform: what each operation computes and moves, and how long that takes at least.

An operation runs on the GPUs of one node, with equal work on each; latencies, launches and synchronization
are not part of its bound. All-reduces have latencies: their algorithms overtake each other by message size.

By default the operations are the shapes of the AMD Developer Challenge 2025 (distributed inference kernels)
on eight MI300X of one node; each problem was ranked by the geometric mean over its shapes. The organizers'
task files are not reproduced here; the shapes are as recorded by participants:

- all-to-all: gau-nernst, AMD all2all worklog (table of the five benchmark shapes, times of its versions),
  https://github.com/gau-nernst/gpu-mode-kernels/blob/main/amd-distributed/all2all/README.md, 2025;
- GEMM + reduce-scatter: the last six shapes of amd-distributed/gemm-reduce-scatter/run.py in the same
  repository; Yotta Labs, paper.md (from 64x7168x18432 to 8192x8192x29568),
  https://github.com/yottalabsai/yotta_amd_kernel, 2025-10;
- all-gather + GEMM: keys (m, n/8, k) of online_config in prob3_ag__cccf7a.py of Yotta Labs' repository.

A problem draws 1 to max_num_tokens tokens on each GPU; the bounds are for max_num_tokens. Elements are
float16 in the all-to-all and bfloat16 in GEMMs (reference implementations of the challenge,
https://github.com/gpu-mode/reference-kernels, problems/amd_distributed).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from typing import Any, Literal, NamedTuple

from msgspec.structs import replace

from tracelens.devices import Device
from tracelens.dtypes import element_bytes, short_dtype
from tracelens.errors import TracelensError
from tracelens.planner.block import Exchange
from tracelens.planner.collectives import (
    AlphaBeta,
    LinkRates,
    StepLatency,
    hierarchical_all_reduce,
    measured_time,
    modeled_seconds,
    one_shot_all_reduce,
    ring_all_reduce,
    two_shot_all_reduce,
)
from tracelens.planner.config import at_least_one, one_of
from tracelens.planner.distinct import Pool, distinct_blocks
from tracelens.planner.step_time import HELP as STEP_TIME_HELP
from tracelens.planner.step_time import LEAST_LINK_BYTES_PER_S, Assumption, LinksName, Machine
from tracelens.planner.step_time import SOURCES as STEP_TIME_SOURCES
from tracelens.registry import purpose
from tracelens.table import Column, Result, Schema, Skip
from tracelens.units import size_text

Copies = Literal["expert", "GPU"]
"""An MoE dispatch sends a token once to each of its experts, or once to each GPU that has some of them."""


@dataclass(frozen=True)
class Operation:
    """What each GPU does in an operation, at least."""

    name: str  # in tables
    sizes: Mapping[str, int]  # of the whole operation, by name
    dtype: str  # element type, short
    ranks: int  # GPUs that take part
    flops: float  # of GEMMs
    memory_bytes: float  # read from and written to memory
    messages: tuple[Exchange, ...]  # over links, one after the other


class Bound(NamedTuple):
    """Seconds that each resource needs."""

    gemm: float
    memory: float
    links: float

    @property
    def overlapped(self) -> float:
        """Bound if communication and computation overlap perfectly: the busiest resource."""
        return max(self)

    @property
    def serial(self) -> float:
        """Bound if they do not overlap: the GEMM, as its roofline allows, and then the messages."""
        return max(self.gemm, self.memory) + self.links

    @property
    def limit(self) -> str:
        """The busiest resource."""
        return max(zip(self, ("GEMM", "memory", "links"), strict=True))[1]


RateName = Literal["peak", "achievable"]
HELP = {
    "matrix": "GEMM rate: the data-sheet peak, or achievable (as published by the vendor, else the peak)",
    "links": STEP_TIME_HELP["links"],
    "link_bytes_per_s": "from one GPU to all others of its node, one direction; 0: as in the device file",
    "nic_bytes_per_s": STEP_TIME_HELP["nic_bytes_per_s"],
    "link_step_ns": "latency of one step of a collective inside a node",
    "nic_step_ns": "latency of one step of a collective between nodes",
}
"""Assumptions that can be changed."""
_NCCL = "NCCL 2.28.7, src/graph/tuning.cc, ncclTunerConstantsDefaults.hwLatencies: a ring step with LL128"
_SOURCES = {
    "matrix": "speed of light: no GEMM is faster",
    "links": STEP_TIME_SOURCES["links"],
    "nic_bytes_per_s": STEP_TIME_SOURCES["nic_bytes_per_s"],
    "link_step_ns": f"{_NCCL} over NVLink",
    "nic_step_ns": f"{_NCCL} over the network",
}


@dataclass(frozen=True)
class Platform:
    """Nodes of one kind of GPU; see HELP for the assumptions.

    Raises:
        TracelensError: a size or rate out of range.
    """

    device: Device  # of all GPUs
    nodes: int = 2  # of collectives between nodes
    gpus_per_node: int = 8  # GPUs per node
    matrix: RateName = "peak"
    links: LinksName = "auto"
    link_bytes_per_s: float = 0.0
    nic_bytes_per_s: float = Machine.nic_bytes_per_s
    link_step_ns: int = 1_900
    nic_step_ns: int = 4_000

    def __post_init__(self) -> None:
        one_of(self)
        at_least_one(self, ("nodes", "gpus_per_node"))
        if min(self.link_step_ns, self.nic_step_ns) < 0:
            raise TracelensError("latencies must be 0 ns or more")
        if self.link_bytes_per_s and self.link_bytes_per_s < LEAST_LINK_BYTES_PER_S:
            raise TracelensError(
                f"link_bytes_per_s is {self.link_bytes_per_s:g} bytes/s: use 448e9 for seven links of 64 GB/s"
            )
        if not (self.link_bytes_per_s or self.device.gpu_link_bytes_per_s):
            raise TracelensError(
                f"the link rate of {self.device.name} is unknown: pass --assume link_bytes_per_s=448e9"
            )

    @property
    def _machine(self) -> Machine:
        return Machine(matrix=self.matrix, links=self.links, nic_bytes_per_s=self.nic_bytes_per_s)

    def rates(self) -> LinkRates:
        """Bandwidths of one GPU."""
        rate = self.link_bytes_per_s or self.device.gpu_link_bytes_per_s
        # Bounds take the links' bandwidth; what was measured stands beside them.
        rates = self._machine.rates(replace(self.device, gpu_link_bytes_per_s=rate))
        return rates._replace(measured=self.device.measured)

    def steps(self) -> StepLatency:
        """Latency of one step inside and between nodes."""
        return StepLatency(self.link_step_ns / 1e9, self.nic_step_ns / 1e9)

    def matrix_rate(self, dtype: str) -> float:
        """FLOP/s of GEMMs; raises TracelensError if the device has no rate for the type."""
        return self._machine.matrix_rate(self.device, dtype)

    def assumptions(self, dtypes: tuple[str, ...]) -> list[Assumption]:
        """The figures of the device for these element types, and what is assumed of the machine."""
        rates = self.rates()
        device = f"device file of {self.device.name}"
        link = "changed" if self.link_bytes_per_s else device
        figures = [
            Assumption("link_bytes_per_s", f"{rates.links:.4g}", HELP["link_bytes_per_s"], link),
            Assumption("hbm_bytes_per_s", f"{self.device.hbm_bytes_per_s:.4g}", "memory bandwidth", device),
        ]
        if among := self.device.measured.message_ranks:
            meaning = "columns `measured_ns`: messages on the device; the nearest number of ranks counts"
            figures.append(Assumption("measured_messages", among, meaning, device))
        for dtype in dtypes:
            rate = f"{self.matrix_rate(dtype):.4g}"
            figures.append(Assumption(f"matrix_flops_per_s.{dtype}", rate, "GEMM rate", device))
        defaults = Platform(self.device)
        for name, source in _SOURCES.items():
            value = getattr(self, name)
            text = f"{value:.4g}" if isinstance(value, float) else str(value)
            if value == "auto":
                text = f"auto ({'mesh' if rates.is_mesh else 'switch'})"
            is_default = value == getattr(defaults, name)
            figures.append(Assumption(name, text, HELP[name], source if is_default else "changed"))
        return figures


SIZES = tuple(1 << exponent for exponent in range(17, 24))
"""128 KiB to 8 MiB, powers of two."""
ALL_REDUCES: Mapping[str, Callable[[int, int, LinkRates, StepLatency], AlphaBeta]] = {
    "ring": ring_all_reduce,
    "one-shot": one_shot_all_reduce,
    "two-shot": two_shot_all_reduce,
    "hierarchical": hierarchical_all_reduce,
}


class Range(NamedTuple):
    """Message sizes for which one algorithm is the fastest; `to_bytes` is inf for the largest."""

    algorithm: str
    from_bytes: float
    to_bytes: float


CHALLENGE_RANKS = 8
CHALLENGE_DEVICE = "mi300x"
CHALLENGE_ALL_TO_ALL = (
    (8, 2, 6144, 16),
    (64, 6, 2048, 32),
    (128, 4, 2880, 128),
    (128, 8, 4096, 256),
    (256, 8, 7168, 256),
)
"""(experts, experts per token, hidden size, tokens of each GPU)."""
CHALLENGE_GEMM_REDUCE_SCATTER = (
    (64, 7168, 18432),
    (512, 4096, 12288),
    (2048, 2880, 2880),
    (4096, 4096, 4096),
    (8192, 4096, 14336),
    (8192, 8192, 29568),
)
"""(m, n, k); k is divided over the GPUs."""
CHALLENGE_ALL_GATHER_GEMM = (
    (64, 18432, 7168),
    (512, 12288, 4096),
    (2048, 2880, 2880),
    (4096, 4096, 4096),
    (8192, 14336, 4096),
    (8192, 29568, 8192),
)
"""(m, n, k); n is divided over the GPUs."""


class Published(NamedTuple):
    """A published time of a problem, taken for the geometric mean over its shapes."""

    operation: str
    implementation: str
    dur_ns: float
    source: str


_WORKLOG = "gau-nernst, AMD all2all worklog, github.com/gau-nernst/gpu-mode-kernels, 2025"
PUBLISHED_TIMES = (
    Published("all-to-all per expert", "reference: PyTorch, loops over tokens", 93_540e3, _WORKLOG),
    Published("all-to-all per expert", "PyTorch, sorted, RCCL all-to-all", 1_311e3, _WORKLOG),
    Published("all-to-all per expert", "fused HIP kernels on symmetric memory", 303e3, _WORKLOG),
)
"""Only all-to-all times have a citable source; the leaderboard itself is not archived."""

_MEASURED = Column(
    "measured_ns",
    "float64",
    "ns",
    "messages as measured on the device; missing: not measured",
    intensive=True,
    absent=-1,
)
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
    _MEASURED,
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
            "hierarchical_ns",
            "float64",
            "ns",
            "reduce inside nodes, between them, and gather; missing: one node",
            absent=-1,
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
        Column(
            "to_bytes",
            "int64",
            "bytes",
            "the size at which the next one is as fast; missing: no limit",
            absent=-1,
        ),
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
        _MEASURED,
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


def bounds(platform: Platform, operations: Sequence[Operation] = ()) -> Result:
    """How fast can collectives, and the GEMMs next to them, be at most on this machine?

    By default the operations of one node are those of the AMD Developer Challenge 2025.

    Returns:
        tables `all_to_all`, `gemms` and `geometric_means` of the operations, `published` times of the
        challenge, `all_reduce`, `algorithms` and `crossovers` of all-reduces on one node and on all, and
        `assumptions`.

    Raises:
        TracelensError: a shape that the GPUs cannot share, or an element type without a GEMM rate.
    """
    is_challenge = not operations
    skips = []
    if is_challenge and platform.gpus_per_node != CHALLENGE_RANKS:
        reason = f"its problems are for {CHALLENGE_RANKS} GPUs of a node, not {platform.gpus_per_node}"
        skips.append(Skip("AMD Developer Challenge 2025", f"{reason}: pass shapes"))
    else:
        operations = operations or challenge_operations()
    limits = [(operation, bound(operation, platform)) for operation in operations]
    of_name: dict[str, list[Bound]] = {}
    for operation, limit in limits:
        of_name.setdefault(operation.name, []).append(limit)
    means: list[dict[str, Any]] = [
        {
            "operation": name,
            "shapes": len(of_operation),
            "overlapped_ns": _geometric_mean([limit.overlapped for limit in of_operation]) * 1e9,
            "serial_ns": _geometric_mean([limit.serial for limit in of_operation]) * 1e9,
        }
        for name, of_operation in of_name.items()
    ]
    published: list[dict[str, Any]] = []
    if is_challenge and platform.device.name == CHALLENGE_DEVICE:
        bound_ns = {row["operation"]: row["overlapped_ns"] for row in means}
        published = [
            {
                "operation": line.operation,
                "implementation": line.implementation,
                "dur_ns": line.dur_ns,
                "bound_ns": bound_ns[line.operation],
                "achieved": bound_ns[line.operation] / line.dur_ns,
                "note": line.source,
            }
            for line in PUBLISHED_TIMES
            if line.operation in bound_ns
        ]
    dtypes = tuple(dict.fromkeys(operation.dtype for operation in operations if operation.flops))
    rows = {
        "all_to_all": [_row(*limit, platform) for limit in limits if not limit[0].flops],
        "gemms": [_row(*limit, platform) for limit in limits if limit[0].flops],
        "geometric_means": means,
        "published": published,
        **_all_reduce(platform),
        "assumptions": assumed(platform, dtypes),
    }
    tables = {
        name: schema.from_rows({column: row[column] for column in schema.names} for row in rows[name])
        for name, schema in TABLES.items()
        if rows.get(name)
    }
    return Result(
        "bounds",
        "Speed of light",
        tables,
        doc=purpose(bounds),
        skips=tuple(skips),
        meta={
            "device": platform.device.name,
            "nodes": platform.nodes,
            "gpus_per_node": platform.gpus_per_node,
        },
        command="tracelens project bounds",
    )


def _row(operation: Operation, limit: Bound, platform: Platform) -> dict[str, Any]:
    times = [
        measured_time(
            message.collective,
            max(message.sent, message.received),
            operation.ranks,
            operation.ranks,
            platform.rates(),
        )
        for message in operation.messages
    ]
    measured_ns = sum(time.seconds for time in times if time) * 1e9 if all(times) else -1.0
    return {
        "operation": operation.name,
        **operation.sizes,
        "dtype": operation.dtype,
        "gemm_ns": limit.gemm * 1e9,
        "memory_ns": limit.memory * 1e9,
        "link_ns": limit.links * 1e9,
        "measured_ns": measured_ns,
        "overlapped_ns": limit.overlapped * 1e9,
        "serial_ns": limit.serial * 1e9,
        "limited_by": limit.limit,
        "flops": float(operation.flops),
        "memory_bytes": float(operation.memory_bytes),
        "message_bytes": float(max(max(message.sent, message.received) for message in operation.messages)),
    }


def _geometric_mean(values: Sequence[float]) -> float:
    return exp(sum(map(log, values)) / len(values))


def _all_reduce(platform: Platform) -> dict[str, list[dict[str, Any]]]:
    """Rows of the three tables of all-reduces, on one node and on all."""
    by_size, lines, ranges = [], [], []
    for nodes in sorted({1, platform.nodes}):
        times = algorithms(platform, nodes)
        if not times:
            continue
        for name, line in times.items():
            lines.append(
                {
                    "nodes": nodes,
                    "algorithm": name,
                    "link_steps": line.link_steps,
                    "nic_steps": line.nic_steps,
                    "alpha_ns": line.alpha_s * 1e9,
                    "beta_bytes_per_s": 1 / line.beta_s,
                }
            )
        for size in SIZES:
            ns = {name: line.seconds(size) * 1e9 for name, line in times.items()}
            best = min(ns, key=lambda name: ns[name])
            by_size.append(
                {
                    "nodes": nodes,
                    "gpus": nodes * platform.gpus_per_node,
                    "size": size_text(size),
                    "bytes": size,
                    "ring_ns": ns["ring"],
                    "one_shot_ns": ns["one-shot"],
                    "two_shot_ns": ns["two-shot"],
                    "hierarchical_ns": ns.get("hierarchical", -1.0),
                    "fastest": best,
                    "speedup": ns["ring"] / ns[best],
                }
            )
        for span in fastest(times):
            is_last = span.to_bytes == float("inf")
            sizes = f"from {size_text(span.from_bytes)}" if is_last else f"up to {size_text(span.to_bytes)}"
            ranges.append(
                {
                    "nodes": nodes,
                    "algorithm": span.algorithm,
                    "sizes": sizes if span.from_bytes or not is_last else "all",
                    "from_bytes": round(span.from_bytes),
                    "to_bytes": -1 if is_last else round(span.to_bytes),
                }
            )
    return {"all_reduce": by_size, "algorithms": lines, "crossovers": ranges}


def assumed(platform: Platform, dtypes: tuple[str, ...]) -> list[dict[str, Any]]:
    """Rows of the assumptions."""
    return [
        {"name": line.name, "value": line.value, "note": f"{line.meaning}; {line.source}"}
        for line in platform.assumptions(dtypes)
    ]


def bound(operation: Operation, platform: Platform) -> Bound:
    """The bound of an operation on GPUs of one node."""
    return Bound(
        gemm_seconds(operation.flops, operation.dtype, platform),
        operation.memory_bytes / platform.device.hbm_bytes_per_s,
        sum(link_seconds(message, operation.ranks, platform.rates()) for message in operation.messages),
    )


def gemm_seconds(flops: float, dtype: str, platform: Platform) -> float:
    """FLOPs at the GEMM rate of the element type."""
    return flops / platform.matrix_rate(dtype) if flops else 0.0


def link_seconds(message: Exchange, ranks: int, rates: LinkRates) -> float:
    """Bytes over the links of one GPU, all ranks on one node."""
    return modeled_seconds(message.collective, max(message.sent, message.received), ranks, ranks, rates)


def gemm_reduce_scatter(m: int, n: int, k: int, ranks: int, dtype: str = "bf16") -> Operation:
    """[m, k] x [k, n] with k divided over the ranks, its partial sums reduced and scattered by rows.

    A rank multiplies m x k/p by k/p x n. It reads both. Its memory takes in a partial result of m/p x n from
    each rank, itself included: m n elements. The reduce-scatter's full buffer is the partial result.
    """
    _divisible("k", k, ranks)
    _divisible("m", m, ranks)
    item, local_k = element_bytes(dtype), k // ranks
    moved = m * local_k + local_k * n + m * n
    message = Exchange("results", "reduce_scatter", "node", m * n * item, m * n * item // ranks)
    flops = 2 * m * n * local_k
    return Operation(
        name="GEMM + reduce-scatter",
        sizes={"m": m, "n": n, "k": k},
        dtype=short_dtype(dtype),
        ranks=ranks,
        flops=flops,
        memory_bytes=moved * item,
        messages=(message,),
    )


def all_gather_gemm(m: int, n: int, k: int, ranks: int, dtype: str = "bf16") -> Operation:
    """[m, k] x [k, n] with n divided over the ranks; the rows of [m, k] are gathered before.

    A rank multiplies m x k by k x n/p: it reads both, its own m/p rows from memory and the others as they
    arrive there, and writes m x n/p. The all-gather's full buffer is m x k.
    """
    _divisible("n", n, ranks)
    _divisible("m", m, ranks)
    item, local_n = element_bytes(dtype), n // ranks
    moved = m * k + k * local_n + m * local_n
    message = Exchange("rows", "all_gather", "node", m * k * item // ranks, m * k * item)
    flops = 2 * m * local_n * k
    return Operation(
        name="all-gather + GEMM",
        sizes={"m": m, "n": n, "k": k},
        dtype=short_dtype(dtype),
        ranks=ranks,
        flops=flops,
        memory_bytes=moved * item,
        messages=(message,),
    )


def moe_all_to_all(
    experts: int,
    topk: int,
    hidden: int,
    tokens: int,
    ranks: int,
    dtype: str = "fp16",
    copies: Copies = "expert",
) -> Operation:
    """Dispatch of an MoE layer and combine, with balanced routing; the experts themselves are left out.

    A token has topk distinct experts, all sets equally likely. With a copy per expert, a rank sends
    tokens x topk rows, 1/p of them to itself. With a copy per GPU, a token goes once to each rank with one
    of its experts (see `planner.distinct`); the rank combines the rows of its experts before it sends them
    back. Memory holds the rows that arrive in dispatch, gives them back in combine, and has the tokens read
    and written once.
    """
    _divisible("experts", experts, ranks)
    if not 1 <= topk <= experts:
        raise TracelensError(f"topk must be 1 to the {experts} experts, not {topk}")
    item = element_bytes(dtype)
    rows = tokens * (topk if copies == "expert" else distinct_blocks(Pool(experts, topk, 1, 1), ranks))
    size = rows * hidden * item
    moved = 2 * (tokens * hidden * item + size)
    sizes = {"experts": experts, "topk": topk, "hidden": hidden, "tokens": tokens}
    messages = (Exchange("tokens", "all_to_all", "node", size, size),) * 2
    return Operation(
        name=f"all-to-all per {copies}",
        sizes=sizes,
        dtype=short_dtype(dtype),
        ranks=ranks,
        flops=0,
        memory_bytes=moved,
        messages=messages,
    )


def _divisible(name: str, size: int, ranks: int) -> None:
    if size < 1 or size % ranks:
        raise TracelensError(f"{name}={size} is not a multiple of the {ranks} GPUs that share it")


def algorithms(platform: Platform, nodes: int) -> dict[str, AlphaBeta]:
    """Time of each algorithm on a number of nodes; one node has no hierarchy, one GPU nothing to reduce."""
    near = platform.gpus_per_node
    if nodes * near == 1:
        return {}
    return {
        name: algorithm(nodes, near, platform.rates(), platform.steps())
        for name, algorithm in ALL_REDUCES.items()
        if name != "hierarchical" or (nodes > 1 and near > 1)
    }


def fastest(times: Mapping[str, AlphaBeta]) -> list[Range]:
    """The fastest algorithm by message size, from 0 up: the lower envelope of straight lines.

    Two lines alpha + beta x meet at x = (alpha2 - alpha1) / (beta1 - beta2); from the line that is lowest at
    0, the next is the one of smaller beta that it meets first. Equal lines go by their order.
    """
    name = min(times, key=lambda name: (times[name].alpha_s, times[name].beta_s))
    ranges: list[Range] = []
    start = 0.0
    while True:
        line = times[name]
        meets = [
            ((other.alpha_s - line.alpha_s) / (line.beta_s - other.beta_s), other.beta_s, following)
            for following, other in times.items()
            if other.beta_s < line.beta_s
        ]
        if not meets:
            return [*ranges, Range(name, start, float("inf"))]
        end, _, following = min(meets)
        end = max(end, start)
        if end > start:
            ranges.append(Range(name, start, end))
        name, start = following, end


def challenge_operations() -> list[Operation]:
    """All operations of the challenge."""
    return [
        *(moe_all_to_all(*shape, CHALLENGE_RANKS, copies="expert") for shape in CHALLENGE_ALL_TO_ALL),
        *(moe_all_to_all(*shape, CHALLENGE_RANKS, copies="GPU") for shape in CHALLENGE_ALL_TO_ALL),
        *(gemm_reduce_scatter(*shape, CHALLENGE_RANKS) for shape in CHALLENGE_GEMM_REDUCE_SCATTER),
        *(all_gather_gemm(*shape, CHALLENGE_RANKS) for shape in CHALLENGE_ALL_GATHER_GEMM),
    ]
