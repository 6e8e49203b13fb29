"""When each node of an edited graph starts and ends: one pass over all nodes."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from tracelens.arrays import Bool, Int, lookup
from tracelens.what_if.graph import Edit, Graph, StepSpan

Delays = Literal["low", "typical", "high"]
"""What happens to unexplained delays when a node's dependencies change.

A node is ready when all its edges allow it to start. A node ready at the measured time keeps its delay. For
a node ready earlier:

- `low`: the delay vanishes, as a wait for something that is gone as well.
- `high`: the delay stays in full, as unrelated to the change.
- `typical`: the delay stays up to the median delay behind edges of its kind: the usual cost of such an edge
  stays, the excess vanishes.

A node ready later starts then or at its measured start if that is later (`low`), keeps its delay (`high`), or
starts at the later of `low` with a typical delay and `low` (`typical`). A node never starts earlier for being
ready later, so each node starts at low <= typical <= high, and shorter durations delay no node. This holds
for points in time: both ends of a step move.
"""


class Times(NamedTuple):
    """One schedule."""

    start: Int  # of each node, ns by the clock of the first rank
    end: Int
    ready: Int  # when the edges of each node allowed it to start
    via: Int  # the edge that each node waited for last, -1 for none


class Segment:
    """The nodes that a replay computes, prepared once for many replays; all others stay as measured."""

    def __init__(self, graph: Graph, window: StepSpan | None = None, *, idle: bool = False) -> None:
        """The nodes of a step, up to its end; without a step all nodes.

        Args:
            graph: of the run.
            window: the step.
            idle: whether earlier GPU work counts as done when the host begins the step.
        """
        self.end = _idle_ends(graph, window) if window is not None and idle else graph.end
        held = np.zeros(len(graph), dtype=bool) if window is None else window.held
        stop = len(graph) if window is None else window.last_node + 1
        nodes = np.flatnonzero(~held[:stop])
        low, high = (int(nodes[0]), stop) if len(nodes) else (stop, stop)
        self.nodes = slice(low, high)
        self.edges = slice(int(graph.first[low]), int(graph.first[high]))
        self.computed = nodes
        self.rows: list[int] = (nodes - low).tolist()
        # Sources before the segment stand behind its nodes.
        src = graph.src[self.edges]
        self.outside = np.unique(src[src < low])
        self._src = np.where(src < low, high - low + np.searchsorted(self.outside, src), src - low)
        self._dst = graph.dst[self.edges] - low
        self._all = self._edges(np.arange(len(src)))

    def edges_of(self, kept: Bool) -> tuple[Int, list[int], list[int]]:
        """(positions in the segment, first of each node, source of each) of the edges that are there."""
        inside = kept[self.edges]
        return self._all if inside.all() else self._edges(np.flatnonzero(inside))

    def _edges(self, rows: Int) -> tuple[Int, list[int], list[int]]:
        first = np.searchsorted(self._dst[rows], np.arange(self.nodes.stop - self.nodes.start + 1))
        return rows, first.tolist(), self._src[rows].tolist()


def schedule(graph: Graph, edit: Edit, delays: Delays = "typical", segment: Segment | None = None) -> Times:
    """Start and end of each node of the edited graph, or of a segment of it."""
    segment = Segment(graph) if segment is None else segment
    nodes = segment.nodes
    edges, first, src = segment.edges_of(edit.kept)
    lag = edit.lag[segment.edges][edges].tolist()
    dur, measured, delay = (column[nodes].tolist() for column in (edit.dur, graph.start, edit.delay))
    stays = _stays(graph, edit.delay, delays)[nodes].tolist()
    absorbs = delays != "high"
    start, ready = measured.copy(), (graph.start - graph.delay)[nodes].tolist()
    end = [*segment.end[nodes].tolist(), *segment.end[segment.outside].tolist()]
    via = [-1] * len(start)
    for node in segment.rows:
        low, high = first[node], first[node + 1]
        was, late = measured[node], delay[node]
        if low == high:
            begin = ready[node] = was
        else:
            ready_ns, best = end[src[low]] + lag[low], low
            if high > low + 1:
                for edge in range(low + 1, high):
                    allowed_ns = end[src[edge]] + lag[edge]
                    if allowed_ns > ready_ns:
                        ready_ns, best = allowed_ns, edge
            ready[node], via[node] = ready_ns, best
            if ready_ns < was - late:
                begin = ready_ns + stays[node]
            elif absorbs:
                begin = max(ready_ns + stays[node], was)
            else:
                begin = ready_ns + late
        start[node] = begin
        end[node] = begin + dur[node]
    times = Times(graph.start.copy(), graph.end.copy(), graph.start - graph.delay, graph.binding.copy())
    times.start[nodes], times.end[nodes], times.ready[nodes] = start, end[: len(start)], ready
    last_edge = np.array(via, dtype=np.int64)[segment.computed - nodes.start]
    times.via[segment.computed] = lookup(segment.edges.start + edges, last_edge, -1)
    return times


def _stays(graph: Graph, delay: Int, delays: Delays) -> Int:
    """What stays of each node's delay when it is ready earlier than it was."""
    if delays == "high":
        return delay
    if delays == "low":
        return np.zeros_like(delay)
    is_measured = np.array_equal(delay, graph.delay)
    return np.minimum(delay, graph.usual_delay if is_measured else graph.usual_delays(delay))


def _idle_ends(graph: Graph, window: StepSpan) -> Int:
    """Measured ends, those of earlier steps at the latest when the host begins this one."""
    ends = graph.end.copy()
    held = window.held
    for nodes, border in zip(graph.of_rank, window.begin, strict=True):
        if border.mark >= 0:
            earlier = nodes[held[nodes]]
            ends[earlier] = np.minimum(ends[earlier], graph.start[border.mark])
    return ends
