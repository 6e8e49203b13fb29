"""Statistics on plain arrays: groups by integer code, forests by parent row, and Student's t.

In a hierarchy of grouped leaves every parent is the exact sum of its children.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from math import atan2, sqrt
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct

from tracelens.arrays import Bool, Float, Int, distinct, lookup, numbered, ordered, unique
from tracelens.native import core


class Stats(Struct, frozen=True):
    """Per group, in order of its code: number, sum, mean, median, min and max of the values (0 if empty)."""

    number: Int
    total: Int
    mean: Float
    median: Float
    min: Int
    max: Int


class Leaves(Struct, frozen=True):
    """What is grouped, one element a piece of GPU work in one window."""

    path: Sequence[Int]  # integer key of the piece at each level, outermost first
    exclusive: Int  # ns that belong to the piece alone; these add up
    dur: Int  # full duration in ns
    counted: Bool  # False for the continuation of work that began in an earlier window


class Level(NamedTuple):
    """The groups of one level."""

    key: Int  # the level's own path key of each group
    parent: Int  # group of the level above, all -1 at the top
    group: Int  # of each leaf
    columns: dict[str, Any]  # exclusive_ns, sum_ns, count, mean_ns, median_ns, min_ns, max_ns


_GRID = np.linspace(0, np.pi / 2, 1 << 14)


def stats(group: Int, values: Int, groups: int) -> Stats:
    """Statistics of int64 `values` in each of the groups 0..groups-1."""
    count = np.bincount(group, minlength=groups).astype(np.int64)
    first = np.cumsum(count) - count
    total = sums(group, values, groups)
    nonzero_count = np.maximum(count, 1)
    if not len(values):
        nothing = np.zeros(groups, dtype=np.int64)
        return Stats(count, total, nothing.astype(float), nothing.astype(float), nothing, nothing)
    ordered = _ordered(group, values)
    last_row = len(ordered) - 1
    low = np.minimum(first + (nonzero_count - 1) // 2, last_row)
    high = np.minimum(first + nonzero_count // 2, last_row)
    empty = count == 0
    return Stats(
        count,
        total,
        np.where(empty, 0.0, total / nonzero_count),
        np.where(empty, 0.0, (ordered[low] + ordered[high]) / 2),
        np.where(empty, 0, ordered[np.minimum(first, last_row)]),
        np.where(empty, 0, ordered[np.minimum(first + nonzero_count - 1, last_row)]),
    )


def _ordered(group: Int, values: Int) -> Int:
    """The values in order of their groups, ascending in each."""
    least = int(values.min())
    span = int(values.max()) - least + 1
    if (int(group.max()) + 1) * span >= 1 << 62:
        return values[ordered(group, values)]
    # One sort of numbers is much faster than one of rows by two keys.
    return np.sort(group.astype(np.int64) * span + (values - least)) % span + least


def sums(group: Int, values: Int, groups: int) -> Int:
    """Exact int64 sum of the values of each group (bincount's own weights are floats)."""
    total = np.zeros(groups, dtype=np.int64)
    np.add.at(total, group, values)
    return total


def codes(*keys: Int) -> tuple[Int, list[Int]]:
    """Group rows by several integer keys.

    Returns:
        (group of each row, [value of each key in each group]); groups are in order of the keys.
    """
    if not len(keys[0]):
        return np.empty(0, dtype=np.int64), list(keys)
    number, size = _spread(keys[0])
    for key in keys[1:]:
        added, span = _spread(key)
        if size * span >= 1 << 62:
            _, number = numbered(number)
            size = int(number.max()) + 1
        number *= span
        number += added
        size *= span
    used, group = distinct(number, size)
    row = np.empty(len(used), dtype=np.int64)
    row[group] = np.arange(len(group))
    return group, [key[row] for key in keys]


def _spread(key: Int) -> tuple[Int, int]:
    """Numbers from 0 in the order of the key's values, and one more than the highest can be."""
    least = int(key.min())
    span = int(key.max()) - least + 1
    if span < 1 << 31:
        return np.subtract(key, least, dtype=np.int64), span
    used, number = numbered(key)
    return number, len(used)


def depths(parent: Int) -> Int:
    """Number of ancestors of each row."""
    return ancestor_sums(parent, (parent >= 0).astype(np.int64))


def ancestor_sums(parent: Int, values: Int) -> Int:
    """For each row, the sum of `values` over itself and all its ancestors.

    Where a parent may stand behind its row, the distance that is looked up doubles in each round.
    """
    total = values.copy()
    if (native := core()) and native.ancestor_sums(np.ascontiguousarray(parent), total):
        return total
    ancestor = parent
    while (has_ancestor := ancestor >= 0).any():
        total += np.where(has_ancestor, total[ancestor], 0)
        ancestor = np.where(has_ancestor, ancestor[ancestor], -1)
    return total


def preorder(parent: Int, weight: Int) -> tuple[Int, Int]:
    """Places of rows in an order in which each parent is followed by its subtree, and sizes of the subtrees.

    Siblings are in order of `weight`; ties keep the order of rows.
    """
    size = subtree_sums(parent, depths(parent), np.ones(len(parent), dtype=np.int64))
    order = ordered(parent, weight)
    # A row stands behind its parent and all subtrees of the siblings before it.
    before = np.cumsum(size[order]) - size[order]
    group = parent[order]
    behind = np.empty(len(parent), dtype=np.int64)
    first = np.append(0, np.where(group[1:] != group[:-1], np.arange(1, len(group)), 0))[: len(group)]
    behind[order] = before - before[np.maximum.accumulate(first)] + (group >= 0)
    return ancestor_sums(parent, behind), size


def outermost(parent: Int, depth: Int, rows: Int, group: Int) -> Bool:
    """Which rows, each once in a group (non-negative), have no other row of their group around them."""
    # The forest of these rows alone: most others are none of them.
    members = unique(rows)
    place = np.full(len(parent), -1, dtype=np.int64)
    place[members] = np.arange(len(members))
    above = lookup(nearest(parent, depth, place >= 0), parent[members], -1)
    position, size = preorder(lookup(place, above, -1), np.zeros(len(members), dtype=np.int64))
    # Lifted by group: how far the rows of a group that began before reach.
    member = place[rows]
    begin = position[member] + group.astype(np.int64) * (len(members) + 1)
    order = np.argsort(begin)
    reach = np.maximum.accumulate((begin + size[member])[order])
    result = np.ones(len(rows), dtype=bool)
    result[order[1:]] = reach[:-1] <= begin[order[1:]]
    return result


def nearest(parent: Int, depth: Int, selected: Bool) -> Int:
    """For each row, itself if `selected`, else its nearest chosen ancestor, else -1."""
    if native := core():
        result = np.empty(len(parent), dtype=np.int64)
        native.nearest(np.ascontiguousarray(parent), np.ascontiguousarray(selected), result)
        return result
    result = np.where(selected, np.arange(len(parent)), -1)
    deepest = int(depth.max(initial=0))
    if deepest == 0:
        return result
    by_depth, borders = _by_depth(depth, deepest)
    for level in range(1, deepest + 1):
        rows = by_depth[borders[level] : borders[level + 1]]
        rows = rows[result[rows] < 0]
        result[rows] = result[parent[rows]]
    return result


def subtree_sums(parent: Int, depth: Int, values: Int) -> Int:
    """For each row, the sum of `values` over itself and everything below it."""
    total = values.copy()
    if (native := core()) and native.subtree_sums(np.ascontiguousarray(parent), total):
        return total
    deepest = int(depth.max(initial=0))
    by_depth, borders = _by_depth(depth, deepest)
    for level in range(deepest, 0, -1):
        rows = by_depth[borders[level] : borders[level + 1]]
        rows = rows[total[rows] != 0]
        np.add.at(total, parent[rows], total[rows])
    return total


def _by_depth(depth: Int, deepest: int) -> tuple[Int, Int]:
    """Rows in order of depth, and where each depth begins and the last one ends among them."""
    # numpy sorts small integers by radix
    small = depth.astype(np.int16) if deepest <= np.iinfo(np.int16).max else depth
    return np.argsort(small, kind="stable"), np.append(0, np.cumsum(np.bincount(depth)))


def levels(leaves: Leaves) -> list[Level]:
    """Group the leaves at every level of their paths."""
    built: list[Level] = []
    for depth, key in enumerate(leaves.path):
        if depth == 0:
            group, (value,) = codes(key)
            parent = np.full(len(value), -1, dtype=np.int64)
        else:
            group, (parent, value) = codes(built[-1].group, key)
        counted = stats(group[leaves.counted], leaves.dur[leaves.counted], len(value))
        columns = {
            "exclusive_ns": sums(group, leaves.exclusive, len(value)),
            "sum_ns": counted.total,
            "count": counted.number,
            "mean_ns": counted.mean,
            "median_ns": counted.median,
            "min_ns": counted.min,
            "max_ns": counted.max,
        }
        built.append(Level(value, parent, group, columns))
    return built


def depth_first(parent: Int, weight: Int) -> Int:
    """Order of rows in which each parent is followed by its subtree, siblings heaviest first, then by row."""
    count = len(parent)
    order = np.empty(count, dtype=np.int64)
    position, _ = preorder(parent, -weight)
    order[position] = np.arange(count)
    return order


def t_quantile(tail: float, freedom: float) -> float:
    """The value that Student's t exceeds with this probability.

    Args:
        tail: probability, below 0.5.
        freedom: degrees of freedom, at least 1; to the hundredth.
    """
    freedom = round(freedom, 2)
    area = _area(freedom)
    return sqrt(freedom) / float(np.tan(np.interp(tail, area, _GRID)))


def t_tail(value: float, freedom: float) -> float:
    """The probability that Student's t exceeds this value.

    Args:
        value: at least 0.
        freedom: degrees of freedom, at least 1; to the hundredth.
    """
    freedom = round(freedom, 2)
    return float(np.interp(atan2(sqrt(freedom), value), _GRID, _area(freedom)))


@cache
def _sines() -> Float:
    return np.sin(_GRID)


@lru_cache(maxsize=4096)
def _area(freedom: float) -> Float:
    """The tail at each point of the grid.

    With t = sqrt(freedom) / tan(u) the density is sin(u) ** (freedom - 1), integrated over u from 0, the far
    end of the tail.
    """
    density = _sines() ** (freedom - 1)
    area = np.concatenate(([0.0], np.cumsum(density[1:] + density[:-1])))
    result: Float = area / (2 * area[-1])
    return result
