"""Tapes of Megatron-core's MoE layer: router, dispatcher, experts, shared expert.

Read from Megatron-core 0.16.0, transformer/moe/{router,moe_utils,token_dispatcher,experts,fused_a2a}.py. The
routed weights multiply inside the experts, between the two GEMMs, so that the combine saves no rows.
"""

from __future__ import annotations

from typing import NamedTuple

from tracelens.planner.block import Sizes, Tape, Value
from tracelens.planner.expected import FLOAT32, INT64
from tracelens.planner.memory.megatron import dense
from tracelens.planner.memory.megatron.settings import Settings

INT32 = 4


class Routing(NamedTuple):
    """Weights of all tokens and experts, and a mask of the same shape."""

    weight: Value
    mask: Value


class Dispatched(NamedTuple):
    """Rows of this rank's experts, their weights, and what the forward keeps until it returns."""

    x: Value
    weight: Value
    row_map: Value
    alive: tuple[Value, ...]


def moe(t: Tape, s: Sizes, k: Settings, x: Value) -> Value:
    """The layer on the normed stream."""
    shared = None
    if s.model.shared_ffn:
        with t.part("activations.shared"):
            shared = dense.mlp(t, s, k, x, s.model.shared_ffn)
    with t.part("activations.router"):
        routing = router(t, s, k, x)
    with t.part("activations.dispatch"):
        rows = _dispatch_deepep(t, s, x, routing) if k.deepep else _dispatch(t, s, k, x, routing)
    with t.part("activations.experts"):
        y = experts(t, s, k, rows)
    y = _combine_deepep(t, s, y) if k.deepep else _combine(t, s, y, rows)
    t.touch(*rows.alive)
    return y if shared is None else t.op([y, shared], s.T * s.row, gradient="same")


def router(t: Tape, s: Sizes, k: Settings, x: Value) -> Routing:
    """Scores in float32, scattered to a weight and a mask for each token and expert."""
    m, T, E, K = s.model, s.T, s.model.experts_count, s.model.top_k
    # Without Transformer Engine's GEMM the input and its gradient are float32 copies.
    wide = 0 if k.engine else T * m.hidden * FLOAT32
    logits = t.op([x], T * E * FLOAT32, saves=[x], scratch=wide, backward_scratch=wide + E * m.hidden * s.a)
    if k.router:
        # One kernel, which saves the scores in float32 and the mask.
        weight = t.op([logits], T * E * FLOAT32, extra=T * E * FLOAT32)
        return Routing(weight, t.op([], T * E, keep=True))
    if s.config.training.routing != "learned":
        # Forced balance: random logits in the place of the learned ones.
        logits = t.op([logits], logits.bytes, gradient="same")
    # The ids of top-k are saved twice, by the top-k and by the scatter, as the same tensor.
    top = t.op([logits], T * K * FLOAT32, extra=T * K * INT64, backward_scratch=0)
    score = t.op([top], T * K * FLOAT32, keep=True)
    weight = t.op([score], T * E * FLOAT32, scratch=T * E * FLOAT32)
    mask = t.op([], T * E, scratch=2 * T * E * INT32)
    return Routing(weight, mask)


def _dispatch(t: Tape, s: Sizes, k: Settings, x: Value, routing: Routing) -> Dispatched:
    """Permute, all-to-all, and sort by expert if the rank has several."""
    T, E, C = s.T, s.model.experts_count, s.C
    sent = C * s.row
    alive: list[Value] = []
    if k.permute:
        # A map from tokens to rows: positions and experts of each token, and their number.
        index = t.op([], T * (2 * s.model.top_k + 1) * INT32)
        rows = t.op([x], sent, saves=[index])
        weight = t.op([routing.weight], C * FLOAT32, saves=[index])
    else:
        mask = t.op([], T * E, reads=[routing.mask])
        index = t.op([], C * INT64, reads=[mask], scratch=2 * T * E * INT64)
        turned = t.op([routing.weight], T * E * FLOAT32)
        weight = t.op([turned], C * FLOAT32, saves=[turned, mask], scratch=T * E * INT64)
        rows = t.op([x], sent, saves=[index])
    if s.P > 1:
        alive.append(rows)
        rows = t.op([rows], s.rows * s.row, waits=True)
        weight = t.op([weight], s.rows * FLOAT32, waits=True)
    if s.e > 1:
        alive.append(rows)
        rows = t.op([rows], s.rows * s.row)
        weight = t.op([weight], s.rows * FLOAT32)
    alive.append(rows)
    return Dispatched(rows, weight, index, tuple(alive))


def _combine(t: Tape, s: Sizes, y: Value, rows: Dispatched) -> Value:
    """The way back; a sum without weights saves only its index."""
    output = y
    if s.e > 1:
        y = t.op([output], output.bytes)
    t.touch(output)
    if s.P > 1:
        y = t.op([y], s.C * s.row, waits=True)
    return t.op([y], s.T * s.row, saves=[rows.row_map])


def _dispatch_deepep(t: Tape, s: Sizes, x: Value, routing: Routing) -> Dispatched:
    """DeepEP sends a token once to each rank; rows are made of it on arrival."""
    K, arrived = s.model.top_k, s.copies_sent
    top = t.op([routing.weight], s.T * K * FLOAT32, extra=s.T * K * INT64)
    received = t.op([x, top], arrived * s.row, extra=arrived * K * (INT64 + FLOAT32), waits=True)
    probs = t.op([top], arrived * s.e * FLOAT32, extra=arrived * s.e)
    index = t.op([], arrived * (2 * s.e + 1) * INT32)
    rows = t.op([received], s.rows * s.row, saves=[index])
    weight = t.op([probs], s.rows * FLOAT32, saves=[index])
    return Dispatched(rows, weight, index, (received, rows))


def _combine_deepep(t: Tape, s: Sizes, y: Value) -> Value:
    summed = t.op([y], s.copies_sent * s.row)
    return t.op([summed], s.T * s.row, waits=True)


def experts(t: Tape, s: Sizes, k: Settings, rows: Dispatched) -> Value:
    """fc2(weight * swiglu(fc1(rows))): as grouped GEMMs, or expert by expert."""
    if k.grouped:
        return _expert(t, s, k, rows.x, rows.weight, s.rows, s.e)
    shares = [s.rows // s.e + (number < s.rows % s.e) for number in range(s.e)]
    parts = t.split(rows.x, [share * s.row for share in shares]) if s.e > 1 else [rows.x]
    weights = t.split(rows.weight, [share * FLOAT32 for share in shares]) if s.e > 1 else [rows.weight]
    outputs = [
        _expert(t, s, k, part, weight, share, 1)
        for part, weight, share in zip(parts, weights, shares, strict=True)
    ]
    if s.e == 1:
        return outputs[0]
    t.touch(*outputs)
    return t.op(outputs, s.rows * s.row, gradient="same")


def _expert(t: Tape, s: Sizes, k: Settings, x: Value, weight: Value, rows: int, count: int) -> Value:
    D, F = s.model.hidden, s.model.expert_ffn
    save = k.recompute != "moe_act"
    up = dense.linear(t, s, k, x, rows, count * D, 2 * F)
    h = dense.swiglu(t, k, up, weight)
    weights = 0 if k.accumulate else count * F * D * s.a
    return t.op(
        [h], rows * s.row, saves=[h] if save else [], weights=weights,
        backward_scratch=0 if save else h.bytes,
    )  # fmt: skip
