"""Calls that take far longer than the device needs elsewhere for work of their size.

The roofline compares with the data sheet, which no kernel reaches. Here a call is compared with what this
device does reach: GEMMs, attention and passes over memory as they were measured by size on it, or on a
measured device of which it has a known multiple; no GEMM with a higher rate than the run's own best. What is
beyond that is lost to the kernel that was chosen, not to the hardware.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from tracelens.analysis.roofline.costing import LARGE_FLOPS, Counted, costing
from tracelens.arrays import Float, Int, lookup
from tracelens.costs import OpCost
from tracelens.devices import (
    DATA_SHEET,
    MEASURED,
    PEAK,
    Device,
    GemmKind,
    Rate,
    attention_rate,
    gemm_rate,
    memory_rate,
)
from tracelens.dtypes import BITS
from tracelens.table import sums
from tracelens.trace import Trace, Work

SLOW_RATIO = 1.7
"""Measured time / reachable time from which a call is slow. The curves are of single sizes on idle devices:
common kernels of the recordings of H100, H200 and MI300X lie up to 1.6 times above them."""

LONG_NS = 10_000
"""Mean time of a call from which it is looked at: a shorter one is mostly launch and drain."""

LEAST_SHARE = 0.001
"""Share of the GPU time of all calls that a kind of call takes to be looked at: less can be no finding."""

# Sorting and searching read their data several times, by an algorithm that the bytes do not tell.
_SEVERAL_PASSES = re.compile(r"sort|topk|unique|nonzero|cumsum|multinomial|searchsorted", re.IGNORECASE)


class SlowCalls(Struct, frozen=True):
    """Kinds of slow calls, most lost time first, and the GPU work that they are."""

    items: tuple[Counted, ...]  # what they compute
    calls: Int  # of each kind in the recording
    dur_ns: Int  # of all calls of a kind
    reachable_ns: Float  # that one call needs on this device
    is_measured: bool  # whether all that is from measurements of this device
    rows: Int  # positions in the trace's work
    kind: Int  # index into `items` of each

    @property
    def lost_ns(self) -> Float:
        """Time of each kind beyond what its calls need."""
        lost: Float = self.dur_ns - self.reachable_ns * self.calls
        return lost

    @property
    def factor(self) -> Float:
        """Needed time / measured time of each kind."""
        factor: Float = self.reachable_ns * self.calls / np.maximum(self.dur_ns, 1)
        return factor

    def share_within(self, rows: Int, work: Work) -> Float:
        """Share of each kind's time that lies in some of the trace's work."""
        size = len(self.items)
        inside = np.isin(self.rows, rows)
        own_ns = sums(self.kind[inside], work.dur[self.rows[inside]], size)
        share: Float = own_ns / np.maximum(sums(self.kind, work.dur[self.rows], size), 1)
        return share


class Reachable(NamedTuple):
    """What a call needs at the rates of a device."""

    ns: float  # 0 where it is not known
    basis: str  # what the rate is known from: MEASURED, MODELED or DATA_SHEET


def slow_calls(trace: Trace, device: Device | None) -> SlowCalls:
    """The slow calls of a rank on the device that it ran on; none where that is not known."""
    counted = costing(trace, trace.work)
    calls, dur_ns = counted.by_kind
    best: dict[str, float] = {}
    long = np.flatnonzero((dur_ns > LONG_NS * calls) & (dur_ns > LEAST_SHARE * dur_ns.sum()))
    for kind in long.tolist():
        cost = counted.items[kind].cost
        if cost.engine == "matrix" and cost.flops > LARGE_FLOPS:
            rate = cost.flops * calls[kind] / dur_ns[kind] * 1e9
            best[cost.dtype] = max(best.get(cost.dtype, 0.0), rate)
    slow: list[tuple[float, int, Reachable]] = []
    for kind in long.tolist():
        item = counted.items[kind]
        if device is None or item.cost.link or _SEVERAL_PASSES.search(item.name):
            continue
        needed = reachable_time(item.name, item.cost, device, best.get(item.cost.dtype, 0.0))
        mean_ns = dur_ns[kind] / calls[kind]
        if 0 < SLOW_RATIO * needed.ns < mean_ns:
            slow.append((float(dur_ns[kind] - needed.ns * calls[kind]), kind, needed))
    slow.sort(key=lambda each: -each[0])
    kinds = np.array([kind for _, kind, _ in slow], dtype=np.int64)
    number = np.full(len(counted.items), -1, dtype=np.int64)
    number[kinds] = np.arange(len(kinds))
    kind_of_row = lookup(number, counted.item, -1)
    rows = np.flatnonzero(kind_of_row >= 0)
    return SlowCalls(
        items=tuple(counted.items[kind] for kind in kinds.tolist()),
        calls=calls[kinds],
        dur_ns=dur_ns[kinds],
        reachable_ns=np.array([needed.ns for _, _, needed in slow]),
        is_measured=all(needed.basis == MEASURED for _, _, needed in slow),
        rows=rows,
        kind=kind_of_row[rows],
    )


def reachable_time(name: str, cost: OpCost, device: Device, best: float = 0.0) -> Reachable:
    """What a call of an op needs at the device's rates; `best` is the run's own of GEMMs, 0 if unknown."""
    moved = cost.read_bytes + cost.write_bytes
    memory = memory_rate(device, max(moved, 1))
    by_bytes = Reachable(moved / memory.per_s * 1e9, memory.basis)
    if not cost.flops:
        return by_bytes
    if cost.engine == "matrix":
        rate = _matrix_rate(name, cost, device)
        if best:
            rate = rate._replace(per_s=min(rate.per_s, best) or best)
    else:
        rate = Rate(device.peak(cost.engine, cost.dtype) or 0.0, PEAK)
    if not rate.per_s:
        return Reachable(0.0, DATA_SHEET)
    return max(by_bytes, Reachable(cost.flops / rate.per_s * 1e9, rate.basis))


def _matrix_rate(name: str, cost: OpCost, device: Device) -> Rate:
    """FLOP/s for work of this shape, 0 where the device has none for the type."""
    dims = dict(cost.dims)
    rate = None
    if {"M", "N", "K"} <= dims.keys():
        # Rows of each of a group's matrices; of a batch they are rows of each already.
        groups = dims.get("G", 1)
        matrices = max(groups * dims.get("B", 1), 1)
        rows, inner = dims["M"] / max(groups, 1), dims["K"]
        kind: GemmKind = "output"
        written_bits = max(BITS.get(cost.dtype, 0), 16)
        if groups > 1 and cost.write_bytes * 8 >= groups * dims["M"] * dims["N"] * written_bits:
            # A result of each group: the gradients of their weights, which are sums over the rows.
            rows, inner, kind = dims["K"] / groups, dims["M"], "weight"
        rate = gemm_rate(device, rows, inner, dims["N"], cost.dtype, matrices, kind)
    elif {"E", "rows"} <= dims.keys() and (depth := dims.get("K", dims.get("H"))):
        # The GEMMs of experts in one op: of the width that their FLOPs have together.
        matrices = max(min(dims["E"], dims["rows"]), 1)
        width = max(round(cost.flops / (2 * max(dims["rows"], 1) * depth)), 1)
        rate = gemm_rate(device, dims["rows"] / matrices, depth, width, cost.dtype, matrices)
    elif {"Nq", "D"} <= dims.keys():
        width, values = dims["D"], dims.get("Dv", dims["D"])
        rate = attention_rate(device, dims["Nq"], width, values, cost.dtype, "backward" in name)
    return rate or Rate(device.max_achievable(cost.dtype) or device.peak("matrix", cost.dtype) or 0.0, PEAK)
