"""Rows of a hierarchy from grouped leaves: every parent is the exact sum of its children."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tracelens.arrays import Bool, Int
from tracelens.table.forest import preorder
from tracelens.table.groups import codes, stats, sums


class Leaves(NamedTuple):
    """What is grouped, one element a piece of GPU work in one window.

    Attributes:
        path: integer key of the piece at each level, outermost first.
        exclusive: ns that belong to the piece alone; these add up.
        dur: full duration in ns.
        counted: False for the continuation of work that began in an earlier window.
    """

    path: Sequence[Int]
    exclusive: Int
    dur: Int
    counted: Bool


class Level(NamedTuple):
    """The groups of one level.

    Attributes:
        key: the level's own path key of each group.
        parent: group of the level above, all -1 at the top.
        group: of each leaf.
        columns: exclusive_ns, sum_ns, count, mean_ns, median_ns, min_ns, max_ns.
    """

    key: Int
    parent: Int
    group: Int
    columns: dict[str, Any]


def levels(leaves: Leaves) -> list[Level]:
    """Group the leaves at every level of their paths."""
    built: list[Level] = []
    for depth, key in enumerate(leaves.path):
        if depth == 0:
            group, (value,) = codes(key)
            parent = np.full(len(value), -1, dtype=np.int64)
        else:
            group, (parent, value) = codes(built[-1].group, key)
        built.append(Level(value, parent, group, _columns(leaves, group, len(value))))
    return built


def _columns(leaves: Leaves, group: Int, groups: int) -> dict[str, Any]:
    group_stats = stats(group[leaves.counted], leaves.dur[leaves.counted], groups)
    return {
        "exclusive_ns": sums(group, leaves.exclusive, groups),
        "sum_ns": group_stats.total,
        "count": group_stats.number,
        "mean_ns": group_stats.mean,
        "median_ns": group_stats.median,
        "min_ns": group_stats.min,
        "max_ns": group_stats.max,
    }


def depth_first(parent: Int, weight: Int) -> Int:
    """Order of rows in which each parent is followed by its subtree, siblings heaviest first.

    Args:
        parent: row of the parent or -1.
        weight: ties keep the order of rows.
    """
    count = len(parent)
    order = np.empty(count, dtype=np.int64)
    position, _ = preorder(parent, -weight)
    order[position] = np.arange(count)
    return order
