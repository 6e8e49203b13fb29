"""From the traces of a run to its graph."""

from __future__ import annotations

from typing import NamedTuple

from tracelens.errors import TracelensError
from tracelens.table import Skip
from tracelens.trace import Run
from tracelens.what_if.graph.blocking import call_costs, join_waits, waits
from tracelens.what_if.graph.collectives import RunCollectives, meet, run_collectives
from tracelens.what_if.graph.device import device
from tracelens.what_if.graph.graph import Draft, Graph
from tracelens.what_if.graph.host import host
from tracelens.what_if.graph.streams import order
from tracelens.what_if.graph.windows import StepSpan, windows


class Recorded(NamedTuple):
    """A run as a graph."""

    graph: Graph
    collectives: RunCollectives  # matched across its ranks
    windows: list[StepSpan]  # of each step, its borders on each rank in order of rank
    skips: list[Skip]  # what its graph may lack


def build(run: Run) -> Recorded:
    """The graph of a run.

    Args:
        run: all its ranks, not narrowed to a step.

    Raises:
        TracelensError: a rank has no GPU work, or ranks recorded different steps.
    """
    for trace in run.traces:
        if not len(trace.work.event):
            raise TracelensError(f"{trace.meta.path}: no GPU work to replay")
    collectives = run_collectives(run)
    draft = Draft()
    hosts, devices, waiting = [], [], []
    for index, (trace, shift) in enumerate(zip(run.traces, collectives.shift, strict=True)):
        shared = collectives.shared(trace.meta.rank, index, len(trace.work.event))
        hosts.append(host(trace, index, shift, draft))
        devices.append(device(trace, index, shift, shared, hosts[-1], draft))
        order(trace, devices[-1], hosts[-1], draft)
        waiting.append(waits(trace, devices[-1], hosts[-1]))
    costs = call_costs(run, waiting)
    for parts in zip(run.traces, devices, hosts, waiting, strict=True):
        join_waits(*parts, costs, draft)
    meet(run, collectives, devices, draft)
    graph, number_of = draft.graph(run, collectives.shift)
    skips = [
        Skip(
            f"waits of host threads for each other on rank {trace.meta.rank}",
            f"{len(own.nodes)} threads launch work: at least {own.unseen:,} pauses of a thread were compared "
            "only with the threads of the nearest calls",
        )
        for trace, own in zip(run.traces, hosts, strict=True)
        if own.unseen
    ]
    return Recorded(graph, collectives, windows(graph, number_of, hosts, devices), skips)
