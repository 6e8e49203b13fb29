"""The critical path of a step: what it would have to be shorter in for the step to be shorter."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tracelens.arrays import Int
from tracelens.what_if.graph import (
    HANDOVER,
    HOST,
    LAUNCH,
    ORDER,
    OWN,
    STREAM,
    SYNC,
    TRANSFER,
    WAIT,
    Graph,
    StepSpan,
)
from tracelens.what_if.replay.labels import Labels
from tracelens.what_if.replay.schedule import Times

HOST_TIME, STARTING, UNEXPLAINED, COMMUNICATION = "host", "kernel start", "unexplained", "communication"
CATEGORIES = {
    HOST_TIME: "the host's own time between its calls",
    STARTING: "from a call or from other work to a kernel's start, and from a GPU back to its host, as long "
    "as that usually takes",
    COMMUNICATION: "data of a collective moves; waiting for a rank is what that rank did meanwhile",
    UNEXPLAINED: "a delay for which the trace shows no reason",
}
"""Parts of the path beside classes of kernels."""

_OF_EDGE = {
    HOST: HOST_TIME,
    HANDOVER: HOST_TIME,
    ORDER: HOST_TIME,
    LAUNCH: STARTING,
    STREAM: STARTING,
    WAIT: STARTING,
    SYNC: STARTING,
    TRANSFER: COMMUNICATION,
    OWN: COMMUNICATION,
}


class Piece(NamedTuple):
    """One part of a critical path.

    Attributes:
        node: whose duration it is, or which waited.
        category: class of the work, or one of CATEGORIES.
        start: ns.
        end: ns.
    """

    node: int
    category: str
    start: int
    end: int


class Path(NamedTuple):
    """The critical path of a step, from its end backwards.

    Attributes:
        rank: place of the rank that ends the step last; the step is what it is on that rank.
        start: of the step, ns.
        end: of the step, ns.
        pieces: without gaps between start and end, the last one first.
    """

    rank: int
    start: int
    end: int
    pieces: list[Piece]

    def by_category(self) -> dict[str, int]:
        """Category to ns, most first."""
        found: dict[str, int] = {}
        for piece in self.pieces:
            found[piece.category] = found.get(piece.category, 0) + piece.end - piece.start
        return dict(sorted(found.items(), key=lambda item: -item[1]))


def critical_path(graph: Graph, names: Labels, window: StepSpan, times: Times, lag: Int) -> Path:
    """What the step waited for last, and that for, back to the step's begin.

    Args:
        graph: what was recorded.
        names: of its nodes.
        window: the step.
        times: the schedule that is asked about.
        lag: of each edge in it, ns.
    """
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
        own = names.category.values[names.category.codes[node]]
        cursor = cut(node, own or HOST_TIME, int(times.start[node]), int(times.end[node]))
        via = int(times.via[node])
        if via < 0:
            cursor = cut(node, UNEXPLAINED, begin, cursor)
            break
        cursor = cut(node, UNEXPLAINED, int(times.ready[node]), cursor)
        kind = int(graph.edge[via])
        told = _OF_EDGE.get(kind, STARTING)
        cpu_only = graph.run.traces[int(graph.rank[node])].meta.cpu_only
        if cpu_only and told == STARTING:
            told = HOST_TIME
        cursor = cut(node, told, int(times.ready[node] - lag[via]), cursor)
        node = int(graph.src[via])
    return Path(rank, begin, int(borders[rank, 1]), pieces)
