"""The critical path of a step: what must get shorter for the step to get shorter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tracelens.arrays import Int, lookup
from tracelens.table import sums
from tracelens.what_if.graph import Edge, Graph
from tracelens.what_if.replay.labels import Labels
from tracelens.what_if.replay.schedule import Times
from tracelens.what_if.replay.step import Extent

HOST_TIME, STARTING, UNEXPLAINED, COMMUNICATION = "host", "kernel start", "unexplained", "communication"
CATEGORIES = {
    HOST_TIME: "host time between calls",
    STARTING: "typical latency from a call or activity to a kernel's start, and from GPU back to host",
    COMMUNICATION: "transfer time of collectives; waiting for a rank counts as that rank's activity at "
    "the time",
    UNEXPLAINED: "delay with no cause in the trace",
}
"""Parts of the path besides kernel classes."""

_OF_EDGE: dict[int, str] = {
    Edge.HOST: HOST_TIME,
    Edge.HANDOVER: HOST_TIME,
    Edge.ORDER: HOST_TIME,
    Edge.LAUNCH: STARTING,
    Edge.STREAM: STARTING,
    Edge.WAIT: STARTING,
    Edge.SYNC: STARTING,
    Edge.QUEUE: STARTING,
    Edge.TRANSFER: COMMUNICATION,
    Edge.OWN: COMMUNICATION,
}


class Pieces(NamedTuple):
    """Parts of a critical path."""

    node: Int  # that ran or waited
    category: Int  # index into the categories of the path
    start: Int
    end: Int


class Path(NamedTuple):
    """The critical path of a step, from its end backwards."""

    rank: int  # index of the rank that ends the step last; the path is that rank's step
    start: int  # of the step, ns
    end: int  # of the step, ns
    pieces: Pieces  # without gaps between start and end, the last one first
    categories: list[str]  # kernel classes, and CATEGORIES

    def by_category(self) -> dict[str, int]:
        """Category to ns, most first."""
        pieces = self.pieces
        codes, first, index = np.unique(pieces.category, return_index=True, return_inverse=True)
        ns = sums(index.ravel(), pieces.end - pieces.start, len(codes))
        most = np.lexsort((first, -ns)).tolist()
        return {self.categories[codes[number]]: int(ns[number]) for number in most}


def critical_path(graph: Graph, names: Labels, rank: int, extent: Extent, lag: Int) -> Path:
    """The chain of last dependencies, from the end of the step back to its begin.

    Args:
        graph: of the run.
        names: of its nodes.
        rank: index of the rank whose step it is.
        extent: its step.
        lag: of each edge, ns.
    """
    times, begin = extent.schedule.times, extent.begin
    known = list(dict.fromkeys([*names.category.values, *CATEGORIES]))
    nodes = _chain(graph, times, extent)
    via = times.via[nodes]
    caused = via >= 0
    start, ready = times.start[nodes], np.where(caused, times.ready[nodes], begin)
    # Backwards through each node: its end, its start, when it was ready, and the end of what it waited for.
    low = np.where(caused, ready - lookup(lag, via, 0), begin)
    points = np.stack((times.end[nodes], start, ready, low), axis=1)
    cursor = np.minimum.accumulate(np.append(extent.end, points.ravel()))
    before = cursor[:-1].reshape(-1, 4)
    own = names.category.codes[nodes]
    blank = np.array([not name for name in names.category.values], dtype=bool)
    categories = np.stack(
        (
            np.full(len(nodes), -1),
            np.where(blank[own], known.index(HOST_TIME), own),
            np.full(len(nodes), known.index(UNEXPLAINED)),
            _of_edges(graph, nodes, via, known),
        ),
        axis=1,
    )
    # Time between a node's end and what followed it belongs to no piece.
    shown = (points < before) & (before > begin)
    shown[:, 0] = False
    row, _ = np.nonzero(shown)
    pieces = Pieces(nodes[row], categories[shown], np.maximum(points, begin)[shown], before[shown])
    return Path(rank, begin, extent.end, pieces, known)


def _chain(graph: Graph, times: Times, extent: Extent) -> Int:
    """The nodes that waited for each other, from the last of the step to the first that starts in it."""
    starts = times.start > extent.begin
    goes_on = (times.via >= 0) & starts
    before = np.where(goes_on, lookup(graph.src, times.via, -1), -1).tolist()
    node, chain = extent.node, []
    while node >= 0:
        chain.append(node)
        node = before[node]
    return np.array(chain, dtype=np.int64)


def _of_edges(graph: Graph, nodes: Int, via: Int, known: Sequence[str]) -> Int:
    """The category of the edge that each node waited for."""
    of_kind = np.array([known.index(_OF_EDGE.get(kind, STARTING)) for kind in Edge])
    on_host = np.array([rank.cpu_only for rank in graph.ranks], dtype=bool)[graph.rank[nodes]]
    categories = lookup(of_kind, lookup(graph.edge, via, -1), known.index(UNEXPLAINED))
    is_host = on_host & (categories == known.index(STARTING))
    return np.where(is_host, known.index(HOST_TIME), categories)
