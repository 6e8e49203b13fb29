"""How far each op is from what the hardware allows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from tracelens.analysis.analyzer import analyzer
from tracelens.analysis.common import choose_device, no_gpu_work, own_device
from tracelens.analysis.roofline.bounds import ROOFS, bounds, roofs
from tracelens.analysis.roofline.costing import costing
from tracelens.analysis.roofline.coverage import COVERAGE, MODELLED, STATUSES, UNCOVERED, coverage, uncovered
from tracelens.analysis.roofline.distance import ROOFLINE, distances
from tracelens.analysis.roofline.utilisation import UTILISATION, utilisation
from tracelens.devices import Device, match
from tracelens.guard import Failure
from tracelens.table import Result, Skip, Table, result
from tracelens.trace import Scope, Trace, gpu_work

_TABLES = {"roofline": ROOFLINE, "utilisation": UTILISATION, "coverage": COVERAGE, "uncovered": UNCOVERED}


class RankRoofline(NamedTuple):
    """The roofline of one rank.

    Attributes:
        rows: columns of each of _TABLES; empty where the rank has no GPU work.
        skips: what is not known of it.
        peaks: the device that sets its bounds.
        ran_on: the device that it ran on, where that is known.
        names: of its devices, as the trace has them.
        projected: whether peaks are another device's than the one that it ran on.
    """

    rows: dict[str, dict[str, Any]]
    skips: list[Skip]
    peaks: Device | None
    ran_on: Device | None
    names: tuple[str, ...]
    projected: bool


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
    limits = bounds(costs.items, peaks)
    used = utilisation(trace, work, costs, limits.peak)
    rows = {
        "roofline": distances(rank, work, costs, limits, peaks, projected),
        "utilisation": used.rows,
        "coverage": coverage(rank, work, costs),
        "uncovered": uncovered(trace, work, costs),
    }
    skips = [*used.skips] if peaks else [_no_device(trace), *used.skips]
    skips += [Skip("FLOPs and bytes", reason) for reason in costs.reasons if isinstance(reason, Failure)]
    return RankRoofline(rows, skips, peaks, ran_on, names, projected)


@analyzer(
    "roofline",
    title="Roofline",
    order=45,
    part=of_rank,
    slow=True,
    tables={**_TABLES, "roofs": ROOFS},
)
def roofline(ranks: Sequence[RankRoofline], *, scope: Scope = "all") -> Result:
    """How far is each op from what the hardware allows?

    FLOPs and bytes come from the recorded arguments; the bound is the device that the trace names.

    Reading:
        Rows with the most `recoverable_ns` come first: measured time beyond what the device allows. `bound`
        names the limit, `note` the reason for a figure that looks wrong. Read `coverage` before MFU.

    Limits:
        Peaks are data-sheet figures. Bytes count each tensor once, as if no cache missed or helped. What has
        no cost model or no recorded shapes is in `uncovered`.

    Args:
        ranks: from `of_rank`, whose options are: `scope`; `device`, to take the peaks of this device instead
            (as in `tracelens list devices`); `device_file`, to take them from this TOML file.
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
    parts = [rank.rows for rank in ranks if rank.rows]
    tables = {name: schema.concat([rows[name] for rows in parts]) for name, schema in _TABLES.items()}
    peaks = {rank.peaks.name: rank.peaks for rank in ranks if rank.peaks is not None}
    ran_on = {rank.ran_on.name: rank.ran_on for rank in ranks if rank.ran_on is not None}
    tables["roofs"] = roofs(next(iter(peaks.values()), None), ran_on)
    meta = {
        "roofs_of": _listed(device.title for device in peaks.values()),
        "measured_on": _listed(sorted({name for rank in ranks for name in rank.names})),
    }
    if any(rank.projected for rank in ranks):
        meta["projected_onto"] = meta["roofs_of"]
    skips = list(dict.fromkeys(skip for rank in ranks for skip in rank.skips))
    return result(tables, skips, scope=scope, **meta, **_shares(tables["coverage"]))


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "not known"


def _shares(table: Table) -> dict[str, float]:
    """Shares of all ranks' GPU time, by how it is counted."""
    how, dur = table.coded("status"), table.array("dur_ns")
    totals = [int(dur[how.equals(name)].sum()) for name in STATUSES]
    total = max(sum(totals), 1)
    return {
        "coverage": sum(totals[:MODELLED]) / total,
        "repeats_fraction": totals[1] / total,
        "reasons_given": totals[STATUSES.index("reason given")] / total,
    }


def _no_device(trace: Trace) -> Skip:
    names = sorted(filter(None, set(trace.meta.devices.values())))
    subject = f"rank {trace.meta.rank}: roofline time and efficiency"
    if trace.meta.cpu_only:
        return Skip(subject, "CPU-only trace: no peaks for the CPU; FLOPs and bytes are counted")
    if not names:
        return Skip(subject, "the trace names no device; pass --device")
    return Skip(subject, f"no peaks known for {', '.join(names)}; pass --device or --device-file")
