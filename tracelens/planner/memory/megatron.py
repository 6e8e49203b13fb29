"""Megatron-core's layers: what each part allocates, and keeps for the backward.

Read from Megatron-core 0.16.0 (https://github.com/NVIDIA/Megatron-LM, core_v0.16.0):
transformer/{attention,multi_latent_attention,mlp}.py, fusions/fused_bias_swiglu.py,
tensor_parallel/{layers,cross_entropy}.py and
transformer/moe/{router,moe_utils,token_dispatcher,experts,fused_a2a}.py; and from the documentation of
Transformer Engine's LayerNormLinear, DotProductAttention and cross-entropy
(https://docs.nvidia.com/deeplearning/transformer-engine/user-guide/api/pytorch.html). The routed weights
multiply inside the experts, between the two GEMMs, so that the combine saves no rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from tracelens.errors import TracelensError
from tracelens.planner.block import FLOAT32, INT32, INT64, RankSizes, Section, Tape, Value
from tracelens.planner.config import STATIC, Config
from tracelens.planner.memory.allocator import Program, program
from tracelens.planner.memory.assumptions import Assumptions


@dataclass(frozen=True)
class MegatronOptions:
    """Options of Megatron-core 0.16; each is named with its flag."""

    # Transformer Engine's layers (--transformer-impl transformer_engine): fused SwiGLU, one kernel for rotary
    # positions, attention without copies; else Megatron-core's local ones
    engine: bool = True
    # weight gradients accumulate in the GEMM (--gradient-accumulation-fusion), so that they are never a
    # tensor of their own
    accumulate: bool = True
    grouped: bool = False  # --moe-grouped-gemm
    deepep: bool = False  # --moe-token-dispatcher-type flex --moe-enable-deepep
    permute: bool = False  # --moe-permute-fusion
    router: bool = False  # --moe-router-fusion
    loss: bool = False  # --cross-entropy-loss-fusion --cross-entropy-fusion-impl te
    keep_combined: bool = False  # `Assumptions.combined`
    recompute: str = ""  # --recompute-modules of --recompute-granularity selective; "" for none


def check(config: Config) -> None:
    """Raises TracelensError for toggles that Megatron-core does not have, or has in another way."""
    toggles = config.toggles
    absent = {
        f"dispatch={toggles.dispatch}": toggles.dispatch in ("allgather", "dedup"),
        "experts=multistream": toggles.experts == "multistream",
        "sync_free=3": toggles.sync_free == STATIC,
        f"fp8={toggles.fp8}": toggles.fp8 != "off",
    }
    if missing := [name for name, is_set in absent.items() if is_set]:
        raise TracelensError(
            f"framework=megatron does not support {missing[0]}: leave it out, or use framework=workload"
        )


def options_of(config: Config, assumptions: Assumptions, recompute: str = "") -> MegatronOptions:
    """The options that a configuration and its assumptions stand for."""
    toggles, engine = config.toggles, assumptions.layers == "transformer-engine"
    return MegatronOptions(
        engine=engine,
        accumulate=engine and assumptions.gradient_accumulation == "fused",
        grouped=toggles.experts == "grouped",
        deepep=toggles.dispatch == "deepep",
        permute=toggles.permute == "fused" or toggles.sync_free > 0,
        router=toggles.router == "fused" or toggles.sync_free > 0,
        loss=toggles.loss == "fused",
        keep_combined=assumptions.combined == "kept",
        recompute=recompute,
    )


@lru_cache(maxsize=1024)
def section(name: str, config: Config, options: MegatronOptions, imbalance: float = 1) -> Section:
    """A section of the model by name.

    attention, mlp and moe have their norm, and are added to the residual stream; norm and moe_only are an MoE
    layer in two parts, for recomputation; embedding, head.
    """
    s = RankSizes(config, imbalance if name.startswith("moe") else 1)
    components = {"mlp": "activations.mlp", "norm": "activations.norms", "embedding": "activations.embedding"}
    components |= {"attention": "activations.attention", "head": "loss"}
    t, size = Tape(components.get(name, "activations.dispatch")), s.T * s.row
    if name == "embedding":
        token = t.input(0)
        return t.section(token, embed(t, s, token))
    with t.part("activations.norms"):
        x = t.input(size)
        normed = norm(t, s, x, s.model.hidden, s.T) if name not in ("moe_only", "head") else x
    match name:
        case "norm":
            return t.section(x, normed)
        case "head":
            return t.section(x, head(t, s, options, x))
        case "moe_only":
            return t.section(x, t.op([moe(t, s, options, x)], size, gradient="new"))
        case "attention":
            y = attention(t, s, options, normed)
        case "mlp":
            y = mlp(t, s, options, normed, s.model.dense_ffn)
        case _:
            y = moe(t, s, options, normed)
    return t.section(x, t.op([x, y], size, gradient="same"))


@lru_cache(maxsize=256)
def section_program(name: str, config: Config, options: MegatronOptions, imbalance: float = 1) -> Program:
    """Its allocations in order."""
    return program(section(name, config, options, imbalance))


def attention(t: Tape, s: RankSizes, k: MegatronOptions, x: Value) -> Value:
    """Projections, attention and output projection, of the normed stream."""
    q, key, value = _latent(t, s, k, x) if s.model.attention == "mla" else _grouped(t, s, k, x)
    # A kernel that saves its inputs, its output and one float32 per query.
    m, size = s.model, s.A * s.heads * s.model.value_dim * s.a
    lse = s.A * s.heads * FLOAT32
    # Its backward accumulates query gradients in float32.
    scratch = s.A * s.heads * m.query_dim * FLOAT32 + lse
    unsaved = k.recompute == "mla_up_proj" and m.attention == "mla"
    saves = [] if unsaved else [q, key, value]
    again = q.bytes + key.bytes + value.bytes if unsaved else 0
    y = t.op([q, key, value], size, saves=saves, extra=lse, backward_scratch=scratch + again, keep=True)
    if not k.engine and m.attention == "mla" and s.config.training.micro_batch > 1:
        # torch's attention for heads of two widths returns [batch, sequence]; Megatron-core wants the other.
        y = t.op([y], size)
    return row(t, s, k, y, s.heads * m.value_dim)


def _grouped(t: Tape, s: RankSizes, k: MegatronOptions, x: Value) -> tuple[Value, Value, Value]:
    """Queries, keys and values of grouped-query attention, from one projection."""
    m = s.model
    groups = m.kv_groups // s.config.layout.tp
    q_bytes, k_bytes = s.A * s.heads * m.query_dim * s.a, s.A * groups * m.query_dim * s.a
    v_bytes = s.A * groups * m.value_dim * s.a
    mixed = column(t, s, k, x, m.hidden, (q_bytes + k_bytes + v_bytes) // (s.A * s.a))
    q, key, value = t.split(mixed, [q_bytes, k_bytes, v_bytes])
    if not k.engine and s.heads > groups > 1:
        q = t.op([q], q_bytes)
    q, key = _rotate(t, k, q, q_bytes), _rotate(t, k, key, k_bytes)
    # The local attention saves the values as a view of the whole projection.
    return q, key, t.op([value], v_bytes) if k.engine else value


def _latent(t: Tape, s: RankSizes, k: MegatronOptions, x: Value) -> tuple[Value, Value, Value]:
    """Queries, keys and values of multi-head latent attention."""
    m, D, n, tp = s.model, s.model.hidden, s.heads, s.config.layout.tp
    q_bytes = s.A * n * m.query_dim * s.a
    if m.q_lora:
        down = linear(t, s, k, x, s.T, D, m.q_lora)
        q = column(t, s, k, norm(t, s, down, m.q_lora, s.T), m.q_lora, n * m.query_dim)
    else:
        q = column(t, s, k, x, D, n * m.query_dim)
    joint = linear(t, s, k, x, s.T, D, m.kv_lora + m.rope_dim)
    latent, rotary = t.split(joint, [s.T * m.kv_lora * s.a, s.T * m.rope_dim * s.a])
    latent = norm(t, s, latent, m.kv_lora, s.T)
    if tp > 1:
        rotary = t.op([rotary], s.A * m.rope_dim * s.a, waits=True)
    kv = column(t, s, k, latent, m.kv_lora, n * (m.qk_dim + m.v_dim))
    q_part, q_rotary = t.split(q, [s.A * n * m.qk_dim * s.a, s.A * n * m.rope_dim * s.a])
    q = t.op([q_part, _rotate(t, k, q_rotary, q_rotary.bytes)], q_bytes, gradient="same")
    rotary = _rotate(t, k, rotary, rotary.bytes)
    k_part, value = t.split(kv, [s.A * n * m.qk_dim * s.a, s.A * n * m.v_dim * s.a])
    key = t.op([k_part, rotary], q_bytes, backward_scratch=q_rotary.bytes)
    value = t.op([value], value.bytes)
    return q, key, value


def _rotate(t: Tape, k: MegatronOptions, x: Value, size: int) -> Value:
    """Rotary positions; the local ones build the rotated half and two products first."""
    eager = 0 if k.engine else 2 * size
    return t.op([x], size, scratch=eager, backward_scratch=eager)


def mlp(t: Tape, s: RankSizes, k: MegatronOptions, x: Value, ffn: int) -> Value:
    """fc2(swiglu(fc1(x))), of a dense layer or the shared expert."""
    F = ffn // s.config.layout.tp
    return row(t, s, k, swiglu(t, k, column(t, s, k, x, s.model.hidden, 2 * F)), F)


def column(t: Tape, s: RankSizes, k: MegatronOptions, x: Value, inside: int, outside: int) -> Value:
    """Column-parallel: saves the rank's own positions; all of them are gathered again in the backward."""
    is_split = s.config.layout.tp > 1
    whole = s.A * inside * s.a if is_split else 0
    # The local layers gather into a buffer that stays, Transformer Engine's into a new tensor.
    gathered = whole if k.engine else 0
    return t.op(
        [x], s.A * outside * s.a, saves=[x], weights=0 if k.accumulate else inside * outside * s.a,
        scratch=gathered, backward_scratch=gathered + whole,
    )  # fmt: skip


