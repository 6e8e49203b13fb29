"""How far each op is from what the hardware allows, and each step from the peak of the matrix units.

The FLOPs of a step are known as far as its GPU time has cost models. Where most of it has none although it
multiplies matrices, as in a replayed graph, their sum says nothing, and the utilization is not computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tracelens.analysis.analyzer import analyzer
from tracelens.analysis.comm import AlignedRun
from tracelens.analysis.common import choose_device, device_title, no_gpu_work, own_device, recomputed
from tracelens.analysis.roofline.bounds import BOUNDS, ROOFS, Bounds, bounds, explain, on_matrix_units, roofs
from tracelens.analysis.roofline.costing import (
    MOST_OVERCOUNTED,
    MOSTLY_UNCOUNTED,
    NO_MODEL,
    REPEATED,
    CostColumns,
    Costing,
    Counted,
    costing,
)
from tracelens.arrays import Bool, Float, Int, first_rows, lookup, numbered, unique
from tracelens.costs import UPPER_BOUND
from tracelens.devices import Device, match
from tracelens.guard import Failure
from tracelens.table import RANK, Coded, Column, Result, Schema, Skip, codes, result, sums
from tracelens.trace import OPAQUE, WORK_KINDS, Scope, Trace, Work, gpu_work, launched_in, steps_of
from tracelens.units import EXPLAIN_ABOVE, size_text

COVERAGE = Schema(
    "GPU time covered by cost models",
    (
        RANK,
        Column(
            "status", "category", doc="cost model: by its own arguments or by those of a repeat; or no cost"
        ),
        Column("dur_ns", "int64", "ns", "summed duration of this work"),
        Column("fraction_of_gpu_time", "float64", "fraction", "share of the summed duration of all GPU work"),
    ),
)
UNCOVERED = Schema(
    "GPU time without a cost, by name",
    (
        RANK,
        Column("name", "category", doc="op, or kernel without an op"),
        Column("reason", "category", doc="what the trace or tracelens lacks"),
        Column("count", "int64", "count", "kernels, copies and memsets"),
        Column("dur_ns", "int64", "ns", "summed duration of this work"),
        Column("fraction_of_gpu_time", "float64", "fraction", "share of the summed duration of all GPU work"),
    ),
    leading="dur_ns",
    descending=True,
)

UTILISATION = Schema(
    "Utilization of matrix units and memory",
    (
        RANK,
        Column("step", "str", doc="step mark, such as ProfilerStep#2"),
        Column("dur_ns", "int64", "ns", "wall time of the step"),
        Column("modelled_fraction", "float64", "fraction", "share of its GPU time that a cost model counts"),
        Column(
            "flops", "float64", "flops", "of GEMMs, convolutions and attention, as far as covered", absent=-1
        ),
        Column(
            "recompute_flops",
            "float64",
            "flops",
            "part of these: forward work recomputed in the backward pass",
            absent=-1,
        ),
        Column("flops_per_s", "float64", "flops/s", "flops / wall time", absent=-1),
        Column(
            "mfu", "float64", "efficiency", "model FLOPs utilization: without recompute, of peak", absent=-1
        ),
        Column(
            "hfu", "float64", "efficiency", "hardware FLOPs utilization: with recompute, of peak", absent=-1
        ),
        Column(
            "mbu",
            "float64",
            "efficiency",
            "memory bandwidth utilization: bytes of all calls, each tensor once, / wall time, of peak",
            absent=-1,
        ),
    ),
    doc="Relative to the peak for the element type of most of the FLOPs, if the device is known. "
    "Vector work is not counted, as is usual for MFU. Nothing is known where most of the work is not "
    "covered.",
    leading="mfu",
    absent_is_zero=False,
)

_BYTES = ("read_bytes", "write_bytes", "link_bytes")

ROOFLINE = Schema(
    "Distance from the roofline, by op and arguments",
    (
        RANK,
        Column("name", "category", doc="op, collective, copy or kernel"),
        Column("shapes", "category", doc="tensor arguments"),
        Column("dtype", "category", doc="element type of the arithmetic, which determines the peak"),
        Column("count", "int64", "count", "calls"),
        Column("dur_ns", "int64", "ns", "GPU time of all calls; union per call"),
        Column(
            "roofline_ns",
            "int64",
            "ns",
            "roofline time of all calls; missing without peaks of the device",
            absent=-1,
        ),
        Column(
            "efficiency",
            "float64",
            "efficiency",
            "roofline time / measured time without waiting, against peak",
            absent=-1,
        ),
        Column("wait_ns", "int64", "ns", "of collectives: until the last rank came; part of `dur_ns`"),
        Column(
            "recoverable_ns",
            "int64",
            "ns",
            "what a perfect kernel would save: measured - waiting - roofline time",
            absent=-1,
        ),
        Column("bound", "category", doc="limit: compute, memory, host link, gpu link"),
        Column("flops", "int64", "flops", "per call"),
        Column("read_bytes", "int64", "bytes", "per call, each tensor once"),
        Column("write_bytes", "int64", "bytes", "per call"),
        Column("link_bytes", "int64", "bytes", "per call, over the link to the host or other GPUs"),
        Column("flops_per_s", "float64", "flops/s", "achieved"),
        Column("bytes_per_s", "float64", "bytes/s", "achieved; on the link if that is the bound"),
        Column("intensity", "float64", "flops/byte", "FLOPs per byte read or written"),
        Column(
            "maf_efficiency",
            "float64",
            "efficiency",
            "against max-achievable FLOPs; missing if none is published",
            absent=-1,
        ),
        Column("dims", "category", doc="sizes behind the FLOPs, for a GEMM M, N and K"),
        Column("note", "category", doc="notes on the figures", prose=True),
    ),
    doc="Roofline time: the longer of FLOPs at peak and bytes at full bandwidth. Largest recoverable time "
    "first. All-to-alls of uneven sizes are one row per group and class of sizes, with the mean bytes of all "
    "ranks.",
    key=("name", "shapes", "dtype", "flops", *_BYTES),
    leading="recoverable_ns",
    descending=True,
)

_TABLES = {"roofline": ROOFLINE, "utilisation": UTILISATION, "coverage": COVERAGE, "uncovered": UNCOVERED}


_NONE: Int = np.empty(0, dtype=np.int64)


class RankRoofline(NamedTuple):
    """The roofline of one rank."""

    rows: dict[str, dict[str, Any]]  # columns of each of _TABLES; empty where the rank has no GPU work
    skips: list[Skip]  # what is not known of it
    peaks: Device | None  # the device that sets its bounds
    ran_on: Device | None  # the device that it ran on, where that is known
    names: tuple[str, ...]  # of its devices, as the trace has them
    projected: bool  # whether peaks are another device's than the one that it ran on
    messages: tuple[Int, Int] = (_NONE, _NONE)  # starts of collectives' kernels, and their rows of ROOFLINE


STATUSES = ("cost model", "cost model, arguments of a repeat", "reason given", "no cost model")
"""How a piece of work is counted or not. The first two are coverage; a reason is what the trace lacks, the
last is what tracelens lacks."""
MODELLED = 2
"""This many of STATUSES, the first ones, are counted."""


class Utilisation(Struct, frozen=True):
    """Rows of UTILISATION of one rank, and why some have no figures."""

    rows: dict[str, Any]
    skips: list[Skip]


def of_rank(
    trace: Trace, *, scope: Scope = "all", device: str | None = None, device_file: str | None = None
) -> RankRoofline:
    """The roofline of one rank; options as for `roofline`."""
    requested, ran_on = choose_device(device, device_file), own_device(trace)
    names = tuple(filter(None, trace.meta.devices.values()))
    peaks = requested or ran_on
    projected = requested is not None and any(match(name) != requested for name in names)
    work = gpu_work(trace, scope)
    rank = trace.meta.rank
    if not len(work.event):
        skip = Skip(f"rank {rank}", no_gpu_work(trace, scope))
        return RankRoofline({}, [skip], peaks, ran_on, names, projected)
    costs = costing(trace, work)
    limits = bounds(costs.costs, peaks)
    calls, dur = costs.by_kind
    of_own = bounds(costs.costs, ran_on) if projected else limits
    used = utilisation(
        trace, work, costs, limits.peak, peaks.hbm_bytes_per_s if peaks else 0.0,
        refuted(costs, calls, dur, of_own.peak),
    )  # fmt: skip
    distant, row_of_kind = distances(rank, (calls, dur), costs, limits, peaks, projected)
    rows = {
        "roofline": distant,
        "utilisation": used.rows,
        "coverage": coverage(rank, work, costs),
        "uncovered": uncovered(trace, work, costs),
    }
    skips = list(used.skips)
    if not peaks:
        named = sorted(set(names))
        if trace.meta.cpu_only:
            reason = "CPU-only trace: no peaks for the CPU; FLOPs and bytes are counted"
        elif not named:
            reason = "the trace names no device; pass --device"
        else:
            reason = f"no peaks known for {', '.join(named)}; pass --device or --device-file"
        skips.insert(0, Skip(f"rank {rank}: roofline time and efficiency", reason))
    skips += [Skip("FLOPs and bytes", reason) for reason in costs.reasons if isinstance(reason, Failure)]
    linked = np.array([link == "gpu" for link in costs.costs.link], dtype=bool)
    kernels = np.flatnonzero(lookup(linked, costs.item, False))
    found = RankRoofline(rows, skips, peaks, ran_on, names, projected)
    return found._replace(messages=(work.start[kernels], row_of_kind[costs.item[kernels]]))


def coverage(rank: int, work: Work, costs: Costing) -> dict[str, Any]:
    """Rows of COVERAGE for one rank: one for each of STATUSES, in its order."""
    # Code into STATUSES of each piece of work.
    by_item = [STATUSES[1] if REPEATED in item.note else STATUSES[0] for item in costs.items]
    holes = [reason == NO_MODEL or isinstance(reason, Failure) for reason in costs.reasons]
    by_reason = [STATUSES[3] if hole else STATUSES[2] for hole in holes]
    code = np.array([STATUSES.index(how) for how in (*by_item, *by_reason)], dtype=np.int64)
    index = np.where(costs.item >= 0, costs.item, len(by_item) + costs.reason)
    total = sums(code[index], work.dur, len(STATUSES))
    return {
        "rank": np.full(len(STATUSES), rank),
        "status": list(STATUSES),
        "dur_ns": total,
        "fraction_of_gpu_time": total / max(int(total.sum()), 1),
    }


def uncovered(trace: Trace, work: Work, costs: Costing) -> dict[str, Any]:
    """Rows of UNCOVERED for one rank, longest time first."""
    rows = np.flatnonzero(costs.item < 0)
    names = trace.arrays.names
    op = work.op[rows]
    name = lookup(trace.arrays.name, op, work.name[rows]).astype(np.int64)
    group, (label, reason) = codes(name, costs.reason[rows])
    dur = sums(group, work.dur[rows], len(label))
    order = np.argsort(-dur, kind="stable")
    return {
        "rank": np.full(len(order), trace.meta.rank),
        "name": Coded.used(label[order], names),
        "reason": Coded.used(reason[order], costs.reasons),
        "count": np.bincount(group, minlength=len(label))[order],
        "dur_ns": dur[order],
        "fraction_of_gpu_time": dur[order] / max(int(work.dur.sum()), 1),
    }


def refuted(costing: Costing, count: Int, ns: Int, peak: Float) -> Bool:
    """Which kinds of calls compute less than was counted, an upper bound: their device cannot do as much."""
    is_bound = np.array([UPPER_BOUND in item.cost.note for item in costing.items], dtype=bool)
    is_bound &= costing.costs.on_matrix_units & (peak > 0)
    beyond: Bool = is_bound & (costing.costs.flops * count > EXPLAIN_ABOVE * peak * ns / 1e9)
    return beyond


def utilisation(
    trace: Trace, work: Work, costing: Costing, peak: Float, bandwidth: float, is_refuted: Bool
) -> Utilisation:
    """How much of `peak`, by kind of call, and of the memory's bandwidth each step of a rank uses.

    `is_refuted` are the kinds of calls of which it is not known how much they compute, see `refuted`.
    """
    steps = steps_of(trace)
    # One entry a call: where it begins, and what it is.
    counted = np.flatnonzero(costing.item >= 0)
    _, first = np.unique(costing.call[counted], return_index=True)
    calls = counted[first]
    item = costing.item[calls]
    costs = costing.costs
    amount = np.where(costs.on_matrix_units & ~is_refuted, costs.flops, 0).astype(float)
    flops = amount[item]
    peak_of_most = np.inf
    if flops.any():  # that of the element type in which most FLOPs are
        peaks, code = np.unique(peak[item], return_inverse=True)
        peak_of_most = float(peaks[np.argmax(np.bincount(code, weights=flops))])
    is_recompute = lookup(trace.once(recomputed), work.op[calls], False)
    step = launched_in(trace, steps, work.event[calls])
    number = len(steps.labels)

    def total(values: NDArray[Any]) -> Float:
        return np.bincount(step, weights=values, minlength=number).astype(np.float64)

    dur = np.diff(steps.edges)
    seconds = np.maximum(dur, 1) / 1e9
    of_work = launched_in(trace, steps, work.event)
    gpu_ns = sums(of_work, work.dur, number)
    uncounted_ns = sums(of_work, np.where(costing.item < 0, work.dur, 0), number)
    modelled = on_matrix_units(work) & np.isin(costing.item, np.flatnonzero(amount > 0))
    # Work that is not counted and multiplies matrices, by its class.
    computing = work.kind == WORK_KINDS.index("computation")
    uncounted = computing & (costing.item < 0)
    opaque = np.isin(work.category, [code for code, name in enumerate(work.categories) if name in OPAQUE])
    computing_ns, not_counted_ns = (
        sums(of_work, np.where(mask, work.dur, 0), number) for mask in (computing, uncounted)
    )
    mostly = not_counted_ns > MOSTLY_UNCOUNTED * computing_ns
    lacking: Bool = uncounted & (on_matrix_units(work) | (opaque & mostly[of_work]))
    overcounted = lookup(is_refuted, costing.item, False)
    modelled_ns, lacking_ns, overcounted_ns = (
        sums(of_work, np.where(mask, work.dur, 0), number) for mask in (modelled, lacking, overcounted)
    )
    multiplying_ns = modelled_ns + lacking_ns + overcounted_ns
    too_much = overcounted_ns > MOST_OVERCOUNTED * multiplying_ns
    unknown = (lacking_ns > modelled_ns) | too_much
    figures = {
        "flops": total(flops),
        "recompute_flops": total(flops * is_recompute),
        "flops_per_s": total(flops) / seconds,
        "mfu": _share(total(flops * ~is_recompute) / seconds, peak_of_most),
        "hfu": _share(total(flops) / seconds, peak_of_most),
    }
    moved = np.where(costs.is_linked, 0, costs.read_bytes + costs.write_bytes).astype(float)
    mbu = _share(total(moved[item]) / seconds, bandwidth)
    rows = {
        "rank": np.full(number, trace.meta.rank),
        "step": steps.labels,
        "dur_ns": dur,
        "modelled_fraction": 1 - uncounted_ns / np.maximum(gpu_ns, 1),
        **{name: np.where(unknown, -1.0, values) for name, values in figures.items()},
        "mbu": np.where(uncounted_ns > MOSTLY_UNCOUNTED * gpu_ns, -1.0, mbu),
    }
    share = lacking_ns / np.maximum(multiplying_ns, 1)
    # Steps whose FLOPs are not known, by the reason for most of their uncounted work.
    reason_ns = np.zeros((number, max(len(costing.reasons), 1)), dtype=np.int64)
    with_reason = np.flatnonzero(lacking & (of_work >= 0) & (costing.reason >= 0))
    np.add.at(reason_ns, (of_work[with_reason], costing.reason[with_reason]), work.dur[with_reason])
    main_reason, skips = reason_ns.argmax(axis=1), []
    multiplying = "of the time in kernels that (may) multiply matrices"

    def skip(affected: Int, reason: str) -> Skip:
        which = steps.labels[affected[0]] if len(affected) == 1 else f"{len(affected)} steps"
        return Skip(f"rank {trace.meta.rank}: MFU of {which}", reason)

    for reason in unique(main_reason[unknown & ~too_much]).tolist():
        affected = np.flatnonzero(unknown & ~too_much & (main_reason == reason))
        time = f"{share[affected].mean():.1%} {multiplying}"
        skips.append(skip(affected, f"no cost model for {time}: {costing.reasons[reason]}"))
    if too_much.any():
        affected = np.flatnonzero(too_much)
        time = (overcounted_ns[affected] / multiplying_ns[affected]).mean()
        names = ", ".join(dict.fromkeys(costing.items[kind].name for kind in np.flatnonzero(is_refuted)))
        reason = f"shapes say more than is computed: {names} beyond the peak, {time:.1%} {multiplying}"
        skips.append(skip(affected, f"{reason}; tracelens.record notes how many rows lie in groups"))
    return Utilisation(rows, skips)


def _share(rate: Float, peak: float) -> Float:
    return rate / peak if peak > 0 else np.full(len(rate), -1.0)


def distances(
    rank: int,
    by_kind: tuple[Int, Int],
    counted: Costing,
    limits: Bounds,
    device: Device | None,
    projected: bool,
) -> tuple[dict[str, Any], Int]:
    """Rows of ROOFLINE for one rank, largest recoverable time first, and the row of each kind of call, or -1.

    By kind of call, `by_kind` has how many and their GPU time, `limits` what the device allows. The device is
    None where it is not known, and `projected` where the work ran on another one. What ranks waited for each
    other is not known of one.
    """
    count, dur = by_kind
    # Kinds whose calls all lie outside of the scope or step have no row.
    kept = np.flatnonzero(count)
    group, items = by_size([counted.items[kind] for kind in kept.tolist()], count[kept])
    size = len(items)
    first = first_rows(group, size)
    known = limits.roofline[kept][first] >= 0
    least = np.bincount(group, weights=limits.roofline[kept] * count[kept], minlength=size)
    maf = np.bincount(group, weights=limits.maf[kept] * count[kept], minlength=size)
    bound = limits.bound[kept][first]
    count, dur = sums(group, count[kept], size), sums(group, dur[kept], size)
    time = np.maximum(dur, 1)
    efficiency = np.where(known, least / time, -1.0)
    recoverable = np.where(known, np.maximum(dur - np.rint(least).astype(np.int64), 0), -1)
    maf_efficiency = np.where(limits.maf[kept][first] >= 0, maf / time, -1.0)
    order = np.lexsort((-dur, -recoverable))
    place = np.empty(size, dtype=np.int64)
    place[order] = np.arange(size)
    row_of_kind = np.full(len(counted.items), -1, dtype=np.int64)
    row_of_kind[kept] = place[group]
    items = [items[row] for row in order.tolist()]
    bounded_by = [BOUNDS[code] for code in bound[order].tolist()]
    time, efficiency, maf_efficiency = time[order], efficiency[order], maf_efficiency[order]
    notes = [entry.note for entry in items]
    too_fast = (efficiency > EXPLAIN_ABOVE) | (maf_efficiency > EXPLAIN_ABOVE)
    for row in np.flatnonzero(too_fast).tolist():
        if device:
            reached = efficiency.item(row), maf_efficiency.item(row)
            why = explain(items[row], bounded_by[row], device, projected, *reached)
            notes[row] = "; ".join(filter(None, (why, notes[row])))
    # FLOPs and bytes of one call, and how many of them a second were achieved.
    costs = CostColumns.of(entry.cost for entry in items)
    flops, read, write, link = costs.flops, costs.read_bytes, costs.write_bytes, costs.link_bytes
    rate = count[order] / time * 1e9
    rows = {
        "name": [entry.name for entry in items],
        "shapes": [entry.shapes for entry in items],
        "dtype": list(costs.dtype),
        "dims": [" ".join(f"{key}={value}" for key, value in entry.cost.dims) for entry in items],
        "bound": bounded_by,
        "note": notes,
        "flops": flops,
        "read_bytes": read,
        "write_bytes": write,
        "link_bytes": link,
        "flops_per_s": flops * rate,
        "bytes_per_s": np.where(costs.is_linked, link, read + write) * rate,
        "intensity": flops / np.maximum(read + write, 1),
        "rank": np.full(size, rank),
        "count": count[order],
        "dur_ns": dur[order],
        "wait_ns": np.zeros(size, dtype=np.int64),
        "roofline_ns": np.where(known, np.rint(least), -1).astype(np.int64)[order],
        "efficiency": efficiency,
        "maf_efficiency": maf_efficiency,
        "recoverable_ns": recoverable[order],
    }
    return rows, row_of_kind


_UNEVEN = ("all_to_allv", "alltoallv")
"""What collectives are called of which each call has other sizes."""


def by_size(items: Sequence[Counted], count: Int) -> tuple[Int, list[Counted]]:
    """The row of each kind of call, and what stands in it.

    Each kind is one, but for all-to-alls of uneven sizes: those of a group with sizes between the same powers
    of two are one, with the mean of their bytes.
    """
    uneven = [kind for kind, item in enumerate(items) if item.name.startswith(_UNEVEN)]
    first = np.arange(len(items))  # of the kinds in the row of each
    of_size: dict[tuple[object, ...], int] = {}
    for kind in uneven:
        item = items[kind]
        size = item.name, item.cost.dtype, item.cost.dims, _largest(item).bit_length()
        first[kind] = of_size.setdefault(size, kind)
    kinds, group = numbered(first)
    rows = [items[kind] for kind in kinds.tolist()]
    for kind in of_size.values():
        one, members = items[kind], np.flatnonzero(first == kind)
        costs = [items[member].cost for member in members.tolist()]
        moved = [(cost.read_bytes, cost.write_bytes, cost.link_bytes) for cost in costs]
        read, write, link = np.rint(np.average(moved, axis=0, weights=count[members])).astype(int).tolist()
        high, ranks = 1 << _largest(one).bit_length(), one.shapes.rpartition(", ")[2]
        rows[group.item(kind)] = one._replace(
            shapes=f"{one.cost.dtype} {size_text(high >> 1)} to {size_text(high)}, {ranks}",
            cost=one.cost._replace(read_bytes=read, write_bytes=write, link_bytes=link),
        )
    return group, rows


def _largest(item: Counted) -> int:
    return max(item.cost.read_bytes, item.cost.write_bytes)


def share_mean_bytes(ranks: Sequence[dict[str, Any]]) -> None:
    """Give rows of uneven all-to-alls, the same on all ranks, the mean bytes of the calls of all."""
    places: dict[tuple[str, ...], list[tuple[dict[str, Any], int]]] = {}
    for rows in ranks:
        for place, name in enumerate(rows["name"]):
            if name.startswith(_UNEVEN):
                key = (name, rows["shapes"][place], rows["dtype"][place])
                places.setdefault(key, []).append((rows, place))
    for same in places.values():
        calls = [rows["count"][place] for rows, place in same]
        for column in _BYTES:
            mean = np.average([rows[column][place] for rows, place in same], weights=calls)
            for rows, place in same:
                rows[column][place] = round(float(mean))


def without_waiting(rank: RankRoofline, waited: Mapping[tuple[int, int], int]) -> dict[str, Any]:
    """Rows of ROOFLINE of a rank less what its collectives waited, ns by rank and start of their kernels."""
    rows, (starts, row) = rank.rows["roofline"], rank.messages
    number = int(rows["rank"][0]) if len(rows["rank"]) else 0
    found = np.array([waited.get((number, start), 0) for start in starts.tolist()], dtype=np.int64)
    waiting = np.minimum(sums(row, found, len(rows["name"])), rows["dur_ns"])
    if not waiting.any():
        return rows
    known, moving = rows["recoverable_ns"] >= 0, rows["dur_ns"] - waiting
    changed = dict(rows)
    changed["wait_ns"] = waiting
    least = np.minimum(rows["roofline_ns"], moving)
    changed["recoverable_ns"] = np.where(known, moving - least, -1)
    of_moving = np.minimum(rows["efficiency"] * rows["dur_ns"] / np.maximum(moving, 1), 1.0)
    changed["efficiency"] = np.where(known & (waiting > 0), of_moving, rows["efficiency"])
    order = np.lexsort((-rows["dur_ns"], -changed["recoverable_ns"]))
    return {
        name: values[order] if isinstance(values, np.ndarray) else [values[each] for each in order.tolist()]
        for name, values in changed.items()
    }


@analyzer(
    "roofline",
    sums_steps=True,
    title="Roofline",
    order=45,
    part=of_rank,
    shared=("aligned run",),
    slow=True,
    tables={**_TABLES, "roofs": ROOFS},
)
def roofline(ranks: Sequence[RankRoofline], aligned: AlignedRun, *, scope: Scope = "all") -> Result:
    """How far is each op from what the hardware allows?

    FLOPs and bytes come from the recorded arguments; the bound is the device that the trace names.

    Reading:
        Rows with the most `recoverable_ns` come first: measured time beyond what the device allows. `bound`
        names the limit, `note` the reason for a figure that looks wrong. Read `coverage` before MFU.

    Limits:
        Waiting is known where a collective is recorded on several ranks; else it is in `recoverable_ns`.
        Peaks are data-sheet figures. Bytes count each tensor once, as if no cache missed or helped. What has
        no cost model or no recorded shapes is in `uncovered`.

    Args:
        ranks: from `of_rank`, whose options are: `scope`; `device`, to take the peaks of this device instead
            (as in `tracelens list devices`); `device_file`, to take them from this TOML file.
        aligned: the communication of the run, which tells what collectives waited.
        scope: "all", or "linked" for work whose launch call is in the trace.

    Returns:
        tables `roofline` (one row a rank, op and arguments), `utilisation` (one a rank and step), `coverage`,
        `uncovered` and `roofs`. meta: `coverage`, the share of GPU time that a cost model counts, and
        `repeats_fraction`, the part of it that takes its arguments from a repeat; `reasons_given`, the share
        that is not counted for what the trace lacks; `roofs_of`; `measured_on`; `projected_onto`, where that
        differs.

    Raises:
        TracelensError: no such device, or the file is no device file.
    """
    waited = {(number, start): ns for number, _, start, ns in aligned.waits()}
    parts = [{**rank.rows, "roofline": without_waiting(rank, waited)} for rank in ranks if rank.rows]
    share_mean_bytes([rows["roofline"] for rows in parts])
    tables = {name: schema.concat([rows[name] for rows in parts]) for name, schema in _TABLES.items()}
    peaks = {rank.peaks.name: rank.peaks for rank in ranks if rank.peaks is not None}
    ran_on = {rank.ran_on.name: rank.ran_on for rank in ranks if rank.ran_on is not None}
    tables["roofs"] = roofs(next(iter(peaks.values()), None), ran_on)
    meta = {
        "roofs_of": _listed(device.title for device in peaks.values()),
        "measured_on": _listed(sorted({device_title(name) for rank in ranks for name in rank.names})),
    }
    if any(rank.projected for rank in ranks):
        meta["projected_onto"] = meta["roofs_of"]
    skips = list(dict.fromkeys(skip for rank in ranks for skip in rank.skips))
    # Shares of all ranks' GPU time, by how it is counted.
    table = tables["coverage"]
    how, dur = table.coded("status"), table.array("dur_ns")
    totals = [int(dur[how.equals(name)].sum()) for name in STATUSES]
    total = max(sum(totals), 1)
    return result(
        tables,
        skips,
        scope=scope,
        **meta,
        **{
            "coverage": sum(totals[:MODELLED]) / total,
            "repeats_fraction": totals[1] / total,
            "reasons_given": totals[STATUSES.index("reason given")] / total,
        },
    )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "not known"
