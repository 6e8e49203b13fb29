"""Router, dispatch and combine; letters as in the workload's `rows`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tracelens.planner.block.op import (
    FLOAT32,
    INT64,
    Kernel,
    Value,
    Weight,
    both_ways,
    eager,
    moves,
    one_way,
)
from tracelens.planner.block.sizes import Sizes
from tracelens.planner.block.tape import Tape
from tracelens.planner.config import DEVICE_PERMUTE


class RoutedRows(NamedTuple):
    """Index tensors between tokens and rows sorted by expert; they have no gradients.

    Attributes:
        size: R, rows.
        tokens: N, tokens.
        token: token of each row.
        choice: assignment (token, k) of each row.
        row: row of each assignment.
        padded: whether rows may hold no token.
    """

    size: int
    tokens: int
    token: Value
    choice: Value
    row: Value
    padded: bool


def router(t: Tape, s: Sizes, x: Value) -> tuple[Value, Value]:
    """Weights (float32) and ids (int64) of each token's experts."""
    m, T, E, K = s.model, s.T, s.model.experts_count, s.model.top_k
    logits = t.op(
        [x], T * E * s.a, saves=[x], weights=E * s.row, kernels=s.gemm(T, m.hidden, E),
        weight=Weight("stage", t.scope),
    )  # fmt: skip
    # Softmax in float32; what follows can be fused.
    expert = t.op([], T * K * INT64, kernels=moves(2 * T * E * FLOAT32, 2 * T * E * FLOAT32))
    learned = s.config.training.routing == "learned"
    if learned and s.config.toggles.router == "fused":
        score = t.op([], T * E * FLOAT32)
        weight = t.op([logits], T * K * FLOAT32, saves=[expert, score], backward_scratch=T * E * FLOAT32)
    else:
        wide = logits if s.a == FLOAT32 else t.op([logits], T * E * FLOAT32)
        score = t.op([wide], T * E * FLOAT32, keep=True)
        weight = t.op([score], T * K * FLOAT32, saves=[expert])
        if m.score == "sigmoid":
            weight = t.op([weight], weight.bytes, saves=[weight], extra=T * FLOAT32)
    if m.aux_loss:
        # The balance loss saves the sum of each token's scores, and the tokens per expert of the whole
        # sequence; these counts have no gradient.
        counts = s.config.training.micro_batch * E * FLOAT32
        weight = t.op(
            [weight], weight.bytes, gradient="same", of=weight, saves=[score], extra=T * FLOAT32 + counts,
            scratch=T * E * FLOAT32, backward_scratch=2 * T * E * FLOAT32,
            messages=one_way("counts", "all_reduce", "cp_tp", counts, counts),
        )  # fmt: skip
    return weight, expert


def sort(t: Tape, s: Sizes, choices: int, tokens: int, rows: int, expert: Value) -> RoutedRows:
    """Rows sorted by expert: with a mask and a host sync, or with a sort on the device."""
    if s.config.toggles.sync_free < DEVICE_PERMUTE:
        # nonzero of the mask gives pairs of integers, of which the assignment is one column.
        choice = t.op([], 2 * rows * INT64, reads=[expert], scratch=choices * s.e)
        row = t.op([], choices * INT64)
        return RoutedRows(rows, tokens, t.op([], rows * INT64, reads=[choice]), choice, row, padded=False)
    order = t.op([], choices * INT64, reads=[expert], scratch=3 * choices * INT64)
    choice = t.op([], rows * INT64, reads=[order]) if s.static else order
    token, row = t.op([], rows * INT64, reads=[order]), t.op([], choices * INT64, reads=[order])
    return RoutedRows(rows, tokens, token, choice, row, padded=s.static)


def spread(t: Tape, rows: RoutedRows, count: int) -> RoutedRows:
    """The same rows, padded to equal parts."""
    token, choice = (t.op([], count * INT64, reads=[index]) for index in (rows.token, rows.choice))
    row = t.op([], rows.row.bytes, reads=[rows.row])
    return RoutedRows(count, rows.tokens, token, choice, row, padded=True)


def permute(
    t: Tape, s: Sizes, x: Value, rows: RoutedRows, width: int, fused: bool, kernels: Sequence[Kernel] = ()
) -> Value:
    """Token of each row; `width` bytes per row."""
    if not fused:
        return _select(t, x, rows.token, rows, width, kernels)
    saves = [rows.token, rows.choice, rows.row]
    return t.op([x], rows.size * width, saves=saves, kernels=kernels)


