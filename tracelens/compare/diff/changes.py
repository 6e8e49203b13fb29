"""Edits between two runs: calls removed, added, renamed, moved, wrapped, replaced, slower or faster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from tracelens.arrays import Int, lookup
from tracelens.compare.diff.align import DUPLICATE, MOVED, ONLY, RENAMED, WRAPPER
from tracelens.compare.diff.forest import Forest
from tracelens.compare.diff.pairing import OTHER_KERNELS, OTHER_SHAPES, SAME_WORK, Aligned, Pairing
from tracelens.compare.diff.sides import Side
from tracelens.table import codes

_SHOWN = 3
"""Ops named per side of a replaced group, those with most GPU time."""

KINDS = (
    "removed", "added", "duplicated", "wrapper removed", "wrapper added", "renamed", "moved", "exchanged",
    "slower", "faster", "other shapes", "other kernels",
)  # fmt: skip


NOWHERE = (-1, -1)
"""(rank, event) of a call that a side does not have."""


class Key(NamedTuple):
    """What edits are grouped by.

    Attributes:
        kind: one of KINDS; slower and faster are separated at the end.
        base: op of the base, "" if it has none.
        cand: op of the candidate.
        where: names of the enclosing scopes, outermost first.
    """

    kind: str
    base: str
    cand: str
    where: str


@dataclass
class Change:
    """All edits with one key.

    Attributes:
        count: edits in all steps of all ranks.
        base: ns by (rank, step) of the base.
        cand: the same of the candidate.
        base_at: (rank, event row) of the edit with most GPU time, to find it in the trace.
        cand_at: the same of the candidate.
        most: GPU time of that edit, ns.
    """

    count: int = 0
    base: dict[tuple[int, int], float] = field(default_factory=dict)
    cand: dict[tuple[int, int], float] = field(default_factory=dict)
    base_at: tuple[int, int] = NOWHERE
    cand_at: tuple[int, int] = NOWHERE
    most: float = -1.0

    def add(self, side: str, rank_step: tuple[int, int], ns: float) -> None:
        """Add time of a step of a rank to one side ("base" or "cand")."""
        values = getattr(self, side)
        values[rank_step] = values.get(rank_step, 0.0) + ns


class _Times(NamedTuple):
    """GPU time by node of one side, and the sum over all nodes before it."""

    node_ns: Int
    before_ns: Int

    def of(self, forest: Forest, nodes: Int) -> int:
        """GPU time of nodes with all that they call."""
        return int((self.before_ns[nodes + forest.size[nodes]] - self.before_ns[nodes]).sum())


def changes(base: Side, cand: Side, pairing: Pairing) -> dict[Key, Change]:
    """The changes between two ranks."""
    by_key: dict[Key, Change] = {}
    times = _times(base), _times(cand)
    for aligned in pairing.steps:
        _structure(by_key, (base, cand), aligned, times)
    _times_of_matched(by_key, base, cand, pairing)
    return by_key


def _times(side: Side) -> _Times:
    node_ns = np.zeros(len(side.forest), dtype=np.int64)
    known = side.node >= 0
    np.add.at(node_ns, side.node[known], side.ns[known])
    return _Times(node_ns, np.concatenate(([0], np.cumsum(node_ns))))


def _structure(
    by_key: dict[Key, Change], sides: tuple[Side, Side], aligned: Aligned, times: tuple[_Times, _Times]
) -> None:
    """Add the edits of one aligned pair of steps."""
    base_forest, cand_forest = sides[0].forest, sides[1].forest
    alignment = aligned.alignment
    for base_group, cand_group in alignment.groups:
        base_nodes, cand_nodes = base_group + aligned.base_offset, cand_group + aligned.cand_offset
        key = Key(
            "exchanged",
            _heaviest(base_forest, base_nodes, times[0]),
            _heaviest(cand_forest, cand_nodes, times[1]),
            base_forest.around(int(base_nodes[0])),
        )
        change = by_key.setdefault(key, Change())
        change.count += 1
        _note(change, "base", sides[0], base_nodes, times[0])
        _note(change, "cand", sides[1], cand_nodes, times[1])
    for number, part, begin, how, names in (
        (0, aligned.base, aligned.base_offset, alignment.how, ("removed", "wrapper removed")),
        (1, aligned.cand, aligned.cand_offset, alignment.how_back, ("added", "wrapper added")),
    ):
        forest, side = sides[number].forest, ("base", "cand")[number]
        for outcome, kind in ((ONLY, names[0]), (WRAPPER, names[1]), (DUPLICATE, "duplicated")):
            for node in (_tops(part, how, outcome) + begin).tolist():
                name = forest.names[forest.name[node]]
                key = Key(kind, name if number == 0 else "", name if number else "", forest.around(node))
                change = by_key.setdefault(key, Change())
                change.count += 1
                if outcome != WRAPPER:
                    _note(change, side, sides[number], [node], times[number])
    for outcome, kind in ((RENAMED, "renamed"), (MOVED, "moved")):
        rows = _tops(aligned.base, alignment.how, outcome)
        partners = alignment.match[rows] + aligned.cand_offset
        for node, partner in zip((rows + aligned.base_offset).tolist(), partners.tolist(), strict=True):
            names = base_forest.names[base_forest.name[node]], cand_forest.names[cand_forest.name[partner]]
            change = by_key.setdefault(Key(kind, *names, base_forest.around(node)), Change())
            change.count += 1
            _note(change, "base", sides[0], [node], times[0])
            _note(change, "cand", sides[1], [partner], times[1])


def _tops(forest: Forest, how: Int, outcome: int) -> Int:
    """Nodes with an outcome that their parent does not have."""
    inside = how == outcome
    inside &= (lookup(how, forest.parent, -1) != outcome) | (outcome == WRAPPER)
    return np.flatnonzero(inside)


def _note(change: Change, which: str, side: Side, nodes: Int | Sequence[int], times: _Times) -> None:
    """Add the GPU time of subtrees of one step to one side of a change."""
    total = times.of(side.forest, np.asarray(nodes))
    change.add(which, (side.rank, int(side.forest.step[int(nodes[0])])), total)
    if total >= change.most:
        change.most = total
        setattr(change, f"{which}_at", (side.rank, int(side.forest.event[int(nodes[0])])))


def _heaviest(forest: Forest, nodes: Int, times: _Times) -> str:
    """The ops with most GPU time in these subtrees."""
    inside = forest.within(nodes)
    busy = inside[times.node_ns[inside] > 0]
    weight = times.node_ns[busy]
    if not len(busy):  # nothing runs on the GPU: by count
        busy, weight = nodes, np.ones(len(nodes), dtype=np.int64)
    names, code = np.unique(forest.name[busy], return_inverse=True)
    order = np.argsort(-np.bincount(code, weights=weight), kind="stable")[:_SHOWN]
    return ", ".join(forest.names[name] for name in names[order].tolist())


def _times_of_matched(by_key: dict[Key, Change], base: Side, cand: Side, pairing: Pairing) -> None:
    """Add matched calls whose time differs."""
    kinds = {SAME_WORK: "slower", OTHER_SHAPES: "other shapes", OTHER_KERNELS: "other kernels"}
    collected: dict[Key, Change] = {}
    for which, side, cause, partner, partner_side in (
        ("base", base, pairing.cause[0], pairing.partner[0], cand),
        ("cand", cand, pairing.cause[1], pairing.partner[1], base),
    ):
        pieces = np.flatnonzero(np.isin(cause, list(kinds)))
        op_name = side.forest.name[side.node[pieces]]
        partner_name = partner_side.forest.name[partner[pieces]]
        group, groups = codes(cause[pieces], op_name, partner_name, side.step[pieces])
        total = np.bincount(group, weights=side.ns[pieces], minlength=len(groups[0]))
        first_piece = np.zeros(len(groups[0]), dtype=np.int64)
        first_piece[group[::-1]] = np.arange(len(group))[::-1]
        for number, (code, name, partner_code, step) in enumerate(
            zip(*(key.tolist() for key in groups), strict=True)
        ):
            names = side.forest.names[name], partner_side.forest.names[partner_code]
            key = Key(kinds[code], *(names if which == "base" else names[::-1]), "")
            change = collected.setdefault(key, Change())
            change.add(which, (side.rank, step), float(total[number]))
            if total[number] > change.most or getattr(change, f"{which}_at") == NOWHERE:
                change.most = max(change.most, float(total[number]))
                event = int(side.op[side.row[pieces[first_piece[number]]]])
                setattr(change, f"{which}_at", (side.rank, event))
    for key, change in collected.items():
        if sum(change.base.values()) != sum(change.cand.values()):
            change.count = max(len(change.base), len(change.cand))
            by_key[key] = change


def each(per_rank: Sequence[dict[Key, Change]]) -> Iterator[tuple[Key, Change]]:
    """The changes of all ranks, summed by key."""
    merged: dict[Key, Change] = {}
    for by_key in per_rank:
        for key, change in by_key.items():
            total = merged.setdefault(key, Change())
            total.count += change.count
            for which in ("base", "cand"):
                for rank_step, ns in getattr(change, which).items():
                    total.add(which, rank_step, ns)
            for which in ("base_at", "cand_at"):
                unknown = getattr(total, which) == NOWHERE
                if getattr(change, which) != NOWHERE and (unknown or change.most > total.most):
                    setattr(total, which, getattr(change, which))
            total.most = max(total.most, change.most)
    yield from merged.items()
