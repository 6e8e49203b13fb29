"""The stages of one pass through an MoE layer: what each piece of its forward work is for."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tracelens.analysis.moe.kernel_lexer import (
    CAST,
    COMM,
    COPY_OUT,
    GEMM,
    GROUPED,
    PERMUTE,
    ROUTE,
    TOPK,
    Tokens,
    kinds_lookup,
)
from tracelens.analysis.moe.windows import LayerWindow, Sizes
from tracelens.arrays import Bool, Int

STAGES = ("router", "dispatch", "permute", "experts", "combine", "shared expert")
ROUTER, DISPATCH, PERMUTATION, EXPERTS, COMBINE, SHARED = range(6)

_GEMMS, _MOVES = kinds_lookup(GEMM, GROUPED), kinds_lookup(PERMUTE, ROUTE)

_LOOP = 3
"""This many GEMMs with weights of one size belong to several experts."""


class Layer(NamedTuple):
    """What one pass through an MoE layer is made of.

    Attributes:
        stage: of each token of the window, code into STAGES.
        experts_gemms: tokens, by their op's first, of the expert GEMMs.
        grouped: whether these are grouped.
    """

    stage: Int
    experts_gemms: Int
    grouped: bool


def stages(lexed: Tokens, window: LayerWindow, sizes: Sizes) -> Layer:
    """Tell the stages of a window apart.

    Communication and copies to the host before the expert GEMMs are dispatch, communication behind
    them is combine; what sorts or moves tokens is permute. Frames decide over the rest. Work that says
    nothing for itself is part of what it follows.

    Args:
        lexed: forward work of the rank.
        window: its tokens of this layer.
        sizes: of the GEMM at a token.
    """
    low, high = window.first, window.last
    kind, op = lexed.kind[low:high], lexed.op[low:high]
    router = window.router - low
    experts, grouped = _experts(kind, op, router, window, lambda index: sizes(low + index))
    stage = np.full(high - low, -1, dtype=np.int64)
    first, last = (int(experts[0]), int(experts[-1])) if len(experts) else (high - low, router)
    position = np.arange(high - low)
    is_gemm = _GEMMS[kind]
    gate = _gate(kind, op, router)
    stage[is_gemm] = SHARED
    stage[experts] = EXPERTS
    stage[kind == TOPK] = ROUTER
    stage[gate] = ROUTER
    moved = (position > router) & (kind == PERMUTE)
    begun = int(np.flatnonzero(moved)[0]) if moved.any() else high - low
    stage[moved] = PERMUTATION
    routes = kind == ROUTE
    stage[routes] = np.where(position[routes] < min(begun, first), ROUTER, PERMUTATION)
    stage[(kind == PERMUTE) & ~moved] = ROUTER
    comm = np.flatnonzero(kind == COMM)
    stage[comm] = np.where(_before(comm, experts, first, last), DISPATCH, COMBINE)
    # Sizes that go to the host before the tokens do are part of the dispatch; without one, of the sorting.
    out = (kind == COPY_OUT) & (position > router)
    stage[out] = np.where(position[out] > first, EXPERTS, DISPATCH if len(comm) else PERMUTATION)
    stage = _framed(stage, kind, window)
    return Layer(_carried(stage, kind, gate), experts, grouped)


def _experts(kind: Int, op: Int, router: int, window: LayerWindow, sizes: Sizes) -> tuple[Int, bool]:
    """Positions of the expert GEMMs, all kernels of each; and whether they are grouped."""
    position = np.arange(len(kind))
    grouped = np.flatnonzero((kind == GROUPED) & (position > router))
    if len(grouped):
        return grouped, True
    gemms = np.flatnonzero((kind == GEMM) & (position > router))
    named = np.array([part[1:] for part in window.stages if part[0] == "experts"], dtype=np.int64)
    if len(named):
        borders = np.zeros(len(kind) + 1, dtype=np.int64)
        for column, opened in ((0, 1), (1, -1)):
            np.add.at(borders, np.clip(named[:, column] - window.first, 0, len(kind)), opened)
        inside = np.cumsum(borders)[gemms] > 0
        if inside.any():
            return gemms[inside], False
    comm = np.flatnonzero((kind == COMM) & (position > router))
    if len(comm) > 1:
        between = gemms[(gemms > comm[0]) & (gemms < comm[-1])]
        if len(between):
            return _of_one_size(between, op, sizes), False
        if not len(gemms):
            return gemms, False
    # What follows the last movement is shared.
    moved = np.flatnonzero(kind == PERMUTE)
    return _of_one_size(gemms[gemms < moved[-1]] if len(moved) else gemms, op, sizes), False


def _of_one_size(gemms: Int, op: Int, sizes: Sizes) -> Int:
    """GEMMs of several experts have weights of one size; others beside them are of a shared expert.

    A rank may have just one or two experts, and sizes need not be recorded; then it is all of them.
    """
    shapes = [sizes(token) for token in gemms.tolist()]
    calls: dict[tuple[int, int], set[int]] = {}
    for token, shape in zip(gemms.tolist(), shapes, strict=True):
        calls.setdefault((shape.depth, shape.columns), set()).add(int(op[token]))
    is_loop = [shape.rows > 0 and len(calls[shape.depth, shape.columns]) >= _LOOP for shape in shapes]
    in_loop = np.array(is_loop, dtype=bool)
    of_experts: Int = gemms[in_loop] if in_loop.any() else gemms
    return of_experts


def _gate(kind: Int, op: Int, router: int) -> Int:
    """Places of the router's own product: the kernels of the last one before the top-k."""
    before = np.flatnonzero(_GEMMS[kind[:router]])
    if not len(before) or op[before[-1]] < 0:
        return before[-1:]
    gate: Int = before[op[before] == op[before[-1]]]
    return gate


def _before(comm: Int, experts: Int, first: int, last: int) -> Bool:
    """Which communication brings tokens to the experts: in between them, the first half of it."""
    inside = np.flatnonzero((comm > first) & (comm < last))
    result: Bool = comm < first
    result[inside[: (len(inside) + 1) // 2]] = True
    return result if len(experts) else np.arange(len(comm)) < (len(comm) + 1) // 2


def _framed(stage: Int, kind: Int, window: LayerWindow) -> Int:
    """What frames say, except of communication and, among the experts, of the movement of tokens."""
    stage = stage.copy()
    for name, first, last in window.stages:
        code = STAGES.index(name)
        inside = slice(max(first - window.first, 0), max(last - window.first, 0))
        keep = kind[inside] == COMM
        if code == EXPERTS:
            keep |= _MOVES[kind[inside]]
        stage[inside] = np.where(keep, stage[inside], code)
    return stage


def _carried(stage: Int, kind: Int, gate: Int) -> Int:
    """Give each place without a stage that of the one before; the first ones that of the one behind."""
    known = np.flatnonzero(stage >= 0)
    if not len(known):
        return np.full(len(stage), ROUTER)
    source = np.maximum.accumulate(np.where(stage >= 0, np.arange(len(stage)), -1))
    result = stage[np.maximum(source, 0)]
    result[: known[0]] = stage[known[0]]
    # Casts in front of the router's GEMM are its own.
    if len(gate):
        begin = int(gate[0])
        while begin > 0 and stage[begin - 1] < 0 and kind[begin - 1] == CAST:
            begin -= 1
        result[begin : int(gate[0])] = ROUTER
    return result
