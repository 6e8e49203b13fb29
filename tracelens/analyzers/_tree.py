"""Rows of a hierarchy from grouped leaves: every parent is the exact sum of its children."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tracelens.analyzers._group import codes, stats, sums

Int = NDArray[np.int64]


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
    counted: NDArray[np.bool_]


class Level(NamedTuple):
    """The groups of one level.

    Attributes:
        keys: value of each path key in each group, outermost first.
        parent: group of the level above, all -1 at the top.
        group: of each leaf.
        columns: exclusive_ns, sum_ns, count, mean_ns, median_ns, min_ns, max_ns.
    """

    keys: list[Int]
    parent: Int
    group: Int
    columns: dict[str, Any]


def levels(leaves: Leaves) -> list[Level]:
    """Group the leaves at every level of their paths."""
    found: list[Level] = []
    above: Int | None = None
    for depth in range(1, len(leaves.path) + 1):
        last = leaves.path[depth - 1]
        if above is None:
            group, keys = codes(last)
            parent = np.full(len(keys[0]), -1, dtype=np.int64)
        else:
            group, (parent, own) = codes(above, last)
            keys = [key[parent] for key in found[-1].keys] + [own]
        found.append(Level(keys, parent, group, _columns(leaves, group, len(parent))))
        above = group
    return found


def _columns(leaves: Leaves, group: Int, groups: int) -> dict[str, Any]:
    whole = stats(group[leaves.counted], leaves.dur[leaves.counted], groups)
    return {
        "exclusive_ns": sums(group, leaves.exclusive, groups),
        "sum_ns": whole.total,
        "count": whole.count,
        "mean_ns": whole.mean,
        "median_ns": whole.median,
        "min_ns": whole.min,
        "max_ns": whole.max,
    }


def depth_first(parent: Int, weight: Int) -> Int:
    """Order of rows in which each parent is followed by its children, heaviest first.

    Args:
        parent: row of the parent or -1; parents stand before their children.
        weight: rows of one parent are in descending order of it.
    """
    children: dict[int, list[int]] = {}
    for row in np.lexsort((np.arange(len(parent)), -weight)).tolist():
        children.setdefault(int(parent[row]), []).append(row)
    order: list[int] = []
    stack = list(reversed(children.get(-1, [])))
    while stack:
        row = stack.pop()
        order.append(row)
        stack.extend(reversed(children.get(row, [])))
    return np.array(order, dtype=np.int64)
