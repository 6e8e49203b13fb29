"""How far each op is from what the hardware allows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tracelens.analyzers import analyzer, result, stack
from tracelens.analyzers._bounds import bounds, roofs
from tracelens.analyzers._costing import costing
from tracelens.analyzers._coverage import COVERAGE, HOW, UNCOVERED, coverage, uncovered
from tracelens.analyzers._distance import ROOFLINE, distances
from tracelens.analyzers._utilisation import UTILISATION, utilisation
from tracelens.analyzers.timeline import no_gpu_work
from tracelens.devices import Device, match, read_device
from tracelens.devices import device as device_named
from tracelens.errors import TracelensError
from tracelens.schema import Result, Skip
from tracelens.trace.run import Run
from tracelens.trace.trace import Trace
from tracelens.trace.work import Scope, gpu_work

_TABLES = {"roofline": ROOFLINE, "utilisation": UTILISATION, "coverage": COVERAGE, "uncovered": UNCOVERED}


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
        reason; `modelled_fraction`, the share that is counted, and `repeats_fraction`, the part of it that
        takes its arguments from a repeat; `roofs_of`; `measured_on`; `projected_onto`, where that differs.

    Raises:
        TracelensError: no such device, or the file is no device file.
    """
    chosen = choose_device(device, device_file)
    skips: list[Skip] = []
    parts: dict[str, list[dict[str, Any]]] = {name: [] for name in _TABLES}
    used_devices: dict[str, Device] = {}
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
        rank, projected = trace.meta.rank, _projected([trace], chosen)
        parts["roofline"].append(distances(rank, work, found, limits, peaks, projected))
        parts["utilisation"].append(utilisation(trace, work, found, limits.peak))
        parts["coverage"].append(coverage(rank, work, found))
        parts["uncovered"].append(uncovered(trace, work, found))
    tables = {name: stack(_TABLES[name], rows) for name, rows in parts.items()}
    own = filter(None, map(_own_device, run.traces))
    tables["roofs"] = roofs(chosen or next(iter(used_devices.values()), None), own)
    return result(tables, skips, scope=scope, **_meta(run, chosen, used_devices, parts["coverage"]))


def choose_device(name: str | None, file: str | None) -> Device | None:
    """The device of the options `device` and `device_file`, None where neither is given.

    Raises:
        TracelensError: both are given, no such device, or the file is no device file.
    """
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


def _meta(
    run: Run, chosen: Device | None, found: dict[str, Device], parts: list[dict[str, Any]]
) -> dict[str, Any]:
    """What holds for the result as a whole."""
    measured = sorted({name for trace in run.traces for name in trace.meta.devices.values()})
    totals = sum((part["dur_ns"] for part in parts), np.zeros(len(HOW), dtype=np.int64))
    whole = max(int(totals.sum()), 1)
    meta: dict[str, Any] = {
        "roofs_of": ", ".join(device.title for device in found.values()) or "not known",
        "measured_on": ", ".join(measured) or "not known",
    }
    if _projected(run.traces, chosen):
        meta["projected_onto"] = chosen.title if chosen else ""
    return meta | {
        "coverage": float(totals[:3].sum() / whole),
        "modelled_fraction": float(totals[:2].sum() / whole),
        "repeats_fraction": float(totals[1] / whole),
    }


def _projected(traces: Sequence[Trace], chosen: Device | None) -> bool:
    """Whether any rank ran on another device than the one that sets the roofs."""
    if chosen is None:
        return False
    names = {name for trace in traces for name in trace.meta.devices.values()}
    return any((own := match(name)) is None or own.name != chosen.name for name in names)
