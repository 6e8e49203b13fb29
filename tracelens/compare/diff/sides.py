"""One rank of one run: its step time as pieces that add up to it, and its ops as a forest to be compared."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import fields, replace
from numpy.typing import NDArray

from tracelens.analysis.host import CAUSES, find_gaps, idle_pieces, threads
from tracelens.analysis.moe import UNATTRIBUTED, regions
from tracelens.analysis.roofline import repeats
from tracelens.arrays import Bool, Float, Int, lookup, unique
from tracelens.errors import TracelensError
from tracelens.table import codes, depths, nearest, subtree_sums
from tracelens.trace import (
    STEP_MARK,
    WORK_KINDS,
    Trace,
    Union,
    cut,
    launched_by_graph,
    matching,
    shares,
    steps_of,
)

OUTSIDE = "outside MoE layers"
NO_ROWS = np.empty(0, dtype=np.int64)


class IdleTime(NamedTuple):
    """Pieces of a rank's idle time, each within a step."""

    step: Int  # of each piece
    cause: Int  # code into the causes of idle time (see analysis/host/causes.py)
    after: Int  # position in Work of what ended the gap, -1 for none
    ns: Int  # of each piece


class RankSide:
    """One rank of one of two runs."""

    def __init__(self, trace: Trace) -> None:
        self.trace, self.rank, self.work = trace, trace.meta.rank, trace.work
        if not len(self.work.event):
            raise TracelensError(trace.meta.without_work("no GPU work, no step time to compare"))
        steps = steps_of(trace).only_whole()
        # Anything before the first and after the last mark is left out.
        self.edges, self.marks, self.labels = steps.edges, steps.marks, steps.labels
        self.marked = steps.marked
        self.step_ns: Int = np.diff(self.edges)
        # Activity, step and ns of each piece; overlapping activities share no time, as in the breakdown.
        row, window, ns = shares(self.work.start, self.work.end, self.work.kind.astype(np.int64), self.edges)
        counted = ns > 0
        self.row, self.step, self.ns = row[counted], window[counted], ns[counted]

    @property
    def steps(self) -> int:
        return len(self.labels)

    @cached_property
    def first_ns(self) -> int:
        return int(self.trace.arrays.start.min())

    @cached_property
    def forest(self) -> Forest:
        return forest(self.trace, self.marks[:-1])

    @cached_property
    def op(self) -> Int:
        """Event row of the op of each GPU activity, -1 for none.

        Activities launched before the recording began take the op of their repetition at its end.
        """
        repeat = repeats(self.work)
        return lookup(self.work.op, repeat, self.work.op)

    @cached_property
    def node_of_work(self) -> Int:
        """Forest node of the op of each GPU activity, -1 for none."""
        return lookup(self.trace.arrays.places(self.forest.event), self.op, -1)

    @cached_property
    def node(self) -> Int:
        """Forest node of the op of each piece, -1 for none."""
        return self.node_of_work[self.row]

    @cached_property
    def kernels(self) -> Hash:
        """A hash of the kernel names of each node, those that run beside others all the time among them."""
        hashes = np.zeros(len(self.forest), dtype=np.uint64)
        rows = np.flatnonzero(self.node_of_work >= 0)
        _, (node, name) = codes(self.node_of_work[rows], self.work.name[rows])
        np.add.at(hashes, node, text_hashes(self.work.names)[name])
        return hashes

    @cached_property
    def in_graph(self) -> Bool:
        """Of each GPU activity, whether a graph launched it."""
        return launched_by_graph(self.trace, self.work)

    @cached_property
    def begins(self) -> Int:
        """Of each piece, 1 if its activity begins in the step, 0 if before."""
        return (self.work.start[self.row] >= self.edges[self.step]).astype(np.int64)

    @cached_property
    def stage(self) -> Int:
        """MoE stage of each piece; UNATTRIBUTED + 1 outside of MoE layers."""
        stage = self.trace.once(regions).stage[self.row]
        return np.where(stage >= 0, stage, UNATTRIBUTED + 1)

    @cached_property
    def idle_time(self) -> IdleTime:
        gaps = find_gaps(self.work, self.edges)
        pieces = idle_pieces(self.trace, self.work, gaps)
        lasting = np.flatnonzero(self.step_ns)  # a step of no duration has no idle time
        windows = Union(self.edges[lasting], self.edges[lasting + 1])
        row, start, end = cut(pieces.start, pieces.end, windows)
        step = np.searchsorted(self.edges, start, side="right") - 1
        return IdleTime(step, pieces.cause[row], gaps.after[pieces.gap[row]], end - start)

    @cached_property
    def idle(self) -> Int:
        """Idle time by step and cause."""
        total = np.zeros((self.steps, len(CAUSES)), dtype=np.int64)
        np.add.at(total, (self.idle_time.step, self.idle_time.cause), self.idle_time.ns)
        return total

    def waiting(self, waits: Union) -> Float:
        """Share of each piece spent waiting for other ranks in communication; `waits` is by its own clock."""
        work = self.work
        share = np.zeros(len(self.row))
        comm = work.kind[self.row] == WORK_KINDS.index("comm")
        start, end = work.start[self.row[comm]], work.end[self.row[comm]]
        share[comm] = waits.covered(start, end) / np.maximum(end - start, 1)
        return share


