"""A step, replayed: when each node of the edited graph starts and ends, and how long each rank then takes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np

from tracelens.arrays import Bool, Int, lookup, ranges, unique
from tracelens.native import core as native_core
from tracelens.what_if.graph import Edit, RunGraph, StepSpan


class Extent(NamedTuple):
    """A replayed step on one rank."""

    begin: int  # ns
    end: int  # ns
    node: int  # that ends it
    schedule: NodeSchedule | NodeTimes  # of the replay

    @property
    def dur(self) -> int:
        return self.end - self.begin


class StepReplay:
    """Replays one step, again and again.

    What was done before the step stays as recorded, so that a change cannot make the step longer by making
    those before it shorter. But where the host had run ahead of the GPU, it would have lost its lead to
    faster GPUs, and a step would take as long as its host, from mark to mark. So that is replayed too, with a
    GPU that is idle at the begin, and the longer of both counts.
    """

    def __init__(self, graph: RunGraph, window: StepSpan) -> None:
        self.graph, self.window = graph, window
        self.segment = ReplaySegment(graph, window)
        self._begins = [border.time(graph.start, graph.end) for border in window.begin]

    def extents(self, edit: Edit, delays: Delays = "typical") -> list[Extent]:
        """The edited step on each rank."""
        return self.replayed(EditedSegment(self.segment, edit), delays)

    def replayed(self, edited: EditedSegment, delays: Delays = "typical") -> list[Extent]:
        """The same of the step's segment with its edit, prepared once for several replays."""
        behind = edited.schedule(delays)
        whole, host = self.whole(behind), self.host(behind)
        # Behind an idle GPU the host is no later.
        if all(part.dur <= extent.dur for extent, part in zip(whole, host, strict=True)):
            return whole
        if not self.segment.starts_idle:
            host = self.host(edited.schedule(delays, idle=True))
        return [max(parts, key=lambda extent: extent.dur) for parts in zip(whole, host, strict=True)]

    def whole(self, schedule: NodeSchedule | NodeTimes) -> list[Extent]:
        """The step on each rank, from its recorded begin to its replayed end."""
        result = []
        for begin, last in zip(self._begins, self.window.end, strict=True):
            ends = schedule.ends(last.node)
            latest = int(np.argmax(ends))
            result.append(Extent(begin, int(ends[latest]), int(last.node[latest]), schedule))
        return result

    def host(self, schedule: NodeSchedule | NodeTimes) -> list[Extent]:
        """The host's part of the step on each rank, from mark to mark; without marks nothing."""
        result = []
        for rank, border in enumerate(self.window.end):
            begin = end = 0
            if border.mark >= 0:
                begin = self.window.host_begin(rank, self.graph.start, self.graph.end)
                end = int(schedule.ends(np.array([border.mark]))[0])
            result.append(Extent(begin, end, border.mark, schedule))
        return result


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


class NodeTimes(NamedTuple):
    """One schedule."""

    start: Int  # of each node, ns by the clock of the first rank
    end: Int
    ready: Int  # when the edges of each node allowed it to start
    via: Int  # the edge that each node waited for last, -1 for none

    def ends(self, nodes: Int) -> Int:
        return self.end[nodes]

    @property
    def times(self) -> NodeTimes:
        return self


class ReplaySegment:
    """The nodes that a replay computes, prepared once for many replays; all others stay as measured."""

    def __init__(self, graph: RunGraph, window: StepSpan | None = None) -> None:
        """The nodes of a step, up to its end; without a step all nodes."""
        self.graph, self.window = graph, window
        held = np.zeros(len(graph), dtype=bool) if window is None else window.held
        # Behind the last node that the step's end depends on.
        self.stop = len(graph) if window is None else 1 + max(int(end.node.max()) for end in window.end)
        self.computed = np.flatnonzero(~held[: self.stop])
        # When the host of each rank begins the step, never where that is not marked.
        marks = [] if window is None else [border.mark for border in window.begin]
        self._host_begin = lookup(graph.start, np.array(marks, dtype=np.int64), np.iinfo(np.int64).max)

    @cached_property
    def reduction(self) -> Reduction:
        """Its nodes without chains, as measured."""
        return Reduction(self.graph, self.computed)

    @cached_property
    def starts_idle(self) -> bool:
        """Whether all that it waits for is done as early as with an idle GPU."""
        outside = self.reduction.outside
        return bool((self.measured(outside, idle=True) == self.measured(outside)).all())

    def measured(self, nodes: Int, *, idle: bool = False) -> Int:
        """Measured ends; `idle`: those of earlier steps at the latest when the host begins this one."""
        ends = self.graph.end[nodes]
        if not idle or self.window is None:
            return ends
        earlier = self.window.step_of[nodes] < self.window.number
        return np.where(earlier, np.minimum(ends, self._host_begin[self.graph.rank[nodes]]), ends)


