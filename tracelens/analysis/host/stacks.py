"""What a CPU thread was doing in a given interval."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tracelens.arrays import Int, ranges
from tracelens.table import codes, sums
from tracelens.trace import STACK_KINDS, Events


class Pieces(NamedTuple):
    """Disjoint pieces of one thread's time in order, each with the event row it belongs to (-1: none)."""

    start: Int
    end: Int
    owner: Int


def threads(events: Events) -> Int:
    """A number for each (pid, tid), one element an event."""
    tids, tid = np.unique(events.tid, return_inverse=True)
    pid = np.unique(events.pid, return_inverse=True)[1]
    return pid * len(tids) + tid


def stack_rows(events: Events, thread: Int, number: int) -> Int:
    """Rows of one thread that nest on its call stack."""
    return np.flatnonzero((thread == number) & events.where(*STACK_KINDS))


def innermost(events: Events, rows: Int) -> Pieces:
    """Cut a thread's time at every begin and end; each piece belongs to the innermost event around it."""
    count = len(rows)
    time = np.concatenate((events.start[rows], events.end[rows]))
    is_start = np.repeat(np.array([1, 0]), count)
    depth = np.concatenate((events.depth[rows], -events.depth[rows]))
    owner = np.concatenate((rows, events.parent[rows]))
    # At one point in time: ends before begins, inner ends first, outer begins first.
    order = np.lexsort((depth, is_start, time))
    time, owner = time[order], owner[order]
    # An event without extent, or one whose child overruns it, is over by now: time goes to who still runs.
    over = np.flatnonzero((owner >= 0) & (events.end[owner] <= time))
    longer = _outlasting(events, rows)
    while len(over):
        owner[over] = longer[owner[over]]
        over = over[(owner[over] >= 0) & (events.end[owner[over]] <= time[over])]
    return Pieces(time[:-1], time[1:], owner[:-1])


def _outlasting(events: Events, rows: Int) -> Int:
    """Of each event, the nearest one around it that ends later, -1 for none; known for these rows."""
    above = events.parent.copy()
    unresolved = rows
    while len(unresolved := unresolved[above[unresolved] >= 0]):
        # Every row asks the one that it has come to; on "no", whom that one has come to meanwhile.
        outer = above[unresolved]
        not_longer = events.end[outer] <= events.end[unresolved]
        unresolved = unresolved[not_longer]
        above[unresolved] = above[outer[not_longer]]
    return above


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


def longest(pieces: Pieces, start: Int, end: Int) -> tuple[Int, Int]:
    """For each interval, the owner with the largest share of it.

    Args:
        pieces: of one thread.
        start: ns, of disjoint intervals.
        end: ns.

    Returns:
        (event row or -1, ns of its share).
    """
    winner = np.full(len(start), -1, dtype=np.int64)
    share = np.zeros(len(start), dtype=np.int64)
    interval, overlap = overlaps(pieces, start, end)
    if not len(interval):
        return winner, share
    group, (of_interval, owner) = codes(interval, overlap.owner)
    time = sums(group, overlap.end - overlap.start, len(owner))
    order = np.lexsort((time, of_interval))
    winner[of_interval[order]] = owner[order]
    share[of_interval[order]] = time[order]
    return winner, share
