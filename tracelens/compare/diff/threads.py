"""Pairs the host threads of two runs by the names they call."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tracelens.arrays import Int
from tracelens.compare.diff.forest import Forest
from tracelens.table import codes

_PAIRS = 1 << 20
"""Limit on thread pairs to compare; names common to more pairs say nothing about which threads match."""

_NONE = np.empty(0, dtype=np.int64)


class Threads:
    """The threads of two forests, each paired with at most one of the other."""

    def __init__(self, base: Forest, cand: Forest) -> None:
        base_names, cand_names = _names(base), _names(cand)
        pairs = _alike(base_names, cand_names)
        for base_thread, cand_thread in pairs:
            del base_names[base_thread], cand_names[cand_thread]
        pairs += _most_common(base_names, cand_names)
        self.partner = dict(pairs)
        self.partner_back = {cand_thread: base_thread for base_thread, cand_thread in pairs}

    def against(self, base_roots: Mapping[int, Int], cand_roots: Mapping[int, Int]) -> list[tuple[Int, Int]]:
        """(base roots, candidate roots) by thread; empty for a thread without a partner."""
        pairs = [
            (roots, cand_roots.get(self.partner.get(thread, -1), _NONE))
            for thread, roots in base_roots.items()
        ]
        alone = [
            (_NONE, roots)
            for thread, roots in cand_roots.items()
            if self.partner_back.get(thread, -1) not in base_roots
        ]
        return pairs + alone


_Names = dict[int, dict[int, int]]
"""Thread to name hash to number of calls."""


def _names(forest: Forest) -> _Names:
    group, (thread, name) = codes(forest.thread, forest.named.view(np.int64))
    count = np.bincount(group, minlength=len(thread))
    by_thread: _Names = {}
    for thread_code, key, number in zip(thread.tolist(), name.tolist(), count.tolist(), strict=True):
        by_thread.setdefault(thread_code, {})[key] = number
    return by_thread


def _alike(base_names: _Names, cand_names: _Names) -> list[tuple[int, int]]:
    """Threads that call the same names equally often, in order."""
    by_names: dict[tuple[tuple[int, int], ...], list[int]] = {}
    for cand_thread, names in reversed(cand_names.items()):
        by_names.setdefault(tuple(names.items()), []).append(cand_thread)
    pairs = []
    for base_thread, names in base_names.items():
        if same_names := by_names.get(tuple(names.items())):
            pairs.append((base_thread, same_names.pop()))
    return pairs


def _most_common(base_names: _Names, cand_names: _Names) -> list[tuple[int, int]]:
    """Of the other threads, pairs with most calls in common, most certain first."""
    by_name: dict[int, tuple[list[int], list[int]]] = {}
    for side, threads in enumerate((base_names, cand_names)):
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
        for base_thread in sides[0]:
            for cand_thread in sides[1]:
                calls = min(base_names[base_thread][key], cand_names[cand_thread][key])
                common[base_thread, cand_thread] = common.get((base_thread, cand_thread), 0) + calls
    pairs: dict[int, int] = {}
    partner_back: dict[int, int] = {}
    ordered = sorted(common, key=lambda pair: (-common[pair], *pair))
    # Threads that share only names common to all pair up in order.
    for sides in everywhere:
        ordered += zip(*sides, strict=False)
    for base_thread, cand_thread in ordered:
        if base_thread not in pairs and cand_thread not in partner_back:
            pairs[base_thread], partner_back[cand_thread] = cand_thread, base_thread
    return list(pairs.items())
