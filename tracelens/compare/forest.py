"""The ops of one rank as a forest to be compared: who calls whom, in which order, with what arguments."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from tracelens.trace.callstack import nearest, subtree_sums
from tracelens.trace.steps import STEP_MARK
from tracelens.trace.trace import Trace

Int = NDArray[np.int64]
Hash = NDArray[np.uint64]

_CHILD = np.uint64(0x9E3779B97F4A7C15)
_MIX = np.uint64(0xBF58476D1CE4E5B9)
_SHIFT = np.uint64(31)


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
        own: hash of its name and arguments.
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
    own: Hash
    loose: Hash
    strict: Hash
    names: list[str]

    def __len__(self) -> int:
        return len(self.event)

    def roots(self, step: int, thread: int) -> Int:
        """Places of the roots of one thread in one step, in order of time."""
        return np.flatnonzero((self.parent < 0) & (self.step == step) & (self.thread == thread))

    def children(self, place: int) -> Int:
        """Places of what a node calls directly, in order of time."""
        inside = np.arange(place + 1, place + int(self.size[place]))
        below: Int = inside[self.parent[inside] == place]
        return below

    def within(self, nodes: Int) -> Int:
        """Places of some nodes, none inside another, and of all that they call."""
        size = self.size[nodes]
        before = np.cumsum(size) - size
        return np.repeat(nodes - before, size) + np.arange(int(size.sum()))

    def path(self, place: int) -> list[str]:
        """Names of a node and of all around it, outermost first."""
        found = []
        while place >= 0:
            found.append(self.names[self.name[place]])
            place = int(self.parent[place])
        return found[::-1]


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
    above = np.where(events.parent[rows] >= 0, around[np.maximum(events.parent[rows], 0)], -1)
    root = _root(rows, above, len(events.start))
    step = np.maximum(np.searchsorted(marks, events.start[root], side="right") - 1, 0)
    thread = events.pid[rows] * (int(events.tid.max(initial=0)) + 1) + events.tid[rows]
    order = np.lexsort((events.depth[rows], events.start[rows], thread, step))
    rows, above, step, thread = rows[order], above[order], step[order], thread[order]
    place = np.full(len(events.start), -1, dtype=np.int64)
    place[rows] = np.arange(len(rows))
    parent = np.where(above >= 0, place[np.maximum(above, 0)], -1)
    depth = _depth(parent)
    named = text_hashes(events.names)[events.name[rows]]
    own = _mixed(named + _MIX * _argument_hashes(trace)[rows])
    sibling = _sibling(parent)
    return Forest(
        rows,
        events.name[rows],
        parent,
        subtree_sums(parent, depth, np.ones(len(rows), dtype=np.int64)),
        step,
        thread,
        named,
        own,
        _subtree_hashes(named, parent, depth, sibling),
        _subtree_hashes(own, parent, depth, sibling),
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


def _depth(parent: Int) -> Int:
    """Number of ancestors."""
    depth = np.zeros(len(parent), dtype=np.int64)
    ancestor = parent
    while (found := ancestor >= 0).any():
        depth += found
        ancestor = np.where(found, parent[np.maximum(ancestor, 0)], -1)
    return depth


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


def _subtree_hashes(own: Hash, parent: Int, depth: Int, sibling: Int) -> Hash:
    """Hash of each subtree: of its own value and of its children's in order."""
    below = np.zeros(len(own), dtype=np.uint64)
    result = own.copy()
    weight = _mixed((sibling.astype(np.uint64) + np.uint64(1)) * _CHILD) | np.uint64(1)
    order = np.argsort(depth, kind="stable")
    borders = np.searchsorted(depth[order], np.arange(int(depth.max(initial=0)) + 2))
    for level in range(len(borders) - 2, -1, -1):
        rows = order[borders[level] : borders[level + 1]]
        result[rows] = _mixed(own[rows] + below[rows])
        if level:
            np.add.at(below, parent[rows], _mixed(result[rows]) * weight[rows])
    return result
