"""The ops of one rank as a forest to be compared: who calls whom, in which order, with what arguments."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tracelens.arrays import Int, lookup, ranges
from tracelens.table import codes, depths, nearest, subtree_sums
from tracelens.trace import STEP_MARK, Trace

Hash = NDArray[np.uint64]

_CHILD = np.uint64(0x9E3779B97F4A7C15)
_MIX = np.uint64(0xBF58476D1CE4E5B9)
_SHIFT = np.uint64(31)
_RADIX = 0x94D049BB133111EB

_OUTER = 8
"""Of a long path, so many names of its outer end are shown, and as many of its inner end."""


class Leaves(NamedTuple):
    """The leaves below a list of nodes, at each border between two of them and at both ends.

    Equal hashes of two lists mean that the same leaves follow each other there, whatever is around them.

    Attributes:
        number: of leaves before the border.
        begin: hash of these, in order.
        end: hash of those behind it.
    """

    number: Int
    begin: Hash
    end: Hash


@dataclass(frozen=True)
class Forest:
    """Ops and scopes of one rank, parents directly before all that they call.

    Attributes:
        event: row in the trace's events.
        name: code into the events' names.
        parent: place in the forest, -1 for roots.
        size: number of nodes of the subtree, with itself.
        step: number of the step in which the host began the root above it.
        thread: (pid, tid) as a number.
        named: hash of its name.
        signature: hash of its name and arguments.
        loose: hash of the names of the whole subtree, in order.
        strict: hash of names and arguments of the whole subtree.
    """

    event: Int
    name: Int
    parent: Int
    size: Int
    step: Int
    thread: Int
    named: Hash
    signature: Hash
    loose: Hash
    strict: Hash
    names: list[str]

    def __len__(self) -> int:
        return len(self.event)

    @cached_property
    def _by_parent(self) -> tuple[Int, Int]:
        """Nodes in order of their parent, and where the children of each node begin in there."""
        order = np.argsort(self.parent, kind="stable")
        return order, np.searchsorted(self.parent[order], np.arange(-1, len(self) + 1))

    @cached_property
    def roots(self) -> dict[int, dict[int, Int]]:
        """Step to thread to the roots there, in order of time."""
        order, first = self._by_parent
        roots = order[: first[1]]
        group, (step, thread) = codes(self.step[roots], self.thread[roots])
        parts = np.split(roots[np.argsort(group, kind="stable")], np.cumsum(np.bincount(group))[:-1])
        found: dict[int, dict[int, Int]] = {}
        for number, key, part in zip(step.tolist(), thread.tolist(), parts, strict=False):
            found.setdefault(number, {})[key] = part
        return found

    def children(self, place: int) -> Int:
        """Places of what a node calls directly, in order of time."""
        order, first = self._by_parent
        below: Int = order[first[place + 1] : first[place + 2]]
        return below

    def below(self, nodes: Int) -> tuple[Int, Int]:
        """What some nodes call directly, and of each of these the place of its caller among the nodes."""
        order, first = self._by_parent
        low, count = first[nodes + 1], first[nodes + 2] - first[nodes + 1]
        position, place = ranges(low, count)
        return order[place], position

    @cached_property
    def chain(self) -> Int:
        """The last node from each one on in which every node is the only one that the node before calls."""
        ends = np.flatnonzero(np.append(self.size[:-1] != self.size[1:] + 1, True)[: len(self)])
        return ends[np.searchsorted(ends, np.arange(len(self)))]

    @cached_property
    def _by_loose(self) -> tuple[Int, Hash]:
        """Nodes that call others in order of `loose`, and that."""
        inner = np.flatnonzero(self.size > 1)
        order = inner[np.argsort(self.loose[inner], kind="stable")]
        return order, self.loose[order]

    def may_hold(self, nodes: Int, keys: Hash) -> bool:
        """Whether subtrees of these keys, of `loose`, may be inside of some nodes.

        The answer is exact where fewer nodes have the keys than there are inside, and else costs nothing.

        Args:
            nodes: ascending, none inside another.
            keys: of `loose`.
        """
        order, loose = self._by_loose
        keys = np.unique(keys)
        low = np.searchsorted(loose, keys)
        count = np.searchsorted(loose, keys, side="right") - low
        if count.sum() > self.size[nodes].sum():
            return True
        places = order[ranges(low, count)[1]]
        top = nodes[np.maximum(np.searchsorted(nodes, places, side="right") - 1, 0)]
        return bool(((places > top) & (places < top + self.size[top])).any())

    @cached_property
    def leaf(self) -> Int:
        """Number of nodes without children before each node; one element more than nodes."""
        return np.concatenate(([0], np.cumsum(self.size == 1)))

    @cached_property
    def _powers(self) -> tuple[Hash, Hash]:
        """Powers of the radix by which a leaf's hash is weighted, and their inverses modulo 2^64."""
        count = int(self.leaf[-1])
        found = []
        for radix in (_RADIX, pow(_RADIX, -1, 1 << 64)):
            power = np.full(count + 1, radix, dtype=np.uint64)
            power[0] = 1
            found.append(np.multiply.accumulate(power))
        return found[0], found[1]

    @cached_property
    def _running(self) -> dict[bool, Hash]:
        """Running hashes of all leaves: by their names alone, and with their arguments."""
        leaves = np.flatnonzero(self.size == 1)
        power, _ = self._powers
        return {
            named: np.concatenate(
                (np.zeros(1, dtype=np.uint64), np.cumsum(_mixed(key[leaves]) * power[:-1], dtype=np.uint64))
            )
            for named, key in ((True, self.named), (False, self.signature))
        }

    def leaves(self, nodes: Int, *, named: bool = False) -> Leaves:
        """The leaves below nodes, with those among the nodes themselves.

        Args:
            nodes: in order of time; none inside another.
            named: whether leaves are told apart by their names alone, and not by their arguments.
        """
        running, (power, inverse) = self._running[named], self._powers
        low, high = self.leaf[nodes], self.leaf[nodes + self.size[nodes]]
        count = np.concatenate(([0], np.cumsum(high - low)))
        # The hash of a node's leaves, moved from where they are in the forest to where they are in the list.
        part = (running[high] - running[low]) * inverse[low] * power[count[:-1]]
        begin = np.concatenate((np.zeros(1, dtype=np.uint64), np.cumsum(part, dtype=np.uint64)))
        return Leaves(count, begin, (begin[-1] - begin) * inverse[count])

    def within(self, nodes: Int) -> Int:
        """Places of some nodes, none inside another, and of all that they call."""
        return ranges(nodes, self.size[nodes])[1]

    def part(self, low: int, high: int) -> Forest:
        """The nodes from `low` up to `high`, between which whole trees lie."""
        parent = self.parent[low:high]
        names = ("event", "name", "size", "step", "thread", "named", "signature", "loose", "strict")
        columns = {name: getattr(self, name)[low:high] for name in names}
        return replace(self, parent=np.where(parent >= 0, parent - low, -1), **columns)

    @cached_property
    def _depth(self) -> Int:
        return depths(self.parent)

    @cached_property
    def _outer(self) -> Int:
        """The ancestor of each node that is the last of the outer end of a long path."""
        return nearest(self.parent, self._depth, self._depth == _OUTER - 1)

    def around(self, place: int) -> str:
        """Names of all that is around a node, outermost first; of many, those at both ends."""
        place = int(self.parent[place])
        inner: list[str] = []
        outer: list[str] = []
        while place >= 0 and len(inner) < _OUTER:
            inner.append(self.names[self.name[place]])
            place = int(self.parent[place])
        if place >= 0 and self._depth[place] >= _OUTER:
            inner.append("…")
            place = int(self._outer[place])
        while place >= 0:
            outer.append(self.names[self.name[place]])
            place = int(self.parent[place])
        return " > ".join([*outer[::-1], *inner[::-1]])


