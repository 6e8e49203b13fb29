"""The all-to-all of expert parallelism: at another bandwidth, or hidden."""

from __future__ import annotations

import numpy as np

from tracelens.analysis.comm import MatchedCollective, bus_factor
from tracelens.arrays import Int
from tracelens.what_if.graph import Edge, Edit
from tracelens.what_if.scenario import NotApplicable, ScenarioContext, number, scenario


@scenario("all_to_all_bandwidth", argument="=GB/s (or 2x)", usual=("2x",))
def all_to_all_bandwidth(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """All-to-alls run at the specified bus bandwidth, or at a multiple of the measured one.

    Assumes:
        Transfers take the bytes of the largest rank at that rate, without latency.
    """
    rate = number(argument.removesuffix("x"), f"all_to_all_bandwidth={argument}")
    meetings, all_to_alls = _all_to_alls(context)
    if argument.endswith("x"):
        edit.set_dur(meetings, edit.dur[meetings] / rate)
        return f"{len(meetings):,} all-to-alls transfer {rate:g}x as fast, latency included"
    size = np.array([collective.bytes for collective in all_to_alls], dtype=np.int64)
    known = size >= 0
    if not known.any():
        raise NotApplicable("the trace has no message sizes of the all-to-alls")
    factor = np.array(
        [
            bus_factor(collective.collective, collective.participants[0].record.size)
            for collective in all_to_alls
        ]
    )
    edit.set_dur(meetings[known], (size * factor / rate)[known])
    return (
        f"{int(known.sum()):,} all-to-alls take the bytes of the largest rank / {rate:g} GB/s bus bandwidth, "
        "without latency"
    )


@scenario("all_to_all_hidden")
def all_to_all_hidden(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """All-to-all transfers are fully overlapped: nothing waits for them.

    Assumes:
        Ranks still wait for the last one to arrive, and overlapped kernels do not slow down.
    """
    graph, (meetings, _) = context.graph, _all_to_alls(context)
    edit.dur[meetings] = 0
    edit.lag[(graph.edge == Edge.TRANSFER) & np.isin(graph.src, meetings)] = 0
    return (
        f"the transfer of {len(meetings):,} all-to-alls takes no time; ranks still wait for the last to "
        "arrive, and overlapped kernels are not slowed down"
    )


def _all_to_alls(context: ScenarioContext) -> tuple[Int, list[MatchedCollective]]:
    """The nodes of the all-to-alls' meetings, and the all-to-alls.

    Raises:
        NotApplicable: there are none that several ranks recorded.
    """
    nodes, collectives = context.meetings()
    rows = [
        row
        for row, collective in enumerate(collectives)
        if collective.collective.startswith(("all_to_all", "alltoall"))
    ]
    if not rows:
        raise NotApplicable(
            "no all-to-all recorded on several ranks; one rank alone does not separate transfer from waiting"
        )
    return nodes[rows], [collectives[row] for row in rows]
