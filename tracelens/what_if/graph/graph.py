"""`Graph`: what a recorded run did and what each thing waited for, as flat arrays over all ranks.

A node is a point of a host thread, a piece of GPU work, or a part of a collective: its arrival on a rank, the
meeting of all ranks with the transfer behind it, and its end on a rank. An edge says that one node starts no
sooner than another one has ended, plus a lag. Host time is the lag of an edge: the host's own doing between
two points of a thread. What a node waited for beyond its edges is its delay, which nothing in the trace
explains. So with nothing changed every node starts when it did.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from tracelens.arrays import Bool, Int
from tracelens.trace import Run, rows_by_code

NODES = ("point", "waited", "work", "arrive", "meet", "leave")
"""Kinds of nodes: the start of a call or a step mark on a host thread; the end of a call that waits for a
GPU; a kernel, copy or fill (on a host that does the work itself, an op); of a collective the start of a
rank's kernel, the moment when all are there with the transfer that follows, the end of a rank's kernel."""

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
"""Kernels of one stream may overlap by so much: launches that do not wait, or rounded clocks."""

# Rounds in which nodes at one point in time are put in order; more than a chain of such nodes has members.
_TIES = 64


@dataclass(frozen=True, eq=False)
class Graph:
    """Nodes in an order in which each comes after all that it waits for, and their edges in order of `dst`.

    Attributes:
        run: what was recorded.
        kind: of each node, code into NODES.
        rank: place of its trace in `run.traces`; of a meeting that of its lowest rank.
        event: row of the call, mark or work in the trace's events, -1 for a meeting.
        work: position in the trace's `work`, -1 for none.
        instance: number of the collective of a meeting, see `exchanges`; else -1.
        start: measured, ns, by the clock of the first rank.
        dur: of work, and of a meeting the transfer; else 0.
        delay: measured start less what the edges say; 0 where there is no edge.
        src, dst: nodes of each edge.
        lag: ns of each edge, negative only where kernels of a stream overlap.
        edge: kind of each edge, code into EDGES.
        first: edges of node i are first[i] to first[i + 1].
        shift: added to the times of each trace to get those by the clock of the first.
        dropped: kind of edge to how many the measurement contradicts.
    """

    run: Run
    kind: Int
    rank: Int
    event: Int
    work: Int
    instance: Int
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
        """Nodes of each rank, ascending, meetings with their lowest one."""
        found = rows_by_code(self.rank)
        none = np.zeros(0, dtype=np.int64)
        return tuple(found.get(at, none) for at in range(len(self.run.traces)))

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
        instance: Int | int = -1,
    ) -> Int:
        """Nodes of one kind and rank; see Graph.

        Returns:
            their numbers.
        """
        fields = (kind, rank, event, work, instance, start, dur)
        self.nodes.append(
            tuple(np.broadcast_to(np.asarray(one, dtype=np.int64), len(start)) for one in fields)
        )
        found = np.arange(self.count, self.count + len(start))
        self.count += len(start)
        return found

    def join(self, kind: int, src: Int, dst: Int, lag: Int | int = 0) -> None:
        """Edges of one kind. A lag longer than what was measured between both nodes counts as that."""
        fields = (src, dst, lag, kind)
        self.edges.append(tuple(np.broadcast_to(np.asarray(one, dtype=np.int64), len(src)) for one in fields))

    def graph(self, run: Run, shift: Sequence[int]) -> tuple[Graph, Int]:
        """The graph: nodes in order, contradicted edges dropped; and each node's number in it."""
        kind, rank, event, work, instance, start, dur = _columns(self.nodes, 7)
        src, dst, lag, edge = _columns(self.edges, 4)
        slack = start[dst] - (start + dur)[src]
        allowed = np.where(edge == STREAM, -OVERLAP_NS, 0)
        order = _order(start, dur, src, dst, slack >= allowed)
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        src, dst = place[src], place[dst]
        kept = (slack >= allowed) & (src < dst)
        dropped = np.bincount(edge[~kept], minlength=len(EDGES)).tolist()
        src, dst, lag, edge, slack = (one[kept] for one in (src, dst, np.minimum(lag, slack), edge, slack))
        by_node = np.argsort(dst, kind="stable")
        src, dst, lag, edge = (one[by_node] for one in (src, dst, lag, edge))
        start, dur = start[order], dur[order]
        first = np.searchsorted(dst, np.arange(len(order) + 1))
        found = Graph(
            run,
            kind[order],
            rank[order],
            event[order],
            work[order],
            instance[order],
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
        return found, place


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
    some = first[1:] > first[:-1]
    if some.any():
        told = (start + dur)[src] + lag
        ready[some] = np.maximum.reduceat(told, first[:-1][some])
    return start - ready
