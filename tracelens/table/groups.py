"""Group-wise statistics on plain arrays; a group is an integer code."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tracelens.arrays import Float, Int


class Stats(NamedTuple):
    """Per group, in order of its code: number, sum, mean, median, min and max of the values (0 if empty)."""

    number: Int
    total: Int
    mean: Float
    median: Float
    min: Int
    max: Int


def stats(group: Int, values: Int, groups: int) -> Stats:
    """Statistics of int64 `values` in each of the groups 0..groups-1."""
    order = np.lexsort((values, group))
    ordered = values[order]
    count = np.bincount(group, minlength=groups).astype(np.int64)
    first = np.cumsum(count) - count
    total = sums(group, values, groups)
    nonzero_count = np.maximum(count, 1)
    if not len(ordered):
        nothing = np.zeros(groups, dtype=np.int64)
        return Stats(count, total, nothing.astype(float), nothing.astype(float), nothing, nothing)
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
    order = np.lexsort(tuple(reversed(keys)))
    changed = np.zeros(len(order), dtype=bool)
    for key in keys:
        ordered = key[order]
        changed[1:] |= ordered[1:] != ordered[:-1]
    number = np.cumsum(changed)
    group = np.empty(len(order), dtype=np.int64)
    group[order] = number
    first = (
        np.flatnonzero(np.concatenate(([True], changed[1:]))) if len(order) else np.empty(0, dtype=np.int64)
    )
    return group, [key[order[first]] for key in keys]
