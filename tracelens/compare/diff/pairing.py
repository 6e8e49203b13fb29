"""Pairs two ranks of two runs call by call, and says why each piece of step time differs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from tracelens.arrays import Bool, Int, lookup
from tracelens.compare.diff.align import RENAMED, REPLACED, REPLAYED, ForestAlignment, align, bare
from tracelens.compare.diff.sides import NO_ROWS, Forest, RankSide, text_hashes
from tracelens.table import Skip, codes
from tracelens.trace import WORK_KINDS

CAUSES = (
    "same kernels",
    "other kernels",
    "other types",
    "other shapes",
    "renamed calls",
    "calls replaced by others",
    "calls on one side only",
    "communication",
    "waiting for other ranks",
    "without an op",
)
(
    SAME_WORK, OTHER_KERNELS, OTHER_TYPES, OTHER_SHAPES, RENAMED_CALLS, EXCHANGED, ONE_SIDED, COMM, WAIT,
    NO_OP,
) = range(len(CAUSES))  # fmt: skip

_BUDGET, _FLOOR = 64, 1 << 20
"""Steps of unequal number are aligned up to _BUDGET times the nodes of both runs plus _FLOOR nodes."""


class Aligned(NamedTuple):
    """Aligned parts of both forests."""

    base: Forest  # part of the base's forest
    cand: Forest  # part of the candidate's
    base_offset: int  # first node of `base` in the base's forest
    cand_offset: int  # the same of the candidate
    alignment: ForestAlignment  # of `base` and `cand`


class Pairing(NamedTuple):
    """Two ranks, call by call."""

    steps: list[Aligned]  # aligned parts, one per pair of steps, or one for all steps
    cause: tuple[Int, Int]  # of each piece of the base and of the candidate, code into CAUSES (not WAIT)
    partner: tuple[Int, Int]  # counterpart of each piece's node, -1 for none
    partner_of_node: tuple[Int, Int]  # counterpart of each node of the base and of the candidate
    replayed: tuple[Bool, Bool]  # nodes that are matched because a graph replays them in one run
    lacking: tuple[Skip, ...] = ()  # what was not aligned, and why


_Part = tuple[int, int, Forest, Forest, list[list[tuple[Int, Int]]]]
"""First nodes and forests of base and candidate, and for each pair of steps their roots by thread."""

_PAIRS = 1 << 20
"""Limit on thread pairs to compare; names common to more pairs say nothing about which threads match."""


class Threads:
    """The threads of two forests, each paired with at most one of the other."""

    def __init__(self, base: Forest, cand: Forest) -> None:
        base_names, cand_names = _names(base), _names(cand)
        # Threads that call the same names equally often, in order.
        by_names: dict[frozenset[tuple[int, int]], list[int]] = {}
        for cand_thread, names in reversed(cand_names.items()):
            by_names.setdefault(frozenset(names.items()), []).append(cand_thread)
        pairs = []
        for base_thread, names in base_names.items():
            if same_names := by_names.get(frozenset(names.items())):
                pairs.append((base_thread, same_names.pop()))
        for base_thread, cand_thread in pairs:
            del base_names[base_thread], cand_names[cand_thread]
        pairs += _most_common(base_names, cand_names)
        self.partner = dict(pairs)
        self.partner_back = {cand_thread: base_thread for base_thread, cand_thread in pairs}

    def against(self, base_roots: Mapping[int, Int], cand_roots: Mapping[int, Int]) -> list[tuple[Int, Int]]:
        """(base roots, candidate roots) by thread; empty for a thread without a partner."""
        pairs = [
            (roots, cand_roots.get(self.partner.get(thread, -1), NO_ROWS))
            for thread, roots in base_roots.items()
        ]
        alone = [
            (NO_ROWS, roots)
            for thread, roots in cand_roots.items()
            if self.partner_back.get(thread, -1) not in base_roots
        ]
        return pairs + alone


_Names = dict[int, dict[int, int]]
"""Thread to name hash to number of calls."""


def pair(base: RankSide, cand: RankSide) -> Pairing:
    """Align two ranks step by step; if one has fewer steps, its steps repeat.

    A rank without step marks is compared as a whole with all steps of the other.
    """
    base_forest, cand_forest = base.forest, cand.forest
    base_partner = np.full(len(base_forest), -1, dtype=np.int64)
    cand_partner = np.full(len(cand_forest), -1, dtype=np.int64)
    base_how, cand_how = np.full_like(base_partner, -1), np.full_like(cand_partner, -1)
    aligned, threads = [], Threads(base_forest, cand_forest)
    parts: list[_Part] = []
    lacking: tuple[Skip, ...] = ()
    if base.steps == cand.steps:
        by_step = [
            threads.against(base_forest.roots.get(number, {}), cand_forest.roots.get(number, {}))
            for number in range(base.steps)
        ]
        parts = [(0, 0, base_forest, cand_forest, by_step)]
    elif not (base.marked and cand.marked):
        whole = threads.against(_joined(base_forest), _joined(cand_forest))
        parts = [(0, 0, base_forest, cand_forest, [whole])]
    else:
        # Each step of the longer list against one of the shorter, which repeats.
        base_borders, cand_borders = (
            np.searchsorted(side.forest.step, np.arange(side.steps + 1)).tolist() for side in (base, cand)
        )
        budget = _FLOOR + _BUDGET * (len(base_forest) + len(cand_forest))
        for number in range(max(base.steps, cand.steps)):
            base_step, cand_step = number % base.steps, number % cand.steps
            base_low, base_high = base_borders[base_step : base_step + 2]
            cand_low, cand_high = cand_borders[cand_step : cand_step + 2]
            budget -= base_high - base_low + cand_high - cand_low
            if budget < 0:
                reason = (
                    f"{base.steps} against {cand.steps} steps of very different size: only the first "
                    f"{number} are aligned, calls of later steps count as one-sided; compare one step with "
                    "--step"
                )
                lacking = (Skip("alignment of all steps", reason),)
                break
            base_part = base_forest.part(base_low, base_high)
            cand_part = cand_forest.part(cand_low, cand_high)
            step = threads.against(base_part.roots.get(base_step, {}), cand_part.roots.get(cand_step, {}))
            parts.append((base_low, cand_low, base_part, cand_part, [step]))
    for base_offset, cand_offset, base_part, cand_part, roots in parts:
        result = align(base_part, cand_part, roots)
        aligned.append(Aligned(base_part, cand_part, base_offset, cand_offset, result))
        for match, outcome, partner, known_how, begin, offset in (
            (result.match, result.how, base_partner, base_how, base_offset, cand_offset),
            (result.back, result.how_back, cand_partner, cand_how, cand_offset, base_offset),
        ):
            # Nodes aligned with an earlier step keep that alignment.
            new = np.flatnonzero(known_how[begin : begin + len(outcome)] < 0)
            partner[begin + new] = np.where(match[new] >= 0, match[new] + offset, -1)
            known_how[begin + new] = outcome[new]
    causes = _causes(base, cand, base_partner, base_how), _causes(cand, base, cand_partner, cand_how)
    partners = lookup(base_partner, base.node, -1), lookup(cand_partner, cand.node, -1)
    replayed = base_how == REPLAYED, cand_how == REPLAYED
    return Pairing(aligned, causes, partners, (base_partner, cand_partner), replayed, lacking)


def _joined(forest: Forest) -> dict[int, Int]:
    """Roots of each thread over all steps."""
    parts: dict[int, list[Int]] = {}
    for step in sorted(forest.roots):
        for thread, roots in forest.roots[step].items():
            parts.setdefault(thread, []).append(roots)
    return {thread: np.concatenate(roots) for thread, roots in parts.items()}


def _causes(side: RankSide, counterpart: RankSide, partner: Int, how: Int) -> Int:
    """Code into CAUSES of each piece of one side."""
    match, outcome = lookup(partner, side.node, -1), lookup(how, side.node, -1)
    cause = np.full(len(side.node), ONE_SIDED, dtype=np.int64)
    cause[outcome == REPLACED] = EXCHANGED
    matched = match >= 0
    node, other = side.node[matched], match[matched]
    same_kernels = side.kernels[node] == counterpart.kernels[other]
    same_shapes = side.forest.shapes[node] == counterpart.forest.shapes[other]
    same_arguments = side.forest.signature[node] == counterpart.forest.signature[other]
    same_arguments |= bare(side.forest, node) | bare(counterpart.forest, other)  # of unknown ones: no others
    cause[matched] = np.where(
        same_arguments,
        np.where(same_kernels, SAME_WORK, OTHER_KERNELS),
        np.where(same_shapes, OTHER_TYPES, OTHER_SHAPES),
    )
    cause[matched & (outcome == RENAMED)] = RENAMED_CALLS
    cause[side.node < 0] = NO_OP
    cause[side.work.kind[side.row] == WORK_KINDS.index("comm")] = COMM
    return cause


def _names(forest: Forest) -> _Names:
    group, (thread, name) = codes(forest.thread, forest.name)
    keys, counts = text_hashes(forest.names)[name], np.bincount(group, minlength=len(thread))
    by_thread: _Names = {}
    for thread_code, key, number in zip(*(column.tolist() for column in (thread, keys, counts)), strict=True):
        by_thread.setdefault(thread_code, {})[key] = number
    return by_thread


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
