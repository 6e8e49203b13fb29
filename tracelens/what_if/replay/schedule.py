"""When each node of an edited graph starts and ends: one pass over the nodes that decide anything."""

from __future__ import annotations

from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np

from tracelens.arrays import Int, lookup
from tracelens.what_if.graph import Edit, Graph, StepSpan
from tracelens.what_if.replay.reduction import NEVER, Reduction

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

    def ends(self, nodes: Int) -> Int:
        """The end of each of these nodes, ns."""
        return self.end[nodes]

    @property
    def times(self) -> Times:
        """All of it, as `Schedule.times`."""
        return self


class Segment:
    """The nodes that a replay computes, prepared once for many replays; all others stay as measured."""

    def __init__(self, graph: Graph, window: StepSpan | None = None) -> None:
        """The nodes of a step, up to its end; without a step all nodes."""
        self.graph, self.window = graph, window
        held = np.zeros(len(graph), dtype=bool) if window is None else window.held
        stop = len(graph) if window is None else window.last_node + 1
        self.computed = np.flatnonzero(~held[:stop])
        self.stop = stop

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

    @cached_property
    def _host_begin(self) -> Int:
        """When the host of each rank begins the step, never where that is not marked."""
        marks = [border.mark for border in self.window.begin] if self.window is not None else []
        return lookup(self.graph.start, np.array(marks, dtype=np.int64), np.iinfo(np.int64).max)


class EditedSegment:
    """A segment with an edit, which must not change any more; what its replays have in common is kept."""

    def __init__(self, segment: Segment, edit: Edit) -> None:
        self.segment, self.edit, self.graph = segment, edit, segment.graph
        self.reduction = segment.reduction
        if not self.reduction.fits(edit):
            cut = edit.delay != 0
            cut[self.graph.dst[~edit.kept]] = True
            self.reduction = Reduction(self.graph, segment.computed, cut[segment.computed])
        self.beyond = self.reduction.beyond_roots(edit)

    @cached_property
    def usual_delay(self) -> Int:
        """The delay that is usual for each node, ns, see `Graph.usual_delays`."""
        is_measured = np.array_equal(self.edit.delay, self.graph.delay)
        return self.graph.usual_delay if is_measured else self.graph.usual_delays(self.edit.delay)

    @cached_property
    def lags(self) -> tuple[list[int], list[int]]:
        """Of both sides of each row."""
        return self.reduction.lags(self.edit, self.beyond)

    def schedule(self, delays: Delays = "typical", *, idle: bool = False) -> Schedule:
        """Replay it; `idle` if earlier GPU work counts as done when the host begins the step."""
        known, rows = self.reduction, _Rows.of(self, delays)
        ends = [0, *self.segment.measured(known.outside, idle=idle).tolist()]
        append = ends.append
        for source, lag, other, other_lag, more, ready, until in zip(
            known.first.position, self.lags[0], known.second.position, self.lags[1], *rows, strict=True
        ):
            allowed_ns, other_ns = ends[source] + lag, ends[other] + other_lag
            if other_ns > allowed_ns:  # noqa: PLR1730 - calling max() takes as long as all else here
                allowed_ns = other_ns
            end_ns = allowed_ns + more
            if end_ns < until and allowed_ns >= ready:
                end_ns = until
            append(end_ns)
        return Schedule(self, ends, idle)


class _Rows(NamedTuple):
    """What each row of a replay adds, ns.

    Attributes:
        more: from when it is ready to its end.
        ready: where it is ready at this time or later,
        until: it ends no sooner than this.
    """

    more: list[int]
    ready: list[int]
    until: list[int]

    @staticmethod
    def of(edited: EditedSegment, delays: Delays) -> _Rows:
        graph, edit, known = edited.graph, edited.edit, edited.reduction
        core, last = known.core, known.last
        start, dur, delay = graph.start[core], edit.dur[core], edit.delay[core]
        more, ready, until = (np.full(known.rows, value, dtype=np.int64) for value in (0, 0, NEVER))
        more[last] = dur
        if delays == "high":
            more[last] += delay
        else:
            ready[last], until[last] = start - delay, start + dur
        if delays == "typical":
            more[last] += np.minimum(delay, edited.usual_delay[core])
        free = known.free(edit)
        ready[last[free]], until[last[free]] = 2 * NEVER, (start + dur)[free]
        return _Rows(more.tolist(), ready.tolist(), until.tolist())


class Schedule:
    """A replayed segment."""

    def __init__(self, edited: EditedSegment, ends: list[int], idle: bool) -> None:
        self._edited, self._ends, self._idle = edited, ends, idle

    def ends(self, nodes: Int) -> Int:
        """The end of each of these nodes, ns."""
        measured = self._edited.segment.measured(nodes, idle=self._idle)
        return self._edited.reduction.ends(self._edited.beyond, self._ends, nodes, measured)

    @cached_property
    def times(self) -> Times:
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
        return Times(start, ends, ready, via)


def schedule(graph: Graph, edit: Edit, delays: Delays = "typical", segment: Segment | None = None) -> Times:
    """Start and end of each node of the edited graph, or of a segment of it."""
    return EditedSegment(Segment(graph) if segment is None else segment, edit).schedule(delays).times
