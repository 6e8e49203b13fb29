"""The step time of one rank as GPU activities and idle time that add up to it."""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np

from tracelens.analysis.host import CAUSES, find_gaps, idle_pieces
from tracelens.analysis.moe import UNATTRIBUTED, regions
from tracelens.analysis.roofline import repeats
from tracelens.arrays import Bool, Float, Int, lookup
from tracelens.compare.diff.forest import Forest, forest
from tracelens.errors import TracelensError
from tracelens.trace import WORK_KINDS, Trace, Union, cut, shares, steps_of
from tracelens.trace.graphs import launched_by_graph

OUTSIDE = "outside MoE layers"


class IdleTime(NamedTuple):
    """Pieces of a rank's idle time, each within a step.

    Attributes:
        step: of each piece.
        cause: code into the causes of idle time (see analysis/host/causes.py).
        after: position in Work of what ended the gap, -1 for none.
        ns: of each piece.
    """

    step: Int
    cause: Int
    after: Int
    ns: Int


class Side:
    """One rank of one of two runs.

    Attributes:
        trace: of the rank.
        rank: its number.
        labels: of its steps; anything before the first and after the last mark is left out.
        marked: whether the trace has step marks.
        step_ns: duration of each step.
        work: its GPU activities.
        row: activity of each piece, index into `work`.
        step: step of each piece.
        ns: time of each piece; overlapping activities share no time, as in the breakdown.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace, self.rank, self.work = trace, trace.meta.rank, trace.work
        if not len(self.work.event):
            raise TracelensError(f"{trace.meta.path}: no GPU work, no step time to compare")
        steps = steps_of(trace).only_whole()
        self.edges, self.marks, self.labels = steps.edges, steps.marks, steps.labels
        self.marked = steps.marked
        self.step_ns: Int = np.diff(self.edges)
        row, window, ns = shares(self.work.start, self.work.end, self.work.kind.astype(np.int64), self.edges)
        counted = ns > 0
        self.row, self.step, self.ns = row[counted], window[counted], ns[counted]

    @property
    def steps(self) -> int:
        return len(self.labels)

    @cached_property
    def first_ns(self) -> int:
        """Start of the trace's first event."""
        return int(self.trace.arrays.start.min())

    @cached_property
    def forest(self) -> Forest:
        return forest(self.trace, self.marks[:-1])

    @cached_property
    def op(self) -> Int:
        """Event row of the op of each GPU activity, -1 for none.

        Activities launched before the recording began take the op of their repetition at its end.
        """
        repeat = repeats(self.work)
        return lookup(self.work.op, repeat, self.work.op)

    @cached_property
    def node_of_work(self) -> Int:
        """Forest node of the op of each GPU activity, -1 for none."""
        return lookup(self.trace.arrays.places(self.forest.event), self.op, -1)

    @cached_property
    def node(self) -> Int:
        """Forest node of the op of each piece, -1 for none."""
        return self.node_of_work[self.row]

    @cached_property
    def in_graph(self) -> Bool:
        """Of each GPU activity, whether a graph launched it."""
        return launched_by_graph(self.trace, self.work)

    @cached_property
    def begins(self) -> Int:
        """Of each piece, 1 if its activity begins in the step, 0 if before."""
        return (self.work.start[self.row] >= self.edges[self.step]).astype(np.int64)

    @cached_property
    def stage(self) -> Int:
        """MoE stage of each piece; UNATTRIBUTED + 1 outside of MoE layers."""
        stage = self.trace.once(regions).stage[self.row]
        return np.where(stage >= 0, stage, UNATTRIBUTED + 1)

    @cached_property
    def idle_time(self) -> IdleTime:
        """Idle time within the steps."""
        gaps = find_gaps(self.work, self.edges)
        pieces = idle_pieces(self.trace, self.work, gaps)
        lasting = np.flatnonzero(self.step_ns)  # a step of no duration has no idle time
        windows = Union(self.edges[lasting], self.edges[lasting + 1])
        row, start, end = cut(pieces.start, pieces.end, windows)
        step = np.searchsorted(self.edges, start, side="right") - 1
        return IdleTime(step, pieces.cause[row], gaps.after[pieces.gap[row]], end - start)

    @cached_property
    def idle(self) -> Int:
        """Idle time by step and cause."""
        total = np.zeros((self.steps, len(CAUSES)), dtype=np.int64)
        np.add.at(total, (self.idle_time.step, self.idle_time.cause), self.idle_time.ns)
        return total

    def waiting(self, waits: Union) -> Float:
        """Share of each piece spent waiting for other ranks in communication; `waits` is by its own clock."""
        work = self.work
        share = np.zeros(len(self.row))
        comm = work.kind[self.row] == WORK_KINDS.index("comm")
        start, end = work.start[self.row[comm]], work.end[self.row[comm]]
        share[comm] = waits.covered(start, end) / np.maximum(end - start, 1)
        return share