def forest(trace: Trace, marks: Int) -> Forest:
    """The forest of one rank.

    Python frames are left out: they change with versions of libraries that do the same work.

    Args:
        trace: of the rank.
        marks: begin of each step by the host, ns; what begins before the first one is part of it.
    """
    events = trace.arrays
    is_mark = np.array([bool(STEP_MARK.match(name)) for name in events.names], dtype=bool)
    chosen = events.where("op", "annotation") & ~is_mark[events.name]
    rows = np.flatnonzero(chosen)
    around = nearest(events.parent, events.depth, chosen)
    above = lookup(around, events.parent[rows], -1)
    root = _root(rows, above, len(events.start))
    step = np.maximum(np.searchsorted(marks, events.start[root], side="right") - 1, 0)
    thread, _ = codes(events.pid[rows], events.tid[rows])
    order = np.lexsort((events.depth[rows], events.start[rows], thread, step))
    rows, above, step, thread = rows[order], above[order], step[order], thread[order]
    place = np.full(len(events.start), -1, dtype=np.int64)
    place[rows] = np.arange(len(rows))
    parent = lookup(place, above, -1)
    depth = depths(parent)
    named = text_hashes(events.names)[events.name[rows]]
    signature = _mixed(named + _MIX * _argument_hashes(trace)[rows])
    sibling = _sibling(parent)
    return Forest(
        rows,
        events.name[rows],
        parent,
        subtree_sums(parent, depth, np.ones(len(rows), dtype=np.int64)),
        step,
        thread,
        named,
        signature,
        _subtree_hashes(named, parent, depth, sibling),
        _subtree_hashes(signature, parent, depth, sibling),
        events.names,
    )


