"""What a GPU was measured to achieve, by size: GEMMs, attention, memory, links, and launches on its host.

Rates between measured sizes are interpolated on logarithmic scales. Below the smallest size a kernel takes as
long as at the smallest, so that its rate falls in proportion; above the largest the rate stays.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, log
from typing import Literal

GemmKind = Literal["output", "weight"]
"""y = x w, whose rows are those of x, or the weight gradient x^T dy, which sums over these rows."""


@dataclass(frozen=True, slots=True)
class GemmCurve:
    """Rates of GEMMs of m rows with (k, n) weights, by m.

    Attributes:
        dtype: of the operands, short as in `DTYPES`.
        k: width of the input.
        n: width of the output.
        rows: m, ascending; rows of each matrix in a grouped GEMM.
        flops_per_s: of all matrices together.
        matrices: of a grouped GEMM; 1 for a plain one.
        kind: what is multiplied.
    """

    dtype: str
    k: int
    n: int
    rows: tuple[int, ...]
    flops_per_s: tuple[float, ...]
    matrices: int = 1
    kind: GemmKind = "output"


@dataclass(frozen=True, slots=True)
class AttentionCurve:
    """Rates of causal flash attention by sequence length; the backward counts the recomputed scores."""

    dtype: str
    query_dim: int
    value_dim: int
    seq: tuple[int, ...]
    forward_flops_per_s: tuple[float, ...]
    backward_flops_per_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Bytes per second by size.

    Attributes:
        name: in device memory `copy`, `triad` (elementwise), `concat` (of parts of heads) and `scatter` (rows
            added in any order), by bytes read and written; `to_device` and `to_host`; `all_reduce`,
            `all_to_all`, `send_recv`, by bytes that a rank has to send.
        size_bytes: moved by one call, ascending; of collectives, the send buffer of a rank.
        bytes_per_s: of a GPU.
        ranks: of a collective.
        ranks_per_node: of these on one node.
    """

    name: str
    size_bytes: tuple[int, ...]
    bytes_per_s: tuple[float, ...]
    ranks: int = 1
    ranks_per_node: int = 1


@dataclass(frozen=True, slots=True)
class LaunchCost:
    """Host time per kernel, ns; 0 is not measured.

    Attributes:
        kernel_ns: between short kernels that are launched back to back.
        op_ns: of an op that no gradient flows through.
        forward_ns: of a model's forward in training, per kernel: its views, modules and Python included.
        backward_ns: of its backward, per kernel.
    """

    kernel_ns: float = 0.0
    op_ns: float = 0.0
    forward_ns: float = 0.0
    backward_ns: float = 0.0


@dataclass(frozen=True, slots=True)
class Measured:
    """Results of `tracelens calibrate`.

    Attributes:
        about: circumstances (date, gpu, torch, driver, clocks) by name.
    """

    gemms: tuple[GemmCurve, ...] = ()
    attention: tuple[AttentionCurve, ...] = ()
    bandwidths: tuple[Bandwidth, ...] = ()
    launch: LaunchCost = LaunchCost()
    about: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __bool__(self) -> bool:
        return bool(self.gemms or self.attention or self.bandwidths or self.launch != LaunchCost())

    def gemm_rate(
        self, m: float, k: int, n: int, dtype: str, matrices: int = 1, kind: GemmKind = "output"
    ) -> float | None:
        """FLOP/s of a GEMM of m rows (of each matrix), interpolated; None where none was measured.

        Curves of a dtype are a grid in k, n and matrices: the rate is linear in the logarithms of all sizes.
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
        return _in_grid((k, n, matrices), at_rows)

    def attention_rate(
        self, seq: float, query_dim: int, value_dim: int, dtype: str, backward: bool = False
    ) -> float | None:
        """FLOP/s of causal flash attention, of the measured head of the nearest size; None without any."""
        curves = [curve for curve in self.attention if curve.dtype == dtype]
        if not curves:
            return None
        wanted = (query_dim, value_dim)
        nearest = min(curves, key=lambda c: _distance(wanted, (c.query_dim, c.value_dim)))
        rates = nearest.backward_flops_per_s if backward else nearest.forward_flops_per_s
        return interpolate(seq, nearest.seq, rates)

    def bandwidth(self, name: str, size_bytes: float, ranks: int = 1) -> float | None:
        """Bytes per second of a size; None where it was not measured among this many ranks."""
        for curve in self.bandwidths:
            if curve.name == name and curve.ranks == ranks:
                return interpolate(size_bytes, curve.size_bytes, curve.bytes_per_s)
        return None

    def best_gemm(self, dtype: str) -> float | None:
        """The highest FLOP/s of a GEMM."""
        rates = [max(c.flops_per_s) for c in self.gemms if c.dtype == dtype]
        return max(rates, default=None)


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


def is_grid(points: Iterable[tuple[int, ...]]) -> bool:
    """Whether points are all combinations of their coordinates."""
    known = set(points)
    count = 1
    for coordinates in zip(*known, strict=True):
        count *= len(set(coordinates))
    return count == len(known)


def _distance(a: Iterable[int], b: Iterable[int]) -> float:
    return sum(abs(log(x / y)) for x, y in zip(a, b, strict=True))
