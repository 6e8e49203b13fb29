"""Why a piece of step time is there in one run and not, or longer, in the other: one rank against one."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tracelens.arrays import Int
from tracelens.compare.diff.align import RENAMED, REPLACED, Alignment, align
from tracelens.compare.diff.forest import Forest, Hash, text_hashes
from tracelens.compare.diff.sides import Side
from tracelens.compare.diff.threads import Threads
from tracelens.table import Skip, codes
from tracelens.trace import WORK_KINDS

CAUSES = (
    "same kernels",
    "other kernels",
    "other shapes",
    "renamed calls",
    "calls replaced by others",
    "calls on one side only",
    "communication",
    "waiting for other ranks",
    "without an op",
)
SAME_WORK, OTHER_KERNELS, OTHER_SHAPES, RENAMED_CALLS, EXCHANGED, ONE_SIDED, COMM, WAIT, NO_OP = range(9)


_BUDGET, _FLOOR = 64, 1 << 20
"""Repeated steps are aligned up to so many times the nodes of both runs, and a number that is always fine."""


class Aligned(NamedTuple):
    """Nodes of both runs that stand against each other.

    Attributes:
        base: those of the base.
        cand: those of the candidate.
        first: node of the base's forest that is the first in `base`.
        second: the same of the candidate.
        alignment: of `base` and `cand`.
    """

    base: Forest
    cand: Forest
    first: int
    second: int
    alignment: Alignment


class Pairing(NamedTuple):
    """Two ranks, call by call.

    Attributes:
        steps: parts of both, one a pair of steps, or all of them.
        cause: of each piece of the base and of the candidate, code into CAUSES (not WAIT).
        partner: of each piece's node, its counterpart on the other side, -1 for none.
        lacking: what was not aligned, and why.
    """

    steps: list[Aligned]
    cause: tuple[Int, Int]
    partner: tuple[Int, Int]
    lacking: tuple[Skip, ...] = ()


def pair(base: Side, cand: Side) -> Pairing:
    """Align two ranks step by step; of different numbers of steps the shorter list begins anew.

    Where one of them has no step marks, all of it stands against all steps of the other.
    """
    first, second = base.forest, cand.forest
    partner = np.full(len(first), -1, dtype=np.int64)
    partner2 = np.full(len(second), -1, dtype=np.int64)
    how, how2 = np.full_like(partner, -1), np.full_like(partner2, -1)
    found = []
    lacking: tuple[Skip, ...] = ()
    if base.steps == cand.steps or not (base.marked and cand.marked):
        parts = [_whole(base, cand)]
    else:
        parts, lacking = _in_turn(first, second, base.steps, cand.steps)
    for low, low2, ours, theirs, roots in parts:
        result = align(ours, theirs, roots)
        found.append(Aligned(ours, theirs, low, low2, result))
        for match, what, into, kind, begin, offset in (
            (result.match, result.how, partner, how, low, low2),
            (result.back, result.how_back, partner2, how2, low2, low),
        ):
            # What has been aligned with an earlier step keeps that.
            new = np.flatnonzero(kind[begin : begin + len(what)] < 0)
            into[begin + new] = np.where(match[new] >= 0, match[new] + offset, -1)
            kind[begin + new] = what[new]
    causes = _causes(base, cand, partner, how), _causes(cand, base, partner2, how2)
    at = [
        np.where(side.node >= 0, other[np.maximum(side.node, 0)], -1) if len(other) else side.node
        for side, other in ((base, partner), (cand, partner2))
    ]
    return Pairing(found, causes, (at[0], at[1]), lacking)


_Roots = list[list[tuple[Int, Int]]]
_Part = tuple[int, int, Forest, Forest, _Roots]


def _whole(base: Side, cand: Side) -> _Part:
    """All steps of both, each against that of its number; against a run without steps all together."""
    first, second = base.forest, cand.forest
    threads = Threads(first, second)
    if base.steps != cand.steps:
        return 0, 0, first, second, [threads.against(_joined(first), _joined(second))]
    roots = [
        threads.against(first.roots.get(number, {}), second.roots.get(number, {}))
        for number in range(base.steps)
    ]
    return 0, 0, first, second, roots


def _in_turn(first: Forest, second: Forest, steps: int, steps2: int) -> tuple[list[_Part], tuple[Skip, ...]]:
    """Each step of the longer list against one of the shorter one, which begins anew at its end."""
    threads = Threads(first, second)
    borders, borders2 = (
        np.searchsorted(forest.step, np.arange(count + 1)).tolist()
        for forest, count in ((first, steps), (second, steps2))
    )
    parts: list[_Part] = []
    budget = _FLOOR + _BUDGET * (len(first) + len(second))
    for number in range(max(steps, steps2)):
        one, other = number % steps, number % steps2
        (low, high), (low2, high2) = borders[one : one + 2], borders2[other : other + 2]
        budget -= high - low + high2 - low2
        if budget < 0:
            reason = (
                f"{steps} against {steps2} steps of very different size: only the first {number} are "
                "aligned, and calls of later ones count as on one side only; compare one step with --step"
            )
            return parts, (Skip("alignment of all steps", reason),)
        ours, theirs = first.part(low, high), second.part(low2, high2)
        roots = threads.against(ours.roots.get(one, {}), theirs.roots.get(other, {}))
        parts.append((low, low2, ours, theirs, [roots]))
    return parts, ()


def _joined(forest: Forest) -> dict[int, Int]:
    """Thread to its roots in all steps."""
    parts: dict[int, list[Int]] = {}
    for step in sorted(forest.roots):
        for thread, roots in forest.roots[step].items():
            parts.setdefault(thread, []).append(roots)
    return {thread: np.concatenate(roots) for thread, roots in parts.items()}


def _causes(side: Side, other: Side, partner: Int, how: Int) -> Int:
    """Code into CAUSES of each piece of one side."""
    node = side.node
    known = node >= 0
    at = np.maximum(node, 0)
    if not len(partner):
        return np.where(side.work.kind[side.row] == WORK_KINDS.index("comm"), COMM, NO_OP)
    match, what = partner[at], how[at]
    to = np.maximum(match, 0)
    cause = np.full(len(node), ONE_SIDED, dtype=np.int64)
    cause[what == REPLACED] = EXCHANGED
    matched = known & (match >= 0)
    if matched.any():
        mine, theirs = _kernels(side), _kernels(other)
        cause[matched] = np.where(
            side.forest.own[at] != other.forest.own[to],
            OTHER_SHAPES,
            np.where(mine[at] != theirs[to], OTHER_KERNELS, SAME_WORK),
        )[matched]
        cause[matched & (what == RENAMED)] = RENAMED_CALLS
    cause[~known] = NO_OP
    cause[side.work.kind[side.row] == WORK_KINDS.index("comm")] = COMM
    return cause


def _kernels(side: Side) -> Hash:
    """Of each node, a hash of the names of its kernels."""
    found = np.zeros(len(side.forest), dtype=np.uint64)
    rows = np.flatnonzero(side.node >= 0)
    _, (node, name) = codes(side.node[rows], side.work.name[side.row[rows]])
    used, place = np.unique(name, return_inverse=True)
    np.add.at(found, node, text_hashes([side.work.names[code] for code in used.tolist()])[place])
    return found
