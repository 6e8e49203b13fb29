"""Forests as arrays: the parent of each row, or -1."""

from __future__ import annotations

import numpy as np

from tracelens.arrays import Bool, Int


def depths(parent: Int) -> Int:
    """Number of ancestors of each row."""
    return ancestor_sums(parent, (parent >= 0).astype(np.int64))


def ancestor_sums(parent: Int, values: Int) -> Int:
    """For each row, the sum of `values` over itself and all its ancestors.

    The distance that is looked up doubles in each round.
    """
    total = values.copy()
    ancestor = parent
    while (has_ancestor := ancestor >= 0).any():
        total += np.where(has_ancestor, total[ancestor], 0)
        ancestor = np.where(has_ancestor, ancestor[ancestor], -1)
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


def outermost(parent: Int, rows: Int, group: Int) -> Bool:
    """Which rows have no other row of their group around them.

    Args:
        parent: row of the parent or -1.
        rows: each once in a group.
        group: of each of these, non-negative.
    """
    position, size = preorder(parent, np.zeros(len(parent), dtype=np.int64))
    # Lifted by group: how far the rows of a group that began before reach.
    begin = position[rows] + group * (len(parent) + 1)
    order = np.argsort(begin)
    reach = np.maximum.accumulate((begin + size[rows])[order])
    result = np.ones(len(rows), dtype=bool)
    result[order[1:]] = reach[:-1] <= begin[order[1:]]
    return result


def nearest(parent: Int, depth: Int, selected: Bool) -> Int:
    """For each row, itself if `selected`, else its nearest chosen ancestor, else -1."""
    result = np.where(selected, np.arange(len(parent)), -1)
    deepest = int(depth.max(initial=0))
    if deepest == 0:
        return result
    by_depth = _by_depth(depth, deepest)
    borders = np.searchsorted(depth[by_depth], np.arange(deepest + 2))
    for level in range(1, deepest + 1):
        rows = by_depth[borders[level] : borders[level + 1]]
        rows = rows[result[rows] < 0]
        result[rows] = result[parent[rows]]
    return result


def subtree_sums(parent: Int, depth: Int, values: Int) -> Int:
    """For each row, the sum of `values` over itself and everything below it."""
    total = values.copy()
    deepest = int(depth.max(initial=0))
    by_depth = _by_depth(depth, deepest)
    borders = np.searchsorted(depth[by_depth], np.arange(deepest + 2))
    for level in range(deepest, 0, -1):
        rows = by_depth[borders[level] : borders[level + 1]]
        rows = rows[total[rows] != 0]
        np.add.at(total, parent[rows], total[rows])
    return total


def _by_depth(depth: Int, deepest: int) -> Int:
    """Rows in order of depth; numpy sorts small integers by radix."""
    small = depth.astype(np.int16) if deepest <= np.iinfo(np.int16).max else depth
    return np.argsort(small, kind="stable")
