"""Which node of a template each node of a replay is.

Two nodes are the same by name and grid; by name; as GEMMs, where libraries choose the kernel; or, where the
call has no name, by the ops that are known to launch this kernel. Where a replay has the template's nodes one
by one, that is all. Elsewhere only pairs count that hold however the two came to differ: a node left
unattributed costs coverage, a wrong one the trust in all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from copy import copy
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tracelens.arrays import Int
from tracelens.trace.classify import classify_kernels
from tracelens.trace.graphs.edits import FREE, LIKELY, NEVER, REGRIDDED, RENAMED, Codes, certain
from tracelens.trace.graphs.nodes import KERNEL, Nodes, Replay
from tracelens.trace.graphs.streams import merged

SAME, SAME_NAME, SAME_GEMM, PLAUSIBLE, POSSIBLE = 8, 6, 4, 2, 1
"""How surely two nodes are the same: by name and grid; by name; as GEMMs, where libraries choose the kernel;
by an op that is known to launch this kernel, where the call has no name; by their order alone."""

LEAST_PLAUSIBLE = 0.95
"""Share of calls without names that must be plausible where a capture has as many nodes as a replay."""

MOST_MERGED = 60_000_000
"""Pairs of nodes that are compared at most to follow several streams, a matter of memory."""

Known = Mapping[str, frozenset[str]]
"""Kernel to the ops that are known to launch it."""

_NESTED = re.compile(r"\d+")


class Alignment(NamedTuple):
    """Node of the template and weight of the pair for each node of the replay; -1 where none is sure.

    Attributes:
        score: weight of the best alignment, as a share of what full agreement would weigh.
        is_whole: whether both have the same number of nodes, and nearly all of them are paired.
    """

    node: Int
    weight: Int
    score: float
    is_whole: bool = False


def align(template: Nodes, graph: Replay, known: Known) -> Alignment:
    """Align a replay with a template.

    On several streams the order of the program is found by the names of the kernels, and not without.
    """
    replay, count = graph.nodes, len(graph.nodes)
    nothing = Alignment(np.full(count, -1), np.zeros(count, dtype=np.int64), 0.0)
    is_single = len(np.unique(graph.stream)) == 1
    if not len(template) or not (is_single or any(template.name)):
        return nothing
    weights = Weights(template, replay, known)
    if not any(template.name):
        paired = _one_by_one(weights.diagonal())
        return nothing if paired is None else _alignment(template, *paired)
    paired = _one_by_one(weights.diagonal()) if is_single else None
    unsure = np.zeros(count, dtype=bool)
    if paired is None:
        order = np.arange(count)
        if not is_single:
            if len(template) * count > MOST_MERGED:
                return nothing
            order, unsure = merged(weights.matrix(), graph.stream, graph.start, graph.end)
        node, pair_weight = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
        node[order], pair_weight[order] = _in_order(weights.of(order))
        paired = node, pair_weight
    node, pair_weight = paired
    node[unsure], pair_weight[unsure] = -1, 0
    return _alignment(template, node, pair_weight)


def _alignment(template: Nodes, node: Int, weight: Int) -> Alignment:
    score = float(weight.sum()) / (SAME * max(len(template), len(node)))
    whole = len(template) == len(node) and float((node >= 0).mean()) >= LEAST_PLAUSIBLE
    return Alignment(node, weight, score, whole)


def _one_by_one(weight: Int) -> tuple[Int, Int] | None:
    """Node and weight of each pair where a replay has the nodes of the template one by one, None elsewhere.

    Of calls without names a few may be implausible: ops that were seen to launch a kernel need not be all.
    """
    fits = weight > 0
    if not len(weight) or not (fits.all() or (weight.max() <= PLAUSIBLE and fits.mean() >= LEAST_PLAUSIBLE)):
        return None
    return np.where(fits, np.arange(len(weight)), -1), weight


def _in_order(weights: Weights) -> tuple[Int, Int]:
    """Node of the template and weight of the pair of each node of the replay, both in order."""
    if paired := _one_by_one(weights.diagonal()):
        return paired
    node = certain(weights.codes())
    return node, np.where(node >= 0, weights.pairs(np.maximum(node, 0)), 0)


class Weights:
    """Weight of each pair (template node, replay node), 0 where they cannot be the same."""

    def __init__(self, template: Nodes, replay: Nodes, known: Known) -> None:
        rows, self._row = _distinct(template)
        columns, self._column = _distinct(replay)
        self._kind, self._other_kind = template.kind, replay.kind
        self._is_kernel = np.logical_and.outer(
            *([node[0] == KERNEL for node in side] for side in (rows, columns))
        )
        # Another kernel for the same GEMM is one that the other side does not have elsewhere.
        own_gemms = _gemms({node[1] for node in rows} - {node[1] for node in columns})
        other_gemms = _gemms({node[1] for node in columns} - {node[1] for node in rows})

        @cache
        def weight(own: tuple[int, str, str], other: tuple[int, str, str]) -> int:
            (kind, name, op), (other_kind, other_name, _) = own, other
            if kind != other_kind:
                return 0
            if kind != KERNEL:
                return SAME_NAME
            if not name:
                return POSSIBLE if other_name not in known else PLAUSIBLE * (op in known[other_name])
            if same_kernel(name, other_name):
                return SAME
            return SAME_GEMM if name in own_gemms and other_name in other_gemms else 0

        weights = [[weight(own[:3], other[:3]) for other in columns] for own in rows]
        self._table = np.array(weights, dtype=np.int8).reshape(len(rows), len(columns))
        blocks, other_blocks = (np.array([node[3] for node in side]) for side in (rows, columns))
        known_grids = np.logical_and.outer(blocks >= 0, other_blocks >= 0)
        self._is_other_grid = (self._table == SAME) & known_grids & np.not_equal.outer(blocks, other_blocks)
        self._table[self._is_other_grid] = SAME_NAME

    def diagonal(self) -> Int:
        """Weight of each node with the one at its place; none where kinds or numbers of nodes differ."""
        same = np.array_equal(self._kind, self._other_kind)
        return self.pairs(np.arange(len(self._kind))) if same else np.zeros(0, dtype=np.int64)

    def of(self, order: Int) -> Weights:
        """Weights with the replay in another order."""
        other = copy(self)
        other._column, other._other_kind = self._column[order], self._other_kind[order]
        return other

    def pairs(self, node: Int) -> Int:
        """Weight of each node of the replay with one of the template."""
        return self._table[self._row[node], self._column].astype(np.int64)

    def matrix(self) -> NDArray[np.int8]:
        """Weight of all pairs."""
        return self._table[np.ix_(self._row, self._column)]

    def codes(self) -> Codes:
        """Prices of the pairs: another name, of two kernels, takes a renaming."""
        price = np.where(self._table >= SAME_NAME, FREE, np.where(self._table > 0, LIKELY, NEVER))
        price[self._is_other_grid] = REGRIDDED
        price[self._is_kernel & (self._table == 0)] = RENAMED
        count = np.bincount(self._row, minlength=len(price))
        is_same = (self._table > 0) & ~self._is_other_grid
        share = (count[:, None] * is_same).sum(axis=0) / max(len(self._row), 1)
        return Codes(self._row, self._column, price.astype(np.int32), share)


def _gemms(names: set[str]) -> set[str]:
    listed = sorted(names - {""})
    return {
        name
        for name, kernel_class in zip(listed, classify_kernels(listed), strict=True)
        if kernel_class == "gemm"
    }


def _distinct(nodes: Nodes) -> tuple[list[tuple[int, str, str, int]], Int]:
    """The distinct nodes, as kind, name, op and blocks, and which of them each is."""
    codes: dict[tuple[int, str, str, int], int] = {}
    # The op matters only where the kernel has no name.
    keys = (
        (kind, name, "" if name else op, blocks)
        for kind, name, op, blocks in zip(
            nodes.kind.tolist(), nodes.name, nodes.op, nodes.blocks.tolist(), strict=True
        )
    )
    code = [codes.setdefault(key, len(codes)) for key in keys]
    return list(codes), np.array(code, dtype=np.int64)


def same_kernel(name: str, other: str) -> bool:
    """Whether two names are of one kernel; of one that is mangled only the function is compared."""
    if name == other:
        return True
    if name.startswith("_Z") == other.startswith("_Z"):
        return False
    return function(name) == function(other)


def function(name: str) -> str:
    """`space::function` of a kernel, without return type, template and call arguments."""
    if name.startswith("_Z"):
        text, parts = name[2:].removeprefix("L").removeprefix("N"), []
        while match := _NESTED.match(text):
            end = match.end() + int(match[0])
            parts.append(text[match.end() : end])
            text = text[end:]
        return "::".join("(anonymous namespace)" if part.startswith("_GLOBAL__N") else part for part in parts)
    bare = re.split(r"[<(]", name.replace("(anonymous namespace)", "\x00"), maxsplit=1)[0]
    return bare.rpartition(" ")[2].replace("\x00", "(anonymous namespace)")


def ops_of_kernels(calls: Iterable[Nodes]) -> Known:
    """Kernel to the ops that launch it, from calls of which both are recorded."""
    ops: dict[str, set[str]] = {}
    for nodes in calls:
        for op, name in zip(nodes.op, nodes.name, strict=True):
            if op and name:
                ops.setdefault(name, set()).add(op)
    return {name: frozenset(names) for name, names in ops.items()}
