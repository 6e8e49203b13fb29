"""A step, replayed: when each node of the edited graph starts and ends, and how long each rank then takes."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from copy import copy
from functools import cached_property
from itertools import islice
from typing import Literal, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from tracelens.arrays import Bool, Int, lookup, ranges, unique
from tracelens.native import core as native_core
from tracelens.table import ancestor_sums
from tracelens.what_if.graph import Edit, RunGraph, StepSpan


class Extent(Struct, frozen=True):
    """A replayed step on one rank."""

    begin: int  # ns
    end: int  # ns
    node: int  # that ends it
    schedule: NodeSchedule | NodeTimes  # of the replay

    @property
    def dur(self) -> int:
        return self.end - self.begin


class SteadyStep(Struct, frozen=True):
    """A step that follows itself again and again."""

    dur: Int  # on each rank, ns
    extents: Sequence[Extent]  # its last repetition on each rank


_MOST_REPETITIONS = 32


class StepReplay:
    """Replays one step as if it followed itself again and again, until it takes as long as before.

    What one step leaves behind is what the next one begins with: a rank that no longer pauses at its end is
    not waited for at the next begin, and a GPU that has become faster has nothing left to do from a host that
    had run ahead. At first, what was done before the step is as recorded. Then each thread and stream is
    done as long before the begin of the next repetition as it was before the end of the last one. A step
    with nothing recorded before it is replayed once.

    A recorded step is not quite in its own steady state. So a change counts by how it changes that state:
    with nothing changed, each rank takes as long as recorded, to the ns.
    """

    def __init__(self, graph: RunGraph, window: StepSpan) -> None:
        self.graph, self.window = graph, window
        self.segment = ReplaySegment(graph, window)
        self.recorded = window.spans(graph.start, graph.end)
        self._begin, _ = window.borders(graph.start, graph.end).T
        # Begin of the last rank in the lockstep of each.
        self._last_begin = self._last_in_lockstep(self._begin)
        # The first node of each rank among those whose ends end the step.
        self._first_ender = np.cumsum([0, *(len(border.node) for border in window.end)])[:-1]
        # The last node of each thread and stream, as recorded, before the step and in it; -1 for none.
        before = np.flatnonzero(window.held & (graph.lane >= 0))
        computed = self.segment.computed
        inside = computed[(window.step_of[computed] == window.number) & (graph.lane[computed] >= 0)]
        last_before, last = graph.last_on_lanes(before), graph.last_on_lanes(inside)
        self._lanes = np.flatnonzero((last_before >= 0) & (last >= 0))
        # Nothing holds back what first ran in the step: such a step is not repeated.
        if (last_before[graph.lane[self.segment.enders]] < 0).any():
            self._lanes = self._lanes[:0]
        self._last_before, self._last = last_before[self._lanes], last[self._lanes]
        self._rank = graph.rank[self._last]
        # With nothing changed: how long the step takes on each rank, and which nodes are early.
        self._unchanged: dict[Delays, tuple[Int, Int]] = {}

    @cached_property
    def _same(self) -> EditedSegment:
        """The segment with nothing changed."""
        return EditedSegment(self.segment, Edit.recorded(self.graph))

    @property
    def as_recorded(self) -> SteadyStep:
        """The step on each rank with nothing changed, not repeated."""
        return SteadyStep(self.recorded, self.extents(self._same.schedule()))

    def edited(self, edit: Edit) -> EditedSegment:
        """The step's segment with an edit, which must not change any more."""
        same = self._same.edit
        is_same = edit.dur is same.dur and edit.delay is same.delay and edit.lag is same.lag
        return self._same if is_same and edit.kept.all() else EditedSegment(self.segment, edit)

    def steady(self, edit: Edit, delays: Delays = "typical") -> SteadyStep:
        """The edited step on each rank."""
        return self.replayed(self.edited(edit), delays)

    def replayed(self, edited: EditedSegment, delays: Delays = "typical") -> SteadyStep:
        """The same of the step's segment with its edit, prepared once for several replays."""
        if delays not in self._unchanged:
            early = np.zeros(0, dtype=np.int64)
            for _ in range(2):  # as an edit is replayed: with what is early known from the begin
                unchanged, early = self._repeated(self._same, delays, early)
            self._unchanged[delays] = durations(unchanged), early
        before, known_early = self._unchanged[delays]
        extents, _ = self._repeated(edited, delays, known_early)
        after = durations(extents)
        # Of what took no time there is no share.
        dur = np.where(before > 0, np.rint(self.recorded * (after / np.maximum(before, 1))), after)
        # A recorded step shorter than its steady state makes no other one shorter than its own.
        dur = np.maximum(dur, np.minimum(after, self.recorded))
        return SteadyStep(dur.astype(np.int64), extents)

    def _repeated(self, edited: EditedSegment, delays: Delays, known_early: Int) -> tuple[list[Extent], Int]:
        """The last repetition of the edited step on each rank, and which nodes were ever early.

        Delays that end as recorded in the first one may be too long in others, whose times are those of the
        first: what was ready earlier once has its delay from then on, as has what `known_early` names.
        """
        reduction = edited.reduction
        shift = np.zeros(self.graph.lanes, dtype=np.int64)
        early, known = np.zeros(reduction.rows, dtype=bool), np.zeros(len(self.graph), dtype=bool)
        known[known_early] = True
        known = known.take(reduction.node)
        enders, last = edited.places(self.segment.enders), edited.places(self._last)
        stride, next_begin = 1, self._begin
        taken = np.full(len(next_begin), -1)
        begin, schedule = next_begin, edited.schedule(delays, shift, early)
        for repetition in range(_MOST_REPETITIONS if len(self._lanes) else 0):
            if repetition:
                begin, schedule = next_begin, edited.repeat(schedule, shift, early)
            end = np.maximum.reduceat(schedule.ends_at(enders), self._first_ender)
            taken_before, taken = taken, end - begin
            before, (next_begin, shift) = shift, self._left_behind(end, schedule.ends_at(last))
            early = early | schedule.early | known
            if (taken == taken_before).all():
                # Threads that run ahead may do so for ever; those that fall behind will be waited for.
                late = np.maximum(shift - before, 0)
                if not late.any():
                    break
                shift, stride = shift + late * (stride - 1), 2 * stride
        return self._behind(begin, schedule), reduction.node[early]

    def extents(self, schedule: NodeSchedule | NodeTimes) -> list[Extent]:
        """The step on each rank, by this schedule, behind what was recorded before it."""
        return self._behind(self._begin, schedule)

    def _behind(self, begin: Int, schedule: NodeSchedule | NodeTimes) -> list[Extent]:
        """The step on each rank from its begin, ns."""
        ends = iter(schedule.ends(self.segment.enders).tolist())
        result = []
        for begin_ns, border in zip(begin.tolist(), self.window.end, strict=True):
            of_rank = list(islice(ends, len(border.node)))
            end_ns = max(of_rank)
            result.append(Extent(begin_ns, end_ns, int(border.node[of_rank.index(end_ns)]), schedule))
        return result

    def _left_behind(self, end: Int, done: Int) -> tuple[Int, Int]:
        """What the next repetition begins with, if the last of its ranks in lockstep begins as recorded.

        When each rank begins, and how much later than recorded each thread and stream is done by then, ns.

        Args:
            end: of the step on each rank, ns.
            done: when the last node on each thread and stream ends, ns.
        """
        offset = self._last_in_lockstep(end) - self._last_begin  # of each rank, between two repetitions
        shift = np.zeros(self.graph.lanes, dtype=np.int64)
        shift[self._lanes] = done - offset[self._rank] - self.graph.end[self._last_before]
        return end - offset, shift

    def _last_in_lockstep(self, times: Int) -> Int:
        """Of each rank, the last of the times of all ranks in lockstep with it."""
        last = times.copy()
        np.maximum.at(last, self.graph.lockstep, times)
        return last[self.graph.lockstep]


