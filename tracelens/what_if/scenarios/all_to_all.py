"""The all-to-all of expert parallelism: at another bandwidth, or hidden."""

from __future__ import annotations

import numpy as np

from tracelens.analysis.comm import bus_factor
from tracelens.arrays import Int
from tracelens.what_if.graph import MEET, TRANSFER, Edit, whole_ns
from tracelens.what_if.scenario import NotApplicable, ScenarioContext, number, scenario


@scenario("all_to_all_bandwidth", argument="=GB/s (or 2x)", usual=("2x",))
def all_to_all_bandwidth(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """All-to-alls run at the given bus bandwidth, or at a multiple of the measured one."""
    rate = number(argument.removesuffix("x"), f"all_to_all_bandwidth={argument}")
    meetings = _all_to_alls(context)
    graph, matched = context.recorded.graph, context.recorded.collectives.matched
    if argument.endswith("x"):
        edit.dur[meetings] = whole_ns(edit.dur[meetings] / rate, edit.dur[meetings])
        return f"{len(meetings):,} all-to-alls transfer {rate:g}x as fast, latency included"
    all_to_alls = [matched[number_] for number_ in graph.collective[meetings].tolist()]
    size = np.array([collective.bytes for collective in all_to_alls], dtype=np.int64)
    known = size >= 0
    if not known.any():
        raise NotApplicable("the trace has no message sizes of the all-to-alls")
    crossing = np.array(
        [
            bus_factor(collective.collective, collective.participants[0].record.size)
            for collective in all_to_alls
        ]
    )
    meetings = meetings[known]
    edit.dur[meetings] = whole_ns((size * crossing / rate)[known], edit.dur[meetings])
    return (
        f"{int(known.sum()):,} all-to-alls take the bytes of the largest rank / {rate:g} GB/s bus bandwidth, "
        "without latency"
    )


@scenario("all_to_all_hidden")
def all_to_all_hidden(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """All-to-all transfers are fully overlapped: nothing waits for them."""
    graph, meetings = context.recorded.graph, _all_to_alls(context)
    is_all_to_all = np.zeros(len(graph), dtype=bool)
    is_all_to_all[meetings] = True
    edit.dur[meetings] = 0
    edit.lag[(graph.edge == TRANSFER) & is_all_to_all[graph.src]] = 0
    return (
        f"the transfer of {len(meetings):,} all-to-alls takes no time; ranks still wait for the last to "
        "arrive, and overlapped kernels are not slowed down"
    )


def _all_to_alls(context: ScenarioContext) -> Int:
    """Nodes of the meetings of all-to-alls.

    Raises:
        NotApplicable: there are none that several ranks recorded.
    """
    graph, matched = context.recorded.graph, context.recorded.collectives.matched
    meetings = np.flatnonzero(graph.kind == MEET)
    names = [matched[number_].collective for number_ in graph.collective[meetings].tolist()]
    all_to_alls = (
        meetings[[name.startswith(("all_to_all", "alltoall")) for name in names]] if names else meetings
    )
    if not len(all_to_alls):
        raise NotApplicable(
            "no all-to-all recorded on several ranks; one rank alone does not separate transfer from waiting"
        )
    return all_to_alls
