"""The same work inside other scopes: which nodes around equal leaves are the same, and which are new."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tracelens.arrays import Bool, Int
from tracelens.compare.diff.forest import Forest, Hash, occurrence
from tracelens.table import codes

Border = tuple[int, int]


class Twins(NamedTuple):
    """Two lists with the same leaves, node by node."""

    same: tuple[Int, Int]  # (node of the base, node of the candidate) with one name around the same leaves
    renamed: tuple[Int, Int]  # the same with different names
    wrappers: tuple[Int, Int]  # nodes of the base, and of the candidate, without a counterpart


def same_leaves(base: Forest, base_nodes: Int, cand: Forest, cand_nodes: Int) -> bool:
    """Whether two lists run leaves of the same names, whatever is around these."""
    if base.leaf_counts(base_nodes).sum() != cand.leaf_counts(cand_nodes).sum():
        return False
    sides = base.leaves(base_nodes, named=True), cand.leaves(cand_nodes, named=True)
    return bool(sides[0].begin[-1] == sides[1].begin[-1])


def equal_ends(base: Forest, base_nodes: Int, cand: Forest, cand_nodes: Int) -> tuple[Border, Border]:
    """Where the parts at both ends of two lists that run the same leaves, with the same arguments, stop.

    Returns:
        rows in both lists after the part at their begin, and rows where the part at their end starts.
    """
    sides = base.leaves(base_nodes), cand.leaves(cand_nodes)
    begin = _borders([side.number for side in sides], [side.begin for side in sides])[-1]
    ends = _borders([side.number[-1] - side.number for side in sides], [side.end for side in sides])
    for end in reversed(ends):
        if end[0] >= begin[0] and end[1] >= begin[1]:  # no node is in both parts
            return begin, end
    return begin, (len(base_nodes), len(cand_nodes))


def _borders(counts: list[Int], keys: list[Hash]) -> list[Border]:
    """Rows in two lists with as many leaves up to them, all the same; from none of them on."""
    _, base, cand = np.intersect1d(counts[0], counts[1], assume_unique=True, return_indices=True)
    differs = np.flatnonzero(keys[0][base] != keys[1][cand])
    stop = int(differs[0]) if len(differs) else len(base)
    return list(zip(base[:stop].tolist(), cand[:stop].tolist(), strict=True))


def twins(base: Forest, base_nodes: Int, cand: Forest, cand_nodes: Int) -> Twins:
    """Match two lists with the same leaves, and all below them.

    Leaves are matched by position, other nodes if they are around the same leaves and have one name. Of the
    rest around the same leaves, equally many on both sides are renamed; otherwise they are wrappers.
    """
    extents = _extents(base, base_nodes), _extents(cand, cand_nodes)
    is_leaf = [forest.size[nodes] == 1 for forest, (nodes, *_) in zip((base, cand), extents, strict=True)]
    leaves = [nodes[leaf] for (nodes, *_), leaf in zip(extents, is_leaf, strict=True)]
    inner, low, high = (
        [column[~leaf] for column, leaf in zip(columns, is_leaf, strict=True)]
        for columns in zip(*extents, strict=True)
    )
    extent, _ = codes(np.concatenate(low), np.concatenate(high))
    # Names have hashes up to 2^64; codes compare them as they are.
    name = np.concatenate((base.named[inner[0]], cand.named[inner[1]])).view(np.int64)
    count = len(inner[0])
    group, _ = codes(extent, name)
    same = paired(group[:count], group[count:])
    rest = [np.delete(np.arange(len(nodes)), rows) for nodes, rows in zip(inner, same, strict=True)]
    renamed = _renamed((extent[:count], extent[count:]), rest)
    wraps = [np.setdiff1d(rows, matched) for rows, matched in zip(rest, renamed, strict=True)]
    return Twins(
        (
            np.concatenate((leaves[0], inner[0][same[0]])),
            np.concatenate((leaves[1], inner[1][same[1]])),
        ),
        (inner[0][renamed[0]], inner[1][renamed[1]]),
        (inner[0][wraps[0]], inner[1][wraps[1]]),
    )


def _extents(forest: Forest, nodes: Int) -> tuple[Int, Int, Int]:
    """All nodes of a list and below it; numbers in the list of the leaves where each begins and ends."""
    inside, count = forest.within(nodes), forest.leaf_counts(nodes)
    shift = np.repeat(np.cumsum(count) - count - forest.leaf[nodes], forest.size[nodes])
    return inside, forest.leaf[inside] + shift, forest.leaf[inside + forest.size[inside]] + shift


def paired(base: Int, cand: Int) -> tuple[Int, Int]:
    """Rows with equal values on both sides, the n-th of a value here against the n-th of it there."""
    count = max(int(base.max(initial=0)), int(cand.max(initial=0))) + 1
    number, cand_number = occurrence(base) * count + base, occurrence(cand) * count + cand
    _, base_rows, cand_rows = np.intersect1d(number, cand_number, assume_unique=True, return_indices=True)
    return base_rows, cand_rows


def _renamed(extents: tuple[Int, Int], rest: list[Int]) -> tuple[Int, Int]:
    """Of the rest, rows of which both sides have equally many around the same leaves."""
    size = max(int(extent.max(initial=0)) for extent in extents) + 1
    base_count, cand_count = (
        np.bincount(extent[rows], minlength=size) for extent, rows in zip(extents, rest, strict=True)
    )
    even = base_count == cand_count
    base, cand = (rows[even[extent[rows]]] for extent, rows in zip(extents, rest, strict=True))
    base_rows, cand_rows = paired(extents[0][base], extents[1][cand])
    return base[base_rows], cand[cand_rows]


def unwrapped(forest: Forest, nodes: Int, other: Forest, other_nodes: Int) -> tuple[Int, Int] | None:
    """The nodes, with those that are around nodes of the other list replaced by what they are around.

    A direct child counts by its name. Where there is none, what lies deeper counts where whole subtrees of
    the other list make at least half of the leaves below a node: names such as aten::empty are everywhere.

    Returns:
        (nodes in order, those that were replaced), None where there are none.
    """
    below, caller = forest.below(nodes)
    direct = np.isin(forest.named[below], other.named[other_nodes])
    if direct.any():
        opened = np.zeros(len(nodes), dtype=bool)
        opened[caller[direct]] = True
        return np.sort(np.concatenate((nodes[~opened], below[opened[caller]]))), nodes[opened]
    keys = other.loose[other_nodes[other.size[other_nodes] > 1]]
    return _unwrapped_deep(forest, nodes, keys) if forest.may_hold(nodes, keys) else None


def _unwrapped_deep(forest: Forest, nodes: Int, keys: Hash) -> tuple[Int, Int] | None:
    """As `unwrapped`, by what lies deeper; `keys` are those of the other list in `loose`."""
    inside, size = forest.within(nodes), forest.size[nodes]
    top = np.repeat(np.arange(len(nodes)), size)
    is_top = inside == nodes[top]
    matched = np.isin(forest.loose[inside], keys) & ~is_top & (forest.size[inside] > 1)
    matched &= _outermost(forest, inside, matched)
    matched_leaves = np.bincount(top[matched], forest.leaf_counts(inside[matched]), minlength=len(nodes))
    matched &= (2 * matched_leaves >= forest.leaf_counts(nodes))[top]
    if not matched.any():
        return None
    running = np.concatenate(([0], np.cumsum(matched)))
    row = np.arange(len(inside))
    wraps = (running[row + forest.size[inside]] > running[row]) & ~matched
    # Kept is what is at the top, or below a wrapper, and no wrapper itself.
    wrappers = inside[wraps]
    kept = ~wraps & (is_top | np.isin(forest.parent[inside], wrappers))
    return inside[kept], wrappers


def _outermost(forest: Forest, inside: Int, selected: Bool) -> Bool:
    """Which nodes of whole subtrees, in order, are inside none of the selected ones."""
    reach = np.maximum.accumulate(np.where(selected, inside + forest.size[inside], 0))
    outside: Bool = np.concatenate(([0], reach[:-1])) <= inside
    return outside