def durations(extents: Sequence[Extent]) -> Int:
    """Of a replayed step on each rank, ns."""
    return np.array([extent.dur for extent in extents])


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
        self.graph = graph
        held = np.zeros(len(graph), dtype=bool) if window is None else window.held
        # Behind the last node that the step's end depends on.
        self.stop = len(graph) if window is None else 1 + max(int(end.node.max()) for end in window.end)
        self.computed = np.flatnonzero(~held[: self.stop])
        # The nodes whose ends end the step, rank behind rank.
        borders = () if window is None else window.end
        self.enders = np.concatenate([np.zeros(0, dtype=np.int64), *(border.node for border in borders)])

    @property
    def edges(self) -> Int:
        """The edges to its nodes, node behind node; of hundreds of ranks too many to keep."""
        first = self.graph.first
        return ranges(first[self.computed], first[self.computed + 1] - first[self.computed])[1]

    @cached_property
    def reduction(self) -> Reduction:
        """Its nodes without chains, as measured."""
        return Reduction(self)


class EditedSegment:
    """A segment with an edit, which must not change any more; what its replays have in common is kept."""

    def __init__(self, segment: ReplaySegment, edit: Edit) -> None:
        self.segment, self.graph, self.reduction = segment, segment.graph, segment.reduction
        if not self.reduction.fits(edit):
            cut = edit.delay != 0
            cut[self.graph.dst[~edit.kept]] = True
            self.reduction = Reduction(segment, cut[segment.computed])
        self._waits: tuple[Delays, tuple[Int, Int]] | None = None  # those asked for last
        self._take(edit)

    def _take(self, edit: Edit) -> None:
        self.edit, self.beyond = edit, self.reduction.beyond_roots(edit)
        self.lags = self.reduction.lags(edit, self.beyond)

    def with_lag(self, lag: Int) -> EditedSegment:
        """The segment with the same edit but for its lags; what does not depend on them is shared."""
        other = copy(self)
        other._take(replace(self.edit, lag=lag))
        return other

    @cached_property
    def _dur(self) -> Int:
        """Of the node of each row, ns."""
        dur: Int = self.edit.dur.take(self.reduction.node)
        return dur

    @cached_property
    def recorded(self) -> Int:
        """When each row ends if its node starts as recorded, ns; `NEVER` for all but the last of a node."""
        end: Int = self.reduction.start + self._dur
        end[self.reduction.inner] = NEVER
        return end

    @cached_property
    def _usual_delay(self) -> Int:
        """Of the node of each row, its delay as far as it is usual, ns."""
        node = self.reduction.node
        usual = self.graph.usual_delays(self.edit.delay).take(self.graph.bound_by.take(node))
        usual_delay: Int = np.minimum(self.edit.delay.take(node), usual)
        return usual_delay

    @cached_property
    def _free(self) -> Int:
        """The rows of nodes that wait for nothing."""
        return self.reduction.free(self.graph, self.edit)

    def waits(self, delays: Delays) -> tuple[Int, Int]:
        """What each row adds from when it is ready, and from when on it ends as recorded at least, ns."""
        if self._waits is None or self._waits[0] != delays:
            known = self.reduction
            delay = self.edit.delay.take(known.node)
            ready, kept = known.start - delay, np.zeros_like(delay)
            if delays == "high":
                ready, kept = np.full(known.rows, FOREVER), delay
            elif delays == "typical":
                kept = self._usual_delay
            more = self._dur + kept
            more[known.inner] = 0
            ready[self._free] = 2 * NEVER
            self._waits = delays, (more, ready)
        return self._waits[1]

    def places(self, nodes: Int) -> EndPlaces:
        """Where every replay has the ends of nodes that are computed, or end the step."""
        position, number = self.reduction.known(nodes)
        return EndPlaces(position, self.beyond.take(number))

    def schedule(
        self, delays: Delays = "typical", shift: Int | None = None, early: Bool | None = None
    ) -> NodeSchedule:
        """Replay it.

        Args:
            delays: what becomes of those that nothing explains.
            shift: how much later than recorded each thread and stream was done before, ns.
            early: of each row, whether it counts as ready earlier than recorded in any case.
        """
        known = self.reduction
        ends = np.zeros(1 + len(known.outside) + known.rows, dtype=np.int64)
        ends[1 : 1 + len(known.outside)] = self.graph.shifted_ends(known.outside, shift)
        self._fill(ends, *self._limits(delays, early))
        return NodeSchedule(self, delays, ends, shift, early)

    def repeat(self, last: NodeSchedule, shift: Int, early: Bool) -> NodeSchedule:
        """Its next schedule, with another shift and more rows that count as early: most end as they did."""
        known, ends, first = self.reduction, last.all_ends, 1 + len(self.reduction.outside)
        outside = self.graph.shifted_ends(known.outside, shift)
        more_early = early if last.counted is None else early & ~last.counted
        # What was early before it counted as early ends as it did.
        if (outside != ends[1:first]).any() or (more_early & (ends[first:] == self.recorded)).any():
            ends, limits = ends.copy(), self._limits(last.delays, early)
            ends[1:first] = outside
            fill = self._fill if native_core() else self._mend
            fill(ends, *limits)
        return NodeSchedule(self, last.delays, ends, shift, early)

    def _limits(self, delays: Delays, early: Bool | None) -> tuple[Int, Int, Int]:
        """`waits`, and when each row ends as recorded, ns: `NEVER` if it counts as early."""
        recorded = self.recorded
        if early is not None and early.any():
            recorded = np.where(early, NEVER, recorded)
            recorded[self._free] = self.recorded[self._free]  # what waits for nothing stays as recorded
        return *self.waits(delays), recorded

    def _fill(self, ends: Int, more: Int, ready: Int, recorded: Int) -> None:
        """The ends of all rows, behind those that are known: each after the later of its two."""
        known, lags = self.reduction, self.lags
        if native := native_core():
            first, second = known.first.position, known.second.position
            native.replay(first, lags.first, second, lags.second, more, ready, recorded, ends)
            return
        # By a clock that begins with the segment: Python adds small numbers faster.
        begin = int(ends[-1 - known.rows])
        filled = (ends[: -known.rows or None] - begin).tolist()
        append = filled.append
        for source, lag, other, other_lag, least_ns, recorded_ns in zip(
            known.first.positions,
            (lags.first + more).tolist(),
            known.second.positions,
            (lags.second + more).tolist(),
            (ready + more - begin).tolist(),
            (recorded - begin).tolist(),
            strict=True,
        ):
            end_ns, other_ns = filled[source] + lag, filled[other] + other_lag
            if other_ns > end_ns:  # noqa: PLR1730 - calling max() takes as long as all else here
                end_ns = other_ns
            if least_ns <= end_ns < recorded_ns:
                end_ns = recorded_ns
            append(end_ns)
        ends[:] = filled
        ends += begin

    def _mend(self, ends: Int, more: Int, ready: Int, recorded: Int) -> None:
        """The ends of all rows, most of which are right: as `_fill`, which takes Python longer."""
        known, lags = self.reduction, self.lags
        first, second = known.first.position, known.second.position
        follower_begin, followers = known.followers
        first_lag, second_lag, least = lags.first + more, lags.second + more, ready + more
        begin = len(ends) - len(more)
        due = np.maximum(ends.take(first) + first_lag, ends.take(second) + second_lag)
        due = np.where((least <= due) & (due < recorded), recorded, due)
        wrong = np.flatnonzero(due != ends[begin:]).tolist()  # a heap: no row waits for one behind it
        before = -1
        for _ in range(100 + len(more) // 8):  # more take longer than all of them in turn
            if not wrong:
                return
            row = heapq.heappop(wrong)
            if row == before:
                continue
            before, position = row, begin + row
            end_ns = max(
                ends.item(first.item(row)) + first_lag.item(row),
                ends.item(second.item(row)) + second_lag.item(row),
            )
            if least.item(row) <= end_ns < recorded.item(row):
                end_ns = recorded.item(row)
            if end_ns != ends.item(position):
                ends[position] = end_ns
                for follower in followers[follower_begin[position] : follower_begin[position + 1]].tolist():
                    heapq.heappush(wrong, follower)
        self._fill(ends, more, ready, recorded)


class EndPlaces(NamedTuple):
    """Where a replay has the ends of some nodes."""

    position: Int  # of the end that each has or follows
    beyond: Int  # how long after that it ends, ns


class NodeSchedule:
    """A replayed segment."""

    def __init__(
        self, edited: EditedSegment, delays: Delays, ends: Int, shift: Int | None, early: Bool | None
    ) -> None:
        self._edited, self.delays, self._shift = edited, delays, shift
        self.all_ends = ends  # as a reduction's positions count them
        self.counted = early  # rows that count as ready earlier than recorded in any case

    @property
    def early(self) -> Bool:
        """Of each row, whether its node started earlier than recorded."""
        recorded = self._edited.recorded
        early: Bool = self.all_ends[len(self.all_ends) - len(recorded) :] < recorded
        return early

    def ends(self, nodes: Int) -> Int:
        """Of nodes that are computed, or end the step."""
        return self.ends_at(self._edited.places(nodes))

    def ends_at(self, places: EndPlaces) -> Int:
        return self.all_ends.take(places.position) + places.beyond

    @cached_property
    def times(self) -> NodeTimes:
        """Start and end of all nodes, and what each waited for."""
        graph, edit, segment = self._edited.graph, self._edited.edit, self._edited.segment
        computed, edges = segment.computed, segment.edges
        ends = graph.shifted_ends(np.arange(len(graph)), self._shift)
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
FOREVER = 1 << 62
"""A time that no run reaches, ns."""


class WaitedEnds(Struct, frozen=True, eq=False, dict=True):
    """One of the two ends that each row waits for."""

    position: Int
    edge: Int  # -1 for none
    chain: Int  # the chained node from which the edge comes, position in `chained`; -1 for none
    continued: Int  # rows for which it is the row before, of the same node

    @cached_property
    def positions(self) -> list[int]:
        positions: list[int] = self.position.tolist()
        return positions


class RowLags(NamedTuple):
    """From the two ends that each row waits for, ns."""

    first: Int
    second: Int


class Reduction:
    """Nodes to replay without the chains among them, prepared once for many edits.

    Half of all nodes are points on host threads that wait for one other node and have no delay of their own:
    they end a fixed time after it, whatever happens. They are left out, and the edges from them start at the
    node before, with that time on top. What is left has two edges or a delay; a node of n edges takes n - 1
    rows, so that every row is the later of two times.

    Positions count all ends that a replay knows: one for those that wait for nothing, then `outside`, then
    one a row.
    """

    def __init__(self, segment: ReplaySegment, apart: Bool | None = None) -> None:
        """Prepare the nodes of a segment.

        Args:
            segment: of the run.
            apart: of each of its nodes, whether it counts as core in any case.
        """
        graph, computed = segment.graph, segment.computed
        count = graph.first[computed + 1] - graph.first[computed]
        is_chained = (count == 1) & (graph.delay[computed] == 0)
        if apart is not None:
            is_chained &= ~apart
        # Of `computed`, those that only follow another node, and all others, both in order.
        self.chained, core = computed[is_chained], computed[~is_chained]
        self.chained_edge = graph.first[self.chained]
        sources = graph.src[segment.edges]
        # A step's nodes lie close together: tables of nodes begin with its first and end with all others.
        self._begin = begin = int(computed[0]) if len(computed) else 0
        self._span = int(computed[-1]) + 1 - begin if len(computed) else 0
        is_computed = np.zeros(self._span + 1, dtype=bool)
        is_computed[computed - begin] = True
        # Nodes that they wait for or that end the step, and that stay as they are, ascending.
        needed = np.concatenate((sources, segment.enders))
        self.outside = unique(needed[~is_computed[self._rows(needed)]])
        of_core, within = ranges(np.zeros(len(core), dtype=np.int64), np.maximum(count[~is_chained] - 1, 1))
        self.node, self.rows = core[of_core], len(of_core)  # of each row, and their number
        is_last = np.append(of_core[1:] != of_core[:-1], True)[: self.rows]
        self._last, self.inner = np.flatnonzero(is_last), np.flatnonzero(~is_last)  # rows of a node
        self._without_edges: Int = self._last[count[~is_chained] == 0]
        self.start = graph.start[self.node]

        # Of each node: its position among the ends, 0 for none, and its number among the chained ones. A
        # chain has the position of the end before it.
        self._position = np.zeros(self._span + 1, dtype=np.int64)
        self._position[core - begin] = 1 + len(self.outside) + self._last
        self._number = np.full(self._span + 1, -1)
        self._number[self.chained - begin] = np.arange(len(self.chained))
        position, self._before = self.known(graph.src[self.chained_edge])
        first = np.where(self._before < 0, position, 0)
        self._position[self.chained - begin] = ancestor_sums(self._before, first)

        # What each row waits for: two edges of its node, or the row before and one edge.
        edge, edges = graph.first[self.node], count[~is_chained][of_core]
        first = np.where((within == 0) & (edges > 0), edge, -1)
        second = np.where(edges > 0, edge + np.where(edges == 1, 0, within + 1), -1)
        before = np.where(within > 0, len(self.outside) + np.arange(self.rows), -1)
        self.first = self._side(graph, first, before)
        self.second = self._side(graph, second, np.full(self.rows, -1))

    @cached_property
    def followers(self) -> tuple[Int, Int]:
        """Where the rows that wait for each end begin, and these, end behind end."""
        waited = np.concatenate((self.first.position, self.second.position))
        row = np.tile(np.arange(self.rows), 2)[np.argsort(waited, kind="stable")]
        count = np.bincount(waited, minlength=1 + len(self.outside) + self.rows)
        return np.append(0, np.cumsum(count)), row

    def known(self, nodes: Int) -> tuple[Int, Int]:
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
        position, number = self.known(lookup(graph.src, edge, -1))
        return WaitedEnds(np.where(before >= 0, before, position), edge, number, np.flatnonzero(before >= 0))

    def fits(self, edit: Edit) -> bool:
        """Whether the chains are still chains under an edit."""
        return not edit.delay.take(self.chained).any() and bool(edit.kept.take(self.chained_edge).all())

    def free(self, graph: RunGraph, edit: Edit) -> Int:
        """The rows of nodes that have no edge, or none that is kept."""
        if edit.kept.all():
            return self._without_edges
        waits = np.zeros(len(graph), dtype=bool)
        waits[graph.dst[edit.kept]] = True
        free: Int = self._last[~waits[self.node[self._last]]]
        return free

    def beyond_roots(self, edit: Edit) -> Int:
        """How long after the end before its chain each chained node ends, ns; one more for -1, 0."""
        own = edit.lag.take(self.chained_edge) + edit.dur.take(self.chained)
        return np.append(ancestor_sums(self._before, own), 0)

    def lags(self, edit: Edit, beyond: Int) -> RowLags:
        return RowLags(self._lag(self.first, edit, beyond), self._lag(self.second, edit, beyond))

    @staticmethod
    def _lag(side: WaitedEnds, edit: Edit, beyond: Int) -> Int:
        lag = lookup(edit.lag, side.edge, NEVER) + beyond.take(side.chain)
        if not edit.kept.all():
            lag[~lookup(edit.kept, side.edge, True)] = NEVER
        lag[side.continued] = 0
        return lag


def schedule(
    graph: RunGraph, edit: Edit, delays: Delays = "typical", segment: ReplaySegment | None = None
) -> NodeTimes:
    """Start and end of each node of the edited graph, or of a segment of it."""
    return EditedSegment(ReplaySegment(graph) if segment is None else segment, edit).schedule(delays).times
