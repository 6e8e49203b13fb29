"""`RunGraph`: what a recorded run did and what each activity waited for, as flat arrays over all ranks.

A node is a point on a host thread, a GPU activity, or a part of a collective: its arrival on a rank, the
meeting of all ranks with the transfer that follows, and its end on a rank. An edge says that a node starts no
sooner than another ends, plus a lag. Host time is the lag of an edge between two points of a thread. Time
that a node waited beyond its edges is its delay, which nothing in the trace explains. With nothing changed,
every node starts when it did. An `Edit` is what a scenario changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from functools import cached_property
from typing import Any

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from tracelens.arrays import Bool, Int, lookup, median, ordered, unique
from tracelens.devices import Device
from tracelens.table import Coded
from tracelens.trace import rows_by_code
from tracelens.what_if.thresholds import OVERLAP_NS


class Node(IntEnum):
    """Kinds of nodes."""

    POINT = 0  # start of a call or step mark on a host thread
    WAITED = 1  # end of a call that waits for a GPU, or for room in its queue
    WORK = 2  # kernel, memcpy or memset; an op in a CPU-only run
    ARRIVE = 3  # start of a rank's kernel of a collective
    MEET = 4  # all ranks of a collective have arrived; its duration is the transfer that follows
    LEAVE = 5  # end of a rank's kernel of a collective


class Edge(IntEnum):
    """Kinds of edges."""

    HOST = 0  # the host's own time between two points of a thread
    HANDOVER = 1  # one host thread resumes where another stops
    LAUNCH = 2  # from the call to its GPU work; the lag is the minimum launch latency
    STREAM = 3  # GPU work on one stream runs in order
    WAIT = 4  # one stream waits for another
    SYNC = 5  # a call returns when the GPU work it waits for is done
    ARRIVAL = 6  # a collective needs all its ranks
    TRANSFER = 7  # a rank has its data when the collective has moved it
    OWN = 8  # a rank's part of a collective ends after it starts
    ORDER = 9  # a thread without a known cause keeps its position behind the others
    QUEUE = 10  # a launch waits until a full queue has room


# Rounds to order nodes at one point in time; longer than any chain of such nodes.
_TIES = 64


class Rank(Struct, frozen=True):
    """What the graph knows of one rank beside its nodes."""

    number: int  # of the rank
    path: str  # of its trace
    world_size: int  # ranks of the job, -1 where the trace does not say
    cpu_only: bool  # whether its work is the host's
    serves: bool  # whether it ran steps of a serving engine
    timed_ns: float  # its mean step without the profiler, -1 where it timed none
    device: Device | None  # whose figures count, None where it is not known
    is_comm: Bool  # whether each activity in the trace's `work` is communication
    name: Coded  # of each slot, that of its event
    label: Coded  # of each slot, for people: of a host point the op around it, if any
    category: Coded  # kernel class of each slot, "" for a host point
    lane: Int  # number of the host thread of each slot, or behind those, of the stream of an activity


class RunGraph(Struct, frozen=True, eq=False, dict=True):
    """Nodes, each after all that it waits for, and their edges in order of `dst`."""

    ranks: tuple[Rank, ...]  # in order of their numbers
    kind: Int  # of each node, a Node
    rank: Int  # index into `ranks`; of a meeting that of its lowest rank
    event: Int  # row in the trace's events, -1 for a meeting
    work: Int  # index into the trace's `work`, -1 for none
    slot: Int  # position in its rank's names, -1 for a meeting
    collective: Int  # of a meeting, index into `RunCollectives.matched`; else -1
    start: Int  # measured, ns, by the clock of the first rank
    dur: Int  # of work, and of a meeting the transfer; else 0
    delay: Int  # measured start less what the edges say; 0 where there is no edge
    src: Int  # nodes of each edge
    dst: Int
    lag: Int  # ns of each edge, negative only where kernels of a stream overlap
    edge: Int  # kind of each edge, an Edge
    first: Int  # edges of node i are first[i] to first[i + 1]
    shift: tuple[int, ...]  # per trace, what to add to its times to get the first trace's clock
    dropped: dict[str, int]  # kind of edge to how many the measurement contradicts

    def __len__(self) -> int:
        return len(self.kind)

    @cached_property
    def of_rank(self) -> tuple[Int, ...]:
        """Nodes of each rank, ascending; meetings belong to their lowest rank."""
        by_rank = rows_by_code(self.rank)
        none = np.zeros(0, dtype=np.int64)
        return tuple(by_rank.get(rank, none) for rank in range(len(self.ranks)))

    @cached_property
    def _first_lanes(self) -> list[int]:
        """Number of the first thread or stream of each rank, and of all of them."""
        first: list[int] = np.cumsum(
            [0, *(int(rank.lane.max(initial=-1)) + 1 for rank in self.ranks)]
        ).tolist()
        return first

    @cached_property
    def lane(self) -> Int:
        """Number of each node's thread or stream among those of all ranks, -1 for a meeting."""
        lane = np.full(len(self), -1, dtype=np.int64)
        for nodes, rank, offset in zip(self.of_rank, self.ranks, self._first_lanes, strict=False):
            own = nodes[self.slot[nodes] >= 0]
            lane[own] = offset + rank.lane[self.slot[own]]
        return lane

    @property
    def lanes(self) -> int:
        """Number of threads and streams of all ranks."""
        return self._first_lanes[-1]

    def last_on_lanes(self, nodes: Int) -> Int:
        """Of these nodes the one that ends last on each thread and stream, as recorded; -1 for none."""
        last, latest = np.full((2, self.lanes), [[-1], [np.iinfo(np.int64).min]])
        lane, end = self.lane[nodes], self.end[nodes]
        np.maximum.at(latest, lane, end)
        is_last = end == latest[lane]
        last[lane[is_last]] = nodes[is_last]  # of several values for a lane the last one stays
        return last

    def shifted_ends(self, nodes: Int, shift: Int | None) -> Int:
        """When these nodes ended, with so much added on each thread and stream, ns."""
        ends = self.end.take(nodes)
        return ends if shift is None else ends + lookup(shift, self.lane.take(nodes), 0)

    @cached_property
    def lockstep(self) -> Int:
        """Index in `ranks` of the lowest that each rank meets in collectives, itself or through others."""
        arrivals = self.edges(Edge.ARRIVAL)
        rank, met = self.rank[self.src[arrivals]], self.dst[arrivals]
        lowest = np.arange(len(self.ranks))
        while True:
            of_meeting = np.full(len(self), len(self.ranks))
            np.minimum.at(of_meeting, met, lowest[rank])
            lower = lowest.copy()
            np.minimum.at(lower, rank, of_meeting[met])
            if (lower == lowest).all():
                return lowest
            lowest = lower

    def nodes(self, rank: int, *kinds: Node) -> Int:
        """Nodes of these kinds of one rank, ascending."""
        key = (rank, *sorted(kinds))
        if key not in self._nodes:
            own = self.of_rank[rank]
            self._nodes[key] = own[np.isin(self.kind[own], kinds)]
        return self._nodes[key]

    @cached_property
    def stretch(self) -> Int:
        """A number for the stretch of a thread that each node is in; it ends where another thread resumes."""
        first = np.arange(len(self))
        host_time = self.edges(Edge.HOST)
        first[self.dst[host_time]] = self.src[host_time]
        while ((further := first.take(first)) != first).any():
            first = further
        return first

    @cached_property
    def launched(self) -> Int:
        """The work that each node launches, -1 for none; of several the last."""
        launched = np.full(len(self), -1, dtype=np.int64)
        launch = self.edges(Edge.LAUNCH)
        launched[self.src[launch]] = self.dst[launch]
        return launched

    def edges(self, kind: Edge) -> Int:
        """Edges of a kind, ascending."""
        return self._edges.get(kind, np.zeros(0, dtype=np.int64))

    def edges_to(self, kind: Edge, nodes: Bool) -> Int:
        """Edges of a kind to nodes under a mask, ascending."""
        edges = self.edges(kind)
        return edges[nodes.take(self.dst.take(edges))]

    @cached_property
    def _edges(self) -> dict[int, Int]:
        return rows_by_code(self.edge)

    def is_edge(self, *kinds: Edge) -> Bool:
        """Mask of the edges of these kinds."""
        return np.isin(np.arange(len(Edge)), kinds)[self.edge]

    @cached_property
    def host_time(self) -> Int:
        """Edges with the host's time: between its calls, and from thread to thread."""
        return np.flatnonzero(self.is_edge(Edge.HOST, Edge.HANDOVER))

    @cached_property
    def _nodes(self) -> dict[tuple[int, ...], Int]:
        return {}

    @cached_property
    def end(self) -> Int:
        return self.start + self.dur

    @cached_property
    def binding(self) -> Int:
        """The edge that each node waited for last as measured, -1 for none."""
        return self.last_edges(self.lag)

    def last_edges(self, lag: Int) -> Int:
        """The edge that each node would have waited for last with these lags, -1 for none."""
        allowed_ns, last = self.end[self.src] + lag, np.full(len(self), -1, dtype=np.int64)
        latest = np.flatnonzero(allowed_ns == ready_times(self.start, self.first, allowed_ns)[self.dst])
        last[self.dst[latest]] = latest  # of several values for a node the last one stays
        return last

    @cached_property
    def bound_by(self) -> Int:
        """Kind of the edge that each node waited for last as measured, -1 for none."""
        return lookup(self.edge, self.binding, -1)

    def usual_delays(self, delay: Int) -> Int:
        """Of each kind of edge, the median delay of all nodes that waited last for one of it, ns.

        One more for kind -1, 0.
        """
        if delay is self.delay:
            return self._usual_delays
        usual = self._usual_delays.copy()
        changed = unique(self.bound_by[np.flatnonzero(delay != self.delay)])
        for kind in changed[changed >= 0].tolist():
            usual[kind] = self._median(delay, kind)
        return usual

    @cached_property
    def _usual_delays(self) -> Int:
        """As measured."""
        return np.array([*(self._median(self.delay, kind) for kind in Edge), 0])

    def _median(self, delay: Int, kind: int) -> int:
        nodes = self._nodes_bound_by.get(kind)
        return 0 if nodes is None else int(median(delay[nodes]))

    @cached_property
    def _nodes_bound_by(self) -> dict[int, Int]:
        """Kind of edge to the nodes that waited last for one of it."""
        return rows_by_code(self.bound_by)


