"""Which host thread of one run is which of the other: those that call most of the same names."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tracelens.arrays import Int
from tracelens.compare.diff.forest import Forest
from tracelens.table import codes

_PAIRS = 1 << 20
"""A name that so many pairs of threads have in common says nothing about which of them belong together."""

_NONE = np.empty(0, dtype=np.int64)


class Threads:
    """The threads of two forests, each against at most one of the other.

    Args:
        first: of one run.
        second: of the other.
    """

    def __init__(self, first: Forest, second: Forest) -> None:
        ours, theirs = _names(first), _names(second)
        pairs = _alike(ours, theirs)
        taken, taken2 = {one for one, _ in pairs}, {two for _, two in pairs}
        pairs += _most_common(
            {one: names for one, names in ours.items() if one not in taken},
            {two: names for two, names in theirs.items() if two not in taken2},
        )
        self.partner = dict(pairs)
        self.partner_back = {two: one for one, two in pairs}

    def against(self, ours: Mapping[int, Int], theirs: Mapping[int, Int]) -> list[tuple[Int, Int]]:
        """Roots by thread of both sides, thread against thread; against nothing where there is none."""
        pairs = [(roots, theirs.get(self.partner.get(thread, -1), _NONE)) for thread, roots in ours.items()]
        alone = [
            (_NONE, roots)
            for thread, roots in theirs.items()
            if self.partner_back.get(thread, -1) not in ours
        ]
        return pairs + alone


_Names = dict[int, dict[int, int]]
"""Thread to name's hash to how often it is called."""


def _names(forest: Forest) -> _Names:
    group, (thread, name) = codes(forest.thread, forest.named.view(np.int64))
    count = np.bincount(group, minlength=len(thread))
    found: _Names = {}
    for one, key, number in zip(thread.tolist(), name.tolist(), count.tolist(), strict=True):
        found.setdefault(one, {})[key] = number
    return found


def _alike(ours: _Names, theirs: _Names) -> list[tuple[int, int]]:
    """Threads that call the same names equally often, in order."""
    places: dict[tuple[tuple[int, int], ...], list[int]] = {}
    for two, names in reversed(theirs.items()):
        places.setdefault(tuple(names.items()), []).append(two)
    pairs = []
    for one, names in ours.items():
        if left := places.get(tuple(names.items())):
            pairs.append((one, left.pop()))
    return pairs


def _most_common(ours: _Names, theirs: _Names) -> list[tuple[int, int]]:
    """Of the others those with most in common, the surest first."""
    by_name: dict[int, tuple[list[int], list[int]]] = {}
    for side, threads in enumerate((ours, theirs)):
        for thread, names in threads.items():
            for key in names:
                by_name.setdefault(key, ([], []))[side].append(thread)
    common: dict[tuple[int, int], int] = {}
    everywhere = []
    budget = _PAIRS
    for key, sides in sorted(by_name.items(), key=lambda item: len(item[1][0]) * len(item[1][1])):
        budget -= len(sides[0]) * len(sides[1])
        if budget < 0:
            everywhere.append(sides)
            continue
        for one in sides[0]:
            for two in sides[1]:
                number = min(ours[one][key], theirs[two][key])
                common[one, two] = common.get((one, two), 0) + number
    pairs: dict[int, int] = {}
    taken: set[int] = set()
    ordered = sorted(common, key=lambda pair: (-common[pair], *pair))
    # Threads that share nothing but what all have stand against each other in their order.
    for sides in everywhere:
        ordered += zip(*sides, strict=False)
    for one, two in ordered:
        if one not in pairs and two not in taken:
            pairs[one] = two
            taken.add(two)
    return list(pairs.items())
