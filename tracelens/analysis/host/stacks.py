"""What a CPU thread was doing in a given interval."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tracelens.arrays import Int, lookup, ranges
from tracelens.trace import STACK_KINDS, Events, Trace


class Pieces(NamedTuple):
    """Disjoint pieces of one thread's time in order, each with the event row it belongs to (-1: none)."""

    start: Int
    end: Int
    owner: Int


def threads(trace: Trace) -> Int:
    """A number for each (pid, tid), one element an event; kept with the trace."""
    return trace.once(_threads)


def _threads(trace: Trace) -> Int:
    events = trace.arrays
    tids, tid = np.unique(events.tid, return_inverse=True)
    pid = np.unique(events.pid, return_inverse=True)[1]
    return pid * len(tids) + tid


def stack_rows(events: Events, thread: Int, number: int) -> Int:
    """Rows of one thread that nest on its call stack, without those copied under graph launches."""
    return np.flatnonzero((thread == number) & events.where(*STACK_KINDS) & ~events.copied)


def innermost(events: Events, rows: Int) -> Pieces:
    """Cut a thread's time at every begin and end; each piece belongs to the event that began last around it.

    Neighbors may overlap without being nested, by clocks that are read in turn or times rounded to us.
    """
    # Outer ones first where some begin together.
    rows = rows[np.lexsort((events.depth[rows], -events.end[rows], events.start[rows]))]
    start, end = events.start[rows], events.end[rows]
    time = np.sort(np.concatenate((start, end)))
    owner = np.searchsorted(start, time, side="right") - 1
    # What is over by now gives way to the last one before it that goes on.
    longer = _outlasting(end)
    while len(over := np.flatnonzero((owner >= 0) & (end[owner] <= time))):
        owner[over] = longer[owner[over]]
    return Pieces(time[:-1], time[1:], lookup(rows, owner[:-1], -1))


def _outlasting(end: Int) -> Int:
    """Of each event in order of begin, position of the last one before it that ends later, -1 for none."""
    longer = np.arange(-1, len(end) - 1)
    unresolved = np.arange(len(end))
    while len(unresolved := unresolved[longer[unresolved] >= 0]):
        # Every row asks the one that it has come to; on "no", whom that one has come to meanwhile.
        earlier = longer[unresolved]
        not_longer = end[earlier] <= end[unresolved]
        unresolved = unresolved[not_longer]
        longer[unresolved] = longer[earlier[not_longer]]
    return longer


def calls(events: Events, rows: Int) -> Pieces:
    """The given events of one thread as pieces; of nested ones the outer."""
    order = rows[np.argsort(events.start[rows], kind="stable")]
    end = np.maximum.accumulate(events.end[order]) if len(order) else order
    start = events.start[order].copy()
    start[1:] = np.maximum(start[1:], end[:-1])
    return Pieces(start, np.maximum(events.end[order], start), order)


def overlaps(pieces: Pieces, start: Int, end: Int) -> tuple[Int, Pieces]:
    """Pieces cut to intervals.

    Args:
        pieces: of one thread.
        start: ns, of disjoint intervals.
        end: ns.

    Returns:
        (position of the interval, piece), in order of the intervals.
    """
    if not len(pieces.start) or not len(start):
        none = np.empty(0, dtype=np.int64)
        return none, Pieces(none, none, none)
    first = np.maximum(np.searchsorted(pieces.start, start, side="right") - 1, 0)
    last = np.searchsorted(pieces.start, end, side="left")
    interval, piece = ranges(first, np.maximum(last - first, 0))
    low = np.maximum(pieces.start[piece], start[interval])
    high = np.minimum(pieces.end[piece], end[interval])
    inside = high > low
    return interval[inside], Pieces(low[inside], high[inside], pieces.owner[piece[inside]])
