"""The critical path of a step: what must get shorter for the step to get shorter."""

from __future__ import annotations

from typing import NamedTuple

from tracelens.arrays import Int
from tracelens.what_if.graph import Edge, Graph
from tracelens.what_if.replay.labels import Labels
from tracelens.what_if.replay.step import Extent

HOST_TIME, STARTING, UNEXPLAINED, COMMUNICATION = "host", "kernel start", "unexplained", "communication"
CATEGORIES = {
    HOST_TIME: "host time between calls",
    STARTING: "typical latency from a call or activity to a kernel's start, and from GPU back to host",
    COMMUNICATION: "transfer time of collectives; waiting for a rank counts as what that rank did meanwhile",
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


class Piece(NamedTuple):
    """One part of a critical path."""

    node: int  # that ran or waited
    category: str  # kernel class, or one of CATEGORIES
    start: int
    end: int


class Path(NamedTuple):
    """The critical path of a step, from its end backwards."""

    rank: int  # index of the rank that ends the step last; the path is that rank's step
    start: int  # of the step, ns
    end: int  # of the step, ns
    pieces: list[Piece]  # without gaps between start and end, the last one first

    def by_category(self) -> dict[str, int]:
        """Category to ns, most first."""
        ns: dict[str, int] = {}
        for piece in self.pieces:
            ns[piece.category] = ns.get(piece.category, 0) + piece.end - piece.start
        return dict(sorted(ns.items(), key=lambda item: -item[1]))


def critical_path(graph: Graph, names: Labels, rank: int, extent: Extent, lag: Int) -> Path:
    """The chain of last dependencies, from the end of the step back to its begin.

    Args:
        graph: of the run.
        names: of its nodes.
        rank: index of the rank whose step it is.
        extent: its step.
        lag: of each edge, ns.
    """
    begin, cursor, node, schedule = extent
    start, end, ready, edge_of = (column.tolist() for column in schedule.times)
    pieces: list[Piece] = []

    def cut(category: str, low: int) -> int:
        """The piece from `low` to the cursor, which moves there."""
        if low >= cursor:
            return cursor
        if cursor > begin:
            pieces.append(Piece(node, category, max(low, begin), cursor))
        return low

    while cursor > begin:
        cursor = min(cursor, end[node])
        if start[node] < cursor:
            cursor = cut(names.category.values[names.category.codes[node]] or HOST_TIME, start[node])
        via = edge_of[node]
        if via < 0:
            cursor = cut(UNEXPLAINED, begin)
            break
        cursor = cut(UNEXPLAINED, ready[node])
        low = ready[node] - int(lag[via])
        if low < cursor and cursor > begin:
            category = _OF_EDGE.get(int(graph.edge[via]), STARTING)
            if category == STARTING and graph.ranks[int(graph.rank[node])].cpu_only:
                category = HOST_TIME
            cursor = cut(category, low)
        node = int(graph.src[via])
    return Path(rank, begin, extent.end, pieces)
