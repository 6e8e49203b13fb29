"""Which node of a template each node of a replay is.

An alignment keeps the order of both sides and leaves nodes out where the two differ. The best one weighs
most, by how surely two nodes are the same. A pair counts only where all best alignments agree on it and its
neighbours stand beside it on both sides: a node left unattributed costs coverage, a wrong one the trust in
all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tracelens.arrays import Bool, Int
from tracelens.trace.classify import classify_kernels
from tracelens.trace.graphs.nodes import KERNEL, Nodes, Replay
from tracelens.trace.graphs.streams import merged

SAME, SAME_NAME, SAME_GEMM, PLAUSIBLE, POSSIBLE = 8, 6, 4, 2, 1
"""How surely two nodes are the same: by name and grid; by name; as GEMMs, where libraries choose the kernel;
by an op that is known to launch this kernel, where the call has no name; by their order alone."""

SUPPORT = 3
"""So many neighbouring pairs must agree before one of them counts, unless the whole graph does."""

LEAST_PLAUSIBLE = 0.95
"""Share of calls without names that must be plausible where a capture has as many nodes as a replay."""

MOST_CELLS = 30_000_000
"""Pairs of nodes that are compared at most, a matter of memory."""

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
    paired = _one_by_one(weights.diagonal()) if is_single else None
    unsure = np.zeros(count, dtype=bool)
    if paired is None:
        if len(template) * count > MOST_CELLS:
            return nothing
        weight = weights.matrix()
        order = np.arange(count)
        if not is_single:
            order, unsure = merged(weight, graph.stream, graph.start, graph.end)
        node, pair_weight = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
        node[order], pair_weight[order] = _in_order(weight[:, order])
        paired = node, pair_weight
    node, pair_weight = paired
    node[unsure], pair_weight[unsure] = -1, 0
    score = float(pair_weight.sum()) / (SAME * max(len(template), count))
    whole = len(template) == count and float((node >= 0).mean()) >= LEAST_PLAUSIBLE
    return Alignment(node, pair_weight, score, whole)


def _one_by_one(weight: Int) -> tuple[Int, Int] | None:
    """Node and weight of each pair where a replay has the nodes of the template one by one, None elsewhere.

    Of calls without names a few may be implausible: ops that were seen to launch a kernel need not be all.
    """
    fits = weight > 0
    if not len(weight) or not (fits.all() or (weight.max() <= PLAUSIBLE and fits.mean() >= LEAST_PLAUSIBLE)):
        return None
    return np.where(fits, np.arange(len(weight)), -1), weight


def _in_order(weight: NDArray[np.int8]) -> tuple[Int, Int]:
    """Node of the template and weight of the pair of each node of the replay, both in order."""
    rows, count = weight.shape
    if rows == count and (paired := _one_by_one(np.diagonal(weight).astype(np.int64))):
        return paired
    node = _agreed(weight)
    node[~_supported(node)] = -1
    return node, np.where(node >= 0, weight[np.maximum(node, 0), np.arange(count)], 0).astype(np.int64)


class Weights:
    """Weight of each pair (template node, replay node), 0 where they cannot be the same."""

    def __init__(self, template: Nodes, replay: Nodes, known: Known) -> None:
        self._template, self._replay = template, replay
        rows, self._row = _distinct(template)
        columns, self._column = _distinct(replay)
        self._table = np.zeros((len(rows), len(columns)), dtype=np.int8)
        # Another kernel for the same GEMM is one that the other side does not have elsewhere.
        own_gemms = _gemms({node[1] for node in rows} - {node[1] for node in columns})
        other_gemms = _gemms({node[1] for node in columns} - {node[1] for node in rows})
        for r, (kind, name, op) in enumerate(rows):
            for c, (other_kind, other, _) in enumerate(columns):
                if kind != other_kind:
                    continue
                if kind != KERNEL:
                    self._table[r, c] = SAME_NAME
                elif not name:
                    self._table[r, c] = POSSIBLE if other not in known else PLAUSIBLE * (op in known[other])
                elif same_kernel(name, other):
                    self._table[r, c] = SAME
                elif name in own_gemms and other in other_gemms:
                    self._table[r, c] = SAME_GEMM

    def diagonal(self) -> Int:
        """Weight of each node with the one at its place; none where kinds or numbers of nodes differ."""
        template, replay = self._template, self._replay
        if not np.array_equal(template.kind, replay.kind):
            return np.zeros(0, dtype=np.int64)
        weight = self._table[self._row, self._column].astype(np.int64)
        weight[(weight == SAME) & _differ(template.blocks, replay.blocks)] = SAME_NAME
        return weight

    def matrix(self) -> NDArray[np.int8]:
        """Weight of all pairs."""
        weight = self._table[np.ix_(self._row, self._column)]
        differ = _differ(self._template.blocks[:, None], self._replay.blocks[None, :])
        weight[(weight == SAME) & differ] = SAME_NAME
        return weight


def _differ(blocks: Int, other: Int) -> Bool:
    """Whether two grids are known and not the same."""
    differ: Bool = (blocks != other) & (blocks >= 0) & (other >= 0)
    return differ


def _gemms(names: set[str]) -> set[str]:
    listed = sorted(names - {""})
    return {
        name
        for name, kernel_class in zip(listed, classify_kernels(listed), strict=True)
        if kernel_class == "gemm"
    }


def _distinct(nodes: Nodes) -> tuple[list[tuple[int, str, str]], Int]:
    """The distinct nodes apart from their grids, and which of them each is."""
    codes: dict[tuple[int, str, str], int] = {}
    # The op matters only where the kernel has no name.
    keys = (
        (kind, name, "" if name else op)
        for kind, name, op in zip(nodes.kind.tolist(), nodes.name, nodes.op, strict=True)
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


def _agreed(weight: NDArray[np.int8]) -> Int:
    """The pairs on which all best alignments agree, as the template's node of each of the replay's."""
    ahead = _best(weight)
    behind = _best(weight[::-1, ::-1])[::-1, ::-1]
    total = ahead[:-1, :-1] + weight + behind[1:, 1:]
    best = (weight > 0) & (total == ahead[-1, -1])
    sure = best & (best.sum(axis=0, keepdims=True) == 1) & (best.sum(axis=1, keepdims=True) == 1)
    return np.where(sure.any(axis=0), sure.argmax(axis=0), -1)


def _best(weight: NDArray[np.int8]) -> NDArray[np.int32]:
    """Weight of the best alignment of the first i and the first j nodes, at [i, j]."""
    rows, columns = weight.shape
    best = np.zeros((rows + 1, columns + 1), dtype=np.int32)
    for row in range(rows):
        before = best[row]
        best[row + 1, 1:] = np.maximum(before[1:], before[:-1] + weight[row])
        np.maximum.accumulate(best[row + 1], out=best[row + 1])
    return best


def _supported(node: Int) -> Bool:
    """The pairs in a run of at least SUPPORT, both sides without a gap."""
    paired = node >= 0
    follows = np.zeros(len(node), dtype=bool)
    follows[1:] = paired[1:] & paired[:-1] & (node[1:] == node[:-1] + 1)
    borders = np.append(np.flatnonzero(~follows), len(node))
    length = np.diff(borders)
    run: Bool = np.repeat(length, length) >= SUPPORT
    return paired & run


def ops_of_kernels(calls: Iterable[Nodes]) -> Known:
    """Kernel to the ops that launch it, from calls of which both are recorded."""
    ops: dict[str, set[str]] = {}
    for nodes in calls:
        for op, name in zip(nodes.op, nodes.name, strict=True):
            if op and name:
                ops.setdefault(name, set()).add(op)
    return {name: frozenset(names) for name, names in ops.items()}
