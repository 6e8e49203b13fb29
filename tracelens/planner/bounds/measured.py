"""The collectives of a recorded run against the speed of light of its links, as a result."""

from __future__ import annotations

from tracelens.analysis.comm import align_run
from tracelens.analysis.common import own_device
from tracelens.devices import Device
from tracelens.errors import TracelensError
from tracelens.planner.bounds.model import assumed
from tracelens.planner.bounds.pairs import pair_rows
from tracelens.planner.bounds.placement import node_numbers
from tracelens.planner.bounds.platform import Platform
from tracelens.planner.bounds.tables import TRACE_TABLES
from tracelens.planner.bounds.transfers import fit_rows, limited, transfer_rows
from tracelens.registry import purpose
from tracelens.table import Result, Skip
from tracelens.trace import Run


def traced_device(run: Run) -> Device:
    """The device of all ranks; raises TracelensError where they have none, or several."""
    devices = {own_device(trace) for trace in run.traces}
    device = devices.pop() if len(devices) == 1 else None
    if device is None:
        names = sorted({name for trace in run.traces for name in trace.meta.devices.values()})
        reason = f"GPUs are {', '.join(names)}" if names else "no GPU is named"
        raise TracelensError(f"the traces do not name one known device ({reason}): pass --device")
    return device


def trace_bounds(run: Run, platform: Platform) -> Result:
    """How far are a run's collectives, and the GEMMs next to them, from the speed of light of its links?

    Args:
        run: all ranks of a job; waiting cannot be removed from those of one rank.
        platform: the machine it ran on.

    Returns:
        tables `collectives` (by group and message size), `fit`, `pairs` (a GEMM and its collective) and
        `assumptions`.
    """
    aligned = align_run(run)
    node_of = node_numbers(aligned, platform)
    known, skips = limited(aligned, node_of, platform)
    fitted, fit_skips = fit_rows(known)
    pairs = pair_rows(run, aligned, node_of, platform)
    if not aligned.collectives:
        reason = "no collective is matched across ranks, which separates waiting from transfer"
        skips.append(Skip("collectives against their links", f"{reason}: pass the traces of all ranks"))
    elif not pairs:
        reason = "no all-gather, reduce-scatter or all-reduce has the size of a GEMM next to it"
        skips.append(Skip("GEMMs next to collectives", reason))
    rows = {
        "collectives": transfer_rows(known, node_of),
        "fit": fitted,
        "pairs": pairs,
        "assumptions": assumed(platform, tuple(dict.fromkeys(row["dtype"] for row in pairs))),
    }
    return Result(
        "trace_bounds",
        "Collectives against the speed of light",
        {name: TRACE_TABLES[name].from_rows(of_table) for name, of_table in rows.items() if of_table},
        doc=purpose(trace_bounds),
        skips=(*aligned.skips, *skips, *fit_skips),
        meta={"device": platform.device.name, "ranks": len(run.traces)},
        command="tracelens project bounds",
    )
