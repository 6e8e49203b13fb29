"""From the traces of a run to its graph."""

from __future__ import annotations

from typing import NamedTuple

from tracelens.errors import TracelensError
from tracelens.table import Skip
from tracelens.trace import Run
from tracelens.what_if.graph.collectives import RunCollectives, meet, run_collectives
from tracelens.what_if.graph.device import device
from tracelens.what_if.graph.graph import Draft, Graph
from tracelens.what_if.graph.host import host
from tracelens.what_if.graph.streams import order
from tracelens.what_if.graph.windows import StepSpan, windows


class Recorded(NamedTuple):
    """A run as a graph.

    Attributes:
        graph: its nodes and edges.
        collectives: matched across its ranks.
        windows: of each step, its borders on each rank in order of rank.
        skips: what its graph may lack.
    """

    graph: Graph
    collectives: RunCollectives
    windows: list[StepSpan]
    skips: list[Skip]


def build(run: Run) -> Recorded:
    """The graph of a run.

    Args:
        run: all its ranks, not narrowed to a step.

    Raises:
        TracelensError: a rank has no GPU work, or ranks recorded different steps.
    """
    for trace in run.traces:
        if not len(trace.work.event):
            raise TracelensError(f"{trace.meta.path}: no GPU work, so there is nothing to replay")
    found = run_collectives(run)
    draft = Draft()
    hosts, devices = [], []
    for at, trace in enumerate(run.traces):
        shared = found.shared(trace.meta.rank, at, len(trace.work.event))
        hosts.append(host(trace, at, found.shift[at], draft))
        devices.append(device(trace, at, found.shift[at], shared, hosts[-1], draft))
        order(trace, devices[-1], hosts[-1], draft)
    meet(run, found, devices, draft)
    borders = windows(run, hosts, devices)
    graph, place = draft.graph(run, found.shift)
    skips = [
        Skip(
            f"waits of host threads for each other on rank {trace.meta.rank}",
            f"{len(one.nodes)} threads launch work: at least {one.unseen:,} pauses of a thread were compared "
            "only with the threads of the nearest calls",
        )
        for trace, one in zip(run.traces, hosts, strict=True)
        if one.unseen
    ]
    return Recorded(graph, found, [window.renumbered(place) for window in borders], skips)
