"""Tapes of the dense parts: norms, attention, gated MLPs, embedding, head and loss."""

from __future__ import annotations

from tracelens.planner.expected import FLOAT32, INT64, AttentionKernel
from tracelens.planner.memory.sizes import Sizes
from tracelens.planner.memory.tape import Tape, Value


def norm(t: Tape, s: Sizes, x: Value) -> Value:
    """RMS norm of the residual stream."""
    with t.part("activations.norms"):
        return _norm(t, s, x, s.model.hidden, s.T)


def _norm(t: Tape, s: Sizes, x: Value, width: int, rows: int) -> Value:
    """RMS norm: saves its input and one float32 per row."""
    return t.op([x], rows * width * s.a, saves=[x], extra=rows * FLOAT32, weights=width * s.a)


def linear(t: Tape, s: Sizes, x: Value, rows: int, inside: int, outside: int) -> Value:
    """A GEMM with a weight: saves its input."""
    return t.op([x], rows * outside * s.a, saves=[x], weights=inside * outside * s.a)


def gather(t: Tape, s: Sizes, x: Value) -> Value:
    """All-gather of the positions over tensor parallelism."""
    if s.config.layout.tp == 1:
        return x
    return t.op([x], s.A * s.row, waits=s.config.toggles.tp_overlap == "off")


def scatter_linear(t: Tape, s: Sizes, x: Value, width: int) -> Value:
    """A GEMM with a weight, and its reduce-scatter over tensor parallelism."""
    D, tp = s.model.hidden, s.config.layout.tp
    if tp > 1 and s.config.toggles.tp_overlap != "off":
        # One op, whose backward gathers the gradient of all positions for the weight gradient.
        return t.op(
            [x], s.T * s.row, saves=[x], weights=width * D * s.a, scratch=s.A * s.row,
            backward_scratch=s.A * s.row,
        )  # fmt: skip
    y = linear(t, s, x, s.A, width, D)
    return y if tp == 1 else t.op([y], s.T * s.row, waits=True)


def rotate(t: Tape, x: Value, size: int) -> Value:
    """Rotary positions: saves nothing, since its tables have no gradient."""
    return t.op([x], size, scratch=2 * size, backward_scratch=2 * size)


def gated(t: Tape, s: Sizes, x: Value, ffn: int) -> Value:
    """down(silu(gate(x)) * up(x))."""
    F, D = ffn // s.config.layout.tp, s.model.hidden
    x = gather(t, s, x)
    gate, up = linear(t, s, x, s.A, D, F), linear(t, s, x, s.A, D, F)
    silu = t.op([gate], gate.bytes, saves=[gate])
    h = t.op([silu, up], up.bytes, saves=[silu, up])
    return scatter_linear(t, s, h, F)


def attention(t: Tape, s: Sizes, x: Value, kernel: AttentionKernel) -> Value:
    """Norm, projections, attention and output projection."""
    x = gather(t, s, norm(t, s, x))
    q, k, v = _latent(t, s, x) if s.model.attention == "mla" else _grouped(t, s, x)
    y = _attend(t, s, q, k, v, kernel)
    return scatter_linear(t, s, y, s.heads * s.model.value_dim)


def _grouped(t: Tape, s: Sizes, x: Value) -> tuple[Value, Value, Value]:
    """Queries, keys and values of grouped-query attention."""
    m, D = s.model, s.model.hidden
    groups = m.kv_groups // s.config.layout.tp
    q = linear(t, s, x, s.A, D, s.heads * m.query_dim)
    k = linear(t, s, x, s.A, D, groups * m.query_dim)
    v = linear(t, s, x, s.A, D, groups * m.value_dim)
    q, k = rotate(t, q, q.bytes), rotate(t, k, k.bytes)
    if s.config.layout.cp > 1:
        joined = t.op([k, v], k.bytes + v.bytes, gradient="same")
        gathered = t.op([joined], joined.bytes * s.config.layout.cp, waits=True)
        k, v = t.split(gathered, [k.bytes * s.config.layout.cp, v.bytes * s.config.layout.cp])
    return q, k, v


