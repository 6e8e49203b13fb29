"""The steps of a serving engine in a graph: what ranks ran side by side, and the nodes of each step."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tracelens.analysis.serving import GlobalStep, by_one_clock, global_steps, rank_steps
from tracelens.arrays import Int, lookup
from tracelens.what_if.graph import LAUNCH, MEET, POINT, TRANSFER, WAITED
from tracelens.what_if.scenario import NotApplicable, ScenarioContext


class Ticks(NamedTuple):
    """The common steps of a run.

    Attributes:
        steps: in order of time.
        of: of each node, place in `steps`, -1 for none.
    """

    steps: list[GlobalStep]
    of: Int


def ticks(scene: ScenarioContext) -> Ticks:
    """The steps that all ranks of a serving run ran together.

    Raises:
        NotApplicable: there are no labelled steps, or no rank to compare with.
    """
    run = scene.recorded.graph.run
    shift = scene.recorded.collectives.aligned.shift
    ranks = by_one_clock([rank_steps(trace) for trace in run.traces], shift)
    labelled = [rank for rank in ranks if rank.steps]
    if not labelled:
        raise NotApplicable("no step labels of a serving engine in the trace")
    found = global_steps(labelled)
    if not found:
        raise NotApplicable("no steps that several serving ranks ran together; give the traces of all ranks")
    return Ticks(found, _places(scene, found))


def _places(scene: ScenarioContext, found: list[GlobalStep]) -> Int:
    """The step of each node: GPU work by its time, a call by what it launches, a meeting by its end."""
    graph = scene.recorded.graph
    place = np.full(len(graph), -1, dtype=np.int64)
    steps_of: dict[int, list[tuple[int, int, int]]] = {}
    for number, common in enumerate(found):
        for rank, step in common.rank_steps:
            steps_of.setdefault(rank, []).append((number, step.start, step.end))
    for rank, own in zip(graph.run.ranks, graph.of_rank, strict=True):
        if rank not in steps_of:
            continue
        number, start, end = np.array(steps_of[rank], dtype=np.int64).T
        nodes = own[graph.work[own] >= 0]
        before = np.maximum(np.searchsorted(start, graph.start[nodes], side="right") - 1, 0)
        inside = (graph.start[nodes] >= start[before]) & (graph.start[nodes] <= end[before])
        place[nodes[inside]] = number[before[inside]]
    launch = np.flatnonzero(graph.edge == LAUNCH)
    launches = np.zeros(len(graph), dtype=bool)
    launches[graph.src[launch]] = True
    place[graph.src[launch]] = place[graph.dst[launch]]
    for trace, nodes in zip(graph.run.traces, graph.of_rank, strict=True):
        # A call that launches nothing belongs to what was launched before it; marks of steps are no calls.
        own = nodes[np.isin(graph.kind[nodes], (POINT, WAITED))]
        own = own[trace.arrays.where("launch")[graph.event[own]]]
        last = np.maximum.accumulate(np.where(launches[own], np.arange(len(own)), -1))
        place[own] = lookup(place[own], last, -1)
    moved = np.flatnonzero((graph.edge == TRANSFER) & (graph.kind[graph.src] == MEET))
    place[graph.src[moved]] = place[graph.dst[moved]]
    return place
