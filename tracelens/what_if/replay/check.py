"""How much of a step the graph explains: starts predicted from durations alone against recorded ones."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tracelens.analysis.host import SYNCHRONIZE
from tracelens.arrays import Bool, Int, lookup
from tracelens.table import codes
from tracelens.trace import matching, rows_by_code
from tracelens.what_if.graph import SYNCHRONIZE_NS, Edge, Edit, Graph, Node, Recorded
from tracelens.what_if.replay.schedule import Times

KINDS = ("kernel", "collective", "host call")

_DERIVED = (Edge.LAUNCH, Edge.STREAM, Edge.WAIT, Edge.SYNC, Edge.QUEUE, Edge.TRANSFER)


def durations_only(graph: Graph) -> Edit:
    """Nothing but durations as recorded: of GPU work, of transfers, and of the host's own time between calls.

    All gaps are derived: every edge of a kind takes its median, on each rank and for each call by name, and
    no node waits beyond its edges. A synchronization whose work is not in the trace waits for nothing.
    """
    edit = Edit.of(graph)
    edit.delay[:] = 0
    gap = graph.start[graph.dst] - graph.end[graph.src]
    binds = np.zeros(len(graph.edge), dtype=bool)
    binds[graph.binding[graph.binding >= 0]] = True
    rows = np.flatnonzero(np.isin(graph.edge, _DERIVED))
    # Kernels of a graph after its first wait for others of the graph.
    launches = np.flatnonzero(graph.edge == Edge.LAUNCH)
    later = np.ones(len(launches), dtype=bool)
    later[np.unique(graph.src[launches], return_index=True)[1]] = False
    binds[launches[later]] = False
    for rank, of_rank in rows_by_code(graph.rank[graph.dst[rows]]).items():
        if graph.ranks[rank].cpu_only:
            continue
        edges = rows[of_rank]
        call = np.where(graph.edge[edges] == Edge.LAUNCH, graph.src[edges], graph.dst[edges])
        of_call = np.isin(graph.edge[edges], (Edge.LAUNCH, Edge.SYNC, Edge.QUEUE))
        name = np.where(of_call, lookup(graph.ranks[rank].name.codes, graph.slot[call], -1), -1)
        group, (kinds, _) = codes(graph.edge[edges], name)
        for number in range(len(kinds)):
            same = edges[group == number]
            if binds[same].any():
                edit.lag[same] = int(np.median(gap[same[binds[same]]]))
    unresolved = _without_work(graph)
    own = (graph.edge == Edge.HOST) & unresolved[graph.dst]
    edit.lag[own] = np.minimum(edit.lag[own], SYNCHRONIZE_NS)
    return edit


def as_derived(graph: Graph, edit: Edit) -> Times:
    """The recorded times, and when the edges of an edit would have allowed each node to start."""
    allowed_ns = graph.end[graph.src] + edit.lag
    order = np.lexsort((allowed_ns, graph.dst))
    via = np.full(len(graph), -1, dtype=np.int64)
    via[graph.dst[order]] = order
    return Times(graph.start, graph.end, lookup(allowed_ns, via, graph.start), via)


class Starts(NamedTuple):
    """Nodes of one rank and kind, and how far their predicted starts are off."""

    rank: int  # index of its trace
    kind: str  # one of KINDS
    error: Int  # ns, predicted - recorded, of each with a cause
    no_cause: int  # number of nodes that wait for nothing recorded: they stay as recorded


def predicted_starts(graph: Graph, computed: Int, times: Times) -> list[Starts]:
    """The error of each computed node, by rank and kind."""
    kind = kind_of(graph)
    counted = computed[graph.kind[computed] != Node.LEAVE]
    result = []
    for rank in range(len(graph.ranks)):
        for code, name in enumerate(KINDS):
            nodes = counted[(graph.rank[counted] == rank) & (kind[counted] == code)]
            if not len(nodes):
                continue
            has_cause = graph.first[nodes + 1] > graph.first[nodes]
            error = (times.start - graph.start)[nodes[has_cause]]
            result.append(Starts(rank, name, error, int((~has_cause).sum())))
    return result


def kind_of(graph: Graph) -> Int:
    """Code into KINDS of each node."""
    kind = np.where(np.isin(graph.kind, (Node.POINT, Node.WAITED)), 2, 1)
    for nodes, rank in zip(graph.of_rank, graph.ranks, strict=True):
        work = nodes[graph.kind[nodes] == Node.WORK]
        kind[work] = rank.is_comm[graph.work[work]].astype(np.int64)
    return kind


def unmatched(recorded: Recorded) -> Bool:
    """Communication whose other ranks are not in the graph: its duration includes waiting for them."""
    graph = recorded.graph
    alone = np.zeros(len(graph), dtype=bool)
    for index, rank in enumerate(graph.ranks):
        if len(graph.ranks) < 2 and rank.world_size < 2:
            continue
        # A group of one waits for nobody.
        size = np.zeros(len(rank.is_comm), dtype=np.int64)
        records = recorded.collectives.aligned.ranks[index].records
        kernel = recorded.collectives.work[index][[record.kernel for record in records]]
        np.maximum.at(size, kernel, [record.size for record in records])
        nodes = graph.nodes(index, Node.WORK)
        work = graph.work[nodes]
        alone[nodes] = rank.is_comm[work] & (size[work] != 1)
    return alone


def _without_work(graph: Graph) -> Bool:
    """Synchronisations whose work is not in the trace."""
    result = np.zeros(len(graph), dtype=bool)
    for index, rank in enumerate(graph.ranks):
        nodes = graph.nodes(index, Node.WAITED)
        result[nodes] = matching(rank.name.values, SYNCHRONIZE)[rank.name.codes[graph.slot[nodes]]]
    result[graph.dst[graph.edge == Edge.SYNC]] = False
    return result
