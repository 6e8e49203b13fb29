"""Which call of one run is which call of the other: two forests aligned by names and structure.

`align` goes through lists of siblings with ever weaker keys (`_Aligner`). What runs the same leaves inside
other scopes is matched around these, or `unwrapped`, and what a graph replays in one run only by the calls
themselves (`replayed`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from tracelens.arrays import Bool, Int, isin
from tracelens.compare.diff.sides import NO_ROWS, Forest, Hash, occurrence
from tracelens.compare.thresholds import HALF_OF_LEAVES, LONG_LIST, LONGER_TIMES
from tracelens.table import codes

SAME, RENAMED, MOVED, ONLY, REPLACED, WRAPPER, DUPLICATE, REPLAYED = range(8)
"""What became of a call. With a counterpart: SAME, RENAMED, MOVED, REPLAYED (a graph does in one run what the
host calls in the other). Without: ONLY here (removed or added),
REPLACED (part of an exchange of several calls for others), WRAPPER (around others that are matched),
DUPLICATE (a repetition of its neighbor)."""
NOWHERE, EVEN, EVERYWHERE = range(3)
"""Where to look for anchors between the common begin and end of two lists: nowhere, among keys that both
sides have equally often, or among all."""

_ROUNDS = 32
"""Searches of the gaps between anchors for keys that both sides have equally often."""


class ForestAlignment(NamedTuple):
    """What became of each node of two forests."""

    match: Int  # counterpart in the candidate of each node of the base, -1 for none
    how: Int  # what became of each node of the base
    back: Int  # counterpart in the base of each node of the candidate, -1 for none
    how_back: Int  # what became of each node of the candidate
    # exchanges: nodes of the base that gave way to nodes of the candidate, outermost ones only
    groups: list[tuple[Int, Int]]


_Lists = tuple[Int, Int]
"""Siblings of the base and of the candidate."""
_Task = tuple[_Lists, int, int]
"""Two lists, the next stage, and how many rounds of it there have been."""


class _Aligner:
    def __init__(self, base: Forest, cand: Forest) -> None:
        self.base, self.cand = base, cand
        self.match = np.full(len(base), -1, dtype=np.int64)
        self.how = np.full(len(base), ONLY, dtype=np.int64)
        self.how_back = np.full(len(cand), ONLY, dtype=np.int64)
        self.groups: list[_Lists] = []
        self._unmatched: list[_Lists] = []
        strict, loose, named = (
            (getattr(base, name), getattr(cand, name)) for name in ("strict", "loose", "named")
        )
        # Keys, whether equal ones are whole subtrees, and where anchors are: the surest first.
        self._stages = (
            (strict, True, NOWHERE),
            (loose, True, EVEN),
            (strict, True, EVEN),
            (loose, True, EVERYWHERE),
            (named, False, EVEN),
            (named, False, EVERYWHERE),
        )

    def run(self, roots: _Lists) -> None:
        """Align two lists of siblings and all below them."""
        tasks: list[_Task] = [(roots, 0, 0)]
        while tasks:
            lists, stage, rounds = tasks.pop()
            lengths = tuple(map(len, lists))
            if 0 in lengths:
                self._unmatched.append(lists)
            elif stage and lengths == (1, 1):
                tasks += self._single(lists, stage, rounds)
            elif stage < len(self._stages):
                tasks += self._stage(lists, stage, rounds)
            else:
                tasks += self._rest(lists)

    def _stage(self, lists: _Lists, stage: int, rounds: int) -> list[_Task]:
        """Match what has equal keys; returns what to do next."""
        keys_of, whole, where = self._stages[stage]
        (base, cand), counts = lists, (len(lists[0]), len(lists[1]))
        keys = keys_of[0][base], keys_of[1][cand]
        begin = _common(*keys)
        end = _common(*(key[begin:][::-1] for key in keys))
        inner = slice(begin, counts[0] - end), slice(begin, counts[1] - end)
        anchors = []
        # Where two lists are too different in length, equal names in them mean nothing.
        shorter, longer = sorted(count - begin - end for count in counts)
        too_different = longer > LONG_LIST and longer > LONGER_TIMES * shorter
        if (whole and where == EVEN) or not too_different:
            anchors = _anchors(keys[0][inner[0]], keys[1][inner[1]], where)
        pairs = [
            *((row, row) for row in range(begin)),
            *((base_row + begin, cand_row + begin) for base_row, cand_row in anchors),
            *((counts[0] - row, counts[1] - row) for row in range(end, 0, -1)),
        ]
        if where == NOWHERE:
            self._match_subtrees(lists, pairs)
            lists = base, cand = base[inner[0]], cand[inner[1]]
            if len(base) and len(cand) and same_leaves(self.base, base, self.cand, cand):
                self._match_twins(lists)
                return []
            return [(lists, 1, 0)] if len(base) or len(cand) else []
        if not pairs:
            return [(lists, stage + 1, 0)]
        tasks: list[_Task] = []
        if whole:
            self._match_subtrees(lists, pairs)
        else:
            for base_row, cand_row in pairs:
                tasks.append(self._match_node(int(base[base_row]), int(cand[cand_row]), SAME))
        # Between anchors, keys may be even that were not so before.
        again = (stage, rounds + 1) if anchors and where == EVEN and rounds < _ROUNDS else (stage + 1, 0)
        after = (0, 0)
        for base_row, cand_row in [*pairs, counts]:
            gap = base[after[0] : base_row], cand[after[1] : cand_row]
            if len(gap[0]) or len(gap[1]):
                tasks.append((gap, *again))
            after = base_row + 1, cand_row + 1
        return tasks

    def _single(self, lists: _Lists, stage: int, rounds: int) -> list[_Task]:
        """One node against one: the first key in which they are equal decides.

        What comes from the first stage runs other leaves, and so do single children all the way down: of
        these only the names can be equal.
        """
        base, cand = (int(nodes[0]) for nodes in lists)
        wholes = [whole for keys, whole, _ in self._stages[stage:] if keys[0][base] == keys[1][cand]]
        if not wholes:
            return self._rest(lists)
        if wholes[0]:
            self._match_subtrees(lists, [(0, 0)])
            return []
        count = 1
        if (stage, rounds) == (1, 0):
            # All nodes from these on, each the single child of the one before, whose names are equal.
            longest = min(int(self.base.chain[base]) - base, int(self.cand.chain[cand]) - cand) + 1
            count, width = 0, 1
            while count < longest:
                high = min(count + width, longest)
                named = self.base.named[base + count : base + high]
                count, width = count + _common(named, self.cand.named[cand + count : cand + high]), 2 * width
                if count < high:
                    break
        self.match[base : base + count] = np.arange(cand, cand + count)
        self.how[base : base + count] = self.how_back[cand : cand + count] = SAME
        return [self._below(base + count - 1, cand + count - 1)]

    def _match_twins(self, lists: _Lists) -> None:
        """Match two lists with the same leaves, and all below them.

        Leaves are matched by position, other nodes if they are around the same leaves and have one name. Of
        the rest around the same leaves, equally many on both sides are renamed; otherwise they are wrappers.
        """
        extents = _extents(self.base, lists[0]), _extents(self.cand, lists[1])
        sizes = [
            forest.size[nodes] for forest, (nodes, *_) in zip((self.base, self.cand), extents, strict=True)
        ]
        leaves = [nodes[size == 1] for (nodes, *_), size in zip(extents, sizes, strict=True)]
        inner, low, high = (
            [column[size > 1] for column, size in zip(columns, sizes, strict=True)]
            for columns in zip(*extents, strict=True)
        )
        extent, _ = codes(np.concatenate(low), np.concatenate(high))
        # Names have hashes up to 2^64; codes compare them as they are.
        name = np.concatenate((self.base.named[inner[0]], self.cand.named[inner[1]])).view(np.int64)
        count = len(inner[0])
        group, _ = codes(extent, name)
        same = paired(group[:count], group[count:])
        rest = [np.delete(np.arange(len(nodes)), rows) for nodes, rows in zip(inner, same, strict=True)]
        # Of the rest, rows of which both sides have equally many around the same leaves.
        extents_of = extent[:count], extent[count:]
        most = int(extent.max(initial=0)) + 1
        counts = [np.bincount(own[rows], minlength=most) for own, rows in zip(extents_of, rest, strict=True)]
        even = counts[0] == counts[1]
        base_rest, cand_rest = (rows[even[own[rows]]] for own, rows in zip(extents_of, rest, strict=True))
        base_rows, cand_rows = paired(extents_of[0][base_rest], extents_of[1][cand_rest])
        renamed = base_rest[base_rows], cand_rest[cand_rows]
        for nodes, partners, how in (
            (leaves[0], leaves[1], SAME),
            (inner[0][same[0]], inner[1][same[1]], SAME),
            (inner[0][renamed[0]], inner[1][renamed[1]], RENAMED),
        ):
            self.match[nodes] = partners
            self.how[nodes] = self.how_back[partners] = how
        for side, hows in enumerate((self.how, self.how_back)):
            hows[inner[side][rest[side][~np.isin(rest[side], renamed[side])]]] = WRAPPER

    def _below(self, base: int, cand: int) -> _Task:
        return (self.base.children(base), self.cand.children(cand)), 0, 0

    def _match_node(self, base: int, cand: int, how: int) -> _Task:
        """Match two nodes; returns the task for their children."""
        self.match[base] = cand
        self.how[base] = self.how_back[cand] = how
        return self._below(base, cand)

    def _match_subtrees(self, lists: _Lists, pairs: list[tuple[int, int]], how: int = SAME) -> None:
        if not pairs:
            return
        rows = np.array(pairs)
        nodes, partners = self.base.within(lists[0][rows[:, 0]]), self.cand.within(lists[1][rows[:, 1]])
        self.match[nodes] = partners
        self.how[nodes] = self.how_back[partners] = how

    def _rest(self, lists: _Lists) -> list[_Task]:
        """What has no equal between two matches: unwrap, rename, or leave it as an exchange."""
        base, cand = lists
        begin, end = equal_ends(self.base, base, self.cand, cand)
        if begin != (0, 0) or end != (len(base), len(cand)):
            self._match_twins((base[: begin[0]], cand[: begin[1]]))
            self._match_twins((base[end[0] :], cand[end[1] :]))
            base, cand = base[begin[0] : end[0]], cand[begin[1] : end[1]]
            return [((base, cand), 0, 0)] if len(base) or len(cand) else []
        if (opened := unwrapped(self.cand, cand, self.base, base)) is not None:
            self.how_back[opened[1]] = WRAPPER
            return [((base, opened[0]), 0, 0)]
        if (opened := unwrapped(self.base, base, self.cand, cand)) is not None:
            self.how[opened[1]] = WRAPPER
            return [((opened[0], cand), 0, 0)]
        # As many calls with the same arguments, in order, are the same calls under other names.
        base_arguments = self.base.signature[base] - self.base.named[base]
        cand_arguments = self.cand.signature[cand] - self.cand.named[cand]
        if len(base) == len(cand) and (
            len(base) == 1
            or (
                np.array_equal(self.base.size[base], self.cand.size[cand])
                and np.array_equal(base_arguments, cand_arguments)
            )
        ):
            return [
                self._match_node(*nodes, RENAMED) for nodes in zip(base.tolist(), cand.tolist(), strict=True)
            ]
        self._unmatched.append(lists)
        return []

    def finish_step(self) -> None:
        """Find what moved, what a graph replays and what was repeated in the lists since the last step.

        The rest is named. A graph keeps of a program only what launches GPU work: where it replays calls of a
        list, calls for others are replaced only where both launch some.
        """
        base_roots, cand_roots = (
            np.concatenate([NO_ROWS, *(nodes[side] for nodes in self._unmatched)]) for side in (0, 1)
        )
        # Unmatched subtrees that both sides have exactly once have moved.
        base, cand = _single(self.base.strict, base_roots), _single(self.cand.strict, cand_roots)
        _, base_rows, cand_rows = np.intersect1d(
            self.base.strict[base], self.cand.strict[cand], assume_unique=True, return_indices=True
        )
        self._match_subtrees((base, cand), [*zip(base_rows.tolist(), cand_rows.tolist(), strict=True)], MOVED)
        if self.base.copied.any() or self.cand.copied.any():
            # Calls of one side that a graph of the other replays, in any order of threads and wrappers.
            base, cand = self.base.within(base_roots), self.cand.within(cand_roots)
            base, cand = base[self.match[base] < 0], cand[self.how_back[cand] == ONLY]
            base, cand = replayed(self.base, base, self.cand, cand)
            self.match[base] = cand
            self.how[base] = self.how_back[cand] = REPLAYED
        for base_nodes, cand_nodes in self._unmatched:
            base = base_nodes[self.match[base_nodes] < 0]
            cand = cand_nodes[self.how_back[cand_nodes] == ONLY]
            sides = ((self.base, base, self.how), (self.cand, cand, self.how_back))
            if len(base) and len(cand):
                inside = [forest.within(nodes) for forest, nodes, _ in sides]
                has_graphs = any(
                    forest.copied[nodes].any() for (forest, *_), nodes in zip(sides, inside, strict=True)
                )
                if not has_graphs or all(
                    (forest.launches[nodes] & (how[nodes] == ONLY)).any()
                    for (forest, _, how), nodes in zip(sides, inside, strict=True)
                ):
                    self.groups.append((base, cand))
                    for (_, _, how), nodes in zip(sides, inside, strict=True):
                        how[nodes[how[nodes] == ONLY]] = REPLACED
            elif len(cand):
                strict, parent = self.cand.strict, self.cand.parent
                for node in cand.tolist():
                    size = int(self.cand.size[node])
                    neighbours = [near for near in (node - size, node + size) if 0 <= near < len(self.cand)]
                    if node and any(
                        strict[near] == strict[node] and parent[near] == parent[node] for near in neighbours
                    ):
                        self.how_back[node : node + size] = DUPLICATE
        self._unmatched.clear()

    def result(self) -> ForestAlignment:
        back = np.full(len(self.cand), -1, dtype=np.int64)
        known = np.flatnonzero(self.match >= 0)
        back[self.match[known]] = known
        return ForestAlignment(self.match, self.how, back, self.how_back, self.groups)


Border = tuple[int, int]


def align(base: Forest, cand: Forest, steps: Iterable[Sequence[tuple[Int, Int]]]) -> ForestAlignment:
    """Align two forests.

    Equal subtrees at both ends of two lists are matched first, then what runs the same leaves inside other
    scopes, then subtrees of equal names, then calls of equal names. Keys that both lists have equally often
    go before the others: sizes differ from step to step, and what has the size of another by chance is no
    anchor. What remains between two matches is unwrapped, renamed, exchanged, removed or added.

    `steps` has, of each pair of steps, roots of the base against roots of the candidate, one pair per thread.
    """
    aligner = _Aligner(base, cand)
    for pairs in steps:
        for roots in pairs:
            aligner.run(roots)
        aligner.finish_step()
    return aligner.result()


def _common(base: Hash, cand: Hash) -> int:
    """Length of the common begin of two lists."""
    count = min(len(base), len(cand))
    differs = base[:count] != cand[:count]
    return int(differs.argmax()) if differs.any() else count


def _single(keys: Hash, nodes: Int) -> Int:
    """The nodes whose key no other of them has."""
    _, first, count = np.unique(keys[nodes], return_index=True, return_counts=True)
    single: Int = nodes[first[count == 1]]
    return single


def _anchors(base: Hash, cand: Hash, where: int) -> list[tuple[int, int]]:
    """Rows with equal keys on both sides, the longest chain of them that is in order on both.

    The n-th of a key here stands against the n-th of it there; `where` is as of NOWHERE.
    """
    if where == NOWHERE or not len(base) or not len(cand):
        return []
    keys, code = np.unique(np.concatenate((base, cand)), return_inverse=True)
    codes = code[: len(base)], code[len(base) :]
    rows = tuple(np.arange(len(side)) for side in codes)
    if where == EVEN:
        base_count, cand_count = (np.bincount(side, minlength=len(keys)) for side in codes)
        even = base_count == cand_count
        rows = tuple(np.flatnonzero(even[side]) for side in codes)
    matched = paired(codes[0][rows[0]], codes[1][rows[1]])
    pairs = np.stack((rows[0][matched[0]], rows[1][matched[1]]), axis=1)
    pairs = pairs[np.argsort(pairs[:, 0], kind="stable")]
    in_order = [(base_row, cand_row) for base_row, cand_row in pairs.tolist()]
    if not in_order or (np.diff(pairs[:, 1]) > 0).all():
        return in_order
    # The longest chain of pairs, ascending in the first, that ascends in the second as well.
    tails: list[int] = []
    ends: list[int] = []
    before: list[int] = []
    for number, (_, value) in enumerate(in_order):
        length = bisect_left(tails, value)
        before.append(ends[length - 1] if length else -1)
        tails[length : length + 1], ends[length : length + 1] = [value], [number]
    chain: list[tuple[int, int]] = []
    number = ends[-1]
    while number >= 0:
        chain.append(in_order[number])
        number = before[number]
    return chain[::-1]


def same_leaves(base: Forest, base_nodes: Int, cand: Forest, cand_nodes: Int) -> bool:
    """Whether two lists run leaves of the same names, whatever is around these."""
    if base.leaf_counts(base_nodes).sum() != cand.leaf_counts(cand_nodes).sum():
        return False
    sides = base.leaves(base_nodes, named=True), cand.leaves(cand_nodes, named=True)
    return bool(sides[0].begin[-1] == sides[1].begin[-1])


def equal_ends(base: Forest, base_nodes: Int, cand: Forest, cand_nodes: Int) -> tuple[Border, Border]:
    """Where the parts at both ends of two lists that run the same leaves, with the same arguments, stop.

    As rows in both lists: after the part at their begin, and where the part at their end starts.
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


