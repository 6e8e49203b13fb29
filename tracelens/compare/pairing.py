"""Why a piece of step time is there in one run and not, or longer, in the other: one rank against one."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tracelens.analyzers._group import codes
from tracelens.compare.align import RENAMED, REPLACED, Alignment, align
from tracelens.compare.forest import Forest, Hash, text_hashes
from tracelens.compare.sides import Side
from tracelens.trace.classify import KINDS

Int = NDArray[np.int64]
Bool = NDArray[np.bool_]

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


class Pairing(NamedTuple):
    """Two ranks, call by call.

    Attributes:
        steps: (step of the base, step of the candidate, alignment) of each pair of steps.
        cause: of each piece of the base and of the candidate, code into CAUSES (not WAIT).
        partner: of each piece's node, its counterpart on the other side, -1 for none.
    """

    steps: list[tuple[int, int, Alignment]]
    cause: tuple[Int, Int]
    partner: tuple[Int, Int]


def pair(base: Side, cand: Side) -> Pairing:
    """Align two ranks step by step; of different numbers of steps the shorter list begins anew."""
    first, second = base.forest, cand.forest
    threads = _threads(first, second)
    partner = np.full(len(first), -1, dtype=np.int64)
    partner2 = np.full(len(second), -1, dtype=np.int64)
    how = np.full(len(first), -1, dtype=np.int64)
    how2 = np.full(len(second), -1, dtype=np.int64)
    found = []
    for number in range(max(base.steps, cand.steps)):
        one, other = number % base.steps, number % cand.steps
        roots = [(first.roots(one, mine), second.roots(other, theirs)) for mine, theirs in threads]
        result = align(first, second, roots)
        found.append((one, other, result))
        # What has been aligned with an earlier step keeps that.
        here, there = (first.step == one) & (how < 0), (second.step == other) & (how2 < 0)
        partner[here], how[here] = result.match[here], result.how[here]
        partner2[there], how2[there] = result.back[there], result.how_back[there]
    mine = _causes(base, cand, partner, how)
    theirs = _causes(cand, base, partner2, how2)
    at = [
        np.where(side.node >= 0, other[np.maximum(side.node, 0)], -1) if len(other) else side.node
        for side, other in ((base, partner), (cand, partner2))
    ]
    return Pairing(found, (mine, theirs), (at[0], at[1]))


def _threads(first: Forest, second: Forest) -> list[tuple[int, int]]:
    """Threads that stand against each other: those with most names in common; -1 for none."""
    ours, theirs = (
        {int(one): _names(side, one) for one in np.unique(side.thread)} for side in (first, second)
    )
    found = []
    pairs = sorted(
        ((_common(mine, other), one, two) for one, mine in ours.items() for two, other in theirs.items()),
        key=lambda entry: (-entry[0], entry[1], entry[2]),
    )
    taken, taken2 = set(), set()
    for common, one, two in pairs:
        if common and one not in taken and two not in taken2:
            found.append((one, two))
            taken.add(one)
            taken2.add(two)
    alone = [(one, -1) for one in ours if one not in taken] + [
        (-1, two) for two in theirs if two not in taken2
    ]
    return found + alone


def _names(forest: Forest, thread: int) -> dict[int, int]:
    keys, count = np.unique(forest.named[forest.thread == thread], return_counts=True)
    return dict(zip(keys.tolist(), count.tolist(), strict=True))


def _common(one: dict[int, int], other: dict[int, int]) -> int:
    return sum(min(count, other.get(key, 0)) for key, count in one.items())


def _causes(side: Side, other: Side, partner: Int, how: Int) -> Int:
    """Code into CAUSES of each piece of one side."""
    node = side.node
    known = node >= 0
    at = np.maximum(node, 0)
    if not len(partner):
        return np.where(side.work.kind[side.row] == KINDS.index("comm"), COMM, NO_OP)
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
    cause[side.work.kind[side.row] == KINDS.index("comm")] = COMM
    return cause


def _kernels(side: Side) -> Hash:
    """Of each node, a hash of the names of its kernels."""
    found = np.zeros(len(side.forest), dtype=np.uint64)
    rows = np.flatnonzero(side.node >= 0)
    _, (node, name) = codes(side.node[rows], side.work.name[side.row[rows]])
    used, place = np.unique(name, return_inverse=True)
    np.add.at(found, node, text_hashes([side.work.names[code] for code in used.tolist()])[place])
    return found
