"""Tapes of Megatron-core's dense parts: norms, attention, MLPs, embedding, output layer and loss.

Read from Megatron-core 0.16.0 (https://github.com/NVIDIA/Megatron-LM, core_v0.16.0):
transformer/{attention,multi_latent_attention,mlp}.py, fusions/fused_bias_swiglu.py and
tensor_parallel/{layers,cross_entropy}.py; and from the documentation of Transformer Engine's LayerNormLinear,
DotProductAttention and cross-entropy
(https://docs.nvidia.com/deeplearning/transformer-engine/user-guide/api/pytorch.html).
"""

from __future__ import annotations

from tracelens.planner.block import Sizes, Tape, Value
from tracelens.planner.expected import FLOAT32
from tracelens.planner.memory.megatron.settings import Settings


def norm(t: Tape, s: Sizes, x: Value, width: int, rows: int) -> Value:
    """RMS norm: saves its input and one float32 per row. Its output is the next layer's to save."""
    return t.op([x], rows * width * s.a, saves=[x], extra=rows * FLOAT32, weights=width * s.a)


def linear(t: Tape, s: Sizes, k: Settings, x: Value, rows: int, inside: int, outside: int) -> Value:
    """A GEMM with a weight: saves its input; without fused accumulation the weight gradient is a tensor."""
    weights = 0 if k.accumulate else inside * outside * s.a
    return t.op([x], rows * outside * s.a, saves=[x], weights=weights)


def column(t: Tape, s: Sizes, k: Settings, x: Value, inside: int, outside: int) -> Value:
    """Column-parallel: saves the rank's own positions; all of them are gathered again in the backward."""
    is_split = s.config.layout.tp > 1
    whole = s.A * inside * s.a if is_split else 0
    # The local layers gather into a buffer that stays, Transformer Engine's into a new tensor.
    gathered = whole if k.engine else 0
    return t.op(
        [x], s.A * outside * s.a, saves=[x], weights=0 if k.accumulate else inside * outside * s.a,
        scratch=gathered, backward_scratch=gathered + whole,
    )  # fmt: skip


def row(t: Tape, s: Sizes, k: Settings, x: Value, inside: int) -> Value:
    """Row-parallel: saves its input, and scatters the sum over the ranks to their positions."""
    y = linear(t, s, k, x, s.A, inside, s.model.hidden)
    return y if s.config.layout.tp == 1 else t.op([y], s.T * s.row, waits=True)


def swiglu(t: Tape, k: Settings, up: Value, weight: Value | None = None) -> Value:
    """silu(gate) * up of both side by side, times a weight of each row: saves its inputs only.

    A compiled kernel makes nothing else; torch's ops hold four halves in the backward, in float32 if the
    weights of the routed rows are.
    """
    half = up.bytes // 2
    eager = 0 if k.engine else half if weight is None else 2 * half
    inputs = [up] if weight is None else [up, weight]
    return t.op(inputs, half, saves=inputs, scratch=2 * eager, backward_scratch=4 * eager)


def mlp(t: Tape, s: Sizes, k: Settings, x: Value, ffn: int) -> Value:
    """fc2(swiglu(fc1(x))), of a dense layer or the shared expert."""
    F = ffn // s.config.layout.tp
    return row(t, s, k, swiglu(t, k, column(t, s, k, x, s.model.hidden, 2 * F)), F)


def attention(t: Tape, s: Sizes, k: Settings, x: Value) -> Value:
    """Projections, attention and output projection, of the normed stream."""
    q, key, value = _latent(t, s, k, x) if s.model.attention == "mla" else _grouped(t, s, k, x)
    y = _attend(t, s, k, q, key, value)
    return row(t, s, k, y, s.heads * s.model.value_dim)


def _rotate(t: Tape, k: Settings, x: Value, size: int) -> Value:
    """Rotary positions; the local ones build the rotated half and two products first."""
    eager = 0 if k.engine else 2 * size
    return t.op([x], size, scratch=eager, backward_scratch=eager)


def _grouped(t: Tape, s: Sizes, k: Settings, x: Value) -> tuple[Value, Value, Value]:
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


def _latent(t: Tape, s: Sizes, k: Settings, x: Value) -> tuple[Value, Value, Value]:
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


def _attend(t: Tape, s: Sizes, k: Settings, q: Value, key: Value, value: Value) -> Value:
    """A kernel that saves its inputs, its output and one float32 per query."""
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
    return y


def embed(t: Tape, s: Sizes, token: Value) -> Value:
    """Embedding lookup and its transpose; the gradient is as large as the whole weight."""
    y = t.op([token], s.A * s.row, gradient="none", weights=s.model.vocab // s.config.layout.tp * s.row)
    return t.op([y], s.T * s.row, gradient="new")


def head(t: Tape, s: Sizes, k: Settings, x: Value) -> Value:
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
