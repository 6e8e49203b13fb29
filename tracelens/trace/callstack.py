"""Who called whom on the CPU: nesting of events that have only a start, an end and a thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from tracelens.trace.trace import Trace

Int = NDArray[np.int64]

TOLERANCE_NS = 1000
"""A child may overrun its parent by this much: clocks are read in turn, and old traces round to us."""


def nest(thread: Int, start: Int, end: Int, rank: Int) -> tuple[Int, Int]:
    """Parent and depth of each event by containment within its thread.

    The parent is the last event to start before this one that lasts until its end. An event that overlaps
    another without lying inside it (a profiler step that begins in one frame and ends in the next) is no
    child of it.

    Args:
        thread: any integer that tells threads apart.
        start: ns.
        end: ns.
        rank: for events of identical extent, the lower rank is the outer one; then the earlier row.

    Returns:
        (parent, depth): row of the parent or -1; number of ancestors.
    """
    count = len(start)
    order = np.lexsort((np.arange(count), rank, -end, start, thread))
    thread, start, end = thread[order], start[order], end[order]
    # Every row asks the one before it, and on "no" whom that one has come to ask meanwhile: none of those
    # in between can contain it either. So a row of n siblings is passed in log2(n) rounds.
    above = np.arange(-1, count - 1)
    asking = np.arange(count)
    while len(asking):
        asking = asking[above[asking] >= 0]
        other = above[asking]
        same = thread[other] == thread[asking]
        # An event without extent at its parent's very end still belongs to it (us-resolution traces).
        begun, finish = start[asking], end[asking]
        open_ = (end[other] > begun) | ((end[other] == begun) & (begun == finish))
        refused = ~(same & open_ & (finish <= end[other] + TOLERANCE_NS))
        asking, other = asking[refused], other[refused]
        above[asking] = np.where(same[refused], above[other], -1)
    parent = np.full(count, -1, dtype=np.int64)
    parent[order] = np.where(above >= 0, order[above], -1)
    return parent, depths(parent)


def depths(parent: Int) -> Int:
    """Number of ancestors of each row."""
    return ancestor_sums(parent, (parent >= 0).astype(np.int64))


def ancestor_sums(parent: Int, values: Int) -> Int:
    """For each row, the sum of `values` over itself and all its ancestors.

    The distance that is looked up doubles in each round.
    """
    total = values.copy()
    ancestor = parent
    while (found := ancestor >= 0).any():
        total += np.where(found, total[ancestor], 0)
        ancestor = np.where(found, ancestor[ancestor], -1)
    return total


def preorder(parent: Int, weight: Int) -> tuple[Int, Int]:
    """Places of rows in an order in which each parent is followed by its subtree, and sizes of the subtrees.

    Args:
        parent: row of the parent or -1.
        weight: siblings are in order of it; ties keep the order of rows.
    """
    size = subtree_sums(parent, depths(parent), np.ones(len(parent), dtype=np.int64))
    order = np.lexsort((weight, parent))
    # A row stands behind its parent and all subtrees of the siblings before it.
    before = np.cumsum(size[order]) - size[order]
    group = parent[order]
    behind = np.empty(len(parent), dtype=np.int64)
    behind[order] = before - before[np.searchsorted(group, group)] + (group >= 0)
    return ancestor_sums(parent, behind), size


def outermost(parent: Int, rows: Int, group: Int) -> NDArray[np.bool_]:
    """Which rows have no other row of their group around them.

    Args:
        parent: row of the parent or -1.
        rows: each once in a group.
        group: of each of these, non-negative.
    """
    place, size = preorder(parent, np.zeros(len(parent), dtype=np.int64))
    # Lifted by group: how far the rows of a group that began before reach.
    begin = place[rows] + group * (len(parent) + 1)
    order = np.argsort(begin)
    reach = np.maximum.accumulate((begin + size[rows])[order])
    result = np.ones(len(rows), dtype=bool)
    result[order[1:]] = reach[:-1] <= begin[order[1:]]
    return result


def nearest(parent: Int, depth: Int, chosen: NDArray[np.bool_]) -> Int:
    """For each row, itself if `chosen`, else its nearest chosen ancestor, else -1."""
    result = np.where(chosen, np.arange(len(parent)), -1)
    deepest = int(depth.max(initial=0))
    if deepest == 0:
        return result
    by_depth = np.argsort(depth, kind="stable")
    borders = np.searchsorted(depth[by_depth], np.arange(deepest + 2))
    for level in range(1, deepest + 1):
        rows = by_depth[borders[level] : borders[level + 1]]
        rows = rows[result[rows] < 0]
        result[rows] = result[parent[rows]]
    return result


def enclosing_op(trace: Trace) -> Int:
    """For each event, itself if it is an op, else the nearest op around it, else -1; with `trace.once`."""
    events = trace.arrays
    return nearest(events.parent, events.depth, events.where("op"))


def subtree_sums(parent: Int, depth: Int, values: Int) -> Int:
    """For each row, the sum of `values` over itself and everything below it."""
    total = values.copy()
    by_depth = np.argsort(depth, kind="stable")
    deepest = int(depth.max(initial=0))
    borders = np.searchsorted(depth[by_depth], np.arange(deepest + 2))
    for level in range(deepest, 0, -1):
        rows = by_depth[borders[level] : borders[level + 1]]
        rows = rows[total[rows] != 0]
        np.add.at(total, parent[rows], total[rows])
    return total
