"""Achieved rates of a device by size: measured on it, else modeled.

    gemm_rate(device("h200"), 4096, 2048, 2816, "bf16")      # Rate(6.6e14, "measured")
    gemm_rate(device("mi355x"), 4096, 2048, 2816, "bf16")    # Rate(..., "modeled (CDNA tiles), ...")
    gemm_rate(device("a100"), 4096, 2048, 2816, "bf16")      # Rate(..., "modeled on h200")

GEMMs of AMD GPUs are modeled by macro tiles (`tiles`), all else on a device that was measured. That model
assumes that a GEMM of m rows on u compute units reaches the share of the ceiling that one of m u'/u
rows reaches on u' units of a measured device: output tiles fill the units equally often (wave quantization).
The ceiling is the published max-achievable rate where there is one, else the data-sheet peak.

Messages among ranks of a node have bus bandwidths as in nccl-tests: bytes of the larger buffer / time, times
2 (n-1)/n of an all-reduce, (n-1)/n of an all-gather, reduce-scatter or all-to-all among n ranks.
"""

from __future__ import annotations

from functools import cache, lru_cache
from math import log
from typing import NamedTuple

from tracelens.devices.catalogue import device as bundled
from tracelens.devices.spec import Bandwidth, Device, GemmKind, LaunchCost, Measured, interpolate

MEASURED, MODELED, DATA_SHEET = "measured", "modeled", "data sheet"
"""What a rate is known from, best first."""
PEAK = "data-sheet peak"

REFERENCE = "h200"
"""The bundled device on which others are modeled."""


class Rate(NamedTuple):
    """FLOP/s or bytes/s, and where it is from."""

    per_s: float
    source: str

    @property
    def basis(self) -> str:
        """MEASURED, MODELED or DATA_SHEET."""
        if self.source == MEASURED:
            return MEASURED
        return MODELED if MODELED in self.source else DATA_SHEET


class MessageTime(NamedTuple):
    """Time of a message, and among how many ranks its bus bandwidth was measured."""

    seconds: float
    ranks: int


@lru_cache(maxsize=1 << 16)
def gemm_rate(
    device: Device, m: float, k: int, n: int, dtype: str, matrices: int = 1, kind: GemmKind = "output"
) -> Rate | None:
    """FLOP/s of a GEMM of m rows (of each matrix) with (k, n) weights, all matrices together.

    `kind` is "weight" for the gradient of the weights, which sums over the rows. The rate is at most the
    data-sheet peak; None where the device has none for the type.
    """
    peak = device.peak("matrix", dtype)
    if peak is None:
        return None
    dtype = device.matrix_dtype(dtype)
    rate = _measured_gemm(device, m, k, n, dtype, matrices, kind)
    if rate is not None:
        return Rate(min(rate, peak), MEASURED)
    if device.modeled is not None:
        from tracelens.devices.tiles import GemmSizes, gemm_ns  # few runs are of such a device

        gemm = GemmSizes(m, k, n, matrices) if kind == "output" else GemmSizes(k, m, n, matrices, width=k)
        tiled_ns = gemm_ns(device, gemm, dtype)
        if tiled_ns is not None:
            ceiling = device.max_achievable(dtype) or peak
            return Rate(min(gemm.flops / tiled_ns * 1e9, ceiling), device.modeled.source)
    reference = _reference()
    # The share of the ceiling is that at as many tiles per compute unit; of BF16 where the type has none.
    if kind == "output" and matrices == 1 and device.units and reference.units:
        m = m * reference.units / device.units
    share = None
    for known in (dtype, "bf16"):
        rate = _measured_gemm(reference, m, k, n, known, matrices, kind)
        if rate is not None:
            share = rate / _ceiling(reference, known, device)
            break
    return _of_ceiling(device, peak, dtype, share, reference)


@lru_cache(maxsize=1 << 16)
def attention_rate(
    device: Device, seq: float, query_dim: int, value_dim: int, dtype: str, backward: bool
) -> Rate | None:
    """FLOP/s of causal flash attention; None where the device has no rate for the type."""
    peak = device.peak("matrix", dtype)
    if peak is None:
        return None
    dtype = device.matrix_dtype(dtype)
    rate = device.measured.attention_rate(seq, query_dim, value_dim, dtype, backward)
    if rate is not None:
        return Rate(min(rate, peak), MEASURED)
    reference = _reference()
    measured = reference.measured.attention_rate(seq, query_dim, value_dim, "bf16", backward)
    share = measured / _ceiling(reference, "bf16", device) if measured else None
    return _of_ceiling(device, peak, dtype, share, reference)