def _root(rows: Int, above: Int, count: int) -> Int:
    """The outermost event around each of `rows`, by doubling the distance in each round."""
    up = np.arange(count)
    up[rows] = np.where(above >= 0, above, rows)
    while True:
        further = up[up]
        if (further == up).all():
            return up[rows]
        up = further


def _sibling(parent: Int) -> Int:
    """Number of each node among those with its parent, in order."""
    order = np.argsort(parent, kind="stable")
    grouped = parent[order]
    first = np.searchsorted(grouped, grouped)
    number = np.empty(len(parent), dtype=np.int64)
    number[order] = np.arange(len(parent)) - first
    return number


def text_hashes(names: list[str]) -> Hash:
    """A hash of each text, the same in every run."""
    return np.array(
        [int.from_bytes(blake2b(name.encode(errors="replace"), digest_size=8).digest()) for name in names],
        dtype=np.uint64,
    )


def _argument_hashes(trace: Trace) -> Hash:
    """A hash of shapes and types of each event's arguments, 0 where none are recorded."""
    ops = trace.tables["ops"]
    found = np.zeros(len(trace.arrays.start), dtype=np.uint64)
    for weight, name in ((1, "shapes"), (3, "dtypes")):
        column = ops.columns[name]
        hashes = text_hashes(list(column.values))
        if len(hashes):
            found[ops.array("event_id")] += hashes[column.codes] * np.uint64(weight)
    return found


def _mixed(values: Hash) -> Hash:
    result: Hash = (values ^ (values >> _SHIFT)) * _MIX
    return result


def _subtree_hashes(signature: Hash, parent: Int, depth: Int, sibling: Int) -> Hash:
    """Hash of each subtree: of its own value and of its children's in order."""
    below = np.zeros(len(signature), dtype=np.uint64)
    result = signature.copy()
    weight = _mixed((sibling.astype(np.uint64) + np.uint64(1)) * _CHILD) | np.uint64(1)
    order = np.argsort(depth, kind="stable")
    borders = np.searchsorted(depth[order], np.arange(int(depth.max(initial=0)) + 2))
    for level in range(len(borders) - 2, -1, -1):
        rows = order[borders[level] : borders[level + 1]]
        result[rows] = _mixed(signature[rows] + below[rows])
        if level:
            np.add.at(below, parent[rows], _mixed(result[rows]) * weight[rows])
    return result