def _select(
    t: Tape, x: Value, index: Value, rows: RoutedRows, width: int, kernels: Sequence[Kernel] = ()
) -> Value:
    """Index select of rows."""
    if not rows.padded:
        return t.op([x], rows.size * width, saves=[index], kernels=kernels)
    y = t.op([x], rows.size * width, reads=[index], extra=rows.size * INT64, kernels=kernels)
    return t.op([y], y.bytes, extra=rows.size)


def unpermute(
    t: Tape, s: Sizes, y: Value, weight: Value | None, rows: RoutedRows, kernels: Sequence[Kernel] = ()
) -> Value:
    """Weighted sum of each token's rows."""
    size, width = rows.tokens * s.row, s.row
    inputs = [y] if weight is None else [y, weight]
    if s.config.toggles.permute == "fused":
        kept = [rows.token, rows.choice, rows.row]
        # The op saves the rows even without weights, when the gradient does not need them.
        return t.op(inputs, size, saves=[*inputs, *kept], kernels=kernels)
    token = rows.token
    if rows.padded:
        y = t.op([y], y.bytes, extra=rows.size)
        token = t.op([], rows.size * INT64, reads=[token])
    if weight is not None:
        weight_R = _select(t, weight, rows.choice, rows, FLOAT32)
        if s.a < FLOAT32:
            weight_R = t.op([weight_R], rows.size * s.a)
        y = t.op([y, weight_R], y.bytes, saves=[y, weight_R], backward_scratch=rows.size * width)
    # torch's index_add saves its source, for the shape.
    return t.op([y], size, saves=[token, y], scratch=size, kernels=kernels)


class Dispatched(NamedTuple):
    """Tokens after dispatch.

    Attributes:
        x: rows, sorted by expert.
        rows: of x among the received tokens.
        sent: rows of this rank's own tokens; None if all are sent.
        weight: for the sum of results on this rank; None if the token's own rank weights them.
        own_weight: weights of this rank's own tokens.
    """

    x: Value
    rows: RoutedRows
    sent: RoutedRows | None
    weight: Value | None
    own_weight: Value


def dispatch(t: Tape, s: Sizes, x: Value, weight: Value, expert: Value) -> Dispatched:
    """Dispatch: tokens to the ranks of their experts, and sorted there."""
    kind = s.config.toggles.dispatch
    if kind == "allgather" and s.P > 1:
        return _all_gather(t, s, x, weight, expert)
    if kind in ("dedup", "deepep"):
        return _copies(t, s, x, weight, expert)
    return _all_to_all(t, s, x, weight, expert)


def _all_to_all(t: Tape, s: Sizes, x: Value, weight: Value, expert: Value) -> Dispatched:
    """All-to-all of one row per token and expert."""
    sent = sort(t, s, s.C, s.T, s.C, expert)
    if s.P == 1:
        return Dispatched(_sorted(t, s, x, sent), sent, None, weight, weight)
    if s.static:
        sent = spread(t, sent, s.buffer_rows)
    # Counts are exchanged first.
    counts = s.model.experts_count * INT64
    t.op([], counts, waits=True, messages=one_way("counts", "all_to_all", "ep", counts, counts))
    out = permute(t, s, x, sent, s.row, s.config.toggles.permute == "fused")
    x = t.collective(out, s.R * s.row, "tokens", "all_to_all", "ep")
    rows = sort(t, s, s.R, s.R, s.R, t.op([], s.R * INT64))
    return Dispatched(_sorted(t, s, x, rows), rows, sent, None, weight)


