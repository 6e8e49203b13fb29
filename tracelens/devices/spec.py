"""`Device`: the figures of one GPU by element type, and what it was measured to achieve by size.

Measured are GEMMs, attention, memory, messages among ranks, and launches on the host. Rates between measured
sizes are interpolated on logarithmic scales. Below the smallest size a kernel takes as long as at the
smallest, so that its rate falls in proportion; above the largest the rate stays.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from math import exp, log
from typing import Literal, TypeVar

from msgspec import Struct, field

from tracelens.packing import REDUCERS, one_for_all
from tracelens.units import duration, three_digit_decimals

Engine = Literal["matrix", "vector"]

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")
"""What is measured among ranks."""
DTYPES = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "fp6", "fp4", "i64", "i32", "i16", "i8")
"""Element types that a device file can have peaks for."""

# Types that run at the rate of another one. Complex numbers are counted in complex operations; the rate of
# their parts is then an upper bound.
_SAME = {
    "fp8e4m3": "fp8", "fp8e5m2": "fp8", "fp8e8m0": "fp8", "fp4x2": "fp4",
    "u64": "i64", "u32": "i32", "u16": "i16", "u8": "i8",
    "c128": "fp64", "c64": "fp32", "c32": "fp16",
}  # fmt: skip

# What a vector unit computes in where no rate is published for the type itself, first choice first.
_VECTOR: Mapping[str, tuple[str, ...]] = {
    "tf32": ("fp32",),
    "bf16": ("fp32",),
    "fp16": ("fp32",),
    "i32": ("fp32",),
    "i64": ("i32", "fp32"),
    "i16": ("i32", "fp32"),
    "i8": ("i32", "fp32"),
    "bool": ("i32", "fp32"),
}

# Narrow floats exist only where matrix units take them; elsewhere nothing stands in.
_NARROW = ("fp8", "fp6", "fp4")

GemmKind = Literal["output", "weight"]
"""y = x w, whose rows are those of x, or the weight gradient x^T dy, which sums over these rows."""


class GemmCurve(Struct, frozen=True):
    """Rates of GEMMs of m rows with (k, n) weights, by m."""

    dtype: str  # of the operands, short as in `DTYPES`
    k: int  # width of the input
    n: int  # width of the output
    rows: tuple[int, ...]  # m, ascending; rows of each matrix in a grouped GEMM
    flops_per_s: tuple[float, ...]  # of all matrices together
    matrices: int = 1  # of a grouped GEMM; 1 for a plain one
    kind: GemmKind = "output"  # what is multiplied

    @property
    def measurement(self) -> tuple[object, ...]:
        """What the whole grid is of: curves of several measurements make no grid."""
        return self.dtype, self.kind, self.matrices > 1


class AttentionCurve(Struct, frozen=True):
    """Rates of causal flash attention by sequence length; the backward counts the recomputed scores."""

    dtype: str
    query_dim: int
    value_dim: int
    seq: tuple[int, ...]
    forward_flops_per_s: tuple[float, ...]
    backward_flops_per_s: tuple[float, ...]

    @property
    def measurement(self) -> tuple[object, ...]:
        return self.dtype, self.query_dim, self.value_dim


class Bandwidth(Struct, frozen=True):
    """Bytes per second by size."""

    # in device memory `copy`, `triad` (elementwise), `concat` (of parts of heads) and `scatter` (rows added
    # in any order), by bytes read and written; `to_device` and `to_host`; among ranks `all_reduce`,
    # `all_gather`, `reduce_scatter`, `all_to_all` and `send_recv`, by bytes that a rank has to send
    name: str
    size_bytes: tuple[int, ...]  # moved by one call, ascending; of collectives, a rank's larger buffer
    bytes_per_s: tuple[float, ...]  # of a GPU; of collectives, the bus bandwidth of nccl-tests
    ranks: int = 1  # of a collective
    ranks_per_node: int = 1  # of these on one node
    skew: float = 1.0  # of an all-to-all: what its busiest rank, which sizes are of, receives / the mean

    @property
    def measurement(self) -> tuple[object, ...]:
        return self.name, self.ranks, self.ranks_per_node, self.skew


_Curve = TypeVar("_Curve", GemmCurve, AttentionCurve, Bandwidth)


class Modeled(Struct, frozen=True):
    """Numbers of an architecture from which rates that were not measured are modeled; GEMMs by `tiles`."""

    matrix_share: float  # of the peak, under the load of large GEMMs: clock and issue
    load_bytes_per_s: float  # of operands into one compute unit, from caches
    hbm_share: float  # of the memory bandwidth that GEMMs reach
    start_ns: float  # launch to first loads, last stores to end; again where parts are added up
    tile_ns: float  # between two tiles on a compute unit
    fill_depth: float  # inner size that takes as long as to fill and drain the loop of a tile
    narrow: float  # bytes count as many times where rows are of odd length
    memory_share: float  # of the bandwidth by size of a measured GPU that kernels of frameworks reach
    tested: str = ""  # GEMMs: on what, with which errors

    @property
    def source(self) -> str:
        """Where rates of GEMMs are from."""
        return f"modeled (CDNA tiles), {self.tested}" if self.tested else "modeled (CDNA tiles)"


class LaunchCost(Struct, frozen=True):
    """Host time per kernel, ns; 0 is not measured."""

    kernel_ns: float = 0.0  # between short kernels that are launched back to back
    op_ns: float = 0.0  # of an op that no gradient flows through
    # of a model's forward in training, per kernel: its views, modules and Python included
    forward_ns: float = 0.0
    backward_ns: float = 0.0  # of its backward, per kernel


class Measured(Struct, frozen=True):
    """Results of `tracelens calibrate`."""

    gemms: tuple[GemmCurve, ...] = ()
    attention: tuple[AttentionCurve, ...] = ()
    bandwidths: tuple[Bandwidth, ...] = ()
    launch: LaunchCost = LaunchCost()
    # circumstances (date, gpu, torch, driver, clocks) by name
    about: Mapping[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.gemms or self.attention or self.bandwidths or self.launch != LaunchCost())

    def gemm_rate(
        self, m: float, k: int, n: int, dtype: str, matrices: int = 1, kind: GemmKind = "output"
    ) -> float | None:
        """FLOP/s of a GEMM of m rows (of each matrix), interpolated; None where none was measured.

        Curves of a dtype are a grid in k, n and matrices: the rate is linear in the logarithms of all sizes.
        Of a k or n below the grid's, a GEMM takes the time of the shortest of its kind and of the
        grid's smallest that part of what is beyond it.
        """
        is_grouped = matrices > 1
        curves = [
            curve
            for curve in self.gemms
            if curve.dtype == dtype and curve.kind == kind and (curve.matrices > 1) == is_grouped
        ]
        if not curves:
            return None
        at_rows: dict[tuple[int, ...], float] = {
            (c.k, c.n, c.matrices): interpolate(m, c.rows, c.flops_per_s) for c in curves
        }
        # Rows are of each matrix: fewer of them are not a smaller, slower GEMM.
        matrices = max(matrices, min(c.matrices for c in curves))
        rate = _in_grid((k, n, matrices), at_rows)
        part = min(k / min(c.k for c in curves), 1.0) * min(n / min(c.n for c in curves), 1.0)
        if part == 1.0:
            return rate
        flops = 2.0 * matrices * max(m, 1.0) * k * n
        shortest_s = min(
            2.0 * c.matrices * c.rows[0] * c.k * c.n / c.flops_per_s[0]
            for c in self.gemms
            if c.kind == kind and (c.matrices > 1) == is_grouped
        )
        beyond_s = max(flops / rate - shortest_s, 0.0)
        return flops / (shortest_s + beyond_s * part)

    def attention_rate(
        self, seq: float, query_dim: int, value_dim: int, dtype: str, backward: bool = False
    ) -> float | None:
        """FLOP/s of causal flash attention, of the measured head of the nearest size; None without any."""
        curves = [curve for curve in self.attention if curve.dtype == dtype]
        if not curves:
            return None
        nearest = min(
            curves, key=lambda c: abs(log(query_dim / c.query_dim)) + abs(log(value_dim / c.value_dim))
        )
        rates = nearest.backward_flops_per_s if backward else nearest.forward_flops_per_s
        return interpolate(seq, nearest.seq, rates)

    def bandwidth(self, name: str, size_bytes: float) -> float | None:
        """Bytes per second in memory, or from and to the host; None where that was not measured.

        `message_seconds` tells of messages among ranks.
        """
        for curve in self.bandwidths:
            if curve.name == name and curve.ranks == 1:
                return interpolate(size_bytes, curve.size_bytes, curve.bytes_per_s)
        return None

    @property
    def message_ranks(self) -> str:
        """Among how many ranks of a node messages were measured, as text: "2 and 8 ranks"; "" for none."""
        counts = sorted({curve.ranks for curve in self.bandwidths if 1 < curve.ranks == curve.ranks_per_node})
        return f"{' and '.join(map(str, counts))} ranks" if counts else ""

    def updated(self, newer: Measured) -> Measured:
        """This, with newer measurements in place of those of the same."""
        return Measured(
            gemms=_merged(self.gemms, newer.gemms),
            attention=_merged(self.attention, newer.attention),
            bandwidths=_merged(self.bandwidths, newer.bandwidths),
            launch=newer.launch if newer.launch != LaunchCost() else self.launch,
            about={**self.about, **newer.about},
        )

    def best_gemm(self, dtype: str) -> float | None:
        """The highest FLOP/s of a GEMM."""
        rates = [max(c.flops_per_s) for c in self.gemms if c.dtype == dtype]
        return max(rates, default=None)


def _merged(old: Iterable[_Curve], new: tuple[_Curve, ...]) -> tuple[_Curve, ...]:
    replaced = [curve.measurement for curve in new]
    return tuple([curve for curve in old if curve.measurement not in replaced]) + new


def interpolate(size: float, sizes: Sequence[float], rates: Sequence[float]) -> float:
    """The rate at a size, linear in the logarithms; proportional below the sizes, constant above."""
    if size <= sizes[0]:
        return rates[0] * size / sizes[0]
    if size >= sizes[-1]:
        return rates[-1]
    above = bisect_right(sizes, size)
    low, high = sizes[above - 1], sizes[above]
    weight = log(size / low) / log(high / low)
    return exp((1 - weight) * log(rates[above - 1]) + weight * log(rates[above]))


def _in_grid(point: tuple[int, ...], grid: Mapping[tuple[int, ...], float]) -> float:
    """The rate at a point of a complete grid, one dimension after the other."""
    if not point:
        return grid[()]
    size, rest = point[-1], point[:-1]
    sizes = sorted({key[-1] for key in grid})
    rates = [
        _in_grid(rest, {key[:-1]: rate for key, rate in grid.items() if key[-1] == known}) for known in sizes
    ]
    return interpolate(size, sizes, rates)


class Device(Struct, frozen=True):
    """One GPU as software sees it. Rates are data-sheet peaks, dense, per second.

    A number that is not published is 0 (or missing in a mapping); none is made up by scaling another.
    """

    name: str  # short and in lower case, as for --device
    title: str  # name for people
    vendor: str  # who makes it
    aliases: tuple[str, ...]  # names that tell it in a trace's device name
    units: int  # compute units (AMD) or streaming multiprocessors (NVIDIA)
    hbm_bytes: int  # memory as on the nameplate, in decimal bytes; drivers may report up to 8% more
    hbm_bytes_per_s: float  # memory bandwidth
    cache_bytes: int  # last-level cache
    # FLOP/s of the matrix units by element type (see DTYPES); integer operations count alike
    matrix: Mapping[str, float]
    vector: Mapping[str, float]  # FLOP/s of the vector units
    # max-achievable FLOP/s of GEMMs, as measured and published by the vendor
    maf: Mapping[str, float]
    gpu_link_bytes_per_s: float  # out of one GPU to all others of its node together, one direction
    host_link_bytes_per_s: float  # between GPU and host, one direction
    # where each number is from; keys are field names, "matrix.bf16" for those in mappings
    sources: Mapping[str, str]
    # what `tracelens calibrate` measured on it, by size
    measured: Measured = field(default_factory=Measured)
    # how rates that were not measured are modeled; None: as on a device that was measured
    modeled: Modeled | None = None
    # FLOP/s of the matrix units where two of four values are 0; no other rate stands in or is taken from it
    sparse: Mapping[str, float] = field(default_factory=dict)

    def __hash__(self) -> int:  # of a key to remembered rates: asked for each call, and no mapping has one
        return hash(self.name)

    def peak(self, engine: Engine, dtype: str) -> float | None:
        """Peak FLOP/s for an element type (short names as in traces); None where the device cannot do it.

        FP8 of any layout has one rate, so have signed and unsigned integers. Where the device has no rate
        of its own for a type, the one that the work falls back to stands in:

        - matrix: TF32 runs as FP32; FP64, FP32, FP16, BF16 and integers of 16 bits and more run on the
          vector units (NVIDIA GPUs have no FP32 matrix unit). FP8, FP6, FP4 and INT8: None.
        - vector: 16-bit floats and TF32 are computed in FP32; so are FP8, FP6 and FP4, on devices that know
          them. Integers and booleans count against the INT32 rate, else against FP32: these rates are
          hardly ever published, and such work is limited by memory long before.
        """
        dtype = _SAME.get(dtype, dtype)
        if engine == "vector":
            return self._vector_peak(dtype)
        if dtype == "tf32":
            return self.matrix.get("tf32") or self.peak("matrix", "fp32")
        if dtype in self.matrix or dtype in (*_NARROW, "i8"):
            return self.matrix.get(dtype)
        return self._vector_peak(dtype)

    def max_achievable(self, dtype: str) -> float | None:
        """Max-achievable FLOP/s of GEMMs; None where none is published for the type."""
        return self.maf.get(_SAME.get(dtype, dtype))

    def matrix_dtype(self, dtype: str) -> str:
        """The type under which the rate of a type is listed: FP8 of any layout is `fp8`."""
        return _SAME.get(dtype, dtype)

    def _vector_peak(self, dtype: str) -> float | None:
        stands_in = _VECTOR.get(dtype, ())
        if dtype in _NARROW and dtype in self.matrix:
            stands_in = ("fp32",)
        return next((self.vector[name] for name in (dtype, *stands_in) if name in self.vector), None)


REDUCERS[Device] = one_for_all  # the ranks of a run have the same


def is_grid(points: Iterable[tuple[int, ...]]) -> bool:
    """Whether points are all combinations of their coordinates."""
    known = set(points)
    count = 1
    for coordinates in zip(*known, strict=True):
        count *= len(set(coordinates))
    return count == len(known)


def measured_rates(device: Device) -> str:
    """The best rates that were measured, beside what the device could do at most."""
    measured, parts = device.measured, []
    for dtype in dict.fromkeys(curve.dtype for curve in measured.gemms):
        rate, peak = measured.best_gemm(dtype) or 0.0, device.matrix.get(dtype, 0.0)
        share = f" ({rate / peak:.0%} of its peak)" if peak > rate else ""
        parts.append(f"GEMM {dtype} {_three_digits(rate / 1e12)} TFLOP/s{share}")
    copies = [max(curve.bytes_per_s) for curve in measured.bandwidths if curve.name == "copy"]
    if copies:
        rate, peak = max(copies), device.hbm_bytes_per_s
        share = f" ({rate / peak:.0%} of its peak)" if peak > rate else ""
        parts.append(f"memory {_three_digits(rate / 1e12)} TB/s{share}")
    for curve in measured.bandwidths:
        if curve.ranks > 1 and curve.skew == 1:
            best = _three_digits(max(curve.bytes_per_s) / 1e9)
            parts.append(f"{curve.name} {best} GB/s among {curve.ranks} ranks")
    if measured.launch.kernel_ns:
        parts.append(f"{duration(measured.launch.kernel_ns)} per launch")
    return f"{device.title}: {', '.join(parts) or 'nothing could be measured'}"


def _three_digits(value: float) -> str:
    return f"{value:,.{three_digit_decimals(value)}f}"
