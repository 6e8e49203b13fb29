"""Another device: kernels scale with their roofline times, collectives with the links."""

from __future__ import annotations

import numpy as np

from tracelens.analysis.roofline import Costing, bounds
from tracelens.arrays import Bool, Float
from tracelens.devices import Device, read_device
from tracelens.devices import device as device_named
from tracelens.trace import WORK_KINDS, Trace
from tracelens.what_if.graph import MEET, WORK, Edit, whole_ns
from tracelens.what_if.scenario import NotApplicable, ScenarioContext, scenario
from tracelens.what_if.scenarios.devices import counted, device_of

_NODE = 8
"""GPUs that the links of a node connect, in all bundled devices' servers."""


@scenario("device", argument="=NAME or FILE.toml", usual=())
def other_device(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """The run on another device: each kernel scales with its roofline time, the host stays the same."""
    target = read_device(argument) if argument.endswith(".toml") else device_named(argument)
    graph = context.recorded.graph
    if all(trace.meta.cpu_only for trace in graph.run.traces):
        raise NotApplicable("the host does all the work of this run")
    scaled_ns = {"roofline": 0.0, "memory": 0.0, "alone": 0.0}
    recorded_devices = []
    for rank_index, trace in enumerate(graph.run.traces):
        recorded = device_of(context, trace)
        if recorded is None:
            raise NotApplicable(f"rank {trace.meta.rank}: unknown device; give --device")
        recorded_devices.append(recorded)
        factor, modelled = ratios(trace, recorded, target)
        rank_nodes = graph.of_rank[rank_index]
        rank_nodes = rank_nodes[graph.kind[rank_nodes] == WORK]
        work_row = graph.work[rank_nodes]
        comm = trace.work.kind[work_row] == WORK_KINDS.index("comm")
        dur_ns = edit.dur[rank_nodes].astype(float)
        scaled_ns["alone"] += dur_ns[comm].sum()
        scaled_ns["roofline"] += dur_ns[~comm & modelled[work_row]].sum()
        scaled_ns["memory"] += dur_ns[~comm & ~modelled[work_row]].sum()
        edit.dur[rank_nodes] = whole_ns(
            np.where(comm, dur_ns, dur_ns * factor[work_row]), edit.dur[rank_nodes]
        )
    links = _links(context, edit, recorded_devices, target)
    recorded = recorded_devices[0]
    parts = [
        f"kernels keep their roofline efficiency on {target.title} instead of {recorded.title}",
        f"{scaled_ns['memory'] / max(scaled_ns['memory'] + scaled_ns['roofline'], 1):.0%} of GPU time has no "
        "cost model and scales with memory bandwidth "
        f"({recorded.hbm_bytes_per_s / target.hbm_bytes_per_s:.2f})",
        links,
        "host time, launches and stream gaps stay the same",
    ]
    if scaled_ns["alone"]:
        parts.append("communication recorded on one rank only keeps its time")
    return ", ".join(filter(None, parts))


def ratios(trace: Trace, recorded: Device, target: Device) -> tuple[Float, Bool]:
    """Time on `target` / time on `recorded` of each of a rank's activities, and which of them are modelled.

    Uses max-achievable FLOP/s if both devices publish it for the type, else the data sheets' peaks.
    """
    costing: Costing = trace.once(counted)
    recorded_bounds, target_bounds = bounds(costing.items, recorded), bounds(costing.items, target)
    both = (recorded_bounds.maf > 0) & (target_bounds.maf > 0)
    before, after = (
        np.where(both, recorded_bounds.maf, recorded_bounds.roofline),
        np.where(both, target_bounds.maf, target_bounds.roofline),
    )
    known = (before > 0) & (after > 0)
    ratio = np.where(known, after / np.where(known, before, 1.0), 0.0)
    modelled = costing.item >= 0
    modelled[modelled] = known[costing.item[modelled]]
    factor = np.full(len(costing.item), recorded.hbm_bytes_per_s / target.hbm_bytes_per_s)
    factor[modelled] = ratio[costing.item[modelled]]
    return factor, modelled


def _links(context: ScenarioContext, edit: Edit, recorded_devices: list[Device], target: Device) -> str:
    """Scale transfers of collectives within a node by the link rates; returns the assumption."""
    graph, matched = context.recorded.graph, context.recorded.collectives.matched
    meetings = np.flatnonzero(graph.kind == MEET)
    if not len(meetings):
        return ""
    size = np.array(
        [
            matched[collective].participants[0].record.size
            for collective in graph.collective[meetings].tolist()
        ]
    )
    near = meetings[size <= _NODE]
    rate = np.array([device.gpu_link_bytes_per_s for device in recorded_devices])[graph.rank[near]]
    if not target.gpu_link_bytes_per_s or not (rate > 0).all():
        return "collectives keep their time, as a device's link rate is unknown"
    edit.dur[near] = whole_ns(edit.dur[near] * rate / target.gpu_link_bytes_per_s, edit.dur[near])
    across = len(meetings) - len(near)
    return (
        f"transfers of {len(near):,} collectives scale with the links of a node"
        f" ({recorded_devices[0].gpu_link_bytes_per_s / target.gpu_link_bytes_per_s:.2f}), latency included"
        + (f", those of {across:,} over more than {_NODE} ranks keep their time" if across else "")
    )
