"""Which call of one run is which call of the other: two forests aligned by names and structure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from tracelens.arrays import Int
from tracelens.compare.diff.forest import Forest, Hash
from tracelens.compare.diff.wrappers import equal_ends, occurrence, same_leaves, twins, unwrapped

SAME, RENAMED, MOVED, ONLY, REPLACED, WRAPPER, DUPLICATE = range(7)
"""What became of a call. With a counterpart: SAME, RENAMED, MOVED. Without: ONLY here (removed or added),
REPLACED (part of an exchange of several calls for others), WRAPPER (around others that are matched),
DUPLICATE (a repetition of its neighbour)."""

NOWHERE, EVEN, EVERYWHERE = range(3)
"""Where anchors are looked for between the common begin and end of two lists: nowhere, among keys that both
sides have equally often, or among all."""


_LONG, _TIMES = 16, 4
"""A list of more entries than the first, and so many times as many as the other, did something else."""

_ROUNDS = 32
"""So many times the gaps between anchors are searched again for keys that both sides have equally often."""


class Alignment(NamedTuple):
    """What became of each node of two forests.

    Attributes:
        match: of each node of the first, its counterpart in the second, -1 for none.
        how: what became of each node of the first.
        back: of each node of the second, its counterpart in the first, -1 for none.
        how_back: what became of each node of the second.
        groups: exchanges: nodes of the first that gave way to nodes of the second, outermost ones only.
    """

    match: Int
    how: Int
    back: Int
    how_back: Int
    groups: list[tuple[Int, Int]]


def align(first: Forest, second: Forest, steps: Iterable[Sequence[tuple[Int, Int]]]) -> Alignment:
    """Align two forests.

    Equal subtrees at both ends of two lists are matched first, then what runs the same leaves inside other
    scopes, then subtrees of equal names, then calls of equal names. Keys that both lists have equally often
    go before the others: sizes differ from step to step, and what has the size of another by chance is no
    anchor. What is left between two matches is unwrapped, renamed, exchanged, removed or added.

    Args:
        first: of one run.
        second: of the other.
        steps: of each pair of steps, roots of the first against roots of the second, a thread each.
    """
    aligner = _Aligner(first, second)
    for pairs in steps:
        for ours, theirs in pairs:
            aligner.run(ours, theirs)
        aligner.finish_step()
    return aligner.result()


_Task = tuple[Int, Int, int, int]
"""Two lists, the next stage, and how many rounds of it there have been."""


class _Aligner:
    def __init__(self, first: Forest, second: Forest) -> None:
        self.first, self.second = first, second
        self.match = np.full(len(first), -1, dtype=np.int64)
        self.how = np.full(len(first), ONLY, dtype=np.int64)
        self.how_back = np.full(len(second), ONLY, dtype=np.int64)
        self.groups: list[tuple[Int, Int]] = []
        self._left: list[tuple[Int, Int]] = []
        strict, loose, named = (
            (getattr(first, name), getattr(second, name)) for name in ("strict", "loose", "named")
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

    def run(self, ours: Int, theirs: Int) -> None:
        """Align two lists of siblings and all below them."""
        waiting = [(ours, theirs, 0, 0)]
        while waiting:
            one, other, stage, rounds = waiting.pop()
            if not len(one) or not len(other):
                self._left.append((one, other))
            elif stage and len(one) == len(other) == 1:
                waiting += self._single(one, other, stage, rounds)
            elif stage < len(self._stages):
                waiting += self._stage(one, other, stage, rounds)
            else:
                waiting += self._rest(one, other)

    def _stage(self, one: Int, other: Int, stage: int, rounds: int) -> list[_Task]:
        """Match what has equal keys. Returns what is to be done next."""
        (mine, theirs), whole, where = self._stages[stage]
        keys = mine[one], theirs[other]
        begin = _common(keys[0], keys[1])
        end = _common(keys[0][begin:][::-1], keys[1][begin:][::-1])
        pairs = [(at, at) for at in range(begin)]
        inner = slice(begin, len(one) - end), slice(begin, len(other) - end)
        found = []
        sure = whole and where == EVEN
        if sure or not _unequal(len(one) - begin - end, len(other) - begin - end):
            found = _anchors(keys[0][inner[0]], keys[1][inner[1]], where)
        pairs += [(a + begin, b + begin) for a, b in found]
        pairs += [(len(one) - at, len(other) - at) for at in range(end, 0, -1)]
        if where == NOWHERE:
            self._match_runs(one, other, pairs)
            one, other = one[inner[0]], other[inner[1]]
            if len(one) and len(other) and same_leaves(self.first, one, self.second, other):
                self._match_twins(one, other)
                return []
            return [(one, other, 1, 0)] if len(one) or len(other) else []
        if not pairs:
            return [(one, other, stage + 1, 0)]
        # Between anchors, keys may be even that were not so before.
        again = (stage, rounds + 1) if found and where == EVEN and rounds < _ROUNDS else (stage + 1, 0)
        todo: list[_Task] = []
        if whole:
            self._match_runs(one, other, pairs)
        else:
            for a, b in pairs:
                self._match_node(int(one[a]), int(other[b]), SAME)
                todo.append((*self._below(int(one[a]), int(other[b])), 0, 0))
        last = (-1, -1)
        for a, b in [*pairs, (len(one), len(other))]:
            gap = one[last[0] + 1 : a], other[last[1] + 1 : b]
            if len(gap[0]) or len(gap[1]):
                todo.append((*gap, *again))
            last = (a, b)
        return todo

    def _single(self, one: Int, other: Int, stage: int, rounds: int) -> list[_Task]:
        """One node against one: the first key in which they are equal decides.

        What comes from the first stage runs other leaves, and so do single children all the way down: of
        these only the names can be equal.
        """
        a, b = int(one[0]), int(other[0])
        wholes = [whole for (mine, theirs), whole, _ in self._stages[stage:] if mine[a] == theirs[b]]
        if not wholes:
            return self._rest(one, other)
        if wholes[0]:
            self._match_runs(one, other, [(0, 0)])
            return []
        count = self._same_names(a, b) if (stage, rounds) == (1, 0) else 1
        self.match[a : a + count] = np.arange(b, b + count)
        self.how[a : a + count] = self.how_back[b : b + count] = SAME
        return [(*self._below(a + count - 1, b + count - 1), 0, 0)]

    def _same_names(self, one: int, other: int) -> int:
        """How many nodes from these on, each the single child of the one before, have equal names."""
        longest = min(int(self.first.chain[one]) - one, int(self.second.chain[other]) - other) + 1
        count, width = 0, 1
        while count < longest:
            high = min(count + width, longest)
            names = (
                self.first.named[one + count : one + high],
                self.second.named[other + count : other + high],
            )
            same = _common(*names)
            if same < high - count:
                return count + same
            count, width = high, 2 * width
        return count

    def _match_twins(self, one: Int, other: Int) -> None:
        """Match what runs the same leaves."""
        pairs = twins(self.first, one, self.second, other)
        for (mine, partners), how in ((pairs.same, SAME), (pairs.renamed, RENAMED)):
            self.match[mine] = partners
            self.how[mine] = self.how_back[partners] = how
        for wrappers, what in zip(pairs.wrappers, (self.how, self.how_back), strict=True):
            what[wrappers] = WRAPPER

    def _below(self, one: int, other: int) -> tuple[Int, Int]:
        return self.first.children(one), self.second.children(other)

    def _match_node(self, one: int, other: int, how: int) -> None:
        self.match[one] = other
        self.how[one] = self.how_back[other] = how

    def _match_runs(self, one: Int, other: Int, pairs: list[tuple[int, int]]) -> None:
        if not pairs:
            return
        places = np.array(pairs)
        mine, theirs = self.first.within(one[places[:, 0]]), self.second.within(other[places[:, 1]])
        self.match[mine] = theirs
        self.how[mine] = self.how_back[theirs] = SAME

    def _rest(self, one: Int, other: Int) -> list[_Task]:
        """What has no equal between two matches: unwrap, rename, or leave it as an exchange."""
        begin, end = equal_ends(self.first, one, self.second, other)
        if begin != (0, 0) or end != (len(one), len(other)):
            self._match_twins(one[: begin[0]], other[: begin[1]])
            self._match_twins(one[end[0] :], other[end[1] :])
            one, other = one[begin[0] : end[0]], other[begin[1] : end[1]]
            return [(one, other, 0, 0)] if len(one) or len(other) else []
        if (found := unwrapped(self.second, other, self.first, one)) is not None:
            self.how_back[found[1]] = WRAPPER
            return [(one, found[0], 0, 0)]
        if (found := unwrapped(self.first, one, self.second, other)) is not None:
            self.how[found[1]] = WRAPPER
            return [(found[0], other, 0, 0)]
        if len(one) == len(other) and (len(one) == 1 or self._alike(one, other)):
            todo: list[_Task] = []
            for a, b in zip(one.tolist(), other.tolist(), strict=True):
                self._match_node(a, b, RENAMED)
                todo.append((*self._below(a, b), 0, 0))
            return todo
        self._left.append((one, other))
        return []

    def _alike(self, one: Int, other: Int) -> bool:
        """Whether as many nodes have the same arguments, in order: the same calls under other names."""
        mine = self.first.signature[one] - self.first.named[one]
        theirs = self.second.signature[other] - self.second.named[other]
        same: bool = bool((self.first.size[one] == self.second.size[other]).all()) and bool(
            (mine != theirs).sum() == 0
        )
        return same

    def finish_step(self) -> None:
        """Find what moved and what was repeated in the lists since the last step, and name the rest."""
        self._moved()
        for ours, theirs in self._left:
            one = ours[self.match[ours] < 0]
            other = theirs[self.how_back[theirs] == ONLY]
            if len(one) and len(other):
                self.groups.append((one, other))
                self._mark(self.first, one, self.how)
                self._mark(self.second, other, self.how_back)
            for node in other.tolist() if not len(one) else []:
                if node and self._repeats(node):
                    self.how_back[node : node + int(self.second.size[node])] = DUPLICATE
        self._left.clear()

    def result(self) -> Alignment:
        back = np.full(len(self.second), -1, dtype=np.int64)
        known = np.flatnonzero(self.match >= 0)
        back[self.match[known]] = known
        return Alignment(self.match, self.how, back, self.how_back, self.groups)

    def _mark(self, forest: Forest, nodes: Int, how: Int) -> None:
        inside = forest.within(nodes)
        how[inside[how[inside] == ONLY]] = REPLACED

    def _moved(self) -> None:
        """What is left on both sides, once each, has moved."""
        ours = [node for one, _ in self._left for node in one.tolist()]
        theirs = [node for _, other in self._left for node in other.tolist()]
        place = _once(self.first.strict, ours)
        for key, b in _once(self.second.strict, theirs).items():
            if key in place:
                a, size = place[key], int(self.second.size[b])
                self.match[a : a + size] = np.arange(b, b + size)
                self.how[a : a + size] = self.how_back[b : b + size] = MOVED

    def _repeats(self, node: int) -> bool:
        """Whether a node is the same as its neighbour before or behind it."""
        forest, key = self.second, self.second.strict[node]
        size, parent = int(forest.size[node]), forest.parent[node]
        beside = [at for at in (node - size, node + size) if 0 <= at < len(forest)]
        return any(forest.strict[at] == key and forest.parent[at] == parent for at in beside)


def _unequal(one: int, other: int) -> bool:
    """Whether two lists are too different in length for equal names in them to mean anything."""
    return max(one, other) > _LONG and max(one, other) > _TIMES * min(one, other)


def _common(one: Hash, other: Hash) -> int:
    """Length of the common begin of two lists."""
    count = min(len(one), len(other))
    differs = np.flatnonzero(one[:count] != other[:count])
    return int(differs[0]) if len(differs) else count


def _once(keys: Hash, nodes: list[int]) -> dict[int, int]:
    """Key to node, of the nodes whose key no other has."""
    found: dict[int, int] = {}
    seen: set[int] = set()
    for node in nodes:
        key = int(keys[node])
        if key in seen:
            found.pop(key, None)
        else:
            seen.add(key)
            found[key] = node
    return found


def _anchors(one: Hash, other: Hash, where: int) -> list[tuple[int, int]]:
    """Places with equal keys on both sides, the longest chain of them that is in order on both.

    Args:
        one: keys of one side; the n-th of a key here stands against the n-th of it there.
        other: keys of the other.
        where: see NOWHERE.
    """
    if where == NOWHERE or not len(one) or not len(other):
        return []
    keys, code = np.unique(np.concatenate((one, other)), return_inverse=True)
    mine, theirs = code[: len(one)], code[len(one) :]
    if where == EVEN:
        count, count2 = (np.bincount(part, minlength=len(keys)) for part in (mine, theirs))
        even = count == count2
        at, at2 = np.flatnonzero(even[mine]), np.flatnonzero(even[theirs])
    else:
        at, at2 = np.arange(len(one)), np.arange(len(other))
    number, number2 = (occurrence(part) * len(keys) + part for part in (mine[at], theirs[at2]))
    _, left, right = np.intersect1d(number, number2, assume_unique=True, return_indices=True)
    pairs = np.stack((at[left], at2[right]), axis=1)
    return _increasing(pairs[np.argsort(pairs[:, 0], kind="stable")])


def _increasing(pairs: Int) -> list[tuple[int, int]]:
    """The longest chain of pairs, ascending in the first, that ascends in the second as well."""
    if not len(pairs) or (np.diff(pairs[:, 1]) > 0).all():
        return [(a, b) for a, b in pairs.tolist()]
    tails: list[int] = []
    ends: list[int] = []
    before: list[int] = []
    second = pairs[:, 1].tolist()
    for at, value in enumerate(second):
        place = bisect_left(tails, value)
        before.append(ends[place - 1] if place else -1)
        if place == len(tails):
            tails.append(value)
            ends.append(at)
        else:
            tails[place], ends[place] = value, at
    chain: list[int] = []
    at = ends[-1] if ends else -1
    while at >= 0:
        chain.append(at)
        at = before[at]
    return [(int(pairs[at, 0]), int(pairs[at, 1])) for at in reversed(chain)]