def row(t: Tape, s: RankSizes, k: MegatronOptions, x: Value, inside: int) -> Value:
    """Row-parallel: saves its input, and scatters the sum over the ranks to their positions."""
    y = linear(t, s, k, x, s.A, inside, s.model.hidden)
    return y if s.config.layout.tp == 1 else t.op([y], s.T * s.row, waits=True)


def linear(
    t: Tape, s: RankSizes, k: MegatronOptions, x: Value, rows: int, inside: int, outside: int
) -> Value:
    """A GEMM with a weight: saves its input; without fused accumulation the weight gradient is a tensor."""
    weights = 0 if k.accumulate else inside * outside * s.a
    return t.op([x], rows * outside * s.a, saves=[x], weights=weights)


def norm(t: Tape, s: RankSizes, x: Value, width: int, rows: int) -> Value:
    """RMS norm: saves its input and one float32 per row. Its output is the next layer's to save."""
    return t.op([x], rows * width * s.a, saves=[x], extra=rows * FLOAT32, weights=width * s.a)


def swiglu(t: Tape, k: MegatronOptions, up: Value, weight: Value | None = None) -> Value:
    """silu(gate) * up of both side by side, times a weight of each row: saves its inputs only.

    A compiled kernel makes nothing else; torch's ops hold four halves in the backward, in float32 if the
    weights of the routed rows are.
    """
    half = up.bytes // 2
    eager = 0 if k.engine else half if weight is None else 2 * half
    inputs = [up] if weight is None else [up, weight]
    return t.op(inputs, half, saves=inputs, scratch=2 * eager, backward_scratch=4 * eager)


