"""Another device: kernels scale with their roofline times, collectives with the links."""

from __future__ import annotations

import numpy as np

from tracelens.analysis.roofline import Counted, bounds
from tracelens.arrays import Bool, Float, Int, lookup
from tracelens.devices import Device, read_device
from tracelens.devices import device as device_named
from tracelens.trace import Trace
from tracelens.what_if.graph import Edit, Node
from tracelens.what_if.scenario import NotApplicable, ScenarioContext, scenario, work_costs

_NODE = 8
"""GPUs that the links of a node connect, in all bundled devices' servers."""


def counted(trace: Trace, device: Device | None) -> tuple[list[Counted], Int]:
    """Kinds of calls of a rank with their costs, and the index among them of each activity, -1 for none."""
    costs = trace.once(work_costs)
    return costs.items, costs.item


@scenario("device", argument="=NAME or FILE.toml", usual=(), reads=(counted,), in_reports=False)
def other_device(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """The run on another device: each kernel scales with its roofline time, the host stays the same.

    Assumes:
        Each kernel keeps its share of the roofline; one without a cost model scales with memory bandwidth.
        Transfers within a node scale with its links where both rates are known, others keep their time.
        Host time, launches and stream gaps stay the same.
    """
    target = read_device(argument) if argument.endswith(".toml") else device_named(argument)
    graph = context.gpu_graph()
    scaled_ns = {"roofline": 0.0, "memory": 0.0, "alone": 0.0}
    recorded_devices = []
    for index, rank in enumerate(graph.ranks):
        recorded = rank.device
        if recorded is None:
            raise NotApplicable(f"rank {rank.number}: unknown device; give --device")
        recorded_devices.append(recorded)
        factor, modelled = ratios(*context.read(counted)[index], recorded, target)
        nodes = graph.nodes(index, Node.WORK)
        work_row = graph.work[nodes]
        comm = rank.is_comm[work_row]
        dur_ns = edit.dur[nodes].astype(float)
        scaled_ns["alone"] += dur_ns[comm].sum()
        scaled_ns["roofline"] += dur_ns[~comm & modelled[work_row]].sum()
        scaled_ns["memory"] += dur_ns[~comm & ~modelled[work_row]].sum()
        edit.set_dur(nodes, np.where(comm, dur_ns, dur_ns * factor[work_row]))
    recorded = recorded_devices[0]
    parts = [
        f"kernels keep their roofline efficiency on {target.title} instead of {recorded.title}",
        f"{scaled_ns['memory'] / max(scaled_ns['memory'] + scaled_ns['roofline'], 1):.0%} of GPU time has no "
        "cost model and scales with memory bandwidth "
        f"({recorded.hbm_bytes_per_s / target.hbm_bytes_per_s:.2f})",
        _scale_transfers(context, edit, recorded_devices, target),
        "host time, launches and stream gaps stay the same",
        "communication recorded on one rank only keeps its time" if scaled_ns["alone"] else "",
    ]
    return ", ".join(filter(None, parts))


def ratios(items: list[Counted], item: Int, recorded: Device, target: Device) -> tuple[Float, Bool]:
    """Time on `target` / time on `recorded` of each of a rank's activities, and which of them are modeled.

    `items` and `item` are from `counted`.

    Uses max-achievable FLOP/s if both devices publish it for the type, else the data sheets' peaks.
    """
    known_bounds = [bounds(items, device) for device in (recorded, target)]
    both = (known_bounds[0].maf > 0) & (known_bounds[1].maf > 0)
    before, after = (np.where(both, bound.maf, bound.roofline) for bound in known_bounds)
    known = (before > 0) & (after > 0)
    memory = recorded.hbm_bytes_per_s / target.hbm_bytes_per_s
    ratio = np.where(known, after / np.where(known, before, 1.0), memory)
    return lookup(ratio, item, memory), lookup(known, item, False)


def _scale_transfers(
    context: ScenarioContext, edit: Edit, recorded_devices: list[Device], target: Device
) -> str:
    """Scale transfers of collectives within a node by the link rates; returns the assumption."""
    meetings, collectives = context.meetings()
    if not len(meetings):
        return ""
    size = np.array([collective.participants[0].record.size for collective in collectives])
    near = meetings[size <= _NODE]
    rate = np.array([device.gpu_link_bytes_per_s for device in recorded_devices])[context.graph.rank[near]]
    if not target.gpu_link_bytes_per_s or not (rate > 0).all():
        return "collectives keep their time, as a device's link rate is unknown"
    edit.set_dur(near, edit.dur[near] * rate / target.gpu_link_bytes_per_s)
    across = len(meetings) - len(near)
    return (
        f"transfers of {len(near):,} collectives scale with the links of a node"
        f" ({recorded_devices[0].gpu_link_bytes_per_s / target.gpu_link_bytes_per_s:.2f}), latency included"
        + (f", those of {across:,} over more than {_NODE} ranks keep their time" if across else "")
    )
