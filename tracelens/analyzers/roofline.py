"""How far each op is from what the hardware allows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracelens.analyzers import analyzer, result, stack, used
from tracelens.analyzers._bounds import BOUNDS, EXPLAIN_ABOVE, Bounds, bounds, explain, roofs
from tracelens.analyzers._costing import NO_MODEL, REPEATED, Costing, costing
from tracelens.analyzers._group import codes, sums
from tracelens.analyzers._utilisation import UTILISATION, utilisation
from tracelens.analyzers.ops import call_time
from tracelens.analyzers.timeline import no_gpu_work
from tracelens.devices import Device, match, read_device
from tracelens.devices import device as device_named
from tracelens.errors import TracelensError
from tracelens.schema import Column, Result, Schema, Skip
from tracelens.trace.run import Run
from tracelens.trace.trace import Trace
from tracelens.trace.work import Scope, Work, gpu_work

Int = NDArray[np.int64]

ROOFLINE = Schema(
    "Distance from the roofline, by op and arguments",
    (
        Column("rank", "int64"),
        Column("name", "category", doc="op, collective, copy or kernel"),
        Column("shapes", "category", doc="tensor arguments"),
        Column("dtype", "category", doc="element type of the arithmetic, which decides the peak"),
        Column("dims", "category", doc="sizes behind the FLOPs, such as M, N and K of a matrix product"),
        Column("count", "int64", "count", "calls"),
        Column("dur_ns", "int64", "ns", "GPU time of all calls; of each call the union of its work"),
        Column("flops", "int64", "flops", "of one call"),
        Column("read_bytes", "int64", "bytes", "of one call, each tensor once"),
        Column("write_bytes", "int64", "bytes", "of one call"),
        Column("link_bytes", "int64", "bytes", "of one call, over the link to the host or to other GPUs"),
        Column("flops_per_s", "float64", "flops/s", "achieved"),
        Column("bytes_per_s", "float64", "bytes/s", "achieved, on the link where the bound is a link"),
        Column("intensity", "float64", "flops/byte", "FLOPs per byte read or written"),
        Column("bound", "category", doc="what limits it: compute, memory, host link, gpu link"),
        Column("roofline_ns", "int64", "ns", "least time for all calls; -1 where the device's figures lack"),
        Column("efficiency", "float64", "fraction", "roofline time / measured time, against peak"),
        Column("maf_efficiency", "float64", "fraction", "the same against max-achievable FLOPs, if published"),
        Column("recoverable_ns", "int64", "ns", "measured - roofline time: what a perfect kernel would save"),
        Column("note", "category"),
    ),
    doc="A call can be no faster than its FLOPs at peak and its bytes at full bandwidth allow, whichever "
    "takes longer: that is its roofline time. Largest recoverable time first.",
)

COVERAGE = Schema(
    "How much GPU time is counted",
    (
        Column("rank", "int64"),
        Column("how", "category", doc="counted by its own arguments, by those of a repeat, or why not"),
        Column("dur_ns", "int64", "ns"),
        Column("fraction", "float64", "fraction", "of the summed duration of all GPU work"),
    ),
)

UNCOVERED = Schema(
    "GPU time that is not counted, by name",
    (
        Column("rank", "int64"),
        Column("name", "category", doc="op, or kernel where there is no op"),
        Column("reason", "category", doc="what the trace lacks"),
        Column("count", "int64", "count", "pieces of GPU work"),
        Column("dur_ns", "int64", "ns"),
        Column("fraction", "float64", "fraction", "of the summed duration of all GPU work"),
    ),
)

HOW = ("cost model", "cost model, arguments of a repeat", "named reason", "no cost model")


@analyzer("roofline", title="Roofline", order=45)
def roofline(
    run: Run, *, scope: Scope = "all", device: str | None = None, device_file: str | None = None
) -> Result:
    """How far is each op from what the hardware allows?

    FLOPs and bytes come from the recorded arguments; the bound is the device that the trace names.

    Args:
        run: the ranks.
        scope: "all", or "linked" for work whose launch call is in the trace.
        device: take the peaks of this device instead (as in `tracelens list devices`).
        device_file: take them from this TOML file.

    Returns:
        tables `roofline` (one row a rank, op and arguments), `utilisation` (one a rank and step), `coverage`,
        `uncovered` and `roofs`. meta: `coverage`, the share of GPU time that is counted or has a named
        reason; `modelled`, the share that is counted; `device`; `measured_on`; `projected_onto`.

    Raises:
        TracelensError: no such device, or the file is no device file.
    """
    chosen = _chosen(device, device_file)
    skips: list[Skip] = []
    parts: dict[str, list[dict[str, Any]]] = {name: [] for name in _TABLES}
    used_devices: dict[str, Device] = {}
    totals = np.zeros(len(HOW), dtype=np.int64)
    for trace in run.traces:
        work = gpu_work(trace, scope)
        if not len(work.event):
            skips.append(Skip(f"rank {trace.meta.rank}", no_gpu_work(trace, scope)))
            continue
        peaks = chosen or _own_device(trace)
        if peaks is None:
            skips.append(_no_device(trace))
        else:
            used_devices[peaks.name] = peaks
        found = costing(trace, work)
        limits = bounds(found.items, peaks)
        parts["roofline"].append(_rows(trace, work, found, limits, peaks))
        parts["utilisation"].append(utilisation(trace, work, found, limits.peak))
        how = _how(found)
        parts["coverage"].append(_coverage(trace.meta.rank, work, how))
        parts["uncovered"].append(_uncovered(trace, work, found))
        totals += sums(how, work.dur, len(HOW))
    tables = {name: stack(_TABLES[name], rows) for name, rows in parts.items()}
    tables["roofs"] = roofs(chosen or next(iter(used_devices.values()), None))
    return result(tables, skips, scope=scope, **_meta(run, chosen, used_devices, totals))


_TABLES = {"roofline": ROOFLINE, "utilisation": UTILISATION, "coverage": COVERAGE, "uncovered": UNCOVERED}


def _chosen(name: str | None, file: str | None) -> Device | None:
    if name and file:
        raise TracelensError("--device and --device-file both name a device; give one of them")
    if file:
        return read_device(file)
    return device_named(name) if name else None


def _own_device(trace: Trace) -> Device | None:
    """The device that the trace was recorded on."""
    found = {match(name) for name in trace.meta.devices.values()}
    return found.pop() if len(found) == 1 else None


def _no_device(trace: Trace) -> Skip:
    names = sorted(set(trace.meta.devices.values()))
    subject = f"rank {trace.meta.rank}: roofline time and efficiency"
    if not names:
        return Skip(subject, "the trace names no device; say which with --device")
    return Skip(subject, f"no peaks known for {', '.join(names)}; use --device or --device-file")


def _meta(run: Run, chosen: Device | None, found: dict[str, Device], totals: Int) -> dict[str, Any]:
    """What holds for the result as a whole."""
    measured = sorted({name for trace in run.traces for name in trace.meta.devices.values()})
    whole = max(int(totals.sum()), 1)
    meta: dict[str, Any] = {
        "device": ", ".join(device.title for device in found.values()) or "not known",
        "measured_on": ", ".join(measured) or "not known",
    }
    if _projected(run.traces, chosen):
        meta["projected_onto"] = chosen.title if chosen else ""
    return meta | {
        "coverage": float(totals[:3].sum() / whole),
        "modelled": float(totals[:2].sum() / whole),
        "from_repeats": float(totals[1] / whole),
    }


def _projected(traces: Sequence[Trace], chosen: Device | None) -> bool:
    """Whether any rank ran on another device than the one that sets the roofs."""
    if chosen is None:
        return False
    names = {name for trace in traces for name in trace.meta.devices.values()}
    return any((own := match(name)) is None or own.name != chosen.name for name in names)


def _how(found: Costing) -> Int:
    """Code into HOW of each piece of work."""
    repeat = np.array([item.note.startswith(REPEATED) for item in found.items], dtype=bool)
    hole = np.array([reason == NO_MODEL for reason in found.reasons], dtype=bool)
    how = np.full(len(found.item), HOW.index("named reason"))
    how[found.reason >= 0] = np.where(hole[found.reason[found.reason >= 0]], HOW.index("no cost model"), HOW.index("named reason")) if len(hole) else HOW.index("named reason")
    counted = found.item >= 0
    how[counted] = np.where(repeat[found.item[counted]], 1, 0) if len(repeat) else 0
    return how


def _coverage(rank: int, work: Work, how: Int) -> dict[str, Any]:
    total = sums(how, work.dur, len(HOW))
    return {
        "rank": np.full(len(HOW), rank),
        "how": list(HOW),
        "dur_ns": total,
        "fraction": total / max(int(total.sum()), 1),
    }


def _uncovered(trace: Trace, work: Work, found: Costing) -> dict[str, Any]:
    """Work that was not counted, by name and reason."""
    rows = np.flatnonzero(found.item < 0)
    names = trace.arrays.names
    name = np.where(work.op[rows] >= 0, trace.arrays.name[work.op[rows]], work.name[rows])
    group, (label, reason) = codes(name.astype(np.int64), found.reason[rows])
    dur = sums(group, work.dur[rows], len(label))
    order = np.argsort(-dur, kind="stable")
    return {
        "rank": np.full(len(order), trace.meta.rank),
        "name": used(names, label[order]),
        "reason": used(found.reasons, reason[order]),
        "count": np.bincount(group, minlength=len(label))[order],
        "dur_ns": dur[order],
        "fraction": dur[order] / max(int(work.dur.sum()), 1),
    }


def _rows(
    trace: Trace, work: Work, found: Costing, limits: Bounds, peaks: Device | None
) -> dict[str, Any]:
    """Rows of ROOFLINE for one rank: one a kind of call."""
    rows = np.flatnonzero(found.item >= 0)
    call, dur_of_call = call_time(work.take(rows), found.call[rows])
    _, first = np.unique(found.call[rows], return_index=True)
    item = found.item[rows[first]]
    size = len(found.items)
    count, dur = np.bincount(item, minlength=size), sums(item, dur_of_call, size)
    kept = np.flatnonzero(count)
    count, dur = count[kept], dur[kept]
    items = [found.items[place] for place in kept.tolist()]
    costs = [entry.cost for entry in items]

    def amounts(name: str) -> Int:
        return np.array([getattr(cost, name) for cost in costs], dtype=np.int64)

    flops, read, write, link = map(amounts, ("flops", "read_bytes", "write_bytes", "link_bytes"))
    moved = np.where([cost.link != "" for cost in costs], link, read + write) if costs else read
    least = limits.roofline[kept] * count
    time = np.maximum(dur, 1)
    known = limits.roofline[kept] >= 0
    efficiency = np.where(known, least / time, -1.0)
    maf = limits.maf[kept]
    bound = limits.bound[kept]
    notes = [entry.note for entry in items]
    if peaks is not None:
        projected = _projected([trace], peaks)
        for place in np.flatnonzero(efficiency > EXPLAIN_ABOVE).tolist():
            why = explain(items[place], BOUNDS[bound[place]], peaks, projected)
            notes[place] = "; ".join(filter(None, (why or "faster than the roofline", notes[place])))
    recoverable = np.where(known, np.maximum(dur - np.rint(least).astype(np.int64), 0), -1)
    order = np.lexsort((-dur, -recoverable))
    texts = {
        "name": [entry.name for entry in items],
        "shapes": [entry.shapes for entry in items],
        "dtype": [cost.dtype for cost in costs],
        "dims": [" ".join(f"{key}={value}" for key, value in cost.dims) for cost in costs],
        "bound": [BOUNDS[code] for code in bound.tolist()],
        "note": notes,
    }
    numbers = {
        "rank": np.full(len(kept), trace.meta.rank),
        "count": count,
        "dur_ns": dur,
        "flops": flops,
        "read_bytes": read,
        "write_bytes": write,
        "link_bytes": link,
        "flops_per_s": flops * count / time * 1e9,
        "bytes_per_s": moved * count / time * 1e9,
        "intensity": flops / np.maximum(read + write, 1),
        "roofline_ns": np.where(known, np.rint(least), -1).astype(np.int64),
        "efficiency": efficiency,
        "maf_efficiency": np.where(maf >= 0, maf * count / time, -1.0),
        "recoverable_ns": recoverable,
    }
    return {name: [values[place] for place in order.tolist()] for name, values in texts.items()} | {
        name: values[order] for name, values in numbers.items()
    }