def memory_rate(device: Device, size_bytes: float, pattern: str = "triad") -> Rate:
    """Bytes per second of a kernel that reads and writes this much; at most the data-sheet bandwidth.

    `pattern` is the name of the measurement: "triad" for elementwise kernels, "concat", "scatter".
    """
    own = device.measured.bandwidth(pattern, size_bytes)
    if own is not None:
        return Rate(min(own, device.hbm_bytes_per_s), MEASURED)
    reference = _reference()
    faster = device.hbm_bytes_per_s / reference.hbm_bytes_per_s
    # What takes equally long at the full rate has the same share of it.
    rate = reference.measured.bandwidth(pattern, size_bytes / faster)
    if rate is None:
        return Rate(device.hbm_bytes_per_s, PEAK)
    return Rate(min(1.0, rate / reference.hbm_bytes_per_s) * device.hbm_bytes_per_s, _modeled(reference))


def typical_memory_rate(device: Device, size_bytes: float, pattern: str = "triad") -> Rate:
    """Bytes per second that kernels of a framework reach: `memory_rate`, less their share in traces of it."""
    best = memory_rate(device, size_bytes, pattern)
    if device.modeled is None or best.source == MEASURED:
        return best
    share = device.modeled.memory_share
    return Rate(best.per_s * share, f"{share:.0%} of {best.source}, as in traces of AMD GPUs")


def launch_cost(device: Device) -> tuple[LaunchCost, str]:
    """Host time per kernel, and where it is from: it is of the host, not of the GPU."""
    if device.measured.launch.forward_ns:
        return device.measured.launch, MEASURED
    return _reference().measured.launch, f"measured on a host of {REFERENCE}"


@cache
def _reference() -> Device:
    return bundled(REFERENCE)


def message_seconds(
    measured: Measured, collective: str, size_bytes: float, ranks: int, skew: float = 1.0
) -> MessageTime | None:
    """Time of a message among `ranks` of one node; None where none of its kind was measured on one node.

    The bus bandwidth is that of the nearest number of ranks. An all-to-all of uneven parts takes as long as
    its busiest rank, which has `size_bytes`: `skew` times the mean.
    """
    curves: dict[int, dict[float, Bandwidth]] = {}
    for curve in measured.bandwidths:
        if curve.name == collective and 1 < curve.ranks == curve.ranks_per_node:
            curves.setdefault(curve.ranks, {})[curve.skew] = curve
    if not curves or size_bytes <= 0 or ranks < 2:
        return None
    nearest = min(curves, key=lambda count: (abs(log(count / ranks)), -count))
    by_skew = sorted(curves[nearest].items())
    rates = [interpolate(size_bytes, curve.size_bytes, curve.bytes_per_s) for _, curve in by_skew]
    rate = interpolate(max(skew, by_skew[0][0]), [known for known, _ in by_skew], rates)
    return MessageTime(size_bytes * bus_factor(collective, ranks) / rate, nearest)


def bus_factor(collective: str, ranks: int) -> float:
    """Bus bandwidth / algorithm bandwidth, by the conventions of nccl-tests (doc/PERFORMANCE.md)."""
    if ranks < 2:
        return 1.0
    if collective.startswith(("allreduce", "all_reduce")):
        return 2 * (ranks - 1) / ranks
    one_to_one = (
        "broadcast", "reduce", "_reduce_oop", "send", "recv", "send_recv", "send/recv", "gather", "scatter"
    )  # fmt: skip
    return 1.0 if collective in one_to_one else (ranks - 1) / ranks


def _measured_gemm(
    device: Device, m: float, k: int, n: int, dtype: str, matrices: int, kind: GemmKind
) -> float | None:
    """As measured; weight gradients and grouped GEMMs that were not, as the plain GEMM of these sizes."""
    measured = device.measured
    rate = measured.gemm_rate(m, k, n, dtype, matrices, kind)
    if rate is None and kind == "weight":
        return _measured_gemm(device, k, round(m) or 1, n, dtype, matrices, "output")
    if rate is None and matrices > 1:
        return _measured_gemm(device, m * matrices, k, n, dtype, 1, kind)
    return rate


def _ceiling(reference: Device, dtype: str, device: Device) -> float:
    """The best rate of the reference if `device` has a max-achievable one, else its peak."""
    best = reference.measured.best_gemm(dtype) if device.max_achievable(dtype) else None
    return best or reference.peak("matrix", dtype) or 1.0


def _of_ceiling(device: Device, peak: float, dtype: str, share: float | None, reference: Device) -> Rate:
    achievable = device.max_achievable(dtype)
    if share is None:
        return Rate(achievable, "published") if achievable else Rate(peak, PEAK)
    ceiling = achievable or peak
    source = f"{_modeled(reference)}, of the published rate" if achievable else _modeled(reference)
    return Rate(min(1.0, share) * ceiling, source)


def _modeled(reference: Device) -> str:
    return f"modeled on {reference.name}"