Hash = NDArray[np.uint64]
_MIX = np.uint64(0xBF58476D1CE4E5B9)
_SHIFT = np.uint64(31)
_RADIX = 0x94D049BB133111EB
_MODULE = "nn.Module: "
_OUTER = 8
"""Names shown of each end of a long path."""


class PrefixHashes(NamedTuple):
    """Hashes of all prefixes of a list, from which that of any slice follows at once.

    Equal slices have equal hashes, wherever they are.
    """

    # of each prefix, from the empty one on: the sum of its items, weighted by powers of the radix
    total: Hash
    power: Hash  # of the radix, by which an item is weighted, and one more
    inverse: Hash  # of these powers, modulo 2^64

    @staticmethod
    def of(*lists: Hash) -> list[PrefixHashes]:
        """Of lists of one length, which share the powers."""
        powers = np.full((2, len(lists[0]) + 1), 1, dtype=np.uint64)
        powers[:, 1:] = np.array([[_RADIX], [pow(_RADIX, -1, 1 << 64)]], dtype=np.uint64)
        power, inverse = np.multiply.accumulate(powers, axis=1)
        totals = np.zeros((len(lists), len(power)), dtype=np.uint64)
        for total, items in zip(totals, lists, strict=True):
            np.cumsum(_mixed(items) * power[:-1], out=total[1:])
        return [PrefixHashes(total, power, inverse) for total in totals]

    def slices(self, low: Int, high: Int) -> Hash:
        """Hashes of the slices from each `low` up to its `high`."""
        hashes: Hash = (self.total[high] - self.total[low]) * self.inverse[low]
        return hashes


class LeafHashes(NamedTuple):
    """The leaves below a list of nodes, at each border between two of them and at both ends.

    Equal hashes of two lists mean that the same leaves follow each other there, whatever is around them.
    """

    number: Int  # of leaves before the border
    begin: Hash  # hash of these, in order
    end: Hash  # hash of those behind it


