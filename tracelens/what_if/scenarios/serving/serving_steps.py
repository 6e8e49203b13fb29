"""The steps of a serving engine in a graph: what ranks ran side by side, and the nodes of each step."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tracelens.analysis.serving import GlobalStep, RankSteps, by_one_clock, global_steps, rank_steps
from tracelens.arrays import Int, lookup
from tracelens.devices import Device
from tracelens.trace import Trace
from tracelens.what_if.graph import Edge, Node
from tracelens.what_if.scenario import NotApplicable, ScenarioContext


class ServingRank(NamedTuple):
    """What the serving scenarios read of a rank."""

    steps: RankSteps
    calls: Int  # event rows of its runtime calls; none where it has no steps
    kernel_ns: int  # of its shortest kernel, 0 without any


def serving_rank(trace: Trace, device: Device | None) -> ServingRank:
    """The labeled steps of a rank, and what its engine launches at least."""
    steps = trace.once(rank_steps)
    calls = np.flatnonzero(trace.arrays.where("launch") if steps.steps else np.zeros(0, dtype=bool))
    kernel_ns = trace.work.dur[trace.work.is_kernel & (trace.work.dur > 0)]
    return ServingRank(steps, calls, int(kernel_ns.min()) if len(kernel_ns) else 0)


class ServingSteps(NamedTuple):
    """The global steps of a run."""

    steps: list[GlobalStep]  # in order of time
    of_node: Int  # index into `steps` of each node, -1 for none


def serving_steps(context: ScenarioContext) -> ServingSteps:
    """The steps that all ranks of a serving run ran together.

    Raises:
        NotApplicable: there are no labeled steps, or no rank to compare with.
    """
    shift = context.recorded.collectives.aligned.shift
    ranks = by_one_clock([rank.steps for rank in context.read(serving_rank)], shift)
    labelled = [rank for rank in ranks if rank.steps]
    if not labelled:
        raise NotApplicable("no step labels of a serving engine in the trace")
    steps = global_steps(labelled)
    if not steps:
        raise NotApplicable("no step that several serving ranks ran together; pass the traces of all ranks")
    return ServingSteps(steps, _step_of_node(context, steps))


def _step_of_node(context: ScenarioContext, steps: list[GlobalStep]) -> Int:
    """The step of each node: GPU work by its time, a call by what it launches, a meeting by its end."""
    graph = context.graph
    step_of = np.full(len(graph), -1, dtype=np.int64)
    windows: dict[int, list[tuple[int, int, int]]] = {}
    for number, global_step in enumerate(steps):
        for rank, step in global_step.rank_steps:
            windows.setdefault(rank, []).append((number, step.start, step.end))
    for index, rank in enumerate(rank.number for rank in graph.ranks):
        if rank not in windows:
            continue
        number, start, end = np.array(windows[rank], dtype=np.int64).T
        nodes = graph.of_rank[index][graph.work[graph.of_rank[index]] >= 0]
        latest = np.maximum(np.searchsorted(start, graph.start[nodes], side="right") - 1, 0)
        inside = (graph.start[nodes] >= start[latest]) & (graph.start[nodes] <= end[latest])
        step_of[nodes[inside]] = number[latest[inside]]
    launch = graph.edge == Edge.LAUNCH
    step_of[graph.src[launch]] = step_of[graph.dst[launch]]
    launches = np.zeros(len(graph), dtype=bool)
    launches[graph.src[launch]] = True
    for index, own in enumerate(context.read(serving_rank)):
        # A call that launches nothing belongs to what was launched before it; step marks are no calls.
        calls = graph.nodes(index, Node.POINT, Node.WAITED)
        calls = calls[np.isin(graph.event[calls], own.calls)]
        last = np.maximum.accumulate(np.where(launches[calls], np.arange(len(calls)), -1))
        step_of[calls] = lookup(step_of[calls], last, -1)
    transfer = (graph.edge == Edge.TRANSFER) & (graph.kind[graph.src] == Node.MEET)
    step_of[graph.src[transfer]] = step_of[graph.dst[transfer]]
    return step_of
