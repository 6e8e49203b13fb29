"""The critical path of a step: what must get shorter for the step to get shorter."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tracelens.arrays import Int
from tracelens.what_if.graph import Edge, Graph, StepSpan
from tracelens.what_if.replay.labels import Labels
from tracelens.what_if.replay.schedule import Times

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


def critical_path(graph: Graph, names: Labels, window: StepSpan, times: Times, lag: Int) -> Path:
    """The chain of last dependencies, from the end of the step back to its begin; `lag` is of each edge."""
    borders = window.borders(times.start, times.end)
    rank = int(np.argmax(borders[:, 1]))
    begin, cursor = borders[rank].tolist()
    last = window.end[rank].node
    node = int(last[np.argmax(times.end[last])])
    pieces: list[Piece] = []

    def cut(node: int, category: str, low: int, high: int) -> int:
        if min(high, cursor) > max(low, begin):
            pieces.append(Piece(node, category, max(low, begin), min(high, cursor)))
        return int(min(low, cursor))

    while cursor > begin:
        work_class = names.category.values[names.category.codes[node]]
        cursor = cut(node, work_class or HOST_TIME, int(times.start[node]), int(times.end[node]))
        via = int(times.via[node])
        if via < 0:
            cursor = cut(node, UNEXPLAINED, begin, cursor)
            break
        cursor = cut(node, UNEXPLAINED, int(times.ready[node]), cursor)
        kind = int(graph.edge[via])
        edge_category = _OF_EDGE.get(kind, STARTING)
        if edge_category == STARTING and graph.run.traces[int(graph.rank[node])].meta.cpu_only:
            edge_category = HOST_TIME
        cursor = cut(node, edge_category, int(times.ready[node] - lag[via]), cursor)
        node = int(graph.src[via])
    return Path(rank, begin, int(borders[rank, 1]), pieces)
