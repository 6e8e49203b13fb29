"""Which call of one run is which call of the other: two forests aligned by names and structure."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from tracelens.arrays import Int
from tracelens.compare.diff.forest import Forest, Hash
from tracelens.compare.diff.graphs import replayed
from tracelens.compare.diff.wrappers import equal_ends, paired, same_leaves, twins, unwrapped

SAME, RENAMED, MOVED, ONLY, REPLACED, WRAPPER, DUPLICATE, REPLAYED = range(8)
"""What became of a call. With a counterpart: SAME, RENAMED, MOVED, REPLAYED (a graph does in one run what the
host calls in the other). Without: ONLY here (removed or added),
REPLACED (part of an exchange of several calls for others), WRAPPER (around others that are matched),
DUPLICATE (a repetition of its neighbor)."""

NOWHERE, EVEN, EVERYWHERE = range(3)
"""Where to look for anchors between the common begin and end of two lists: nowhere, among keys that both
sides have equally often, or among all."""


_LONG, _TIMES = 16, 4
"""Lists longer than the first and by more than this factor longer than the other did something else."""

_NONE = np.empty(0, dtype=np.int64)

_ROUNDS = 32
"""Searches of the gaps between anchors for keys that both sides have equally often."""


class Alignment(NamedTuple):
    """What became of each node of two forests."""

    match: Int  # counterpart in the candidate of each node of the base, -1 for none
    how: Int  # what became of each node of the base
    back: Int  # counterpart in the base of each node of the candidate, -1 for none
    how_back: Int  # what became of each node of the candidate
    # exchanges: nodes of the base that gave way to nodes of the candidate, outermost ones only
    groups: list[tuple[Int, Int]]


def align(base: Forest, cand: Forest, steps: Iterable[Sequence[tuple[Int, Int]]]) -> Alignment:
    """Align two forests.

    Equal subtrees at both ends of two lists are matched first, then what runs the same leaves inside other
    scopes, then subtrees of equal names, then calls of equal names. Keys that both lists have equally often
    go before the others: sizes differ from step to step, and what has the size of another by chance is no
    anchor. What remains between two matches is unwrapped, renamed, exchanged, removed or added.

    Args:
        base: of one run.
        cand: of the other.
        steps: of each pair of steps, roots of the base against roots of the candidate, one pair per thread.
    """
    aligner = _Aligner(base, cand)
    for pairs in steps:
        for roots in pairs:
            aligner.run(roots)
        aligner.finish_step()
    return aligner.result()


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
        sure = whole and where == EVEN
        if sure or not _differ_in_length(counts[0] - begin - end, counts[1] - begin - end):
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
        count = self._same_names(base, cand) if (stage, rounds) == (1, 0) else 1
        self.match[base : base + count] = np.arange(cand, cand + count)
        self.how[base : base + count] = self.how_back[cand : cand + count] = SAME
        return [self._below(base + count - 1, cand + count - 1)]

    def _same_names(self, base: int, cand: int) -> int:
        """How many nodes from these on, each the single child of the one before, have equal names."""
        longest = min(int(self.base.chain[base]) - base, int(self.cand.chain[cand]) - cand) + 1
        count, width = 0, 1
        while count < longest:
            high = min(count + width, longest)
            same = _common(
                self.base.named[base + count : base + high], self.cand.named[cand + count : cand + high]
            )
            if same < high - count:
                return count + same
            count, width = high, 2 * width
        return count

    def _match_twins(self, lists: _Lists) -> None:
        """Match what runs the same leaves."""
        pairs = twins(self.base, lists[0], self.cand, lists[1])
        for (nodes, partners), how in ((pairs.same, SAME), (pairs.renamed, RENAMED)):
            self.match[nodes] = partners
            self.how[nodes] = self.how_back[partners] = how
        self.how[pairs.wrappers[0]] = self.how_back[pairs.wrappers[1]] = WRAPPER

    def _below(self, base: int, cand: int) -> _Task:
        return (self.base.children(base), self.cand.children(cand)), 0, 0

    def _match_node(self, base: int, cand: int, how: int) -> _Task:
        """Match two nodes; returns the task for their children."""
        self.match[base] = cand
        self.how[base] = self.how_back[cand] = how
        return self._below(base, cand)

    def _match_subtrees(self, lists: _Lists, pairs: list[tuple[int, int]]) -> None:
        if not pairs:
            return
        rows = np.array(pairs)
        nodes, partners = self.base.within(lists[0][rows[:, 0]]), self.cand.within(lists[1][rows[:, 1]])
        self.match[nodes] = partners
        self.how[nodes] = self.how_back[partners] = SAME

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
        if len(base) == len(cand) and (len(base) == 1 or self._same_arguments(base, cand)):
            return [
                self._match_node(*nodes, RENAMED) for nodes in zip(base.tolist(), cand.tolist(), strict=True)
            ]
        self._unmatched.append(lists)
        return []

    def _same_arguments(self, base: Int, cand: Int) -> bool:
        """Whether as many nodes have the same arguments, in order: the same calls under other names."""
        base_arguments = self.base.signature[base] - self.base.named[base]
        cand_arguments = self.cand.signature[cand] - self.cand.named[cand]
        return np.array_equal(self.base.size[base], self.cand.size[cand]) and np.array_equal(
            base_arguments, cand_arguments
        )

    def finish_step(self) -> None:
        """Find what moved, what a graph replays and what was repeated in the lists since the last step.

        The rest is named. A graph keeps of a program only what launches GPU work: where it replays calls of a
        list, calls for others are replaced only where both launch some.
        """
        self._find_moved()
        self._find_replayed()
        for base_nodes, cand_nodes in self._unmatched:
            base = base_nodes[self.match[base_nodes] < 0]
            cand = cand_nodes[self.how_back[cand_nodes] == ONLY]
            if len(base) and len(cand) and self._both_launch(base, cand):
                self.groups.append((base, cand))
                for forest, nodes, how in ((self.base, base, self.how), (self.cand, cand, self.how_back)):
                    inside = forest.within(nodes)
                    how[inside[how[inside] == ONLY]] = REPLACED
            for node in cand.tolist() if not len(base) else []:
                if node and self._repeats(node):
                    self.how_back[node : node + int(self.cand.size[node])] = DUPLICATE
        self._unmatched.clear()

    def result(self) -> Alignment:
        back = np.full(len(self.cand), -1, dtype=np.int64)
        known = np.flatnonzero(self.match >= 0)
        back[self.match[known]] = known
        return Alignment(self.match, self.how, back, self.how_back, self.groups)

    def _find_moved(self) -> None:
        """Unmatched subtrees that both sides have exactly once have moved."""
        base_nodes, cand_nodes = (
            _unique(forest.strict, [node for lists in self._unmatched for node in lists[side].tolist()])
            for side, forest in enumerate((self.base, self.cand))
        )
        for key, cand in cand_nodes.items():
            if key in base_nodes:
                base, size = base_nodes[key], int(self.cand.size[cand])
                self.match[base : base + size] = np.arange(cand, cand + size)
                self.how[base : base + size] = self.how_back[cand : cand + size] = MOVED

    def _find_replayed(self) -> None:
        """Calls of one side that a graph of the other replays, in any order of threads and wrappers."""
        if not (self.base.copied.any() or self.cand.copied.any()):
            return
        lists = (np.concatenate([_NONE, *(nodes[side] for nodes in self._unmatched)]) for side in (0, 1))
        base, cand = (
            forest.within(nodes) for forest, nodes in zip((self.base, self.cand), lists, strict=True)
        )
        base, cand = base[self.match[base] < 0], cand[self.how_back[cand] == ONLY]
        base, cand = replayed(self.base, base, self.cand, cand)
        self.match[base] = cand
        self.how[base] = self.how_back[cand] = REPLAYED

    def _both_launch(self, base: Int, cand: Int) -> bool:
        """Whether both lists have unmatched GPU work, where a graph replays some of it."""
        base, cand = self.base.within(base), self.cand.within(cand)
        if not (self.base.copied[base].any() or self.cand.copied[cand].any()):
            return True
        in_base = self.base.launches[base] & (self.how[base] == ONLY)
        in_cand = self.cand.launches[cand] & (self.how_back[cand] == ONLY)
        return bool(in_base.any() and in_cand.any())

    def _repeats(self, node: int) -> bool:
        """Whether a node is the same as its neighbor before or behind it."""
        forest, key = self.cand, self.cand.strict[node]
        size, parent = int(forest.size[node]), forest.parent[node]
        neighbours = [other for other in (node - size, node + size) if 0 <= other < len(forest)]
        return any(forest.strict[other] == key and forest.parent[other] == parent for other in neighbours)


def _differ_in_length(base: int, cand: int) -> bool:
    """Whether two lists are too different in length for equal names in them to mean anything."""
    return max(base, cand) > _LONG and max(base, cand) > _TIMES * min(base, cand)


def _common(base: Hash, cand: Hash) -> int:
    """Length of the common begin of two lists."""
    count = min(len(base), len(cand))
    differs = np.flatnonzero(base[:count] != cand[:count])
    return int(differs[0]) if len(differs) else count


def _unique(keys: Hash, nodes: list[int]) -> dict[int, int]:
    """Key to node, of the nodes whose key no other has."""
    node_of = {int(keys[node]): node for node in nodes}
    count = Counter(int(keys[node]) for node in nodes)
    return {key: node for key, node in node_of.items() if count[key] == 1}


def _anchors(base: Hash, cand: Hash, where: int) -> list[tuple[int, int]]:
    """Rows with equal keys on both sides, the longest chain of them that is in order on both.

    Args:
        base: keys of one side; the n-th of a key here stands against the n-th of it there.
        cand: keys of the other.
        where: see NOWHERE.
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
    return _increasing(pairs[np.argsort(pairs[:, 0], kind="stable")])


def _increasing(pairs: Int) -> list[tuple[int, int]]:
    """The longest chain of pairs, ascending in the first, that ascends in the second as well."""
    rows = [(base, cand) for base, cand in pairs.tolist()]
    if not rows or (np.diff(pairs[:, 1]) > 0).all():
        return rows
    tails: list[int] = []
    ends: list[int] = []
    before: list[int] = []
    for number, (_, value) in enumerate(rows):
        length = bisect_left(tails, value)
        before.append(ends[length - 1] if length else -1)
        tails[length : length + 1], ends[length : length + 1] = [value], [number]
    chain: list[tuple[int, int]] = []
    number = ends[-1]
    while number >= 0:
        chain.append(rows[number])
        number = before[number]
    return chain[::-1]