class EditedSegment:
    """A segment with an edit, which must not change any more; what its replays have in common is kept."""

    def __init__(self, segment: ReplaySegment, edit: Edit) -> None:
        self.segment, self.edit, self.graph = segment, edit, segment.graph
        self.reduction = segment.reduction
        if not self.reduction.fits(edit):
            cut = edit.delay != 0
            cut[self.graph.dst[~edit.kept]] = True
            self.reduction = Reduction(self.graph, segment.computed, cut[segment.computed])
        self.beyond = self.reduction.beyond_roots(edit)

    @cached_property
    def usual_delay(self) -> Int:
        """The delay that is usual for each node, ns, see `RunGraph.usual_delays`."""
        is_measured = np.array_equal(self.edit.delay, self.graph.delay)
        return self.graph.usual_delay if is_measured else self.graph.usual_delays(self.edit.delay)

    @cached_property
    def free(self) -> Int:
        return self.reduction.free(self.edit)

    @cached_property
    def lags(self) -> tuple[Int, Int]:
        return self.reduction.lags(self.edit, self.beyond)

    @cached_property
    def lag_lists(self) -> tuple[list[int], list[int]]:
        first, second = self.lags
        return first.tolist(), second.tolist()

    def schedule(self, delays: Delays = "typical", *, idle: bool = False) -> NodeSchedule:
        """Replay it; `idle` if earlier GPU work counts as done when the host begins the step."""
        edit, known = self.edit, self.reduction
        core, last = known.core, known.last
        start, dur, delay = self.graph.start[core], edit.dur[core], edit.delay[core]
        # What each row adds from when it is ready to its end; and where it is ready at a time or later, until
        # when it ends no sooner, ns.
        more, ready, until = np.full((3, known.rows), [[0], [0], [NEVER]], dtype=np.int64)
        more[last] = dur
        if delays == "high":
            more[last] += delay
        else:
            ready[last], until[last] = start - delay, start + dur
        if delays == "typical":
            more[last] += np.minimum(delay, self.usual_delay[core])
        ready[last[self.free]], until[last[self.free]] = 2 * NEVER, (start + dur)[self.free]
        ends = np.zeros(1 + len(known.outside) + known.rows, dtype=np.int64)
        ends[1 : 1 + len(known.outside)] = self.segment.measured(known.outside, idle=idle)
        if native := native_core():
            first, second = known.first.position, known.second.position
            native.replay(first, self.lags[0], second, self.lags[1], more, ready, until, ends)
        else:
            self._fill(ends, more, ready, until)
        return NodeSchedule(self, ends, idle)

    def _fill(self, ends: Int, more: Int, ready: Int, until: Int) -> None:
        """The ends of all rows, behind those that are known; what the native core does."""
        known = self.reduction
        # By a clock that begins with the segment: Python adds small numbers faster.
        begin = int(ends[-1 - known.rows])
        filled = (ends[: -known.rows or None] - begin).tolist()
        append = filled.append
        for source, lag, other, other_lag, more_ns, ready_ns, until_ns in zip(
            known.first.positions,
            self.lag_lists[0],
            known.second.positions,
            self.lag_lists[1],
            more.tolist(),
            (ready - begin).tolist(),
            (until - begin).tolist(),
            strict=True,
        ):
            allowed_ns, other_ns = filled[source] + lag, filled[other] + other_lag
            if other_ns > allowed_ns:  # noqa: PLR1730 - calling max() takes as long as all else here
                allowed_ns = other_ns
            end_ns = allowed_ns + more_ns
            if end_ns < until_ns and allowed_ns >= ready_ns:
                end_ns = until_ns
            append(end_ns)
        ends[:] = filled
        ends += begin