def unwrapped(forest: Forest, nodes: Int, other: Forest, other_nodes: Int) -> tuple[Int, Int] | None:
    """The nodes, with those that are around nodes of the other list replaced by what they are around.

    A direct child counts by its name. Where there is none, what lies deeper counts where whole subtrees of
    the other list make at least half of the leaves below a node: names such as aten::empty are everywhere.
    In order, with those that were replaced; None where there are none.
    """
    below, caller = forest.below(nodes)
    direct = isin(forest.named[below], other.named[other_nodes])
    if direct.any():
        opened = np.zeros(len(nodes), dtype=bool)
        opened[caller[direct]] = True
        return np.sort(np.concatenate((nodes[~opened], below[opened[caller]]))), nodes[opened]
    keys = other.loose[other_nodes[other.size[other_nodes] > 1]]
    if not forest.may_hold(nodes, keys):
        return None
    inside = forest.within(nodes)
    top = np.repeat(np.arange(len(nodes)), forest.size[nodes])
    is_top = inside == nodes[top]
    matched = isin(forest.loose[inside], keys) & ~is_top & (forest.size[inside] > 1)
    # The outermost ones: those inside none of the others.
    reach = np.maximum.accumulate(np.where(matched, inside + forest.size[inside], 0))
    matched &= np.concatenate(([0], reach[:-1])) <= inside
    matched_leaves = np.bincount(top[matched], forest.leaf_counts(inside[matched]), minlength=len(nodes))
    matched &= (matched_leaves >= HALF_OF_LEAVES * forest.leaf_counts(nodes))[top]
    if not matched.any():
        return None
    running = np.concatenate(([0], np.cumsum(matched)))
    row = np.arange(len(inside))
    wraps = (running[row + forest.size[inside]] > running[row]) & ~matched
    # Kept is what is at the top, or below a wrapper, and no wrapper itself.
    wrappers = inside[wraps]
    kept = ~wraps & (is_top | np.isin(forest.parent[inside], wrappers))
    return inside[kept], wrappers