class Draft(Struct):
    """A graph in the making: nodes and edges in any order.

    Node numbers are those of the order of adding.
    """

    nodes: list[tuple[Int, ...]] = field(default_factory=list)
    edges: list[tuple[Int, ...]] = field(default_factory=list)
    count: int = 0

    def add(
        self,
        kind: Int | int,
        start: Int,
        *,
        rank: int = 0,
        dur: Int | int = 0,
        event: Int | int = -1,
        work: Int | int = -1,
        slot: Int | int = -1,
        collective: Int | int = -1,
    ) -> Int:
        """Add nodes of one rank, see RunGraph; returns their numbers."""
        fields = (kind, rank, event, work, slot, collective, start, dur)
        self.nodes.append(
            tuple(np.broadcast_to(np.asarray(value, dtype=np.int64), len(start)) for value in fields)
        )
        numbers = np.arange(self.count, self.count + len(start))
        self.count += len(start)
        return numbers

    def join(self, kind: Int | int, src: Int, dst: Int, lag: Int | int = 0) -> None:
        """Edges of one kind. A lag longer than what was measured between both nodes counts as that."""
        fields = (src, dst, lag, kind)
        self.edges.append(
            tuple(np.broadcast_to(np.asarray(value, dtype=np.int64), len(src)) for value in fields)
        )

    def node_columns(self) -> list[Int]:
        """(kind, rank, event, work, slot, collective, start, dur) of all nodes."""
        return _columns(self.nodes, 8)

    def edge_columns(self) -> list[Int]:
        """(src, dst, lag, kind) of all edges."""
        return _columns(self.edges, 4)

    def graph(self, ranks: Sequence[Rank], shift: Sequence[int]) -> tuple[RunGraph, Int]:
        """The graph: nodes in order, contradicted edges dropped; and each node's number in it."""
        columns = self.node_columns()
        start, dur = columns[-2:]
        src, dst, lag, edge = self.edge_columns()
        slack = start[dst] - (start + dur)[src]
        possible = slack >= np.where(edge == Edge.STREAM, -OVERLAP_NS, 0)
        # By time; at one point in time each node after what it waits for.
        depth = np.zeros(len(start), dtype=np.int64)
        tied = possible & (start[src] == start[dst])
        early, late = src[tied], dst[tied]
        for _ in range(_TIES):
            deeper = depth[early] + 1 > depth[late]
            if not deeper.any():
                break
            np.maximum.at(depth, late[deeper], depth[early[deeper]] + 1)
        order = ordered(start, depth, start + dur)
        number_of = np.empty_like(order)
        number_of[order] = np.arange(len(order))
        src, dst = number_of[src], number_of[dst]
        kept = possible & (src < dst)
        dropped = np.bincount(edge[~kept], minlength=len(Edge)).tolist()
        by_node = np.flatnonzero(kept)[ordered(dst[kept])]
        src, dst, lag, edge = (column[by_node] for column in (src, dst, np.minimum(lag, slack), edge))
        kind, rank, event, work, slot, collective, start, dur = (column[order] for column in columns)
        first = np.append(0, np.cumsum(np.bincount(dst, minlength=len(order))))
        graph = RunGraph(
            ranks=tuple(ranks),
            kind=kind.astype(np.int8),
            rank=rank,
            event=event,
            work=work,
            slot=slot,
            collective=collective,
            start=start,
            dur=dur,
            delay=start - ready_times(start, first, (start + dur)[src] + lag),
            src=src,
            dst=dst,
            lag=lag,
            edge=edge.astype(np.int8),
            first=first,
            shift=tuple(shift),
            dropped={kind.name.lower(): number for kind, number in zip(Edge, dropped, strict=True) if number},
        )
        return graph, number_of


