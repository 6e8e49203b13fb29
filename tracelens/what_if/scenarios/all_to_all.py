"""The all-to-all of expert parallelism: at another bandwidth, or hidden."""

from __future__ import annotations

import numpy as np

from tracelens.analysis.comm import bus_factor
from tracelens.arrays import Int
from tracelens.what_if.graph import MEET, TRANSFER, Edit, whole_ns
from tracelens.what_if.scenario import NotApplicable, ScenarioContext, number, scenario


@scenario("all_to_all_bandwidth", argument="=GB/s (or 2x)", usual=("2x",))
def all_to_all_bandwidth(scene: ScenarioContext, edit: Edit, argument: str) -> str:
    """All-to-alls move their data at so many GB/s of bus bandwidth, or so many times as fast as they did."""
    rate = number(argument.removesuffix("x"), f"all_to_all_bandwidth={argument}")
    meetings = _all_to_alls(scene)
    graph, instances = scene.recorded.graph, scene.recorded.exchanges.instances
    if argument.endswith("x"):
        edit.dur[meetings] = whole_ns(edit.dur[meetings] / rate, edit.dur[meetings])
        return f"{len(meetings):,} all-to-alls move their data {rate:g} times as fast, latency included"
    chosen = [instances[number_] for number_ in graph.instance[meetings].tolist()]
    size = np.array([one.bytes for one in chosen], dtype=np.int64)
    known = size >= 0
    if not known.any():
        raise NotApplicable("the trace does not say how much the all-to-alls move")
    crossing = np.array([bus_factor(one.collective, one.participants[0].record.size) for one in chosen])
    meetings = meetings[known]
    edit.dur[meetings] = whole_ns((size * crossing / rate)[known], edit.dur[meetings])
    return (
        f"{int(known.sum()):,} all-to-alls take the bytes of the rank with most / {rate:g} GB/s of bus "
        "bandwidth, and no latency"
    )


@scenario("all_to_all_hidden")
def all_to_all_hidden(scene: ScenarioContext, edit: Edit, argument: str) -> str:
    """All-to-alls move their data beside other work: nothing waits for the transfer."""
    graph, meetings = scene.recorded.graph, _all_to_alls(scene)
    chosen = np.zeros(len(graph), dtype=bool)
    chosen[meetings] = True
    edit.dur[meetings] = 0
    edit.lag[(graph.edge == TRANSFER) & chosen[graph.src]] = 0
    return (
        f"the transfer of {len(meetings):,} all-to-alls takes no time; ranks still wait until all have "
        "something to send, and the work beside is not slowed down"
    )


def _all_to_alls(scene: ScenarioContext) -> Int:
    """Nodes of the meetings of all-to-alls.

    Raises:
        NotApplicable: there are none that several ranks recorded.
    """
    graph, instances = scene.recorded.graph, scene.recorded.exchanges.instances
    meetings = np.flatnonzero(graph.kind == MEET)
    names = [instances[number_].collective for number_ in graph.instance[meetings].tolist()]
    found = meetings[[name.startswith(("all_to_all", "alltoall")) for name in names]] if names else meetings
    if not len(found):
        raise NotApplicable(
            "no all-to-all that several ranks of the run recorded; one rank alone does not show what is "
            "transfer and what is waiting"
        )
    return found
