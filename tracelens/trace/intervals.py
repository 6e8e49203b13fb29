"""Sums over sets of time intervals [start, end), vectorized; times are int64 nanoseconds."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tracelens.arrays import Int, lookup, ordered, ranges, unique


class Union(NamedTuple):
    """A set of points in time as disjoint, sorted, non-touching intervals."""

    start: Int
    end: Int

    @property
    def total(self) -> int:
        return int((self.end - self.start).sum())

    def covered_before(self, times: Int) -> Int:
        """For each time, how much of this set lies before it."""
        if not len(self.start):
            return np.zeros_like(times)
        before = np.concatenate(([0], np.cumsum(self.end - self.start)))
        index = np.searchsorted(self.start, times, side="right") - 1
        inside = np.minimum(times - self.start[index], self.end[index] - self.start[index])
        return np.where(index < 0, 0, before[index] + inside)

    def covered(self, start: Int, end: Int) -> Int:
        """For each interval, how much of it lies in this set."""
        return self.covered_before(end) - self.covered_before(start)

    def gaps(self) -> Union:
        """What lies between the first start and the last end and is not in this set."""
        return Union(self.end[:-1], self.start[1:])

    def complement(self, low: int, high: int) -> Union:
        """What of [low, high) is not in this set."""
        start = np.maximum(np.append(low, self.end), low)
        end = np.minimum(np.append(self.start, high), high)
        return Union(start[end > start], end[end > start])


def interval_of(start: Int, end: Int, times: Int) -> Int:
    """Index of the interval [start, end) that each time lies in, -1 for none.

    Intervals come in order of their starts; where they overlap, the one that began last counts.
    """
    index = np.searchsorted(start, times, side="right") - 1
    return np.where(times < lookup(end, index, np.iinfo(np.int64).min), index, -1)


def union(start: Int, end: Int) -> Union:
    """The union of intervals in any order; empty and inverted ones add nothing."""
    keep = end > start
    if not keep.all():
        start, end = start[keep], end[keep]
    if not len(start):
        return Union(start, end)
    if (start[1:] < start[:-1]).any():
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    end = np.maximum.accumulate(end)
    first = np.concatenate(([True], start[1:] > end[:-1]))
    last = np.concatenate((first[1:], [True]))
    return Union(start[first], end[last])


def subtract(total: Union, *removed: Union) -> int:
    """Time in `total` that lies in none of the others."""
    if not removed:
        return total.total
    removed_union = union(
        np.concatenate([part.start for part in removed]), np.concatenate([part.end for part in removed])
    )
    return total.total - int(removed_union.covered(total.start, total.end).sum())


def clip(start: Int, end: Int, low: int, high: int) -> tuple[Int, Int]:
    """The intervals cut to [low, high); those outside become empty."""
    start = np.clip(start, low, high)
    return start, np.maximum(np.clip(end, low, high), start)


def exclusive(start: Int, end: Int, group: Int) -> Int:
    """Give each nanosecond that a group's intervals cover to one of them: the one that started first.

    Its share is one piece, from where all that started before it have ended (or its own start) to its
    own end. The shares of a group add up to the group's union, exactly.

    Args:
        start: ns.
        end: ns, not before `start`.
        group: non-negative; groups do not affect each other.

    Returns:
        start of each interval's share (its own end where it has none).
    """
    if not len(start):
        return start
    order = ordered(group, start)
    base, span = int(start.min()), int(end.max() - start.min()) + 1
    if group.max() and (int(group.max()) + 1) * span >= 1 << 62:  # overflow: hours of a million groups
        middle = int(group.max()) // 2
        share_start, low = start.copy(), group <= middle
        share_start[low] = exclusive(start[low], end[low], group[low])
        share_start[~low] = exclusive(start[~low], end[~low], group[~low] - middle - 1)
        return share_start
    # A running maximum that starts anew in each group: later groups are lifted above all earlier ones.
    lift = group[order].astype(np.int64) * span
    reached = np.maximum.accumulate(end[order] - base + lift)
    share_start = start.copy()
    before = reached[:-1] - lift[1:] + base
    share_start[order[1:]] = np.maximum(start[order[1:]], before)
    return np.minimum(share_start, end)


def shares(start: Int, end: Int, priority: Int, edges: Int) -> tuple[Int, Int, Int]:
    """Give each nanosecond in each window between consecutive `edges` to one interval.

    The lowest `priority` number wins; among equals the one that started first.

    Args:
        start: ns.
        end: ns, not before `start`.
        priority: small non-negative numbers.
        edges: sorted window borders; time before the first or behind the last is in no window.

    Returns:
        (row, window, dur): an entry for the window in which each interval begins, and one for each later
        window that it overlaps beyond those of its priority that started before it, with its exclusive
        nanoseconds (may be 0). What has no extent is in the window that begins there, at the last border in
        the last window.
        Summed over a window they equal the union of all intervals in it, exactly.
    """
    own_start = exclusive(start, end, priority)
    first = np.maximum(np.searchsorted(edges, start, side="right") - 1, 0)
    first -= (start == end) & (start == edges[-1])
    last = np.minimum(np.searchsorted(edges, np.maximum(end, start + 1), side="left") - 1, len(edges) - 2)
    # Windows that belong to others to the end have no entry, so there are no more entries than intervals
    # and windows, for each priority.
    rest = np.maximum(np.searchsorted(edges, own_start, side="right") - 1, first + 1)
    begins = (last >= first).astype(np.int64)
    count = begins + np.where(own_start < end, np.maximum(last - rest + 1, 0), 0)
    row, offset = ranges(np.zeros_like(count), count)
    window = np.where(offset == 0, first[row], rest[row] + offset - 1)
    low = np.maximum(own_start[row], edges[window])
    high = np.maximum(np.minimum(end[row], edges[window + 1]), low)
    dur = high - low
    levels = unique(priority)
    for level in levels[1:]:
        above = priority < level
        taken = union(start[above], end[above])
        rows_of_level = np.flatnonzero(priority[row] == level)
        dur[rows_of_level] -= taken.covered(low[rows_of_level], high[rows_of_level])
    return row, window, dur


def exclusive_pieces(start: Int, end: Int, priority: Int) -> tuple[Int, Int, Int]:
    """The time that each interval has to itself, as pieces: those whose lengths `shares` adds up.

    Args:
        start: ns.
        end: ns, not before `start`.
        priority: small non-negative numbers; the lowest wins, among equals the one that started first.

    Returns:
        (row, start, end) of each piece, in order of time. Together they are the union of all intervals.
    """
    if not len(start):
        return start, start, end
    own_start, first, last = exclusive(start, end, priority), int(start.min()), int(end.max())
    parts = []
    for level in unique(priority):
        above = priority < level
        rows = np.flatnonzero((priority == level) & (own_start < end))
        free = union(start[above], end[above]).complement(first, last)
        row, low, high = cut(own_start[rows], end[rows], free)
        parts.append((rows[row], low, high))
    row, low, high = (np.concatenate(values) for values in zip(*parts, strict=True))
    order = np.argsort(low, kind="stable")
    return row[order], low[order], high[order]


def intersection(a: Union, b: Union) -> Union:
    """The time in both sets."""
    _, start, end = cut(a.start, a.end, b)
    return Union(start, end)


def difference(a: Union, b: Union) -> Union:
    """The time in the first set and not in the other."""
    return intersection(a, b.complement(int(a.start[0]), int(a.end[-1]))) if len(a.start) else a


def both(a: Union, b: Union) -> Union:
    """The time in one or the other set."""
    return union(np.concatenate((a.start, b.start)), np.concatenate((a.end, b.end)))


def cut(start: Int, end: Int, inside: Union) -> tuple[Int, Int, Int]:
    """The parts of intervals (ns) that lie in a set: (row, start, end) of each, in order of the rows."""
    row, piece = _touching(start, end, inside)
    start, end = start[row], end[row]
    np.maximum(start, inside.start[piece], out=start)
    np.minimum(end, inside.end[piece], out=end)
    return row, start, end


def _touching(start: Int, end: Int, inside: Union) -> tuple[Int, Int]:
    """(row, piece of the set) of all that overlap."""
    first = np.searchsorted(inside.end, start, side="right")
    last = np.searchsorted(inside.start, end, side="left")
    return ranges(first, np.maximum(last - first, 0))