class NodeSchedule:
    """A replayed segment."""

    def __init__(self, edited: EditedSegment, ends: Int, idle: bool) -> None:
        self._edited, self._ends, self._idle = edited, ends, idle

    def ends(self, nodes: Int) -> Int:
        measured = self._edited.segment.measured(nodes, idle=self._idle)
        return self._edited.reduction.ends(self._edited.beyond, self._ends, nodes, measured)

    @cached_property
    def times(self) -> NodeTimes:
        """Start and end of all nodes, and what each waited for."""
        graph, edit, segment = self._edited.graph, self._edited.edit, self._edited.segment
        computed, edges = segment.computed, self._edited.reduction.edges
        ends = segment.measured(np.arange(len(graph)), idle=self._idle)
        ends[computed] = self.ends(computed)
        start, ready, via = graph.start.copy(), graph.start - graph.delay, graph.binding.copy()
        start[computed] = ends[computed] - edit.dur[computed]
        ready[computed], via[computed] = graph.start[computed], -1
        edges = edges[edit.kept[edges]]
        allowed_ns, dst = ends[graph.src[edges]] + edit.lag[edges], graph.dst[edges]
        if len(edges):
            first = np.flatnonzero(np.append(True, dst[1:] != dst[:-1]))
            ready[dst[first]] = np.maximum.reduceat(allowed_ns, first)
        # The first of those that allow it last: of several values for a node the last one stays.
        last = np.flatnonzero(allowed_ns == ready[dst])[::-1]
        via[dst[last]] = edges[last]
        # What lies before the segment is shown as it was.
        ahead = int(computed[0]) if len(computed) else len(graph)
        ends[:ahead], ends[segment.stop :] = graph.end[:ahead], graph.end[segment.stop :]
        return NodeTimes(start, ends, ready, via)


NEVER = -(1 << 60)
"""A lag that no time of a run makes up for, ns."""


@dataclass(frozen=True, eq=False)
class WaitedEnds:
    """One of the two ends that each row waits for."""

    position: Int
    edge: Int  # -1 for none
    chain: Int  # the chained node from which the edge comes, position in `chained`; -1 for none
    continues: Bool  # whether it is the row before, of the same node

    @cached_property
    def positions(self) -> list[int]:
        positions: list[int] = self.position.tolist()
        return positions


