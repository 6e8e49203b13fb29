"""`Graph`: what a recorded run did and what each activity waited for, as flat arrays over all ranks.

A node is a point on a host thread, a GPU activity, or a part of a collective: its arrival on a rank, the
meeting of all ranks with the transfer that follows, and its end on a rank. An edge says that a node starts no
sooner than another ends, plus a lag. Host time is the lag of an edge between two points of a thread. Time
that a node waited beyond its edges is its delay, which nothing in the trace explains. With nothing changed,
every node starts when it did.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from tracelens.arrays import Bool, Int
from tracelens.trace import Run, rows_by_code

NODES = ("point", "waited", "work", "arrive", "meet", "leave")
"""Kinds of nodes: the start of a call or step mark on a host thread; the end of a call that waits for a GPU;
a kernel, memcpy or memset (an op in a CPU-only run); of a collective the start of a rank's kernel, the moment
all ranks have arrived plus the transfer that follows, and the end of a rank's kernel."""

POINT, WAITED, WORK, ARRIVE, MEET, LEAVE = range(len(NODES))

EDGES = {
    "host": "the host's own time between two points of a thread",
    "handover": "one host thread goes on where another one stops",
    "launch": "from the call to its GPU work; the lag is what that takes at least",
    "stream": "GPU work of one stream follows each other",
    "wait": "one stream waits for another one",
    "sync": "a call returns when the GPU work that it waits for is done",
    "arrival": "a collective needs all its ranks",
    "transfer": "a rank has its data when the collective has moved it",
    "own": "a rank's part of a collective ends after it starts",
    "order": "nothing in the trace says why a thread began here; it keeps its place behind the other ones",
}
"""Kinds of edges."""

HOST, HANDOVER, LAUNCH, STREAM, WAIT, SYNC, ARRIVAL, TRANSFER, OWN, ORDER = range(len(EDGES))

OVERLAP_NS = 2_000
"""Tolerated overlap of kernels on one stream: launches that do not wait, or rounded clocks."""

# Rounds to order nodes at one point in time; longer than any chain of such nodes.
_TIES = 64


@dataclass(frozen=True, eq=False)
class Graph:
    """Nodes in an order in which each comes after all that it waits for, and their edges in order of `dst`.

    Attributes:
        run: what was recorded.
        kind: of each node, code into NODES.
        rank: index of its trace in `run.traces`; of a meeting that of its lowest rank.
        event: row in the trace's events, -1 for a meeting.
        work: index into the trace's `work`, -1 for none.
        collective: of a meeting, index into `RunCollectives.matched`; else -1.
        start: measured, ns, by the clock of the first rank.
        dur: of work, and of a meeting the transfer; else 0.
        delay: measured start less what the edges say; 0 where there is no edge.
        src, dst: nodes of each edge.
        lag: ns of each edge, negative only where kernels of a stream overlap.
        edge: kind of each edge, code into EDGES.
        first: edges of node i are first[i] to first[i + 1].
        shift: per trace, what to add to its times to get the first trace's clock.
        dropped: kind of edge to how many the measurement contradicts.
    """

    run: Run
    kind: Int
    rank: Int
    event: Int
    work: Int
    collective: Int
    start: Int
    dur: Int
    delay: Int
    src: Int
    dst: Int
    lag: Int
    edge: Int
    first: Int
    shift: tuple[int, ...]
    dropped: dict[str, int]

    def __len__(self) -> int:
        return len(self.kind)

    @cached_property
    def of_rank(self) -> tuple[Int, ...]:
        """Nodes of each rank, ascending; meetings belong to their lowest rank."""
        by_rank = rows_by_code(self.rank)
        none = np.zeros(0, dtype=np.int64)
        return tuple(by_rank.get(rank, none) for rank in range(len(self.run.traces)))

    @property
    def end(self) -> Int:
        """Measured end of each node, ns."""
        return self.start + self.dur

    @property
    def source(self) -> Bool:
        """Nodes that wait for nothing: they start when they did."""
        waits: Bool = self.first[1:] == self.first[:-1]
        return waits