def _copies(t: Tape, s: Sizes, x: Value, weight: Value, expert: Value) -> Dispatched:
    """One copy of a token per rank with any of its experts, with its weights and expert ids."""
    K = s.model.top_k
    leaving, arrived = (s.P * s.T,) * 2 if s.static else (s.copies_sent, s.copies_received)
    sent = None
    if s.config.toggles.dispatch == "deepep":
        weight_N = t.op([weight], arrived * K * FLOAT32)
        # Only actual tokens travel, even to buffers sized for the worst case.
        sizes = s.copies_sent * s.row, s.copies_received * s.row
        x = t.op([x], arrived * s.row, waits=True, messages=both_ways("tokens", "deepep", "ep", *sizes))
        local_expert = t.op([], arrived * K * INT64)
    else:
        rank = t.op([], s.T * s.P * INT64, reads=[expert], scratch=s.T * K * s.P)
        sent = sort(t, s, s.T * s.P, s.T, s.T * s.P if s.static else leaving, rank)
        if s.static and s.P > 1:
            sent = spread(t, sent, leaving)
        if s.P > 1 and not s.static:
            # Number of copies, and of the rows that they expand to.
            counts = 2 * s.P * INT64
            t.op([], counts, waits=True, messages=one_way("counts", "all_to_all", "ep", counts, counts))
        pair = 2 * K * FLOAT32
        packed = t.op([weight], s.T * pair)
        packed = permute(t, s, packed, sent, pair, fused=False)
        packed = t.op([packed], leaving * pair, scratch=2 * leaving * pair)
        if s.P > 1:
            packed = t.collective(packed, arrived * pair, "routing", "all_to_all", "ep")
        weight_N = t.view(packed, arrived * K * FLOAT32)
        x = permute(t, s, x, sent, s.row, s.config.toggles.permute == "fused")
        if s.P > 1:
            x = t.collective(x, arrived * s.row, "tokens", "all_to_all", "ep")
        local_expert = t.op([], arrived * K * INT64, reads=[packed])
    rows = sort(t, s, arrived * K, arrived, s.R, local_expert)
    return Dispatched(_sorted(t, s, x, rows), rows, sent, weight_N, weight)


def _all_gather(t: Tape, s: Sizes, x: Value, weight: Value, expert: Value) -> Dispatched:
    """All tokens to all ranks."""
    arrived, K = s.P * s.T, s.model.top_k
    weight_N = t.collective(weight, s.P * weight.bytes, "weights", "all_gather", "ep")
    ids = one_way("experts", "all_gather", "ep", expert.bytes, s.P * expert.bytes)
    local_expert = t.op([], arrived * K * INT64, reads=[expert], waits=True, messages=ids)
    x = t.collective(x, s.P * x.bytes, "tokens", "all_gather", "ep")
    rows = sort(t, s, arrived * K, arrived, s.R, local_expert)
    return Dispatched(_sorted(t, s, x, rows), rows, None, weight_N, weight)


def _sorted(t: Tape, s: Sizes, x: Value, rows: RoutedRows) -> Value:
    """Tokens on the rank of their experts, in order of expert; the gradient of a gather adds rows."""
    moved, one_by_one = _moved(s)
    return permute(
        t, s, x, rows, s.row, s.config.toggles.permute == "fused",
        (*moves(moved, moved), *eager(0, one_by_one, "scatter")),
    )  # fmt: skip


def _moved(s: Sizes) -> tuple[int, int]:
    """Bytes that dispatch or combine moves on this rank, and more of them where torch's ops permute.

    The first are own tokens, sent, received, and sorted by expert.
    """
    match s.config.toggles.dispatch:
        case "alltoall":
            sent, received = s.C, s.rows
        case "allgather":
            sent, received = 0, s.P * s.T
        case _:
            sent, received = s.copies_sent, s.copies_received
    one_by_one = 0 if s.config.toggles.permute == "fused" else 2 * (sent or received)
    return (s.T + sent + received + s.rows) * s.row, one_by_one * s.row


def combine(t: Tape, s: Sizes, y: Value, routed: Dispatched) -> Value:
    """Combine: the weighted sum of expert outputs, y_TD, whose gradient also has the weights'."""
    kind = s.config.toggles.dispatch
    moved, one_by_one = _moved(s)
    kernels = *moves(moved, moved), *eager(one_by_one, 3 * one_by_one, "scatter", "triad")
    y = unpermute(t, s, y, routed.weight, routed.rows, kernels)
    if s.P == 1 and kind in ("alltoall", "allgather"):
        return y
    if routed.sent is None:
        if kind == "allgather":
            return t.collective(y, s.T * s.row, "results", "reduce_scatter", "ep")
        sizes = s.copies_received * s.row, s.copies_sent * s.row
        return t.op([y], s.T * s.row, waits=True, messages=both_ways("results", "deepep", "ep", *sizes))
    if s.P > 1:
        y = t.collective(y, routed.sent.size * s.row, "results", "all_to_all", "ep")
    return unpermute(t, s, y, routed.own_weight if routed.weight is None else None, routed.sent)