def embed(t: Tape, s: RankSizes, token: Value) -> Value:
    """Embedding lookup and its transpose; the gradient is as large as the whole weight."""
    y = t.op([token], s.A * s.row, gradient="none", weights=s.model.vocab // s.config.layout.tp * s.row)
    return t.op([y], s.T * s.row, gradient="new")


def head(t: Tape, s: RankSizes, k: MegatronOptions, x: Value) -> Value:
    """Final norm, logits and loss.

    Megatron-core's cross-entropy works on a float32 copy of the logits, which it turns into the softmax and
    saves; its "native" fusion keeps it. Transformer Engine's overwrites the logits with their gradient.
    """
    V, D = s.model.vocab // s.config.layout.tp, s.model.hidden
    logits = column(t, s, k, norm(t, s, x, D, s.T), D, V)
    size = s.A * V
    if k.loss and k.engine:
        return t.op([logits], FLOAT32 * s.A, saves=[logits], gradient="saved")
    softmax = t.op([logits], size * FLOAT32)
    loss = t.op([softmax], FLOAT32 * s.A, saves=[softmax], gradient="saved")
    t.touch(logits)
    return loss


class RouterOutput(NamedTuple):
    """Weights of all tokens and experts, and a mask of the same shape."""

    weight: Value
    mask: Value


def moe(t: Tape, s: RankSizes, k: MegatronOptions, x: Value) -> Value:
    """The layer on the normed stream."""
    T, E, C, K = s.T, s.model.experts_count, s.C, s.model.top_k
    shared = None
    if s.model.shared_ffn:
        with t.part("activations.shared"):
            shared = mlp(t, s, k, x, s.model.shared_ffn)
    with t.part("activations.router"):
        routing = router(t, s, k, x)
    with t.part("activations.dispatch"):
        if k.deepep:
            # DeepEP sends a token once to each rank; rows are made of it on arrival.
            arrived = s.copies_sent
            top = t.op([routing.weight], T * K * FLOAT32, extra=T * K * INT64)
            received = t.op([x, top], arrived * s.row, extra=arrived * K * (INT64 + FLOAT32), waits=True)
            probs = t.op([top], arrived * s.e * FLOAT32, extra=arrived * s.e)
            index = t.op([], arrived * (2 * s.e + 1) * INT32)
            rows = t.op([received], s.rows * s.row, saves=[index])
            weight = t.op([probs], s.rows * FLOAT32, saves=[index])
            alive = [received, rows]
        else:
            # Permute, all-to-all, and sort by expert if the rank has several.
            alive = []
            if k.permute:
                # A map from tokens to rows: positions and experts of each token, and their number.
                index = t.op([], T * (2 * K + 1) * INT32)
                rows = t.op([x], C * s.row, saves=[index])
                weight = t.op([routing.weight], C * FLOAT32, saves=[index])
            else:
                mask = t.op([], T * E, reads=[routing.mask])
                index = t.op([], C * INT64, reads=[mask], scratch=2 * T * E * INT64)
                turned = t.op([routing.weight], T * E * FLOAT32)
                weight = t.op([turned], C * FLOAT32, saves=[turned, mask], scratch=T * E * INT64)
                rows = t.op([x], C * s.row, saves=[index])
            if s.P > 1:
                alive.append(rows)
                rows = t.op([rows], s.rows * s.row, waits=True)
                weight = t.op([weight], s.rows * FLOAT32, waits=True)
            if s.e > 1:
                alive.append(rows)
                rows = t.op([rows], s.rows * s.row)
                weight = t.op([weight], s.rows * FLOAT32)
            alive.append(rows)
    with t.part("activations.experts"):
        y = experts(t, s, k, rows, weight)
    if k.deepep:
        y = t.op([t.op([y], s.copies_sent * s.row)], T * s.row, waits=True)
    else:
        # The way back; a sum without weights saves only its index.
        output = y
        if s.e > 1:
            y = t.op([output], output.bytes)
        t.touch(output)
        if s.P > 1:
            y = t.op([y], C * s.row, waits=True)
        y = t.op([y], T * s.row, saves=[index, y] if k.keep_combined and not k.permute else [index])
    t.touch(*alive)
    return y if shared is None else t.op([y, shared], T * s.row, gradient="same")


def router(t: Tape, s: RankSizes, k: MegatronOptions, x: Value) -> RouterOutput:
    """Scores in float32, scattered to a weight and a mask for each token and expert."""
    m, T, E, K = s.model, s.T, s.model.experts_count, s.model.top_k
    # Without Transformer Engine's GEMM the input and its gradient are float32 copies.
    wide = 0 if k.engine else T * m.hidden * FLOAT32
    logits = t.op([x], T * E * FLOAT32, saves=[x], scratch=wide, backward_scratch=wide + E * m.hidden * s.a)
    if k.router:
        # One kernel, which saves the scores in float32 and the mask.
        weight = t.op([logits], T * E * FLOAT32, extra=T * E * FLOAT32)
        return RouterOutput(weight, t.op([], T * E, keep=True))
    if s.config.training.routing != "learned":
        # Forced balance: random logits in the place of the learned ones.
        logits = t.op([logits], logits.bytes, gradient="same")
    # The ids of top-k are saved twice, by the top-k and by the scatter, as the same tensor.
    top = t.op([logits], T * K * FLOAT32, extra=T * K * INT64, backward_scratch=0)
    score = t.op([top], T * K * FLOAT32, keep=True)
    weight = t.op([score], T * E * FLOAT32, scratch=T * E * FLOAT32)
    mask = t.op([], T * E, scratch=2 * T * E * INT32)
    return RouterOutput(weight, mask)


def experts(t: Tape, s: RankSizes, k: MegatronOptions, rows: Value, weight: Value) -> Value:
    """fc2(weight * swiglu(fc1(rows))) of rows in order of expert: as grouped GEMMs, or expert by expert."""
    if k.grouped:
        return _expert(t, s, k, rows, weight, s.rows, s.e)
    shares = [s.rows // s.e + (number < s.rows % s.e) for number in range(s.e)]
    parts = t.split(rows, [share * s.row for share in shares]) if s.e > 1 else [rows]
    weights = t.split(weight, [share * FLOAT32 for share in shares]) if s.e > 1 else [weight]
    outputs = [
        _expert(t, s, k, part, part_weight, share, 1)
        for part, part_weight, share in zip(parts, weights, shares, strict=True)
    ]
    if s.e == 1:
        return outputs[0]
    t.touch(*outputs)
    return t.op(outputs, s.rows * s.row, gradient="same")


def _expert(
    t: Tape, s: RankSizes, k: MegatronOptions, x: Value, weight: Value, rows: int, count: int
) -> Value:
    D, F = s.model.hidden, s.model.expert_ffn
    save = k.recompute != "moe_act"
    up = linear(t, s, k, x, rows, count * D, 2 * F)
    h = swiglu(t, k, up, weight)
    weights = 0 if k.accumulate else count * F * D * s.a
    return t.op(
        [h], rows * s.row, saves=[h] if save else [], weights=weights,
        backward_scratch=0 if save else h.bytes,
    )  # fmt: skip
