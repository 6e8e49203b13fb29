"""Rows of a viewer: on one row, slices either lie inside one another or do not touch.

Perfetto drops a slice that begins inside another one and ends behind it; so it gets a row of its own.
"""

from __future__ import annotations

from heapq import heappush, heapreplace

import numpy as np

from tracelens.arrays import Int


def cut_overruns(start: Int, end: Int, parent: Int) -> Int:
    """Ends of nested events, none behind the end of a parent that is still open when the event begins.

    The call stack lets a child overrun its parent by callstack.TOLERANCE_NS, which a viewer does not.
    """
    child = np.flatnonzero(parent >= 0)
    while True:
        limit = end[parent[child]]
        over = (end[child] > limit) & (start[child] < limit)
        if not over.any():
            return end
        end = end.copy()
        end[child[over]] = limit[over]


def has_crossings(track: Int, start: Int, end: Int) -> Int:
    """Tracks on which a slice begins inside another one and ends behind it.

    The slices are sorted by track, then by start, the longest first.
    """
    count = len(start)
    crosses = np.zeros(count, dtype=bool)
    # Pointer jumping as in callstack.nest: a slice that ends outside its predecessor moves on to the next.
    above = np.arange(-1, count - 1)
    asking = np.arange(count)
    while len(asking):
        asking = asking[above[asking] >= 0]
        previous = above[asking]
        same_track = track[previous] == track[asking]
        open_ = same_track & (end[previous] > start[asking])
        inside = open_ & (end[asking] <= end[previous])
        crosses[asking[open_ & ~inside]] = True
        asking, previous, same_track = asking[~inside], previous[~inside], same_track[~inside]
        above[asking] = np.where(same_track, above[previous], -1)
    return np.unique(track[crosses])


def lanes(start: Int, end: Int, *, nested: bool, scanned: int = 64) -> Int:
    """A lane for each slice so that none crosses another on its lane, the first one that is free.

    What lies inside a slice that had to move stays where it can: a step's mark that begins in one frame and
    ends in the next moves alone.

    Args:
        start: ns, sorted, of equal ones the longest first.
        end: ns.
        nested: whether slices may lie inside others; otherwise each has its time to itself.
        scanned: lanes tried one by one; beyond them each slice has its time to itself, or thousands of
            concurrent requests would take quadratic time.
    """
    ends: list[list[int]] = []
    further: list[tuple[int, int]] = []
    lane_of: list[int] = []

    def fits(stack: list[int], begin: int, finish: int) -> bool:
        while stack and stack[-1] <= begin:
            stack.pop()
        return not stack or (nested and finish <= stack[-1])

    for begin, finish in zip(start.tolist(), end.tolist(), strict=True):
        lane = next((index for index, stack in enumerate(ends) if fits(stack, begin, finish)), len(ends))
        if lane < scanned:
            if lane == len(ends):
                ends.append([])
            ends[lane].append(finish)
        elif further and further[0][0] <= begin:
            lane = further[0][1]
            heapreplace(further, (finish, lane))
        else:
            lane += len(further)
            heappush(further, (finish, lane))
        lane_of.append(lane)
    return np.array(lane_of, dtype=np.int64)
