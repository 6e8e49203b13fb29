"""The step time of one rank, cut into pieces of GPU work and of idle time that add up to it."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from tracelens.analysis.host import CAUSES, causes, find_gaps
from tracelens.analysis.moe import STAGES, regions
from tracelens.analysis.roofline import repeats
from tracelens.arrays import Float, Int
from tracelens.compare.diff.forest import Forest, forest
from tracelens.errors import TracelensError
from tracelens.trace import WORK_KINDS, Trace, Union, cut, find_steps, shares

OUTSIDE = "outside of MoE layers"


class Side:
    """One rank of one of two runs.

    Attributes:
        trace: of the rank.
        rank: its number.
        labels: of its steps; what lies before the first and behind the last mark is left out.
        marked: whether the trace has step marks.
        step_ns: duration of each step.
        work: its GPU work.
        row: position in `work` of each piece.
        step: number of the step of each piece.
        ns: time of each piece: what runs at the same time is given to one of them, as in the breakdown.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace, self.rank, self.work = trace, trace.meta.rank, trace.work
        if not len(self.work.event):
            raise TracelensError(f"{trace.meta.path}: no GPU work, so there is no step time to compare")
        found = find_steps(trace, self.work)
        whole = found.whole
        self.edges: Int = found.edges[whole.start : whole.stop + 1]
        self.labels = found.labels[whole.start : whole.stop]
        self.marked = found.marked
        self.step_ns: Int = np.diff(self.edges)
        row, window, ns = shares(self.work.start, self.work.end, self.work.kind.astype(np.int64), self.edges)
        counted = ns > 0
        self.row, self.step, self.ns = row[counted], window[counted], ns[counted]

    @property
    def steps(self) -> int:
        return len(self.labels)

    @cached_property
    def first_ns(self) -> int:
        """When the trace's first event begins."""
        return int(self.trace.arrays.start.min())

    @cached_property
    def forest(self) -> Forest:
        return forest(self.trace, self.edges[:-1])

    @cached_property
    def op(self) -> Int:
        """Event row of the op of all GPU work, -1 for none.

        What was launched before the recording began has the op of the same work at the end of it.
        """
        again = repeats(self.work)
        return np.where(again >= 0, self.work.op[np.maximum(again, 0)], self.work.op)

    @cached_property
    def node(self) -> Int:
        """Place in the forest of the op of each piece, -1 for none."""
        place = self.trace.arrays.places(self.forest.event)
        op = self.op[self.row]
        return np.where(op >= 0, place[np.maximum(op, 0)], -1)

    @cached_property
    def begins(self) -> Int:
        """Of each piece, 1 where its work begins in the step, 0 where it began before."""
        return (self.work.start[self.row] >= self.edges[self.step]).astype(np.int64)

    @cached_property
    def stage(self) -> Int:
        """Code of each piece's stage of an MoE layer; len(STAGES) outside."""
        stage = self.trace.once(regions).stage[self.row]
        return np.where(stage >= 0, stage, len(STAGES))

    @cached_property
    def idle(self) -> Int:
        """Idle time: one row a step, one column a cause (see idle.CAUSES)."""
        gaps = find_gaps(self.work, self.edges)
        found = causes(self.trace, self.work, gaps)
        total = np.zeros((self.steps, len(CAUSES)), dtype=np.int64)
        lasting = np.flatnonzero(self.step_ns)  # a step of no duration has no idle time
        windows = Union(self.edges[lasting], self.edges[lasting + 1])
        row, start, end = cut(gaps.start, gaps.end, windows)
        step = np.searchsorted(self.edges, start, side="right") - 1
        np.add.at(total, (step, found.cause[row]), end - start)
        return total

    def waiting(self, waits: Union) -> Float:
        """Share of each piece that is waiting for other ranks in communication.

        Args:
            waits: when the rank waits in collectives, ns by its own clock.
        """
        work = self.work
        share = np.zeros(len(self.row))
        comm = work.kind[self.row] == WORK_KINDS.index("comm")
        start, end = work.start[self.row[comm]], work.end[self.row[comm]]
        share[comm] = waits.covered(start, end) / np.maximum(end - start, 1)
        return share
