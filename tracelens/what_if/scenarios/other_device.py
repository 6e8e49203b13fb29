"""The run on another device: kernels by what is known of both devices, transfers by the planner's model.

A kernel is priced by the rates that both devices reach for its sizes: measured, else modeled. Where either is
neither, both are priced by data sheets, so that no measurement is compared with a peak.
"""

from __future__ import annotations

from collections import defaultdict
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from tracelens.analysis.roofline import Counted, bounds, reachable_time
from tracelens.arrays import Bool, Float, Int, lookup
from tracelens.costs import OpCost
from tracelens.devices import DATA_SHEET, MEASURED, Device, memory_rate, read_device
from tracelens.devices import device as device_named
from tracelens.trace import Trace
from tracelens.what_if.graph import Edit, Node
from tracelens.what_if.scenario import NotApplicable, ScenarioContext, scenario, work_costs
from tracelens.what_if.scenarios.scaling import transfer_seconds

LEAST_SHARE = 0.005
"""Of the time of kernels, from which a kind of them is named: a smaller one would be 0% or so."""

_MEMORY, _LINK, _UNKNOWN = "memory-bound kernels", "copies over a link", "kernels without a cost model"

_SIZES = np.geomspace(1 << 12, 1 << 34, 200)
"""Bytes at which memory rates are looked up."""


def counted(trace: Trace, device: Device | None) -> tuple[list[Counted], Int]:
    """Kinds of calls of a rank with their costs, and the index among them of each activity, -1 for none."""
    costs = trace.once(work_costs)
    return costs.items, costs.item


