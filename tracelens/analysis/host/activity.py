"""What the host was doing: each moment of a thread, by the events around it."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from tracelens.analysis.host.stacks import Pieces, calls, innermost, overlaps, stack_rows, threads
from tracelens.analysis.host.waits import (
    GARBAGE,
    named,
    profiler_calls,
    profiler_overhead,
    waiting_calls,
)
from tracelens.arrays import Bool, Int, lookup
from tracelens.table import nearest
from tracelens.trace import STEP_MARK, Trace, Union, cut, difference, union

NOTHING, BUSY, LOADING, PROFILER, BLOCKED, COLLECTING = range(6)
"""What a thread does at a moment: nothing that is recorded (Python frames and annotations do nothing by
themselves), an op or a runtime call, fetching a batch, the profiler's business, waiting for a GPU, collecting
garbage. Where several events are around, the last of these that one of them says."""

_LOADING = re.compile(r"enumerate\(DataLoader\)|DataLoader.*__next__|dataloader\.py\(\d+\): __next__")
_FOREVER = 1 << 62
_OTHERS = 8
"""Where a thread is silent, so many others that launch most are looked at."""


class Activity(NamedTuple):
    """What threads did in intervals; disjoint, in order of the intervals.

    Attributes:
        interval: position of the interval.
        start, end: ns.
        what: one of NOTHING to COLLECTING.
        event: row of the event that says so, of NOTHING the frame or annotation around it; -1 for none.
    """

    interval: Int
    start: Int
    end: Int
    what: Int
    event: Int

    def take(self, rows: Int | Bool) -> Activity:
        return Activity(*(values[rows] for values in self))

    def outside(self, times: Union) -> Activity:
        """What lies outside of these times."""
        rows, start, end = cut(self.start, self.end, difference(union(self.start, self.end), times))
        return self.take(rows)._replace(start=start, end=end)


class Host:
    """The threads of a trace that launch GPU work; ask with `trace.once(Host)`."""

    def __init__(self, trace: Trace) -> None:
        self._events = events = trace.arrays
        work = trace.work
        self.thread = threads(trace)
        calling = work.launch_call[work.launch_call >= 0]
        numbers, first, count = np.unique(self.thread[calling], return_index=True, return_counts=True)
        order = np.argsort(-count, kind="stable")
        self._pid = dict(
            zip(numbers[order].tolist(), events.pid[calling[first[order]]].tolist(), strict=True)
        )
        self._pieces: dict[int, Pieces] = {}
        says = [
            (BUSY, events.where("op", "launch")),
            (LOADING, named(events, _LOADING) & events.where("python", "annotation", "op")),
            (BLOCKED, waiting_calls(trace, work)),
            (COLLECTING, named(events, GARBAGE) & events.where("python", "annotation", "slice")),
            (PROFILER, trace.once(profiler_calls)),
        ]
        frames = events.where("python", "annotation", "slice") & ~named(events, STEP_MARK) & ~events.copied
        self._event = nearest(events.parent, events.depth, frames)
        self._what = np.full(len(events.start), NOTHING)
        for what, mask in says:
            own = mask & ~events.copied  # what a graph replays takes no time of the host
            if not own.any():
                continue
            event = nearest(events.parent, events.depth, own)
            self._event = np.where(event >= 0, event, self._event)
            self._what[event >= 0] = what
        rows = np.flatnonzero(profiler_overhead(events))
        self._overhead = rows[np.argsort(events.start[rows], kind="stable")]

    def during(self, number: int, start: Int, end: Int) -> Activity:
        """What a thread did in intervals; where it did nothing, what the other launching threads did.

        A thread that waits in Python for another (the autograd engine's, a pipeline's) is not the one that
        holds the GPU up.

        Args:
            number: of the thread.
            start: ns, of disjoint intervals in order of time.
            end: ns.
        """
        own = self._with_overhead(number, self._of_thread(number, start, end))
        parts = [own.take(own.what != NOTHING)]
        silent = own.take(own.what == NOTHING)
        others = [other for other, pid in self._pid.items() if pid == self._pid[number] and other != number]
        for other in others[:_OTHERS]:
            if not len(silent.start):
                break
            activity = self._of_thread(other, silent.start, silent.end)
            activity = activity.take(activity.what != NOTHING)
            parts.append(activity._replace(interval=silent.interval[activity.interval]))
            silent = silent.outside(union(activity.start, activity.end))
        return _in_order(*parts, silent)

    def _of_thread(self, number: int, start: Int, end: Int) -> Activity:
        """What one thread did in intervals."""
        interval, pieces = overlaps(self._everywhere(number), start, end)
        owner = pieces.owner
        what, event = lookup(self._what, owner, NOTHING), lookup(self._event, owner, -1)
        return Activity(interval, pieces.start, pieces.end, what, event)

    def _everywhere(self, number: int) -> Pieces:
        """All time of a thread, that before its first and after its last event included."""
        if number not in self._pieces:
            pieces = innermost(self._events, stack_rows(self._events, self.thread, number))
            first, last = pieces.start[:1], pieces.end[-1:]
            self._pieces[number] = Pieces(
                np.concatenate(([-_FOREVER], pieces.start, last)),
                np.concatenate((first, pieces.end, [_FOREVER])),
                np.concatenate(([-1], pieces.owner, [-1])),
            )
        return self._pieces[number]

    def _with_overhead(self, number: int, activity: Activity) -> Activity:
        """The same, but for what the profiler held up.

        Whose call it held is not recorded: it was this thread's if that was busy and got nothing done
        meanwhile.
        """
        overhead = calls(self._events, self._overhead[self._holds_up(number)])
        if not len(overhead.start):
            return activity
        slowed = activity.what < PROFILER
        rows = np.flatnonzero(slowed)
        hit, inside = overlaps(overhead, activity.start[rows], activity.end[rows])
        profiler = activity.take(rows[hit])._replace(
            start=inside.start, end=inside.end, what=np.full(len(hit), PROFILER), event=inside.owner
        )
        others = activity.take(rows).outside(union(overhead.start, overhead.end))
        return _in_order(activity.take(~slowed), profiler, others)

    def _holds_up(self, number: int) -> Bool:
        """Which of the profiler's own events a thread had to wait for."""
        start, end = self._events.start[self._overhead], self._events.end[self._overhead]
        if not len(start):
            return np.zeros(0, dtype=bool)
        pieces = self._everywhere(number)
        borders = pieces.start[1:]
        untouched = np.searchsorted(borders, start, side="right") == np.searchsorted(borders, end)
        owner = pieces.owner[np.searchsorted(borders, start, side="right")]
        held: Bool = untouched & (lookup(self._what, owner, NOTHING) == BUSY)
        return held


def _in_order(*parts: Activity) -> Activity:
    """One of several, in order of time."""
    together = Activity(*(np.concatenate(values) for values in zip(*parts, strict=True)))
    return together.take(np.argsort(together.start, kind="stable"))
