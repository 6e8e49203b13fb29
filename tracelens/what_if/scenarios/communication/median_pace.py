"""Late ranks: between two collectives no rank takes longer than the median of the others."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tracelens.analysis.comm import SEND_RECV
from tracelens.arrays import Float, Int
from tracelens.errors import TracelensError
from tracelens.table import codes
from tracelens.units import duration
from tracelens.what_if.graph import Edge, Edit, Graph, Node
from tracelens.what_if.scenario import NotApplicable, ScenarioContext, scenario
from tracelens.what_if.scenarios.changes import of_calls, scale_pace


class Segments(NamedTuple):
    """From the end of one collective to the arrival at the next, of all ranks, by rank and time.

    Attributes:
        arrival: node at its end.
        rank: index of the trace.
        meeting: of the collective at its end.
        before: kind of the collective at its begin.
        begin: ns by the common clock.
        dur: ns; 0 or less where collectives overlap.
    """

    arrival: Int
    rank: Int
    meeting: Int
    before: Int
    begin: Int
    dur: Int


@scenario("median_pace", argument="=RANK")
def median_pace(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """Between two collectives no rank, or not RANK, takes longer than the median of the others.

    Assumes:
        Kernels, host time and delays shrink alike. Extra work of a rank disappears instead of moving to the
        others, as it does in `balanced`.
    """
    graph = context.graph
    ranks = [rank.number for rank in graph.ranks]
    if argument and argument not in map(str, ranks):
        raise TracelensError(f"scenario median_pace={argument}: no such rank in the run")
    segments = _segments(context)
    allowed_ns = _median_of_others(segments)
    late = allowed_ns < segments.dur
    if argument:
        late &= segments.rank == ranks.index(int(argument))
    if not late.any():
        raise NotApplicable("no rank is later than the others at a collective recorded on several ranks")
    factor = np.where(late, allowed_ns / np.maximum(segments.dur, 1), 1.0)
    scale_pace(graph, edit, _of_nodes(graph, segments, factor))
    excess_ns = np.bincount(segments.rank, np.where(late, segments.dur - allowed_ns, 0), len(ranks))
    worst = int(excess_ns.argmax())
    return (
        f"{int(late.sum()):,} stretches between two collectives take as long as the median of the other "
        f"ranks, {duration(excess_ns.sum())} less over all ranks, {duration(excess_ns[worst])} on rank "
        f"{ranks[worst]}: kernels, host time and delays in them shrink alike, random ones as well; extra "
        "work of a rank disappears instead of moving to the others (see balanced)"
    )


def _segments(context: ScenarioContext) -> Segments:
    """The segments of all ranks; sends and receives are the pipeline's own pace and do not count."""
    graph, (meetings, collectives) = context.graph, context.meetings()
    names = [collective.collective for collective in collectives]
    sizes = [collective.participants[0].record.size for collective in collectives]
    kinds = {kind: code for code, kind in enumerate(dict.fromkeys(zip(names, sizes, strict=True)))}
    kind_of = np.full(len(graph), -1, dtype=np.int64)
    kind_of[meetings] = [
        kinds[kind] if kind[0] != SEND_RECV else -1 for kind in zip(names, sizes, strict=True)
    ]
    edge = np.flatnonzero((graph.edge == Edge.ARRIVAL) & (kind_of[graph.dst] >= 0))
    edge = edge[np.lexsort((graph.start[graph.src[edge]], graph.rank[graph.src[edge]]))]
    arrival, meeting = graph.src[edge], graph.dst[edge]
    rank, kind = graph.rank[arrival], kind_of[meeting]
    leave = np.flatnonzero(graph.kind == Node.LEAVE)
    _, own = np.unique(np.concatenate((_key(graph, leave), _key(graph, arrival))), return_inverse=True)
    end_of = np.zeros(int(own.max(initial=-1)) + 1, dtype=np.int64)
    np.maximum.at(end_of, own[: len(leave)], graph.end[leave])
    end = end_of[own[len(leave) :]]
    first = np.concatenate(([True], rank[1:] != rank[:-1])) if len(rank) else np.zeros(0, dtype=bool)
    before = np.where(first, -1, np.roll(kind, 1))
    begin = graph.start[arrival].copy()
    for number in np.unique(rank).tolist():
        rows = np.flatnonzero(rank == number)
        begin[rows[1:]] = np.maximum.accumulate(end[rows])[:-1]
    return Segments(arrival, rank, meeting, before, begin, graph.start[arrival] - begin)


def _key(graph: Graph, nodes: Int) -> Int:
    """One number for each kernel of each rank."""
    return graph.rank[nodes] * (int(graph.work.max(initial=0)) + 1) + graph.work[nodes]


def _median_of_others(segments: Segments) -> Float:
    """Of each segment the median duration of the other ranks' segments before the same collective, ns.

    Its own duration where the ranks come from different collectives, or one of them has not left its last.
    """
    allowed = segments.dur.astype(float)
    group, (_,) = codes(segments.meeting)
    count = np.bincount(group)
    lowest = np.full(len(count), np.iinfo(np.int64).max)
    highest = np.full(len(count), -1, dtype=np.int64)
    np.minimum.at(lowest, group, np.where(segments.dur > 0, segments.before, -1))
    np.maximum.at(highest, group, segments.before)
    comparable = (lowest == highest) & (lowest >= 0)
    order = np.argsort(group, kind="stable")
    first = np.concatenate(([0], np.cumsum(count)[:-1]))
    for size in np.unique(count[count > 1]).tolist():
        same = np.flatnonzero((count == size) & comparable)
        rows = order[first[same][:, None] + np.arange(size)]
        dur = segments.dur[rows]
        for column in range(size):
            allowed[rows[:, column]] = np.median(np.delete(dur, column, axis=1), axis=1)
    result: Float = np.minimum(allowed, segments.dur)
    return result


def _of_nodes(graph: Graph, segments: Segments, factor: Float) -> Float:
    """The factor of each node, from that of the segment that it is in; 1 outside."""
    factor_of = np.ones(len(graph))
    for rank in np.unique(segments.rank[factor < 1]).tolist():
        own = np.flatnonzero(segments.rank == rank)
        busy = graph.nodes(rank, Node.WORK, Node.ARRIVE)
        segment = np.searchsorted(graph.start[segments.arrival[own]], graph.start[busy])
        inside = segment < len(own)
        busy, segment = busy[inside], own[segment[inside]]
        inside = graph.start[busy] >= segments.begin[segment]
        factor_of[busy[inside]] = factor[segment[inside]]
        of_calls(graph, rank, factor_of)
    return factor_of
