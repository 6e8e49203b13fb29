"""Edits between two runs: calls removed, added, renamed, moved, wrapped, replaced, slower or faster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from tracelens.arrays import Bool, Int, lookup
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

BASE, CAND = range(2)


class Key(NamedTuple):
    """What edits are grouped by."""

    kind: str  # one of KINDS; slower and faster are separated at the end
    base: str  # op of the base, "" if it has none
    cand: str
    where: str  # names of the enclosing scopes, outermost first


@dataclass
class Change:
    """All edits with one key; pairs are of the base and of the candidate."""

    count: int = 0  # edits in all steps of all ranks
    ns: tuple[dict[tuple[int, int], float], ...] = field(default_factory=lambda: ({}, {}))  # by (rank, step)
    # (rank, event row) of the edit with most GPU time, to find it in the trace.
    example: list[tuple[int, int]] = field(default_factory=lambda: [NOWHERE, NOWHERE])
    most: float = -1.0  # GPU time of that edit, ns

    def add(self, side: int, rank_step: tuple[int, int], ns: float) -> None:
        """Add time of a step of a rank to one side."""
        self.ns[side][rank_step] = self.ns[side].get(rank_step, 0.0) + ns

    def merge(self, other: Change) -> None:
        """Add the edits of other ranks."""
        self.count += other.count
        for side in (BASE, CAND):
            for rank_step, ns in other.ns[side].items():
                self.add(side, rank_step, ns)
            unknown = self.example[side] == NOWHERE
            if other.example[side] != NOWHERE and (unknown or other.most > self.most):
                self.example[side] = other.example[side]
        self.most = max(self.most, other.most)


class _SideTimes:
    """One side and the GPU time of its nodes, but of those that are matched because a graph replays them."""

    def __init__(self, side: Side, replayed: Bool) -> None:
        self.side, self.forest, self.names = side, side.forest, side.forest.names
        self.node_ns = np.zeros(len(self.forest), dtype=np.int64)
        known = side.node >= 0
        np.add.at(self.node_ns, side.node[known], side.ns[known])
        self.node_ns[replayed] = 0
        self.before_ns = np.concatenate(([0], np.cumsum(self.node_ns)))

    def name(self, node: int) -> str:
        name: str = self.names[self.forest.name[node]]
        return name

    def total_ns(self, nodes: Int) -> int:
        """GPU time of nodes with all that they call."""
        return int((self.before_ns[nodes + self.forest.size[nodes]] - self.before_ns[nodes]).sum())

    def heaviest(self, nodes: Int) -> str:
        """The ops with most GPU time in these subtrees."""
        inside = self.forest.within(nodes)
        busy = inside[self.node_ns[inside] > 0]
        weight = self.node_ns[busy]
        if not len(busy):  # nothing runs on the GPU: by count
            busy, weight = nodes, np.ones(len(nodes), dtype=np.int64)
        names, code = np.unique(self.forest.name[busy], return_inverse=True)
        order = np.argsort(-np.bincount(code, weights=weight), kind="stable")[:_SHOWN]
        return ", ".join(self.names[name] for name in names[order].tolist())


def changes(base: Side, cand: Side, pairing: Pairing) -> dict[Key, Change]:
    """The changes between two ranks."""
    by_key: dict[Key, Change] = {}
    sides = _SideTimes(base, pairing.replayed[BASE]), _SideTimes(cand, pairing.replayed[CAND])
    for aligned in pairing.steps:
        _structure(by_key, sides, aligned)
    _times_of_matched(by_key, (base, cand), pairing)
    return by_key


def _structure(by_key: dict[Key, Change], sides: tuple[_SideTimes, _SideTimes], aligned: Aligned) -> None:
    """Add the edits of one aligned pair of steps.

    Where a graph replays calls of one side, the host's calls without GPU work are gone, and no edits.
    """
    base, cand = sides
    alignment, around = aligned.alignment, base.forest.around
    has_graphs = aligned.base.copied.any() or aligned.cand.copied.any()

    def add(key: Key, *nodes_of_side: tuple[int, Int]) -> None:
        if has_graphs and not any(sides[side].total_ns(nodes) for side, nodes in nodes_of_side):
            return
        change = by_key.setdefault(key, Change())
        change.count += 1
        for side, nodes in nodes_of_side:
            _note(change, side, sides[side], nodes)

    for base_group, cand_group in alignment.groups:
        base_nodes, cand_nodes = base_group + aligned.base_offset, cand_group + aligned.cand_offset
        names = base.heaviest(base_nodes), cand.heaviest(cand_nodes)
        add(Key("exchanged", *names, around(int(base_nodes[0]))), (BASE, base_nodes), (CAND, cand_nodes))
    for side, part, offset, how, kinds in (
        (BASE, aligned.base, aligned.base_offset, alignment.how, ("removed", "wrapper removed")),
        (CAND, aligned.cand, aligned.cand_offset, alignment.how_back, ("added", "wrapper added")),
    ):
        for outcome, kind in zip((ONLY, WRAPPER, DUPLICATE), (*kinds, "duplicated"), strict=True):
            for node in (_tops(part, how, outcome) + offset).tolist():
                name = sides[side].name(node)
                names = (name, "") if side == BASE else ("", name)
                timed = [(side, np.array([node]))] if outcome != WRAPPER else []
                add(Key(kind, *names, sides[side].forest.around(node)), *timed)
    for outcome, kind in ((RENAMED, "renamed"), (MOVED, "moved")):
        rows = _tops(aligned.base, alignment.how, outcome)
        partners = alignment.match[rows] + aligned.cand_offset
        for node, partner in zip((rows + aligned.base_offset).tolist(), partners.tolist(), strict=True):
            key = Key(kind, base.name(node), cand.name(partner), around(node))
            add(key, (BASE, np.array([node])), (CAND, np.array([partner])))


def _tops(forest: Forest, how: Int, outcome: int) -> Int:
    """Nodes with an outcome that their parent does not have."""
    inside = how == outcome
    inside &= (lookup(how, forest.parent, -1) != outcome) | (outcome == WRAPPER)
    return np.flatnonzero(inside)


def _note(change: Change, side: int, times: _SideTimes, nodes: Int) -> None:
    """Add the GPU time of subtrees of one step to one side of a change."""
    total, first, rank = times.total_ns(nodes), int(nodes[0]), times.side.rank
    change.add(side, (rank, int(times.forest.step[first])), total)
    if total >= change.most:
        change.most = total
        change.example[side] = rank, int(times.forest.event[first])


def _times_of_matched(by_key: dict[Key, Change], sides: tuple[Side, Side], pairing: Pairing) -> None:
    """Add matched calls whose time differs."""
    kinds = {SAME_WORK: "slower", OTHER_SHAPES: "other shapes", OTHER_KERNELS: "other kernels"}
    collected: dict[Key, Change] = {}
    for number, side in enumerate(sides):
        other, cause, partner = sides[1 - number], pairing.cause[number], pairing.partner[number]
        pieces = np.flatnonzero(np.isin(cause, list(kinds)))
        op_name, partner_name = side.forest.name[side.node[pieces]], other.forest.name[partner[pieces]]
        group, groups = codes(cause[pieces], op_name, partner_name, side.step[pieces])
        total = np.bincount(group, weights=side.ns[pieces], minlength=len(groups[0])).tolist()
        _, first_piece = np.unique(group, return_index=True)
        events = side.op[side.row[pieces[first_piece]]].tolist()
        for code, name, partner_code, step, ns, event in zip(
            *(key.tolist() for key in groups), total, events, strict=True
        ):
            names = side.forest.names[name], other.forest.names[partner_code]
            key = Key(kinds[code], *(names if number == BASE else names[::-1]), "")
            change = collected.setdefault(key, Change())
            change.add(number, (side.rank, step), ns)
            if ns > change.most or change.example[number] == NOWHERE:
                change.most = max(change.most, ns)
                change.example[number] = side.rank, event
    for key, change in collected.items():
        base_ns, cand_ns = (sum(ns.values()) for ns in change.ns)
        if base_ns != cand_ns:
            change.count = max(map(len, change.ns))
            by_key[key] = change


def merged(per_rank: Sequence[dict[Key, Change]]) -> dict[Key, Change]:
    """The changes of all ranks, summed by key."""
    total: dict[Key, Change] = {}
    for by_key in per_rank:
        for key, change in by_key.items():
            total.setdefault(key, Change()).merge(change)
    return total
