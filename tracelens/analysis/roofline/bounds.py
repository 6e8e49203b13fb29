"""What a device allows: bound and roofline time, reasons for going beyond them, FLOP/s of large GEMMs."""

from __future__ import annotations

from collections.abc import Container

import numpy as np
from msgspec import Struct

from tracelens.analysis.roofline.costing import (
    CACHED_RATIO,
    LARGE_FLOPS,
    CostColumns,
    Counted,
    OpCalls,
    costing,
)
from tracelens.arrays import Bool, Float, Int, first_rows, marked, unique
from tracelens.costs import OpCost
from tracelens.devices import Device, devices
from tracelens.table import Column, Schema, Table, codes
from tracelens.trace import Trace, Work
from tracelens.units import EXPLAIN_ABOVE

BOUNDS = ("compute", "memory", "host link", "gpu link", "")
"""What limits a call; "" where it has nothing to do or the device's figures lack."""
ROOFS = Schema(
    "Roofs of the devices",
    (
        Column("device", "category", doc="title of the device"),
        Column(
            "role", "category", doc="chosen: sets the bounds; measured: ran the work; other: for comparison"
        ),
        Column("kind", "category", doc="matrix, vector, maf (max-achievable) or memory"),
        Column("dtype", "category", doc="element type, '' for memory"),
        Column("flops_per_s", "float64", "flops/s", "0 for memory"),
        Column("bytes_per_s", "float64", "bytes/s", "of the device's memory"),
    ),
    doc="Dense peaks from data sheets, see `tracelens list devices`.",
    detail=True,
)


class Bounds(Struct, frozen=True):
    """Per kind of call (see Costing.items): least times of one call in ns, -1 where not known."""

    bound: Int  # code into BOUNDS
    roofline: Float  # least time against peak
    maf: Float  # least time against max-achievable FLOPs; -1 also where none is published for the type
    peak: Float  # FLOP/s of the units and type used, 0 where the device has none


_NAMES = ("aten::mm", "aten::addmm")
_ON_MATRIX_UNITS = ("gemm", "grouped_gemm", "attention", "convolution")


class MatrixFlops(Struct, frozen=True):
    """One element a piece of work."""

    flops: Int  # of the call that the piece belongs to, at one of its pieces; 0 elsewhere
    lacking: Bool  # whether it is a GEMM by its class, and its call is not counted


def least_ns(cost: OpCost, device: Device) -> float:
    """Least time of one call on a device, -1 where it is not known or there is nothing to do."""
    least = float(bounds(CostColumns.of([cost]), device).roofline[0])
    return least if least > 0 else -1.0


def bounds(costs: CostColumns, device: Device | None) -> Bounds:
    """Least time of one call of each kind on a device; without one nothing is known."""
    count = len(costs.flops)
    if device is None:
        nothing = np.full(count, -1.0)
        return Bounds(np.full(count, BOUNDS.index("")), nothing, nothing, np.zeros(count))
    units = [*zip(costs.engine, costs.dtype, strict=True)]
    kinds = {kind for kind, flops in zip(units, costs.flops.tolist(), strict=True) if flops}
    peaks = {kind: device.peak(*kind) or 0.0 for kind in kinds}
    mafs = {dtype: device.max_achievable(dtype) or 0.0 for engine, dtype in kinds if engine == "matrix"}
    links = {"host": device.host_link_bytes_per_s, "gpu": device.gpu_link_bytes_per_s}
    flops = costs.flops.astype(float)
    peak = np.array([peaks.get(kind, 0.0) for kind in units])
    maf = np.array([mafs.get(dtype, 0.0) if engine == "matrix" else 0.0 for engine, dtype in units])
    link = np.array([links.get(link, 0.0) for link in costs.link])
    compute = _time(flops, peak)
    memory = _time((costs.read_bytes + costs.write_bytes).astype(float), device.hbm_bytes_per_s)
    over_link, is_link = _time(costs.link_bytes.astype(float), link), costs.is_linked
    # The far end of a link is another memory, so what a linked call moves is scored against the link alone.
    least = np.where(is_link, over_link, np.maximum(compute, memory))
    known = np.where(is_link, over_link >= 0, compute >= 0)
    bound = np.where(compute > memory, BOUNDS.index("compute"), BOUNDS.index("memory"))
    for name in ("host", "gpu"):
        bound[[link == name for link in costs.link]] = BOUNDS.index(f"{name} link")
    bound[~known | (least <= 0)] = BOUNDS.index("")
    against_maf = np.maximum(_time(flops, maf), memory)
    return Bounds(
        bound,
        np.where(known, least, -1.0),
        np.where((maf > 0) & (flops > 0) & ~is_link, against_maf, -1.0),
        peak,
    )


