"""Stages of a pipeline: more chunks of the model on each, or equal work."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tracelens.analysis.comm import SEND_RECV
from tracelens.analysis.pipeline import Passes, lane_of, numbered, passes, pipelines
from tracelens.arrays import Int, lookup
from tracelens.devices import Device
from tracelens.errors import TracelensError
from tracelens.trace import Trace
from tracelens.units import duration
from tracelens.what_if.graph import Edge, Edit, Node, RunGraph
from tracelens.what_if.scenario import NotApplicable, ScenarioContext, scenario
from tracelens.what_if.scenarios.changes import of_calls, scale_pace
from tracelens.what_if.thresholds import EVEN_STAGES

_MOST_CHUNKS = 64


class PipelinePasses(NamedTuple):
    """The forwards and backwards of one rank of a pipeline."""

    passes: Passes  # of the rank
    rows: Int  # positions in its work of all that was launched in or behind a span
    span: Int  # of each the number of the last span launched before it


class StagePlace(NamedTuple):
    """One rank's place in its pipeline."""

    rank: int  # index of its trace
    pipeline: int
    stage: int
    chunks: int


def rank_passes(trace: Trace, device: Device | None) -> PipelinePasses:
    """The forwards and backwards of a rank, and the work of each."""
    own, work = passes(trace), trace.work
    called = lookup(trace.arrays.start, work.host_call, -1)
    launched = np.array([span.launched for span in own.spans], dtype=np.int64)
    order = np.argsort(launched, kind="stable")
    position = np.searchsorted(launched[order], called, side="right") - 1
    rows = np.flatnonzero((called >= 0) & (position >= 0))
    return PipelinePasses(own, rows, order[position[rows]])


@scenario("vpp", argument="=CHUNKS", usual=("2",), reads=(rank_passes,))
def vpp(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """Each stage of the pipeline holds CHUNKS chunks of the model (interleaved 1F1B).

    Assumes:
        Layers and micro-batches divide by stages x chunks. Further messages and their launches cost nothing.
    """
    if not argument.isdigit() or not 1 < int(argument) <= _MOST_CHUNKS:
        raise TracelensError(f"scenario vpp={argument}: write a number of chunks, 2 to {_MOST_CHUNKS}")
    chunks, by_rank, places = int(argument), context.read(rank_passes), _places(context)
    known = {stage.rank: stage.chunks for stage in places}
    if min(known.values()) >= chunks:
        raise NotApplicable(f"each stage holds {min(known.values())} chunks of the model already")
    graph = context.graph
    early = np.zeros(len(graph), dtype=np.int64)
    for rank, part in enumerate(by_rank):
        share = 1 - min(known.get(rank, chunks) / chunks, 1)
        span_ns = np.array([span.end - span.start for span in part.passes.spans], dtype=float)
        sends, span = _of_spans(graph, rank, part, Node.ARRIVE)
        early[sends] = np.rint(share * span_ns[span]).astype(np.int64)
    # From the sender's side of each message between two ranks to their meeting.
    meetings, collectives = context.meetings()
    index_of = {rank.number: index for index, rank in enumerate(graph.ranks)}
    sender = np.full(len(graph), -1, dtype=np.int64)
    sender[meetings] = [
        index_of[collective.participants[0].rank] if collective.collective == SEND_RECV else -1
        for collective in collectives
    ]
    arrival = graph.edge == Edge.ARRIVAL
    sent = np.flatnonzero(arrival & (graph.rank[graph.src] == sender[graph.dst]))
    edit.lag[sent] -= early[graph.src[sent]]
    now = ", ".join(map(str, sorted(set(known.values()))))
    return (
        f"{len(sent):,} messages leave a stage when the first of {chunks} chunks instead of {now} is "
        f"done, {duration(int(early[graph.src[sent]].sum()))} earlier in total; the work of a stage "
        "stays, further messages and their launches cost nothing, layers and micro-batches divide by "
        "stages x chunks"
    )


@scenario("balanced_stages", reads=(rank_passes,))
def balanced_stages(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """No stage of the pipeline has more GPU work than the mean of all.

    Assumes:
        Layers divide freely, and take their launches along; messages keep their sizes.
    """
    graph, by_rank, places = context.graph, context.read(rank_passes), _places(context)
    total_ns = {
        stage: float(sum(span.busy_ns for span in by_rank[stage.rank].passes.spans)) for stage in places
    }
    factor = np.ones(len(graph))
    most = 1.0
    for pipeline in sorted({stage.pipeline for stage in places}):
        members = [stage for stage in places if stage.pipeline == pipeline]
        mean = sum(total_ns[stage] for stage in members) / len(members)
        for stage in members:
            share = min(mean / max(total_ns[stage], 1), 1.0)
            most = max(most, 1 / max(share, 1e-9))
            part = by_rank[stage.rank]
            nodes, span = _of_spans(graph, stage.rank, part, Node.WORK)
            end = np.array([span.end for span in part.passes.spans], dtype=np.int64)
            inside = graph.end[nodes] - graph.shift[stage.rank] <= end[span]
            factor[nodes[inside]] = share
            of_calls(graph, stage.rank, factor)
    if most <= EVEN_STAGES:
        raise NotApplicable("all stages have equal work")
    scale_pace(graph, edit, factor)
    return (
        f"the passes of a stage have {most:.2f}x the mean GPU work of its pipeline, then the mean, with the "
        "host time of its launches; the other stages take over the rest while they would wait; layers "
        "divide freely, messages keep their sizes"
    )


def _of_spans(graph: RunGraph, rank: int, part: PipelinePasses, kind: Node) -> tuple[Int, Int]:
    """The nodes of a kind whose work was launched in or behind a span of a rank, and the span of each."""
    nodes = graph.nodes(rank, kind)
    work, order = np.unique(part.rows, return_index=True)
    if not len(work):
        return nodes[:0], nodes[:0]
    index = np.minimum(np.searchsorted(work, graph.work[nodes]), len(work) - 1)
    known = work[index] == graph.work[nodes]
    return nodes[known], part.span[order[index[known]]]


def _places(context: ScenarioContext) -> list[StagePlace]:
    """The ranks of all pipelines of several stages.

    Raises:
        NotApplicable: there are none.
    """
    by_rank = [part.passes for part in context.read(rank_passes)]
    index_of = {part.rank: index for index, part in enumerate(by_rank)}
    places = []
    for number, (stages, members) in enumerate(
        pipelines(by_rank, context.recorded.collectives.aligned.shift, [])
    ):
        if stages < 2 or len({stage.stage for stage in members}) < 2:
            continue
        labels = dict.fromkeys(span.step for stage in members for span in stage.part.spans)
        sizes = [
            line.size.chunks
            for label in labels
            if not isinstance(line := numbered([lane_of(stage, label) for stage in members], stages), str)
        ]
        chunks = max(sizes, default=1)
        places += [StagePlace(index_of[stage.part.rank], number, stage.stage, chunks) for stage in members]
    if not places:
        raise NotApplicable("no pipeline of which several stages are in the run")
    return places