def replayed(base: Forest, base_nodes: Int, cand: Forest, cand_nodes: Int) -> tuple[Int, Int]:
    """Pairs of equal calls of which a graph replays at least one.

    Calls of equal names and arguments are paired in order, first those in the same module or scope. A call
    that a graph replays without known arguments is paired by its name last.
    """
    nodes = [base_nodes, cand_nodes]
    pairs: list[tuple[Int, Int]] = []
    keys_of: tuple[Callable[[Forest, Int], Hash], ...] = (
        lambda forest, rows: forest.signature[rows] + np.uint64(3) * forest.scope[rows],
        lambda forest, rows: forest.signature[rows],
        lambda forest, rows: forest.named[rows],
    )
    for keys in keys_of:
        nodes = [
            side[np.argsort(forest.start[side], kind="stable")]
            for forest, side in zip((base, cand), nodes, strict=True)
        ]
        base_keys, cand_keys = (keys(forest, side) for forest, side in zip((base, cand), nodes, strict=True))
        _, codes = np.unique(np.concatenate((base_keys, cand_keys)), return_inverse=True)
        rows, partners = paired(codes[: len(base_keys)], codes[len(base_keys) :])
        in_graph = base.copied[nodes[0][rows]] | cand.copied[nodes[1][partners]]
        if keys is keys_of[-1]:
            in_graph &= bare(base, nodes[0][rows]) | bare(cand, nodes[1][partners])
        rows, partners = rows[in_graph], partners[in_graph]
        pairs.append((nodes[0][rows], nodes[1][partners]))
        nodes = [np.delete(side, taken) for side, taken in zip(nodes, (rows, partners), strict=True)]
    base_rows, cand_rows = (np.concatenate(side) for side in zip(*pairs, strict=True))
    return base_rows, cand_rows


def bare(forest: Forest, nodes: Int) -> Bool:
    """Which calls a graph replays whose arguments are not known."""
    return forest.copied[nodes] & ~forest.has_arguments[nodes]
