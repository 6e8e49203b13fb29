"""The ops of one rank as a forest to be compared: who calls whom, in which order, with what arguments."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tracelens.arrays import Bool, Int, lookup
from tracelens.table import codes, depths, nearest, subtree_sums
from tracelens.trace import STEP_MARK, Trace, matching

Hash = NDArray[np.uint64]

_CHILD = np.uint64(0x9E3779B97F4A7C15)
_MIX = np.uint64(0xBF58476D1CE4E5B9)
_SHIFT = np.uint64(31)
_RADIX = 0x94D049BB133111EB

_MODULE = "nn.Module: "

_COLUMNS = (
    "event", "name", "size", "step", "thread", "start", "copied", "launches",
    "has_arguments", "scope", "named", "signature", "loose", "strict",
)  # fmt: skip
"""Fields of Forest that are the same in a part of it."""

_OUTER = 8
"""Names shown of each end of a long path."""


class Leaves(NamedTuple):
    """The leaves below a list of nodes, at each border between two of them and at both ends.

    Equal hashes of two lists mean that the same leaves follow each other there, whatever is around them.
    """

    number: Int  # of leaves before the border
    begin: Hash  # hash of these, in order
    end: Hash  # hash of those behind it


@dataclass(frozen=True)
class Forest:
    """Ops and scopes of one rank, parents directly before all that they call."""

    event: Int  # row in the trace's events
    name: Int  # code into the events' names
    parent: Int  # node, -1 for roots
    size: Int  # number of nodes of the subtree, with itself
    step: Int  # number of the step in which the host began the root above it
    thread: Int  # (pid, tid) as a number
    start: Int  # ns
    copied: Bool  # a graph replays it: it was copied from where the graph was captured
    launches: Bool  # whether GPU work is its own
    has_arguments: Bool  # whether their shapes or types are known
    scope: Hash  # hash of the name of the innermost module or scope around it, 0 for none
    named: Hash  # hash of its name
    signature: Hash  # hash of its name and arguments
    loose: Hash  # hash of the names of the whole subtree, in order
    strict: Hash  # hash of names and arguments of the whole subtree
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
        by_step: dict[int, dict[int, Int]] = {}
        for number, key, part in zip(step.tolist(), thread.tolist(), parts, strict=False):
            by_step.setdefault(number, {})[key] = part
        return by_step

    def children(self, node: int) -> Int:
        """What a node calls directly, in order of time."""
        order, first = self._by_parent
        children: Int = order[first[node + 1] : first[node + 2]]
        return children

    def below(self, nodes: Int) -> tuple[Int, Int]:
        """What nodes call directly, and the index of each one's caller among the nodes."""
        order, first = self._by_parent
        low, count = first[nodes + 1], first[nodes + 2] - first[nodes + 1]
        return order[_ranges(low, count)], np.repeat(np.arange(len(nodes)), count)

    @cached_property
    def chain(self) -> Int:
        """The end of each node's chain of single children."""
        ends = np.flatnonzero(np.append(self.size[:-1] != self.size[1:] + 1, True)[: len(self)])
        return ends[np.searchsorted(ends, np.arange(len(self)))]

    @cached_property
    def _by_loose(self) -> tuple[Int, Hash]:
        """Nodes that call others in order of `loose`, and that."""
        inner = np.flatnonzero(self.size > 1)
        order = inner[np.argsort(self.loose[inner], kind="stable")]
        return order, self.loose[order]

    def may_hold(self, nodes: Int, keys: Hash) -> bool:
        """Whether subtrees of these keys, of `loose`, may be inside of nodes: ascending, none inside another.

        The answer is exact where fewer nodes have the keys than there are inside, and else costs nothing.
        """
        order, loose = self._by_loose
        keys = np.unique(keys)
        low = np.searchsorted(loose, keys)
        count = np.searchsorted(loose, keys, side="right") - low
        if count.sum() > self.size[nodes].sum():
            return True
        holders = order[_ranges(low, count)]
        top = nodes[np.maximum(np.searchsorted(nodes, holders, side="right") - 1, 0)]
        return bool(((holders > top) & (holders < top + self.size[top])).any())

    @cached_property
    def leaf(self) -> Int:
        """Number of nodes without children before each node; one element more than nodes."""
        return np.concatenate(([0], np.cumsum(self.size == 1)))

    def leaf_counts(self, nodes: Int) -> Int:
        """Number of leaves of each subtree."""
        counts: Int = self.leaf[nodes + self.size[nodes]] - self.leaf[nodes]
        return counts

    @cached_property
    def _powers(self) -> tuple[Hash, Hash]:
        """Powers of the radix by which a leaf's hash is weighted, and their inverses modulo 2^64."""
        powers = np.full((2, int(self.leaf[-1]) + 1), 1, dtype=np.uint64)
        powers[:, 1:] = np.array([[_RADIX], [pow(_RADIX, -1, 1 << 64)]], dtype=np.uint64)
        power, inverse = np.multiply.accumulate(powers, axis=1)
        return power, inverse

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
            named: whether leaves differ by their names alone, and not by their arguments.
        """
        running, (power, inverse) = self._running[named], self._powers
        low, high = self.leaf[nodes], self.leaf[nodes + self.size[nodes]]
        count = np.concatenate(([0], np.cumsum(high - low)))
        # The hash of a node's leaves, moved from where they are in the forest to where they are in the list.
        part = (running[high] - running[low]) * inverse[low] * power[count[:-1]]
        begin = np.concatenate((np.zeros(1, dtype=np.uint64), np.cumsum(part, dtype=np.uint64)))
        return Leaves(count, begin, (begin[-1] - begin) * inverse[count])

    def within(self, nodes: Int) -> Int:
        """Nodes, none inside another, and all that they call."""
        return _ranges(nodes, self.size[nodes])

    def part(self, low: int, high: int) -> Forest:
        """The nodes from `low` up to `high`, between which whole trees lie."""
        parent = self.parent[low:high]
        columns = {name: getattr(self, name)[low:high] for name in _COLUMNS}
        return replace(self, parent=np.where(parent >= 0, parent - low, -1), **columns)

    @cached_property
    def _depth(self) -> Int:
        return depths(self.parent)

    @cached_property
    def _outer(self) -> Int:
        """The ancestor of each node that is the last of the outer end of a long path."""
        return nearest(self.parent, self._depth, self._depth == _OUTER - 1)

    def around(self, node: int) -> str:
        """Names of all that is around a node, outermost first; of many, those at both ends."""
        names: list[str] = []
        node = int(self.parent[node])
        while node >= 0:
            if len(names) == _OUTER and self._depth[node] >= _OUTER:
                names.append("…")
                node = int(self._outer[node])
            names.append(self.names[self.name[node]])
            node = int(self.parent[node])
        return " > ".join(reversed(names))


def _ranges(low: Int, count: Int) -> Int:
    """The integers from each `low` on, `count` of each, as one array."""
    before = np.cumsum(count) - count
    return np.repeat(low - before, count) + np.arange(int(count.sum()))


def forest(trace: Trace, marks: Int) -> Forest:
    """The forest of one rank.

    Python frames are left out: they change with versions of libraries that do the same work. `marks` are the
    begins of each step on the host, ns; what begins before the first one is part of it.
    """
    events = trace.arrays
    shown = events.where("op", "annotation") & ~matching(events.names, STEP_MARK)[events.name]
    rows = np.flatnonzero(shown)
    around = nearest(events.parent, events.depth, shown)
    above = lookup(around, events.parent[rows], -1)
    root = _root(rows, above, len(events.start))
    step = np.maximum(np.searchsorted(marks, events.start[root], side="right") - 1, 0)
    thread, _ = codes(events.pid[rows], events.tid[rows])
    order = np.lexsort((events.depth[rows], events.start[rows], thread, step))
    rows, above, step, thread = rows[order], above[order], step[order], thread[order]
    parent = lookup(events.places(rows), above, -1)
    depth = depths(parent)
    named = text_hashes(events.names)[events.name[rows]]
    arguments = _argument_hashes(trace)[rows]
    signature = _mixed(named + _MIX * arguments)
    sibling = occurrence(parent)
    return Forest(
        rows,
        events.name[rows],
        parent,
        subtree_sums(parent, depth, np.ones(len(rows), dtype=np.int64)),
        step,
        thread,
        events.start[rows],
        events.copied[rows],
        np.isin(rows, trace.work.op),
        arguments != 0,
        _scopes(trace, rows),
        named,
        signature,
        _subtree_hashes(named, parent, depth, sibling),
        _subtree_hashes(signature, parent, depth, sibling),
        events.names,
    )


def _scopes(trace: Trace, rows: Int) -> Hash:
    """A hash of the name of the innermost module or scope around each event, 0 for none."""
    events = trace.arrays
    frames = events.where("annotation") & ~matching(events.names, STEP_MARK)[events.name]
    frames |= events.where("python") & events.named(lambda name: name.startswith(_MODULE))
    around = lookup(nearest(events.parent, events.depth, frames), events.parent[rows], -1)
    return lookup(text_hashes(events.names), lookup(events.name, around, -1), 0)


def _root(rows: Int, above: Int, count: int) -> Int:
    """The outermost event around each of `rows`, by doubling the distance in each round."""
    up = np.arange(count)
    up[rows] = np.where(above >= 0, above, rows)
    while True:
        further = up[up]
        if (further == up).all():
            return up[rows]
        up = further


def occurrence(code: Int) -> Int:
    """How many equal values stand before each row."""
    order = np.argsort(code, kind="stable")
    grouped = code[order]
    number = np.empty(len(code), dtype=np.int64)
    number[order] = np.arange(len(code)) - np.searchsorted(grouped, grouped)
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
    result = np.zeros(len(trace.arrays.start), dtype=np.uint64)
    for weight, name in ((1, "shapes"), (3, "dtypes")):
        column = ops.columns[name]
        hashes = text_hashes(list(column.values))
        hashes[[not text for text in column.values]] = 0
        if len(hashes):
            result[ops.array("event_id")] += hashes[column.codes] * np.uint64(weight)
    return result


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