@dataclass
class Draft:
    """A graph in the making: nodes and edges in any order.

    `add` and `join` take arrays; node numbers are those of the order of adding.
    """

    nodes: list[tuple[Int, ...]] = field(default_factory=list)
    edges: list[tuple[Int, ...]] = field(default_factory=list)
    count: int = 0

    def add(
        self,
        kind: int,
        rank: int,
        start: Int,
        *,
        dur: Int | int = 0,
        event: Int | int = -1,
        work: Int | int = -1,
        collective: Int | int = -1,
    ) -> Int:
        """Nodes of one kind and rank; see Graph.

        Returns:
            their numbers.
        """
        fields = (kind, rank, event, work, collective, start, dur)
        self.nodes.append(
            tuple(np.broadcast_to(np.asarray(value, dtype=np.int64), len(start)) for value in fields)
        )
        numbers = np.arange(self.count, self.count + len(start))
        self.count += len(start)
        return numbers

    def join(self, kind: int, src: Int, dst: Int, lag: Int | int = 0) -> None:
        """Edges of one kind. A lag longer than what was measured between both nodes counts as that."""
        fields = (src, dst, lag, kind)
        self.edges.append(
            tuple(np.broadcast_to(np.asarray(value, dtype=np.int64), len(src)) for value in fields)
        )

    def graph(self, run: Run, shift: Sequence[int]) -> tuple[Graph, Int]:
        """The graph: nodes in order, contradicted edges dropped; and each node's number in it."""
        kind, rank, event, work, collective, start, dur = _columns(self.nodes, 7)
        src, dst, lag, edge = _columns(self.edges, 4)
        slack = start[dst] - (start + dur)[src]
        allowed = np.where(edge == STREAM, -OVERLAP_NS, 0)
        order = _order(start, dur, src, dst, slack >= allowed)
        number_of = np.empty_like(order)
        number_of[order] = np.arange(len(order))
        src, dst = number_of[src], number_of[dst]
        kept = (slack >= allowed) & (src < dst)
        dropped = np.bincount(edge[~kept], minlength=len(EDGES)).tolist()
        src, dst, lag, edge, slack = (
            column[kept] for column in (src, dst, np.minimum(lag, slack), edge, slack)
        )
        by_node = np.argsort(dst, kind="stable")
        src, dst, lag, edge = (column[by_node] for column in (src, dst, lag, edge))
        start, dur = start[order], dur[order]
        first = np.searchsorted(dst, np.arange(len(order) + 1))
        graph = Graph(
            run,
            kind[order],
            rank[order],
            event[order],
            work[order],
            collective[order],
            start,
            dur,
            _delay(start, dur, src, dst, lag, first),
            src,
            dst,
            lag,
            edge,
            first,
            tuple(shift),
            {name: number for name, number in zip(EDGES, dropped, strict=True) if number},
        )
        return graph, number_of


def _columns(parts: Sequence[tuple[Int, ...]], count: int) -> list[Int]:
    if not parts:
        return [np.empty(0, dtype=np.int64) for _ in range(count)]
    return [np.concatenate(column) for column in zip(*parts, strict=True)]


def _order(start: Int, dur: Int, src: Int, dst: Int, possible: Bool) -> Int:
    """Nodes by time; at one point in time each after what it waits for."""
    depth = np.zeros(len(start), dtype=np.int64)
    tied = possible & (start[src] == start[dst])
    early, late = src[tied], dst[tied]
    for _ in range(_TIES):
        deeper = depth[early] + 1 > depth[late]
        if not deeper.any():
            break
        np.maximum.at(depth, late[deeper], depth[early[deeper]] + 1)
    return np.lexsort((start + dur, depth, start))


def _delay(start: Int, dur: Int, src: Int, dst: Int, lag: Int, first: Int) -> Int:
    ready = start.copy()
    waits = first[1:] > first[:-1]
    if waits.any():
        ready_ns = (start + dur)[src] + lag
        ready[waits] = np.maximum.reduceat(ready_ns, first[:-1][waits])
    return start - ready
