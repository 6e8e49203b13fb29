"""What was edited between two runs: calls removed, added, renamed, moved, wrapped, exchanged, or slower."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from tracelens.arrays import Int
from tracelens.compare.diff.align import DUPLICATE, MOVED, ONLY, RENAMED, WRAPPER
from tracelens.compare.diff.forest import Forest
from tracelens.compare.diff.pairing import OTHER_KERNELS, OTHER_SHAPES, SAME_WORK, Aligned, Pairing
from tracelens.compare.diff.sides import Side
from tracelens.table import codes

_SHOWN = 3
"""Ops that are named of each side of an exchange, those with most GPU time."""

KINDS = (
    "removed", "added", "duplicated", "wrapper removed", "wrapper added", "renamed", "moved", "exchanged",
    "slower", "faster", "other shapes", "other kernels",
)  # fmt: skip


NOWHERE = (-1, -1)
"""The place of what a side does not have."""


class Key(NamedTuple):
    """What is told as one change.

    Attributes:
        kind: one of KINDS; slower and faster are told apart at the end.
        base: op of the base, "" if it has none.
        cand: op of the candidate.
        where: names of what is around it, outermost first.
    """

    kind: str
    base: str
    cand: str
    where: str


@dataclass
class Change:
    """All edits of one kind at all places of one name.

    Attributes:
        count: of edits, in all steps of all ranks.
        base: ns by (rank, step) of the base.
        cand: the same of the candidate.
        base_at: (rank, event row) of the one with most GPU time, for a look into the trace.
        cand_at: the same of the candidate.
        most: GPU time of that one, ns.
    """

    count: int = 0
    base: dict[tuple[int, int], float] = field(default_factory=dict)
    cand: dict[tuple[int, int], float] = field(default_factory=dict)
    base_at: tuple[int, int] = NOWHERE
    cand_at: tuple[int, int] = NOWHERE
    most: float = -1.0

    def add(self, side: str, place: tuple[int, int], ns: float) -> None:
        """Add time of a step of a rank to one side ("base" or "cand")."""
        values = getattr(self, side)
        values[place] = values.get(place, 0.0) + ns


class _Times(NamedTuple):
    """GPU time by node of one side, and its running sum."""

    own: Int
    before: Int

    def of(self, forest: Forest, nodes: Int) -> int:
        """GPU time of nodes with all that they call."""
        return int((self.before[nodes + forest.size[nodes]] - self.before[nodes]).sum())


def changes(base: Side, cand: Side, pairing: Pairing) -> dict[Key, Change]:
    """The changes of one rank against one."""
    found: dict[Key, Change] = {}
    times = _times(base), _times(cand)
    for aligned in pairing.steps:
        _structure(found, (base, cand), aligned, times)
    _times_of_matched(found, base, cand, pairing)
    return found


def _times(side: Side) -> _Times:
    own = np.zeros(len(side.forest), dtype=np.int64)
    known = side.node >= 0
    np.add.at(own, side.node[known], side.ns[known])
    return _Times(own, np.concatenate(([0], np.cumsum(own))))


def _structure(
    found: dict[Key, Change], sides: tuple[Side, Side], aligned: Aligned, times: tuple[_Times, _Times]
) -> None:
    """Add the edits of what was aligned."""
    first, second = sides[0].forest, sides[1].forest
    alignment = aligned.alignment
    for ours, theirs in alignment.groups:
        one, other = ours + aligned.first, theirs + aligned.second
        key = Key(
            "exchanged",
            _heaviest(first, one, times[0]),
            _heaviest(second, other, times[1]),
            first.around(int(one[0])),
        )
        change = found.setdefault(key, Change())
        change.count += 1
        _note(change, "base", sides[0], one, times[0])
        _note(change, "cand", sides[1], other, times[1])
    for number, part, begin, how, names in (
        (0, aligned.base, aligned.first, alignment.how, ("removed", "wrapper removed")),
        (1, aligned.cand, aligned.second, alignment.how_back, ("added", "wrapper added")),
    ):
        forest, side = sides[number].forest, ("base", "cand")[number]
        for what, kind in ((ONLY, names[0]), (WRAPPER, names[1]), (DUPLICATE, "duplicated")):
            for node in (_tops(part, how, what) + begin).tolist():
                name = forest.names[forest.name[node]]
                key = Key(kind, name if number == 0 else "", name if number else "", forest.around(node))
                change = found.setdefault(key, Change())
                change.count += 1
                if what != WRAPPER:
                    _note(change, side, sides[number], [node], times[number])
    for what, kind in ((RENAMED, "renamed"), (MOVED, "moved")):
        rows = _tops(aligned.base, alignment.how, what)
        partners = alignment.match[rows] + aligned.second
        for node, partner in zip((rows + aligned.first).tolist(), partners.tolist(), strict=True):
            names = first.names[first.name[node]], second.names[second.name[partner]]
            change = found.setdefault(Key(kind, *names, first.around(node)), Change())
            change.count += 1
            _note(change, "base", sides[0], [node], times[0])
            _note(change, "cand", sides[1], [partner], times[1])


def _tops(forest: Forest, how: Int, what: int) -> Int:
    """Nodes of which this became, and not of the node around them."""
    inside = how == what
    above = np.maximum(forest.parent, 0)
    inside &= (forest.parent < 0) | (how[above] != what) | (what == WRAPPER)
    return np.flatnonzero(inside)


def _note(change: Change, which: str, side: Side, nodes: Int | Sequence[int], times: _Times) -> None:
    """Add the GPU time of subtrees of one step to one side of a change."""
    total = times.of(side.forest, np.asarray(nodes))
    change.add(which, (side.rank, int(side.forest.step[int(nodes[0])])), total)
    if total >= change.most:
        change.most = total
        setattr(change, f"{which}_at", (side.rank, int(side.forest.event[int(nodes[0])])))


def _heaviest(forest: Forest, nodes: Int, times: _Times) -> str:
    """The ops with most GPU time in some subtrees."""
    inside = forest.within(nodes)
    busy = inside[times.own[inside] > 0]
    weight = times.own[busy]
    if not len(busy):  # nothing runs on the GPU: by number
        busy, weight = nodes, np.ones(len(nodes), dtype=np.int64)
    names, place = np.unique(forest.name[busy], return_inverse=True)
    order = np.argsort(-np.bincount(place, weights=weight), kind="stable")[:_SHOWN]
    return ", ".join(forest.names[name] for name in names[order].tolist())


def _times_of_matched(found: dict[Key, Change], base: Side, cand: Side, pairing: Pairing) -> None:
    """Add the time of calls that both sides have, where it differs."""
    kinds = {SAME_WORK: "slower", OTHER_SHAPES: "other shapes", OTHER_KERNELS: "other kernels"}
    collected: dict[Key, Change] = {}
    for which, side, cause, partner, other in (
        ("base", base, pairing.cause[0], pairing.partner[0], cand),
        ("cand", cand, pairing.cause[1], pairing.partner[1], base),
    ):
        chosen = np.flatnonzero(np.isin(cause, list(kinds)))
        mine = side.forest.name[side.node[chosen]]
        theirs = other.forest.name[partner[chosen]]
        place, groups = codes(cause[chosen], mine, theirs, side.step[chosen])
        total = np.bincount(place, weights=side.ns[chosen], minlength=len(groups[0]))
        at = np.zeros(len(groups[0]), dtype=np.int64)
        at[place[::-1]] = np.arange(len(place))[::-1]
        for number, (code, name, to, step) in enumerate(zip(*(key.tolist() for key in groups), strict=True)):
            names = side.forest.names[name], other.forest.names[to]
            key = Key(kinds[code], *(names if which == "base" else names[::-1]), "")
            change = collected.setdefault(key, Change())
            change.add(which, (side.rank, step), float(total[number]))
            if total[number] > change.most or getattr(change, f"{which}_at") == NOWHERE:
                change.most = max(change.most, float(total[number]))
                event = int(side.op[side.row[chosen[at[number]]]])
                setattr(change, f"{which}_at", (side.rank, event))
    for key, change in collected.items():
        if sum(change.base.values()) != sum(change.cand.values()):
            change.count = max(len(change.base), len(change.cand))
            found[key] = change


def each(found: Sequence[dict[Key, Change]]) -> Iterator[tuple[Key, Change]]:
    """The changes of all ranks under common keys."""
    merged: dict[Key, Change] = {}
    for one in found:
        for key, change in one.items():
            into = merged.setdefault(key, Change())
            into.count += change.count
            for which in ("base", "cand"):
                for place, ns in getattr(change, which).items():
                    into.add(which, place, ns)
            for which in ("base_at", "cand_at"):
                unknown = getattr(into, which) == NOWHERE
                if getattr(change, which) != NOWHERE and (unknown or change.most > into.most):
                    setattr(into, which, getattr(change, which))
            into.most = max(into.most, change.most)
    yield from merged.items()