@scenario("device", argument="=NAME or FILE.toml", usual=(), reads=(counted,), in_reports=False)
def other_device(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """The run on another device: kernels scale as the measured or modeled rates of both, the host stays.

    Assumes:
        Kernels keep their share of the rates that a device reaches for their sizes: those that were measured,
        else modeled (GEMMs of AMD GPUs by macro tiles), else those of the data sheets of both. Where the
        memory of both was measured, what a kernel takes beyond its bytes stays. A kernel without a cost model
        counts as one that only moves bytes.
        Transfers scale as the planner's model of links and network has them, latency included.
        Host time, launches and stream gaps stay the same.
    """
    target = read_device(argument) if argument.endswith(".toml") else device_named(argument)
    graph = context.gpu_graph()
    priced_ns: dict[tuple[str, str], float] = defaultdict(float)
    devices, keeps_communication = [], False
    for index, rank in enumerate(graph.ranks):
        if rank.device is None:
            raise NotApplicable(f"rank {rank.number}: unknown device; give --device")
        devices.append(rank.device)
        items, item = context.read(counted)[index]
        nodes = graph.nodes(index, Node.WORK)
        row, dur_ns = graph.work[nodes], edit.dur[nodes].astype(float)
        computes = ~rank.is_comm[row]
        kind = lookup(item, row, -1)[computes]
        prices = Prices.of(items, rank.device, target)
        edit.set_dur(nodes[computes], prices.scaled(dur_ns[computes], kind))
        keeps_communication |= bool(dur_ns[~computes].any())
        spent_ns = np.bincount(kind + 1, dur_ns[computes], minlength=len(items) + 1)
        # The first is of kind -1, whose price is the last.
        for name, ns in zip(prices.name, np.roll(spent_ns, -1).tolist(), strict=True):
            priced_ns[name] += ns
    total_ns = max(sum(priced_ns.values()), 1.0)
    shares = [
        f"{ns / total_ns:.0%} {name} ({basis})"
        for (name, basis), ns in sorted(priced_ns.items(), key=lambda each: -each[1])
        if ns >= LEAST_SHARE * total_ns
    ]
    host = "host time, launches and stream gaps stay the same"
    if target.vendor != devices[0].vendor:
        host += ", although launches go through another vendor's software"
    parts = [
        f"kernels keep their efficiency on {target.title} instead of {devices[0].title}; the rates of both "
        f"are, by the time of kernels: {', '.join(shares) or 'none'}",
        _change_transfers(context, edit, devices, target),
        host,
        "communication recorded on one rank only keeps its time" if keeps_communication else "",
    ]
    return "; ".join(filter(None, parts))


class Prices(NamedTuple):
    """Kinds of calls on two devices, of one array element each; the last is for work without a cost model."""

    name: list[tuple[str, str]]  # what they are, and what their rates are known from
    before_ns: Float  # at the rates of the device that they ran on; -1 where not known
    after_ns: Float  # at those of the other
    keeps_rest: Bool  # whether what they take beyond that stays, instead of scaling
    curve_ns: tuple[Float, Float]  # of both devices, for as many bytes as each of _SIZES

    @classmethod
    def of(cls, items: list[Counted], recorded: Device, target: Device) -> Prices:
        both, name, before_ns, after_ns = (recorded, target), [], [], []
        unknown = (_UNKNOWN, _bases(*(memory_rate(device, _SIZES[-1]).basis for device in both)))
        for item, *by_sheet in zip(items, *_by_data_sheets(items, *both), strict=True):
            reached = [reachable_time(item.name, item.cost, device) for device in both]
            bases = _bases(*(DATA_SHEET if item.cost.link else each.basis for each in reached))
            least_ns = by_sheet if bases == DATA_SHEET else [each.ns for each in reached]
            known = min(least_ns) > 0
            name.append((_kind(item.cost), bases) if known else unknown)
            before_ns.append(least_ns[0] if known else -1.0)
            after_ns.append(least_ns[1] if known else -1.0)
        keeps_rest = [kind in (_MEMORY, _UNKNOWN) and basis == MEASURED for kind, basis in (*name, unknown)]
        return cls(
            name=[*name, unknown],
            before_ns=np.array([*before_ns, -1.0]),
            after_ns=np.array([*after_ns, -1.0]),
            keeps_rest=np.array(keeps_rest),
            curve_ns=(_curve_ns(recorded), _curve_ns(target)),
        )

    def scaled(self, dur_ns: Float, kind: Int) -> Float:
        """Durations on the other device of work of these kinds; -1 is the last."""
        before, after = self.before_ns[kind], self.after_ns[kind]
        # Of a kernel of which nothing is known, as many bytes as would take all of its time.
        moved = np.interp(dur_ns, self.curve_ns[0], _SIZES)
        guessed = [np.interp(moved, _SIZES, curve) for curve in self.curve_ns]
        before, after = np.where(before < 0, guessed[0], before), np.where(before < 0, guessed[1], after)
        # Bytes that came from a cache change nothing.
        share = dur_ns / np.maximum(before, 1e-9)
        share = np.where(self.keeps_rest[kind], np.minimum(share, 1.0), share)
        result: Float = dur_ns + (after - before) * share
        return result


def _kind(cost: OpCost) -> str:
    dims = dict(cost.dims)
    if cost.link:
        return _LINK
    if cost.engine != "matrix" or not cost.flops:
        return _MEMORY
    if not {"M", "N", "K"} <= dims.keys():
        return "attention" if "Nq" in dims else "other matrix work"
    return "grouped GEMMs" if dims.get("G", 1) > 1 else "GEMMs"


def _bases(before: str, after: str) -> str:
    """What the rates of two devices are known from; where one is from a data sheet, both are."""
    if DATA_SHEET in (before, after):
        return DATA_SHEET
    return before if before == after else f"{before} -> {after}"


def _by_data_sheets(
    items: list[Counted], recorded: Device, target: Device
) -> tuple[list[float], list[float]]:
    """Least times on both devices, -1 where not known; max-achievable where both publish it for the type."""
    known = [bounds(items, device) for device in (recorded, target)]
    both = (known[0].maf > 0) & (known[1].maf > 0)
    return tuple(np.where(both, bound.maf, bound.roofline).tolist() for bound in known)


@lru_cache(maxsize=8)
def _curve_ns(device: Device) -> Float:
    """How long a device takes for as many bytes as each of _SIZES; all ranks of a run ask for the same."""
    return np.array([size * 1e9 / memory_rate(device, size).per_s for size in _SIZES.tolist()])


def _change_transfers(context: ScenarioContext, edit: Edit, devices: list[Device], target: Device) -> str:
    """Scale the transfers of collectives that meet; says how."""
    # Reports change no device: they need none of the planner.
    from tracelens.planner.step_time import Machine

    meetings, collectives = context.meetings()
    if not len(meetings):
        return ""
    if not target.gpu_link_bytes_per_s or not all(device.gpu_link_bytes_per_s for device in devices):
        return "collectives keep their time, as a device's link rate is unknown"
    machine = Machine()
    ranks = context.graph.rank[meetings].tolist()
    ratio = np.ones(len(meetings))
    for place, (rank, collective) in enumerate(zip(ranks, collectives, strict=True)):
        if collective.participants[0].record.size > 1:
            before, after = (transfer_seconds(collective, each, machine) for each in (devices[rank], target))
            ratio[place] = after / before
    edit.set_dur(meetings, edit.dur[meetings] * ratio)
    between = f"{ratio.min():.2f}" + (f" to {ratio.max():.2f}" if ratio.max() - ratio.min() > 0.005 else "")
    return (
        f"transfers of {len(meetings):,} collectives scale by {between}, latency included, as the planner's "
        f"model of links ({machine.node} GPUs per node, {machine.nic_bytes_per_s / 1e9:g} GB/s network each)"
    )