def _time(amount: Float, rate: Float | float) -> Float:
    """Ns for an amount at a rate per second; -1 where there is something to do and no rate."""
    rates = np.broadcast_to(np.asarray(rate, dtype=float), amount.shape)
    ns = np.divide(amount * 1e9, rates, out=np.full(amount.shape, -1.0), where=rates > 0)
    return np.where(amount > 0, ns, 0.0)


def explain(
    item: Counted, bound: str, device: Device, projected: bool, efficiency: float, maf_efficiency: float
) -> str:
    """Why a call was faster than its roofline or the max-achievable rate; "" where it was not."""
    if efficiency <= EXPLAIN_ABOVE:
        beyond_maf = "beyond the max-achievable rate, which is a measurement, not a limit"
        return beyond_maf if maf_efficiency > EXPLAIN_ABOVE else ""
    cost = item.cost
    if projected:
        return f"device mismatch: not measured on {device.title}"
    if bound == "compute":
        if cost.engine == "matrix" and cost.dtype == "fp32":
            return "beyond the FP32 peak: it ran in TF32 or split BF16"
        sparse = device.sparse.get(device.matrix_dtype(cost.dtype)) if cost.engine == "matrix" else None
        sparsity = f"2:4 sparsity (at most {sparse / 1e12:,.0f} TFLOP/s)" if sparse else "sparsity"
        return f"beyond the {cost.dtype} peak: narrower type, {sparsity}, or less work than counted"
    if bound == "memory":
        cache, moved = device.cache_bytes, cost.read_bytes + cost.write_bytes
        if moved <= CACHED_RATIO * cache:
            part = "all" if moved <= cache else "much"
            return f"cached input: {part} of it fits in the {cache >> 20} MiB cache"
        return "beyond memory bandwidth: cached input, or less data moved than counted"
    return f"beyond the {bound}: less data transferred than counted, or another link used"


def roofs(peaks_of: Device | None, measured: Container[str]) -> Table:
    """All roofs of the device that was chosen and of the bundled ones, of which `measured` ran the work."""
    rows: list[tuple[str, str, str, str, float, float]] = []
    bundled = [device for device in devices(rated=True) if peaks_of is None or device.name != peaks_of.name]
    for device in [*([peaks_of] if peaks_of else []), *bundled]:
        role = "chosen" if device is peaks_of else "measured" if device.name in measured else "other"
        parts = (("matrix", device.matrix), ("vector", device.vector), ("maf", device.maf))
        for kind, peaks in parts:
            rows += [
                (device.title, role, kind, dtype, peak, device.hbm_bytes_per_s)
                for dtype, peak in peaks.items()
            ]
        rows.append((device.title, role, "memory", "", 0.0, device.hbm_bytes_per_s))
    return ROOFS.from_rows(rows)


def gemm_rate(trace: Trace, device: Device | None, apart: Bool) -> float:
    """FLOP/s of the large GEMMs of a trace, else what the device is known to achieve; 0 if unknown.

    Work that is `apart` does not count.
    """
    work, events = trace.work, trace.arrays
    name_codes = [code for code, name in enumerate(events.names) if name in _NAMES]
    rows = np.flatnonzero((work.op >= 0) & ~apart & work.is_kernel)
    rows = rows[np.isin(events.name[work.op[rows]], name_codes)]
    ops = trace.once(OpCalls)
    op = unique(work.op[rows])
    group, (name, *_) = codes(*ops.keys(op))
    costs = ops.costs(op[first_rows(group, len(name))])
    flops = np.array([cost.flops if cost is not None else 0 for cost in costs], dtype=float)[group]
    duration = np.zeros(len(op))
    np.add.at(duration, np.searchsorted(op, work.op[rows]), work.dur[rows])
    large = (flops >= LARGE_FLOPS) & (duration > 0)
    if large.any():
        return float(flops[large].sum() / duration[large].sum() * 1e9)
    if device is None:
        return 0.0
    return device.max_achievable("bf16") or device.peak("matrix", "bf16") or 0.0


def on_matrix_units(work: Work) -> Bool:
    """Which work multiplies matrices, by its class alone."""
    return marked(work.category, np.array([name in _ON_MATRIX_UNITS for name in work.categories], dtype=bool))


def matrix_flops(trace: Trace, work: Work) -> MatrixFlops:
    """What the cost models count (see costing.py) on matrix units."""
    costs = costing(trace, work)
    each = np.where(costs.costs.on_matrix_units, costs.costs.flops, 0)
    flops = np.zeros(len(work.event), dtype=np.int64)
    counted = np.flatnonzero(costs.item >= 0)
    _, first = np.unique(costs.call[counted], return_index=True)
    flops[counted[first]] = each[costs.item[counted[first]]]
    return MatrixFlops(flops, on_matrix_units(work) & (costs.item < 0))