_MOST_NS = 10**12
"""Longest duration a scenario may set; sums over a recording stay within 64 bits."""


class TooLong(Exception):
    """A scenario sets a duration longer than any step."""


class Edit(Struct):
    """Editable copies of a graph's arrays, which scenarios change in place, one after the other."""

    dur: Int  # duration of each node, ns
    delay: Int  # unexplained delay of each node, ns
    lag: Int  # of each edge, ns
    kept: Bool  # which edges are there
    tokens: float = 1.0  # of a step / those recorded

    @staticmethod
    def recorded(graph: RunGraph) -> Edit:
        """Nothing changed; it holds the graph's own arrays, so only a copy may change."""
        return Edit(graph.dur, graph.delay, graph.lag, np.ones(len(graph.edge), dtype=bool))

    @staticmethod
    def of(graph: RunGraph) -> Edit:
        return Edit.recorded(graph).copy()

    def copy(self) -> Edit:
        return Edit(self.dur.copy(), self.delay.copy(), self.lag.copy(), self.kept.copy(), self.tokens)

    def share(self, before: Edit) -> None:
        """Hold what is as before once; neither edit must change any more."""
        for name in ("dur", "delay", "lag", "kept"):
            if np.array_equal(getattr(self, name), shared := getattr(before, name)):
                setattr(self, name, shared)

    def set_dur(self, nodes: Int, ns: NDArray[np.floating[Any]]) -> None:
        """Set durations, rounded to whole ns.

        Raises:
            TooLong: one grows beyond 1,000 s.
        """
        self.dur[nodes] = _whole_ns(ns, self.dur[nodes])

    def set_lag(self, edges: Int | Bool, ns: NDArray[np.floating[Any]]) -> None:
        """Set lags; see `set_dur`."""
        self.lag[edges] = _whole_ns(ns, self.lag[edges])


def _columns(parts: Sequence[tuple[Int, ...]], count: int) -> list[Int]:
    empty = (np.empty(0, dtype=np.int64),) * count
    return [np.concatenate(column) for column in zip(empty, *parts, strict=True)]


def ready_times(start: Int, first: Int, allowed_ns: Int) -> Int:
    """When the edges of each node allow it to start; when it started if it has none.

    Args:
        start: of each node, ns.
        first: edges of node i are first[i] to first[i + 1].
        allowed_ns: when each edge allows its node to start.
    """
    ready, waits = start.copy(), np.flatnonzero(first[1:] > first[:-1])
    ready[waits] = np.maximum.reduceat(allowed_ns, first[waits])
    return ready


def _whole_ns(changed: NDArray[np.floating[Any]], before: Int) -> Int:
    """A duration that does not grow is never too long."""
    if ((changed > _MOST_NS) & (changed > before)).any():
        raise TooLong
    whole: Int = np.rint(changed).astype(np.int64)
    return whole


def times(ns: Int, factor: float | NDArray[np.floating[Any]]) -> Int:
    """Durations times a factor, as far as they may grow."""
    grown: Int = np.rint(np.minimum(ns * factor, np.maximum(ns, _MOST_NS))).astype(np.int64)
    return grown
