"""The same work inside other scopes: which nodes around equal leaves are the same, and which are new."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tracelens.arrays import Bool, Int
from tracelens.compare.diff.forest import Forest, Hash
from tracelens.table import codes

Border = tuple[int, int]


class Twins(NamedTuple):
    """Two lists with the same leaves, node by node.

    Attributes:
        same: (node of the first, node of the second) with one name around the same leaves.
        renamed: the same with different names.
        wrappers: nodes of the first, and of the second, that the other has nothing for.
    """

    same: tuple[Int, Int]
    renamed: tuple[Int, Int]
    wrappers: tuple[Int, Int]


def same_leaves(first: Forest, ours: Int, second: Forest, theirs: Int) -> bool:
    """Whether two lists run leaves of the same names, whatever is around these."""
    count = (
        int((forest.leaf[nodes + forest.size[nodes]] - forest.leaf[nodes]).sum())
        for forest, nodes in ((first, ours), (second, theirs))
    )
    if next(count) != next(count):
        return False
    names = first.leaves(ours, named=True).begin[-1], second.leaves(theirs, named=True).begin[-1]
    return bool(names[0] == names[1])


def equal_ends(first: Forest, ours: Int, second: Forest, theirs: Int) -> tuple[Border, Border]:
    """Where the parts at both ends of two lists that run the same leaves, with the same arguments, stop.

    Returns:
        places in both lists behind the part at their begin, and those of the first of the part at their end.
    """
    ends = len(ours), len(theirs)
    one, other = first.leaves(ours), second.leaves(theirs)
    begin = _longest(one.number, other.number, one.begin, other.begin)[-1]
    behind = one.number[-1] - one.number, other.number[-1] - other.number
    for end in reversed(_longest(*behind, one.end, other.end)):
        if end[0] >= begin[0] and end[1] >= begin[1]:  # no node is in both parts
            return begin, end
    return begin, ends


def _longest(count: Int, count2: Int, key: Hash, key2: Hash) -> list[Border]:
    """Places in two lists with as many leaves up to them, all the same; from none of them on."""
    _, at, at2 = np.intersect1d(count, count2, assume_unique=True, return_indices=True)
    differs = np.flatnonzero(key[at] != key2[at2])
    stop = int(differs[0]) if len(differs) else len(at)
    return list(zip(at[:stop].tolist(), at2[:stop].tolist(), strict=True))


def twins(first: Forest, ours: Int, second: Forest, theirs: Int) -> Twins:
    """Match two lists with the same leaves, and all below them.

    A leaf stands against that of its number. Other nodes are matched if they are around the same leaves and
    have one name; of what is left around the same leaves, as many on both sides are renamed, else it wraps.
    """
    nodes, low, high = _extents(first, ours)
    nodes2, low2, high2 = _extents(second, theirs)
    is_leaf, is_leaf2 = first.size[nodes] == 1, second.size[nodes2] == 1
    inner, inner2 = np.flatnonzero(~is_leaf), np.flatnonzero(~is_leaf2)
    begins, ends = (
        np.concatenate((one[inner], other[inner2])) for one, other in ((low, low2), (high, high2))
    )
    extent, _ = codes(begins, ends)
    # Names have hashes up to 2^64; codes compare them as they are.
    name = np.concatenate((first.named[nodes[inner]], second.named[nodes2[inner2]])).view(np.int64)
    count = len(inner)
    one, other = _matched(extent, name, count)
    left, left2 = _without(count, one), _without(len(inner2), other)
    left_one, left_other = _renamed(extent[:count], extent[count:], left, left2)
    wraps, wraps2 = _rest(left, left_one), _rest(left2, left_other)
    return Twins(
        (
            np.concatenate((nodes[is_leaf], nodes[inner[one]])),
            np.concatenate((nodes2[is_leaf2], nodes2[inner2[other]])),
        ),
        (nodes[inner[left_one]], nodes2[inner2[left_other]]),
        (nodes[inner[wraps]], nodes2[inner2[wraps2]]),
    )


def _extents(forest: Forest, nodes: Int) -> tuple[Int, Int, Int]:
    """All nodes of a list and below it; numbers in the list of the leaves where each begins and ends."""
    inside = forest.within(nodes)
    count = forest.leaf[nodes + forest.size[nodes]] - forest.leaf[nodes]
    shift = np.repeat(np.cumsum(count) - count - forest.leaf[nodes], forest.size[nodes])
    return inside, forest.leaf[inside] + shift, forest.leaf[inside + forest.size[inside]] + shift


def _matched(extent: Int, name: Int, count: int) -> tuple[Int, Int]:
    """Places of nodes of the first and of the second side with one extent and name, n-th against n-th."""
    group, _ = codes(extent, name)
    return _paired(group[:count], group[count:])


def _paired(one: Int, other: Int) -> tuple[Int, Int]:
    """Places with equal values on both sides, the n-th of a value here against the n-th of it there."""
    whole = max(int(one.max(initial=0)), int(other.max(initial=0))) + 1
    number, number2 = occurrence(one) * whole + one, occurrence(other) * whole + other
    _, at, at2 = np.intersect1d(number, number2, assume_unique=True, return_indices=True)
    return at, at2


def _renamed(extent: Int, extent2: Int, left: Int, left2: Int) -> tuple[Int, Int]:
    """Of what is left, that of which both sides have equally many around the same leaves."""
    size = max(int(extent.max(initial=0)), int(extent2.max(initial=0))) + 1
    even = np.bincount(extent[left], minlength=size) == np.bincount(extent2[left2], minlength=size)
    left, left2 = left[even[extent[left]]], left2[even[extent2[left2]]]
    at, at2 = _paired(extent[left], extent2[left2])
    return left[at], left2[at2]


def occurrence(code: Int) -> Int:
    """How many equal ones stand before each place."""
    order = np.argsort(code, kind="stable")
    grouped = code[order]
    number = np.empty(len(code), dtype=np.int64)
    number[order] = np.arange(len(code)) - np.searchsorted(grouped, grouped)
    return number


def _without(count: int, chosen: Int) -> Int:
    return _rest(np.arange(count), chosen)


def _rest(places: Int, chosen: Int) -> Int:
    return places[~np.isin(places, chosen)]


def unwrapped(forest: Forest, nodes: Int, other: Forest, theirs: Int) -> tuple[Int, Int] | None:
    """The nodes with those that are around nodes of the other list replaced by what they are around.

    A direct child counts by its name. Where there is none, what lies deeper counts where whole subtrees of
    the other list make at least half of the leaves below a node: names such as aten::empty are everywhere.

    Returns:
        (nodes in order, those that were replaced), None where there are none.
    """
    below, place = forest.below(nodes)
    direct = np.isin(forest.named[below], other.named[theirs])
    if direct.any():
        opened = np.zeros(len(nodes), dtype=bool)
        opened[place[direct]] = True
        return np.sort(np.concatenate((nodes[~opened], below[opened[place]]))), nodes[opened]
    keys = other.loose[theirs[other.size[theirs] > 1]]
    return _unwrapped_deep(forest, nodes, keys) if forest.may_hold(nodes, keys) else None


def _unwrapped_deep(forest: Forest, nodes: Int, keys: Hash) -> tuple[Int, Int] | None:
    """As `unwrapped`, by what lies deeper; `keys` are those of the other list in `loose`."""
    inside = forest.within(nodes)
    top = np.repeat(nodes, forest.size[nodes])
    wanted = np.isin(forest.loose[inside], keys) & (inside != top) & (forest.size[inside] > 1)
    wanted &= _outermost(forest, inside, wanted)
    mass = forest.leaf[inside + forest.size[inside]] - forest.leaf[inside]
    place = np.repeat(np.arange(len(nodes)), forest.size[nodes])
    share = np.bincount(place, weights=np.where(wanted, mass, 0), minlength=len(nodes))
    wanted &= (2 * share >= forest.leaf[nodes + forest.size[nodes]] - forest.leaf[nodes])[place]
    if not wanted.any():
        return None
    running = np.concatenate(([0], np.cumsum(wanted)))
    place = np.arange(len(inside))
    wraps = (running[place + forest.size[inside]] > running[place]) & ~wanted
    # Kept is what is at the top, or below a wrapper, and no wrapper itself.
    is_wrapper = inside[wraps]
    kept = ~wraps & ((inside == top) | np.isin(forest.parent[inside], is_wrapper))
    return inside[kept], is_wrapper


def _outermost(forest: Forest, inside: Int, chosen: Bool) -> Bool:
    """Which nodes of whole subtrees, in order, are inside of none of the chosen ones."""
    reach = np.maximum.accumulate(np.where(chosen, inside + forest.size[inside], 0))
    free: Bool = np.concatenate(([0], reach[:-1])) <= inside
    return free