class Forest(Struct, frozen=True, dict=True):
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
    shapes: Hash  # hash of the shapes of its arguments, 0 for none
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
        # As many as have the parents before each, of which -1 is the first.
        return order, np.append(0, np.cumsum(np.bincount(self.parent + 1, minlength=len(self) + 1)))

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
        return np.repeat(ends, np.diff(ends, prepend=-1))

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
        keys = unique(keys)
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
        counts: Int = self.leaf[nodes + self.size[nodes]] - self.leaf[nodes]
        return counts

    @cached_property
    def _prefixes_of_leaves(self) -> dict[bool, PrefixHashes]:
        """Hashes of all leaves: by their names alone, and with their arguments."""
        leaves = np.flatnonzero(self.size == 1)
        by_name, by_arguments = PrefixHashes.of(self.named[leaves], self.signature[leaves])
        return {True: by_name, False: by_arguments}

    def leaves(self, nodes: Int, *, named: bool = False) -> LeafHashes:
        """The leaves below nodes, which are in order of time and none inside another, and those among them.

        If `named`, leaves differ by their names alone, and not by their arguments.
        """
        prefixes = self._prefixes_of_leaves[named]
        low, high = self.leaf[nodes], self.leaf[nodes + self.size[nodes]]
        count = np.concatenate(([0], np.cumsum(high - low)))
        # Moved from where they are in the forest to where they are in the list.
        part = prefixes.slices(low, high) * prefixes.power[count[:-1]]
        begin = np.concatenate((np.zeros(1, dtype=np.uint64), np.cumsum(part, dtype=np.uint64)))
        return LeafHashes(count, begin, (begin[-1] - begin) * prefixes.inverse[count])

    def within(self, nodes: Int) -> Int:
        """Nodes, none inside another, and all that they call."""
        return _ranges(nodes, self.size[nodes])

    def part(self, low: int, high: int) -> Forest:
        """The nodes from `low` up to `high`, between which whole trees lie."""
        columns = {
            column.name: getattr(self, column.name)[low:high]
            for column in fields(self)
            if column.name != "names"
        }
        columns["parent"] = np.where(columns["parent"] >= 0, columns["parent"] - low, -1)
        return replace(self, **columns)

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
    # The outermost event around each, by doubling the distance in each round.
    up = np.arange(len(events.start))
    up[rows] = np.where(above >= 0, above, rows)
    while ((further := up[up]) != up).any():
        up = further
    step = np.maximum(np.searchsorted(marks, events.start[up[rows]], side="right") - 1, 0)
    thread = threads(trace)[rows]
    order = np.lexsort((events.depth[rows], events.start[rows], thread, step))
    rows, above, step, thread = rows[order], above[order], step[order], thread[order]
    parent = lookup(events.places(rows), above, -1)
    size = subtree_sums(parent, depths(parent), np.ones(len(rows), dtype=np.int64))

    name_hashes = text_hashes(events.names)
    named = name_hashes[events.name[rows]]
    # Shapes and types of each event's arguments, 0 where none are recorded.
    ops = trace.tables["ops"]
    shapes: Hash = np.zeros(len(events.start), dtype=np.uint64)
    types: Hash = np.zeros(len(events.start), dtype=np.uint64)
    for hashed, name in ((shapes, "shapes"), (types, "dtypes")):
        column = ops.columns[name]
        hashes = text_hashes(column.values)
        if len(hashes):
            hashed[ops.array("event_id")] = hashes[column.codes]
    arguments: Hash = shapes + types * np.uint64(3)
    signature = _mixed(named + _MIX * arguments[rows])
    # The name of the innermost module or scope around each, 0 for none.
    frames = events.where("annotation") & ~matching(events.names, STEP_MARK)[events.name]
    frames |= events.where("python") & events.named(lambda name: name.startswith(_MODULE))
    frame = lookup(nearest(events.parent, events.depth, frames), events.parent[rows], -1)
    scope = lookup(name_hashes, lookup(events.name, frame, -1), 0)
    loose, strict = _subtree_hashes(size, named, signature)
    return Forest(
        event=rows,
        name=events.name[rows],
        parent=parent,
        size=size,
        step=step,
        thread=thread,
        start=events.start[rows],
        copied=events.copied[rows],
        launches=np.isin(rows, trace.work.op),
        has_arguments=arguments[rows] != 0,
        shapes=shapes[rows],
        scope=scope,
        named=named,
        signature=signature,
        loose=loose,
        strict=strict,
        names=events.names,
    )


def occurrence(code: Int) -> Int:
    """How many equal values stand before each row."""
    order = np.argsort(code, kind="stable")
    grouped = code[order]
    number = np.empty(len(code), dtype=np.int64)
    number[order] = np.arange(len(code)) - np.searchsorted(grouped, grouped)
    return number


def text_hashes(texts: Iterable[str]) -> Hash:
    """A hash of each text, the same on both sides; 0 of an empty one."""
    return np.array([*map(hash, texts)], dtype=np.int64).view(np.uint64)


def _mixed(values: Hash) -> Hash:
    result: Hash = (values ^ (values >> _SHIFT)) * _MIX
    return result


def _subtree_hashes(size: Int, *own: Hash) -> list[Hash]:
    """Hash of each subtree: of the own hashes of its nodes, and of how many are below each."""
    node, below = np.arange(len(size)), _MIX * size.astype(np.uint64)
    return [hashes.slices(node, node + size) for hashes in PrefixHashes.of(*(each + below for each in own))]
