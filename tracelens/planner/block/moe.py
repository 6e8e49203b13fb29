"""The sections of the model on one rank, and the parts of an MoE layer: router, dispatch, experts, combine.

A section is ops from the residual stream to the residual stream. The routed experts run one by one, or as one
grouped GEMM. Letters are as in the workload's `rows`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from tracelens.planner.block import dense
from tracelens.planner.block.dense import AttentionKernel, RankSizes, shares, swiglu, swiglu_kernels
from tracelens.planner.block.tape import (
    FLOAT32,
    FP8,
    INT32,
    INT64,
    Kernel,
    Load,
    Op,
    Section,
    Tape,
    Value,
    Weight,
    both_ways,
    eager,
    moves,
    one_way,
)
from tracelens.planner.config import DEVICE_PERMUTE


class RoutedRows(NamedTuple):
    """Index tensors between tokens and rows sorted by expert; they have no gradients."""

    size: int  # R, rows
    tokens: int  # N, tokens
    token: Value  # token of each row
    choice: Value  # assignment (token, k) of each row
    row: Value  # row of each assignment
    padded: bool  # whether rows may hold no token


class Dispatched(NamedTuple):
    """Tokens after dispatch."""

    x: Value  # rows, sorted by expert
    rows: RoutedRows  # of x among the received tokens
    sent: RoutedRows | None  # rows of this rank's own tokens; None if all are sent
    weight: Value | None  # for the sum of results on this rank; None if the token's own rank weights them
    own_weight: Value  # weights of this rank's own tokens


# Sequential experts free their activations one by one in the backward, approximated by this many steps.
PIECES = 8
_WEIGHT = Weight("edp", "experts")


class Quantized(NamedTuple):
    """Bytes of the FP8 operands of one grouped GEMM, scales included."""

    forward: int  # rows of the input, and the matrices transposed
    backward: int  # rows of the output gradient, and the matrices


@lru_cache(maxsize=512)
def attention_section(s: RankSizes, kernel: AttentionKernel) -> Section:
    """Norm and attention, added to the residual stream."""
    t, x = _begun(s, "activations.attention", "attention")
    return t.section(x, dense.add(t, x, dense.attention(t, s, x, kernel)))


@lru_cache(maxsize=512)
def mlp_section(s: RankSizes) -> Section:
    """Norm and MLP, added to the residual stream."""
    t, x = _begun(s, "activations.mlp", "mlp")
    return t.section(x, dense.add(t, x, dense.gated(t, s, dense.norm(t, s, x), s.model.dense_ffn)))


@lru_cache(maxsize=512)
def moe_section(s: RankSizes) -> Section:
    """Norm, router, routed and shared experts, added to the residual stream."""
    t, x = _begun(s, "activations.dispatch", "router")
    normed = dense.norm(t, s, x)
    with t.part("activations.router"):
        weight, expert = router(t, s, normed)
    with t.part("activations.dispatch", "dispatch"):
        routed = dispatch(t, s, normed, weight, expert)
    shared = _shared_expert(t, s, normed) if s.config.toggles.overlap_shared else None
    with t.part("activations.experts", "experts"):
        y_R = experts(t, s, routed.x, routed.rows.size)
    with t.part("activations.dispatch", "combine"):
        y = combine(t, s, y_R, routed)
    # The forward of the module refers to these until it returns.
    t.touch(y_R, routed.x, weight, expert)
    shared = shared or _shared_expert(t, s, normed)
    if shared is not None:
        y = dense.add(t, y, shared)
    padding = 1 - s.rows / s.buffer_rows if s.static and s.P > 1 else 0.0
    return t.section(x, dense.add(t, x, y), padding)


@lru_cache(maxsize=512)
def embedding_section(s: RankSizes) -> Section:
    """The embedding, which saves nothing."""
    t = Tape("activations.embedding", "embedding")
    token = t.input(0)
    return t.section(token, dense.embed(t, s, token))


@lru_cache(maxsize=512)
def head_section(s: RankSizes) -> Section:
    """Norm, head and loss."""
    t, x = _begun(s, "loss", "head")
    return t.section(x, dense.head(t, s, x))


def layer_ops(s: RankSizes, is_moe: bool, kernel: AttentionKernel = "flash") -> Sequence[Op]:
    """The ops of a layer in execution order."""
    ffn = moe_section(s) if is_moe else mlp_section(s)
    return [*attention_section(s, kernel).ops, *ffn.ops]


def _begun(s: RankSizes, component: str, scope: str) -> tuple[Tape, Value]:
    """A tape with the residual stream as its input."""
    t = Tape(component, scope)
    with t.part("activations.norms"):
        return t, t.input(s.T * s.row)


def _shared_expert(t: Tape, s: RankSizes, x: Value) -> Value | None:
    if not s.model.shared_ffn:
        return None
    with t.part("activations.shared", "shared"):
        return dense.gated(t, s, x, s.model.shared_ffn)


def router(t: Tape, s: RankSizes, x: Value) -> tuple[Value, Value]:
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


def sort(t: Tape, s: RankSizes, choices: int, tokens: int, rows: int, expert: Value) -> RoutedRows:
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
    t: Tape, s: RankSizes, x: Value, rows: RoutedRows, width: int, fused: bool, kernels: Sequence[Kernel] = ()
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
    t: Tape, s: RankSizes, y: Value, weight: Value | None, rows: RoutedRows, kernels: Sequence[Kernel] = ()
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


def dispatch(t: Tape, s: RankSizes, x: Value, weight: Value, expert: Value) -> Dispatched:
    """Dispatch: tokens to the ranks of their experts, and sorted there."""
    kind, K = s.config.toggles.dispatch, s.model.top_k
    if kind == "allgather" and s.P > 1:
        arrived = s.P * s.T
        weight_N = t.collective(weight, s.P * weight.bytes, "weights", "all_gather", "ep")
        ids = one_way("experts", "all_gather", "ep", expert.bytes, s.P * expert.bytes)
        local_expert = t.op([], arrived * K * INT64, reads=[expert], waits=True, messages=ids)
        x = t.collective(x, s.P * x.bytes, "tokens", "all_gather", "ep")
        rows = sort(t, s, arrived * K, arrived, s.R, local_expert)
        return Dispatched(_sorted(t, s, x, rows), rows, None, weight_N, weight)
    if kind not in ("dedup", "deepep"):
        # All-to-all of one row per token and expert.
        own_rows = sort(t, s, s.C, s.T, s.C, expert)
        if s.P == 1:
            return Dispatched(_sorted(t, s, x, own_rows), own_rows, None, weight, weight)
        if s.static:
            own_rows = spread(t, own_rows, s.buffer_rows)
        # Counts are exchanged first.
        counts = s.model.experts_count * INT64
        t.op([], counts, waits=True, messages=one_way("counts", "all_to_all", "ep", counts, counts))
        out = permute(t, s, x, own_rows, s.row, s.config.toggles.permute == "fused")
        x = t.collective(out, s.R * s.row, "tokens", "all_to_all", "ep")
        rows = sort(t, s, s.R, s.R, s.R, t.op([], s.R * INT64))
        return Dispatched(_sorted(t, s, x, rows), rows, own_rows, None, weight)
    # One copy of a token per rank with any of its experts, with its weights and expert ids.
    leaving, arrived = (s.P * s.T,) * 2 if s.static else (s.copies_sent, s.copies_received)
    sent: RoutedRows | None = None
    if kind == "deepep":
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


def _sorted(t: Tape, s: RankSizes, x: Value, rows: RoutedRows) -> Value:
    """Tokens on the rank of their experts, in order of expert; the gradient of a gather adds rows."""
    moved, one_by_one = _moved(s)
    return permute(
        t, s, x, rows, s.row, s.config.toggles.permute == "fused",
        (*moves(moved, moved), *eager(0, one_by_one, "scatter")),
    )  # fmt: skip


def _moved(s: RankSizes) -> tuple[int, int]:
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


def combine(t: Tape, s: RankSizes, y: Value, routed: Dispatched) -> Value:
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


def experts(t: Tape, s: RankSizes, x: Value, rows: int) -> Value:
    """Expert outputs of this many rows, of which `s.rows` hold a token and are computed."""
    D, F = s.model.hidden, s.model.expert_ffn
    gate_up, down = expert_gemm(s, s.rows, D, 2 * F), expert_gemm(s, s.rows, F, D)
    activation = swiglu_kernels(s.rows * F * s.a)
    if s.config.toggles.experts == "grouped":
        up_bytes, down_bytes = s.e * D * 2 * F * s.a, s.e * D * F * s.a
        scratch, backward_scratch = _scratch(s, rows, D, 2 * F)
        # Offsets of the experts' rows are int32.
        up = t.op(
            [x], rows * 2 * F * s.a, saves=[x], extra=s.e * INT32, weights=up_bytes, kernels=gate_up,
            weight=_WEIGHT, scratch=scratch, backward_scratch=backward_scratch,
        )  # fmt: skip
        half = rows * F * s.a
        h = t.op([up], half, saves=[up], kernels=activation) if s.static else _swiglu(t, up, half, activation)
        scratch, backward_scratch = _scratch(s, rows, F, D)
        return t.op(
            [h], rows * s.row, saves=[h], weights=down_bytes, kernels=down, weight=_WEIGHT,
            scratch=scratch, backward_scratch=backward_scratch,
        )  # fmt: skip
    # One by one: the weight gradients of all experts are collected, stacked and accumulated.
    pieces = min(PIECES, s.e)
    parts = t.split(x, [size * s.row for size in shares(rows, pieces)])
    experts_of = shares(s.e, pieces)
    ups = t.unbind([count * D * 2 * F * s.a for count in experts_of], _WEIGHT)
    downs = t.unbind([count * D * F * s.a for count in experts_of], _WEIGHT)
    outputs = []
    for part, size, up_w, down_w in zip(parts, shares(rows, pieces), ups, downs, strict=True):
        up = t.op([part, up_w], size * 2 * F * s.a, saves=[part], kernels=gate_up)
        h = _swiglu(t, up, size * F * s.a, activation)
        outputs.append(t.op([h, down_w], size * s.row, saves=[h], kernels=down))
        # All experts count at the first piece.
        gate_up, activation, down = (), (), ()
    return t.op(outputs, rows * s.row, gradient="same")


def quantized(rows: int, k: int, n: int, matrices: int) -> Quantized:
    """Operands of `rows` rows and (k, n) matrices; a scale is one float32 per row, or per column."""
    elements = matrices * k * n
    return Quantized(
        FP8 * (rows * k + elements) + FLOAT32 * (rows + matrices * n),
        FP8 * (rows * n + elements) + FLOAT32 * (rows + matrices * k),
    )


def expert_gemm(s: RankSizes, m: int, k: int, n: int) -> tuple[Kernel, ...]:
    """One GEMM over all experts: in the type of the activations, or quantized to FP8.

    In FP8 quantization reads the operands in their type and writes them; the GEMM reads the copies. The
    weight gradient is computed from the operands in their type.
    """
    (gemm,) = s.gemm(m, k, n, s.e)
    if s.config.toggles.fp8 == "off":
        return (gemm,)
    copies, flops, weights = quantized(m, k, n, s.e), gemm.forward.flops, s.e * k * n
    input_gradient, weight_gradient = gemm.backward.kernels
    operands = m * k + weights, m * n + weights
    casts = (Load(0, size * s.a + copy) for size, copy in zip(operands, copies, strict=True))
    return (
        Kernel("memory", *casts),
        Kernel(
            "gemm",
            Load(flops, copies.forward + m * n * s.a, gemm.forward.kernels, "fp8"),
            Load(flops, copies.backward + m * k * s.a, (input_gradient,), "fp8"),
        ),
        Kernel("gemm", Load(), Load(flops, (m * k + m * n + 2 * weights) * s.a, (weight_gradient,))),
    )


def _scratch(s: RankSizes, rows: int, k: int, n: int) -> tuple[int, int]:
    """Bytes of FP8 operands: of the forward, and of the backward beyond the weight gradient after them."""
    if s.config.toggles.fp8 == "off":
        return 0, 0
    copies = quantized(rows, k, n, s.e)
    return copies.forward, max(0, copies.backward - s.e * k * n * s.a)


def _swiglu(t: Tape, up: Value, half: int, kernels: Sequence[Kernel]) -> Value:
    """silu(gate) * up, of gate and up side by side."""
    gate, value = t.split(up, [half, half])
    return swiglu(t, gate, value, kernels)
