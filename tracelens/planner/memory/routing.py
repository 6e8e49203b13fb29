"""Tapes of the router, and of the ways to the experts and back; letters as in the workload's `rows`."""

from __future__ import annotations

from typing import NamedTuple

from tracelens.planner.config import DEVICE_PERMUTE
from tracelens.planner.memory.sizes import FLOAT32, INT64, Sizes
from tracelens.planner.memory.tape import Tape, Value


class RoutedRows(NamedTuple):
    """Which token stands in which row: integers, which nothing has gradients for.

    Attributes:
        size: R, rows.
        tokens: N, tokens among which they are.
        token: of each row.
        choice: of each row.
        row: of each choice.
        padded: whether there may be rows without a token.
    """

    size: int
    tokens: int
    token: Value
    choice: Value
    row: Value
    padded: bool


def router(t: Tape, s: Sizes, x: Value) -> tuple[Value, Value]:
    """Weights of a token's experts (float32), and their numbers (int64)."""
    m, T, E, K = s.model, s.T, s.model.experts_count, s.model.top_k
    logits = t.op([x], T * E * s.a, saves=[x], weights=E * s.row)
    expert = t.op([], T * K * INT64)
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
        # The balance loss keeps the sum of each token's scores, and how often each expert is chosen.
        counts = s.config.training.micro_batch * E * FLOAT32
        weight = t.op(
            [weight], weight.bytes, gradient="same", of=weight, saves=[score], extra=T * FLOAT32 + counts,
            scratch=T * E * FLOAT32, backward_scratch=2 * T * E * FLOAT32,
        )  # fmt: skip
    return weight, expert


def sort(t: Tape, s: Sizes, choices: int, tokens: int, rows: int, expert: Value) -> RoutedRows:
    """Rows by expert: by a mask and the host, or by sorting."""
    if s.config.toggles.sync_free < DEVICE_PERMUTE:
        # A mask's places are pairs of integers, of which the choice is one column.
        choice = t.op([], 2 * rows * INT64, reads=[expert], scratch=choices * s.e)
        row = t.op([], choices * INT64)
        return RoutedRows(rows, tokens, t.op([], rows * INT64, reads=[choice]), choice, row, padded=False)
    order = t.op([], choices * INT64, reads=[expert], scratch=3 * choices * INT64)
    choice = t.op([], rows * INT64, reads=[order]) if s.static else order
    token, row = t.op([], rows * INT64, reads=[order]), t.op([], choices * INT64, reads=[order])
    return RoutedRows(rows, tokens, token, choice, row, padded=s.static)


def spread(t: Tape, rows: RoutedRows, count: int) -> RoutedRows:
    """The same rows in parts of one size."""
    token, choice = (t.op([], count * INT64, reads=[index]) for index in (rows.token, rows.choice))
    row = t.op([], rows.row.bytes, reads=[rows.row])
    return RoutedRows(count, rows.tokens, token, choice, row, padded=True)


def permute(t: Tape, s: Sizes, x: Value, rows: RoutedRows, width: int, fused: bool) -> Value:
    """Each row its token; `width` bytes."""
    size = rows.size * width
    if fused:
        return t.op([x], size, saves=[rows.token, rows.choice, rows.row])
    return _select(t, x, rows.token, rows, width)


def _select(t: Tape, x: Value, index: Value, rows: RoutedRows, width: int) -> Value:
    """Rows of a tensor by their numbers."""
    if not rows.padded:
        return t.op([x], rows.size * width, saves=[index])
    y = t.op([x], rows.size * width, reads=[index], extra=rows.size * INT64)
    return t.op([y], y.bytes, extra=rows.size)


def unpermute(t: Tape, s: Sizes, y: Value, weight: Value | None, rows: RoutedRows) -> Value:
    """For each token the sum of its rows, each times its weight."""
    size, width = rows.tokens * s.row, s.row
    inputs = [y] if weight is None else [y, weight]
    if s.config.toggles.permute == "fused":
        kept = [rows.token, rows.choice, rows.row]
        # Without weights, the rows are not needed for the gradient, but the op keeps them all the same.
        return t.op(inputs, size, saves=[*inputs, *kept])
    token = rows.token
    if rows.padded:
        y = t.op([y], y.bytes, extra=rows.size)
        token = t.op([], rows.size * INT64, reads=[token])
    if weight is not None:
        weight_R = _select(t, weight, rows.choice, rows, FLOAT32)
        if s.a < FLOAT32:
            weight_R = t.op([weight_R], rows.size * s.a)
        y = t.op([y, weight_R], y.bytes, saves=[y, weight_R], backward_scratch=rows.size * width)
    # torch's index_add keeps what it adds, for its shape.
    return t.op([y], size, saves=[token, y], scratch=size)


