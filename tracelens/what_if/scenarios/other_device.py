"""Another device: GPU work by the ratio of its roofline times, collectives by that of the links."""

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
def other_device(scene: ScenarioContext, edit: Edit, argument: str) -> str:
    """The run on another device: each kernel by the ratio of its roofline times, the host as it was."""
    to = read_device(argument) if argument.endswith(".toml") else device_named(argument)
    graph = scene.recorded.graph
    if all(trace.meta.cpu_only for trace in graph.run.traces):
        raise NotApplicable("the host does all the work of this run")
    told = {"roofline": 0.0, "memory": 0.0, "alone": 0.0}
    homes = []
    for at, trace in enumerate(graph.run.traces):
        home = device_of(scene, trace)
        if home is None:
            raise NotApplicable(f"rank {trace.meta.rank}: its device is not known; give --device")
        homes.append(home)
        factor, modelled = ratios(trace, home, to)
        mine = graph.of_rank[at]
        mine = mine[graph.kind[mine] == WORK]
        place = graph.work[mine]
        comm = trace.work.kind[place] == WORK_KINDS.index("comm")
        took = edit.dur[mine].astype(float)
        told["alone"] += took[comm].sum()
        told["roofline"] += took[~comm & modelled[place]].sum()
        told["memory"] += took[~comm & ~modelled[place]].sum()
        edit.dur[mine] = whole_ns(np.where(comm, took, took * factor[place]), edit.dur[mine])
    links = _links(scene, edit, homes, to)
    home = homes[0]
    parts = [
        f"GPU work keeps its efficiency against the roofline of {to.title} instead of {home.title}",
        f"{told['memory'] / max(told['memory'] + told['roofline'], 1):.0%} of its time has no cost model and "
        f"scales with the memory's bandwidth ({home.hbm_bytes_per_s / to.hbm_bytes_per_s:.2f})",
        links,
        "the host, its launches and the gaps of streams stay as they are",
    ]
    if told["alone"]:
        parts.append("communication that one rank alone recorded keeps its time")
    return ", ".join(filter(None, parts))


def ratios(trace: Trace, home: Device, to: Device) -> tuple[Float, Bool]:
    """Of each piece of a rank's work the time on `to` over that on `home`, and whether a cost model says it.

    Against the max-achievable rate of products where both devices publish one for the type, else against the
    data sheets' peaks.
    """
    found: Costing = trace.once(counted)
    here, there = bounds(found.items, home), bounds(found.items, to)
    both = (here.maf > 0) & (there.maf > 0)
    before, after = np.where(both, here.maf, here.roofline), np.where(both, there.maf, there.roofline)
    known = (before > 0) & (after > 0)
    each = np.where(known, after / np.where(known, before, 1.0), 0.0)
    modelled = found.item >= 0
    modelled[modelled] = known[found.item[modelled]]
    factor = np.full(len(found.item), home.hbm_bytes_per_s / to.hbm_bytes_per_s)
    factor[modelled] = each[found.item[modelled]]
    return factor, modelled


def _links(scene: ScenarioContext, edit: Edit, homes: list[Device], to: Device) -> str:
    """Transfers of collectives within a node by the ratio of the links; what is assumed of them."""
    graph, instances = scene.recorded.graph, scene.recorded.exchanges.instances
    meetings = np.flatnonzero(graph.kind == MEET)
    if not len(meetings):
        return ""
    size = np.array([instances[one].participants[0].record.size for one in graph.instance[meetings].tolist()])
    near = meetings[size <= _NODE]
    rate = np.array([home.gpu_link_bytes_per_s for home in homes])[graph.rank[near]]
    if not to.gpu_link_bytes_per_s or not (rate > 0).all():
        return "collectives keep their time, since a device's link rate is not known"
    edit.dur[near] = whole_ns(edit.dur[near] * rate / to.gpu_link_bytes_per_s, edit.dur[near])
    across = len(meetings) - len(near)
    return (
        f"transfers of {len(near):,} collectives scale with the links of a node"
        f" ({homes[0].gpu_link_bytes_per_s / to.gpu_link_bytes_per_s:.2f}), latency included"
        + (f", those of {across:,} over more than {_NODE} ranks keep their time" if across else "")
    )
