"""Who called whom on the CPU: nesting of events that have only a start, an end and a thread."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Int = NDArray[np.int64]

TOLERANCE_NS = 1000
"""A child may overrun its parent by this much: clocks are read one after the other, old traces round to us."""


def nest(thread: Int, start: Int, end: Int, rank: Int) -> tuple[Int, Int]:
    """Parent and depth of each event by containment within its thread.

    An event that overlaps another without lying inside it (a profiler step that begins in one frame and
    ends in the next) is no child of it; that other event takes no more children from there on.

    Args:
        thread: any integer that tells threads apart.
        start, end: int64 ns.
        rank: for events of identical extent, the lower rank is the outer one; then the earlier row.

    Returns:
        (parent, depth): row of the parent or -1; number of ancestors.
    """
    count = len(start)
    order = np.lexsort((np.arange(count), rank, -end, start, thread))
    parents, depths = [-1] * count, [0] * count
    rows: list[int] = []
    ends: list[int] = []
    current = None
    tolerance = TOLERANCE_NS
    for row, where, begin, finish in zip(
        order.tolist(), thread[order].tolist(), start[order].tolist(), end[order].tolist(), strict=True
    ):
        if where != current:
            current = where
            rows.clear()
            ends.clear()
        while ends:
            top = ends[-1]
            # An event without extent at its parent's very end still belongs to it (us-resolution traces).
            if top > begin or (top == begin == finish):
                if finish <= top + tolerance:
                    break
            rows.pop()
            ends.pop()
        if rows:
            parents[row] = rows[-1]
            depths[row] = len(rows)
            finish = min(finish, ends[-1])
        rows.append(row)
        ends.append(finish)
    return np.array(parents, dtype=np.int64), np.array(depths, dtype=np.int64)


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