class Trip(NamedTuple):
    """Tokens at their experts.

    Attributes:
        x: rows, sorted by expert.
        rows: of x among the tokens that came.
        sent: of this rank's own tokens.
        weight: to sum results with; None where the token's own rank does it.
        own_weight: weights of this rank's own tokens.
        arrived: rows that came.
    """

    x: Value
    rows: RoutedRows
    sent: RoutedRows | None
    weight: Value | None
    own_weight: Value
    arrived: int


def send(t: Tape, s: Sizes, x: Value, weight: Value, expert: Value) -> Trip:
    """Tokens to the ranks of their experts, where they are sorted."""
    kind = s.config.toggles.dispatch
    if kind == "allgather" and s.P > 1:
        return _all_to_everyone(t, s, x, weight, expert)
    if kind in ("dedup", "deepep"):
        return _copies(t, s, x, weight, expert)
    return _choices(t, s, x, weight, expert)


def _choices(t: Tape, s: Sizes, x: Value, weight: Value, expert: Value) -> Trip:
    """A copy of a token for each of its experts."""
    fused = s.config.toggles.permute == "fused"
    sent = sort(t, s, s.C, s.T, s.C, expert)
    if s.P == 1:
        return Trip(permute(t, s, x, sent, s.row, fused), sent, None, weight, weight, s.C)
    arrived = s.rows
    if s.static:
        sent = spread(t, sent, s.P * s.T * s.most)
        arrived = sent.size
    # Sizes travel first.
    t.op([], s.model.experts_count * INT64, waits=True)
    out = permute(t, s, x, sent, s.row, fused)
    x = t.op([out], arrived * s.row, waits=True)
    expert = t.op([], arrived * INT64)
    rows = sort(t, s, arrived, arrived, arrived, expert)
    return Trip(permute(t, s, x, rows, s.row, fused), rows, sent, None, weight, arrived)


def _copies(t: Tape, s: Sizes, x: Value, weight: Value, expert: Value) -> Trip:
    """A copy of a token for each rank with one of its experts, with its weights and their experts."""
    K, library = s.model.top_k, s.config.toggles.dispatch == "deepep"
    leaving = s.P * s.T if s.static else round(s.copies * s.T)
    arrived = leaving if s.static else min(s.P * s.T, round(leaving * (s.imbalance if s.P > 1 else 1)))
    sent = None
    pair = 2 * K * FLOAT32
    if library:
        weight_N = t.op([weight], arrived * K * FLOAT32)
        x = t.op([x], arrived * s.row, waits=True)
        local_expert = t.op([], arrived * K * INT64)
    else:
        rank = t.op([], s.T * s.P * INT64, reads=[expert], scratch=s.T * K * s.P)
        sent = sort(t, s, s.T * s.P, s.T, s.T * s.P if s.static else leaving, rank)
        if s.static and s.P > 1:
            sent = spread(t, sent, leaving)
        if s.P > 1 and not s.static:
            t.op([], 2 * s.P * INT64, waits=True)
        packed = t.op([weight], s.T * pair)
        packed = permute(t, s, packed, sent, pair, fused=False)
        packed = t.op([packed], leaving * pair, scratch=2 * leaving * pair)
        if s.P > 1:
            packed = t.op([packed], arrived * pair, waits=True)
        weight_N = t.view(packed, arrived * K * FLOAT32)
        out = permute(t, s, x, sent, s.row, s.config.toggles.permute == "fused")
        x = t.op([out], arrived * s.row, waits=True) if s.P > 1 else out
        local_expert = t.op([], arrived * K * INT64, reads=[packed])
    rows = s.P * s.T * s.most if s.static else s.rows
    sorted_ = sort(t, s, arrived * K, arrived, rows, local_expert)
    fused = s.config.toggles.permute == "fused"
    return Trip(permute(t, s, x, sorted_, s.row, fused), sorted_, sent, weight_N, weight, arrived)


def _all_to_everyone(t: Tape, s: Sizes, x: Value, weight: Value, expert: Value) -> Trip:
    arrived, K = s.P * s.T, s.model.top_k
    weight_N = t.op([weight], arrived * K * FLOAT32, waits=True)
    local_expert = t.op([], arrived * K * INT64, reads=[expert], waits=True)
    x = t.op([x], arrived * s.row, waits=True)
    rows = sort(t, s, arrived * K, arrived, arrived * s.most if s.static else s.rows, local_expert)
    fused = s.config.toggles.permute == "fused"
    return Trip(permute(t, s, x, rows, s.row, fused), rows, None, weight_N, weight, arrived)


def bring_back(t: Tape, s: Sizes, y: Value, trip: Trip) -> Value:
    """What the experts made of a token, summed up: y_TD."""
    if s.P == 1 and s.config.toggles.dispatch in ("alltoall", "allgather"):
        return unpermute(t, s, y, trip.weight, trip.rows)
    y = unpermute(t, s, y, trip.weight, trip.rows)
    if trip.sent is None:
        return t.op([y], s.T * s.row, waits=True)
    y = t.op([y], trip.sent.size * s.row, waits=True) if s.P > 1 else y
    return unpermute(t, s, y, trip.own_weight if trip.weight is None else None, trip.sent)