class Reduction:
    """Nodes to replay without the chains among them, prepared once for many edits.

    Half of all nodes are points on host threads that wait for one other node and have no delay of their own:
    they end a fixed time after it, whatever happens. They are left out, and the edges from them start at the
    node before, with that time on top. What is left has two edges or a delay; a node of n edges takes n - 1
    rows, so that every row is the later of two times.

    Positions count all ends that a replay knows: one for those that wait for nothing, then `outside`, then
    one a row.
    """

    def __init__(self, graph: RunGraph, computed: Int, apart: Bool | None = None) -> None:
        """Prepare these nodes of a graph.

        Args:
            graph: of the run.
            computed: nodes, ascending.
            apart: of each of them, whether it counts as core in any case.
        """
        self.computed = computed
        count = graph.first[computed + 1] - graph.first[computed]
        is_chained = (count == 1) & (graph.delay[computed] == 0)
        if apart is not None:
            is_chained &= ~apart
        # Of `computed`, those that only follow another node, and all others, both in order.
        self.chained, self.core, self._is_core = computed[is_chained], computed[~is_chained], ~is_chained
        self.chained_edge = graph.first[self.chained]
        self._owner, self.edges = ranges(graph.first[computed], count)
        sources = graph.src[self.edges]
        # A step's nodes lie close together: tables of nodes begin with its first and end with all others.
        self._begin = begin = int(computed[0]) if len(computed) else 0
        self._span = int(computed[-1]) + 1 - begin if len(computed) else 0
        is_computed = np.zeros(self._span + 1, dtype=bool)
        is_computed[computed - begin] = True
        # Nodes that they wait for and that stay as they are, ascending.
        self.outside = unique(sources[~is_computed[self._rows(sources)]])
        self._without_edges = np.flatnonzero(count[~is_chained] == 0)
        rows_of_core = np.maximum(count[~is_chained] - 1, 1)
        self.last = np.cumsum(rows_of_core) - 1  # row of each core node
        self.rows = int(rows_of_core.sum())
        self.position = 1 + len(self.outside) + self.last  # of each core node's end

        # Of each node: its position among the ends, 0 for none, and its number among the chained ones. A
        # chain has the position of the end before it; `_jumps` lead along chains, doubling their length.
        self._position = np.zeros(self._span + 1, dtype=np.int64)
        self._position[self.core - begin] = self.position
        self._number = np.full(self._span + 1, -1)
        self._number[self.chained - begin] = np.arange(len(self.chained))
        position, up = self._known(graph.src[self.chained_edge])
        # Of the last ones, "the one before" is one without a weight.
        none = len(up)
        up = np.append(np.where(up < 0, none, up), none)
        self._jumps = []
        root = np.append(np.where(up[:-1] == none, position, 0), 0)
        while (up != none).any():
            self._jumps.append(up)
            root = np.maximum(root, root[up])
            up = up[up]
        self._position[self.chained - begin] = root[:-1]

        # What each row waits for: two edges of its node, or the row before and one edge.
        of_core, within = ranges(np.zeros(len(rows_of_core), dtype=np.int64), rows_of_core)
        edge, edges = graph.first[self.core][of_core], count[~is_chained][of_core]
        first = np.where((within == 0) & (edges > 0), edge, -1)
        second = np.where(edges > 0, edge + np.where(edges == 1, 0, within + 1), -1)
        before = np.where(within > 0, len(self.outside) + np.arange(self.rows), -1)
        self.first = self._side(graph, first, before)
        self.second = self._side(graph, second, np.full(self.rows, -1))

    def _known(self, nodes: Int) -> tuple[Int, Int]:
        """Position of the end that each node has or follows, 0 for none; and its number if it is chained."""
        row = self._rows(nodes)
        position, number = self._position[row], self._number[row]
        others = np.flatnonzero((position == 0) & (number < 0))
        if len(others) and len(self.outside):
            at = np.minimum(np.searchsorted(self.outside, nodes[others]), len(self.outside) - 1)
            position[others] = np.where(self.outside[at] == nodes[others], 1 + at, 0)
        return position, number

    def _rows(self, nodes: Int) -> Int:
        """Row of each node in tables of nodes."""
        at = nodes - self._begin
        return np.where((at >= 0) & (at < self._span), at, self._span)

    def _side(self, graph: RunGraph, edge: Int, before: Int) -> WaitedEnds:
        position, number = self._known(lookup(graph.src, edge, -1))
        return WaitedEnds(np.where(before >= 0, before, position), edge, number, before >= 0)

    def fits(self, edit: Edit) -> bool:
        """Whether the chains are still chains under an edit."""
        return not edit.delay[self.chained].any() and bool(edit.kept[self.chained_edge].all())

    def free(self, edit: Edit) -> Int:
        """Positions in `core` of the nodes that have no edge, or none that is kept."""
        kept = edit.kept[self.edges]
        if kept.all():
            return self._without_edges
        waits = np.zeros(len(self.computed), dtype=bool)
        waits[self._owner[kept]] = True
        return np.flatnonzero(~waits[self._is_core])

    def beyond_roots(self, edit: Edit) -> Int:
        """How long after the end before its chain each chained node ends, ns; one more element, 0."""
        total = np.append(edit.lag[self.chained_edge] + edit.dur[self.chained], 0)
        for up in self._jumps:
            total = total + total[up]
        return total

    def lags(self, edit: Edit, beyond: Int) -> tuple[Int, Int]:
        """The lag of both sides of each row, from the ends that they wait for."""
        first, second = (
            np.where(
                lookup(edit.kept, side.edge, False),
                lookup(edit.lag, side.edge, 0) + lookup(beyond, side.chain, 0),
                np.where(side.continues, 0, NEVER),
            )
            for side in (self.first, self.second)
        )
        return first, second

    def ends(self, beyond: Int, ends: Int, nodes: Int, measured: Int) -> Int:
        """The end of each of these nodes from those of all positions; as measured if it is not computed."""
        position, number = self._known(nodes)
        is_computed = (number >= 0) | (position > len(self.outside))
        return np.where(is_computed, ends[position] + lookup(beyond, number, 0), measured)


def schedule(
    graph: RunGraph, edit: Edit, delays: Delays = "typical", segment: ReplaySegment | None = None
) -> NodeTimes:
    """Start and end of each node of the edited graph, or of a segment of it."""
    return EditedSegment(ReplaySegment(graph) if segment is None else segment, edit).schedule(delays).times