def _latent(t: Tape, s: Sizes, x: Value) -> tuple[Value, Value, Value]:
    """Queries, keys and values of multi-head latent attention."""
    m, D, n = s.model, s.model.hidden, s.heads
    seen = s.keys
    q = linear(t, s, x, s.A, D, m.q_lora or n * m.query_dim)
    kv = linear(t, s, x, s.A, D, m.kv_lora + m.rope_dim)
    if m.q_lora:
        q = linear(t, s, _norm(t, s, q, m.q_lora, s.A), s.A, m.q_lora, n * m.query_dim)
    latent, rotary = t.split(kv, [s.A * m.kv_lora * s.a, s.A * m.rope_dim * s.a])
    latent, rotary = _norm(t, s, latent, m.kv_lora, s.A), rotate(t, rotary, rotary.bytes)
    kv = t.op([latent, rotary], kv.bytes, gradient="same")
    if s.config.layout.cp > 1:
        kv = t.op([kv], kv.bytes * s.config.layout.cp, waits=True)
    latent, rotary = t.split(kv, [seen * m.kv_lora * s.a, seen * m.rope_dim * s.a])
    heads = linear(t, s, latent, seen, m.kv_lora, n * (m.qk_dim + m.v_dim))
    k, v = t.split(heads, [seen * n * m.qk_dim * s.a, seen * n * m.v_dim * s.a])
    wide = t.op([rotary], seen * n * m.rope_dim * s.a, of=rotary)
    k = t.op([k, wide], seen * n * m.query_dim * s.a, gradient="same")
    q, q_rotary = t.split(q, [s.A * n * m.qk_dim * s.a, s.A * n * m.rope_dim * s.a])
    q_rotary = rotate(t, q_rotary, q_rotary.bytes)
    return t.op([q, q_rotary], s.A * n * m.query_dim * s.a, gradient="same"), k, v


def _attend(t: Tape, s: Sizes, q: Value, k: Value, v: Value, kernel: AttentionKernel) -> Value:
    """Attention: a kernel that saves one float32 per query, or GEMMs that save all scores."""
    m, size = s.model, s.A * s.heads * s.model.value_dim * s.a
    if kernel == "math":
        scores = s.A * s.heads * (s.keys // s.config.training.micro_batch)
        grouped = s.heads * m.kv_groups // m.heads if m.attention == "gqa" else s.heads
        k_all = k if grouped == s.heads else t.op([k], s.keys * s.heads * m.query_dim * s.a)
        v_all = v if grouped == s.heads else t.op([v], s.keys * s.heads * m.value_dim * s.a)
        # Queries and keys are scaled before their GEMM.
        q, k_all = t.op([q], q.bytes), t.op([k_all], k_all.bytes)
        score = t.op([q, k_all], scores * s.a, saves=[q, k_all])
        weight = t.op([score], scores * s.a, keep=True)
        return t.op([weight, v_all], size, saves=[weight, v_all])
    # Its backward accumulates query gradients in float32.
    accumulated = s.A * s.heads * m.query_dim * FLOAT32 if s.a < FLOAT32 else 0
    row = s.A * s.heads * FLOAT32
    return t.op(
        [q, k, v], size, saves=[q, k, v], extra=row, gradient="new", backward_scratch=accumulated + 2 * row,
        keep=True,
    )  # fmt: skip


def embed(t: Tape, s: Sizes, token: Value) -> Value:
    """Embedding lookup; its gradient is as large as the whole weight."""
    return t.op([token], s.T * s.row, gradient="none", weights=s.model.vocab * s.row)


def head(t: Tape, s: Sizes, x: Value) -> Value:
    """Norm, logits and loss: torch ops in float32, or one kernel that saves the gradient."""
    V, T = s.model.vocab, s.T
    logits = linear(t, s, norm(t, s, x), T, s.model.hidden, V)
    if s.config.toggles.loss == "fused":
        gradient = t.op([], T * V * s.a, reads=[logits])
        loss = t.op([logits], FLOAT32, saves=[gradient], gradient="saved")
    else:
        wide = logits if s.a == FLOAT32 else t.op([logits], T * V * FLOAT32)
        log = t.op([wide], T * V * FLOAT32, keep=True)
        loss = t.op([log], FLOAT32, saves=[log])
        t.touch(wide)
    t.touch(logits)
    return loss


def tokens(s: Sizes) -> int:
    """Bytes of the token ids of this step and the next."""
    return 2 * INT64 * s.T * s.config.training.micro_batches
