"""Tensor sizes on one rank, and dense parts of the model: norms, attention, MLPs, embedding and head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Literal, NamedTuple

from tracelens.planner.block.tape import (
    FLOAT32,
    INT64,
    AttentionPass,
    Exchange,
    Gemm,
    Kernel,
    Load,
    PassMessages,
    Tape,
    Value,
    Weight,
    eager,
    moves,
)
from tracelens.planner.config import STATIC, Config, Layout, Model
from tracelens.planner.distinct import balanced_spread

AttentionKernel = Literal["flash", "masked", "math"]
"""How attention is computed.

- flash: skips masked scores: half of a square, by the convention of the FlashAttention papers (Dao 2022), and
  exactly where there are more keys than queries. The backward recomputes the scores: five GEMMs to the
  forward's two, three of width q and two of width v.
- masked: the same, but computes all scores, since the mask is a tensor.
- math: computes all scores with separate GEMMs and saves them: the backward has four GEMMs.
"""
# Chunks of a reduce-scatter with tp_overlap=chunked.
CHUNKS = 4


class RoutedCounts(NamedTuple):
    """Tokens that arrive at the experts of a rank in one micro-batch, and copies that leave it.

    A token is a row for each of its top-k experts, and a copy for each rank that has one of them.
    """

    rows: int
    copies_sent: int
    copies_received: int


@dataclass(frozen=True)
class RankSizes:
    """Letters as in the workload's `rows`, `a` for bytes per element."""

    config: Config  # of the run
    imbalance: float = 1.0  # rows of this rank's experts / mean over ranks
    # by the routers; None for balanced experts up to `imbalance`, and copies of random choices
    routed: RoutedCounts | None = None
    # position in context parallelism; None for the last, which attends to most keys
    cp_rank: int | None = None

    @property
    def model(self) -> Model:
        return self.config.model

    @cached_property
    def a(self) -> int:
        """Bytes of an element of an activation."""
        return self.config.training.element_bytes

    @cached_property
    def T(self) -> int:
        """Tokens of a micro-batch between attention layers."""
        return self.config.tokens

    @cached_property
    def A(self) -> int:
        """Tokens of a micro-batch on all ranks of tensor parallelism."""
        return self.T * self.config.layout.tp

    @cached_property
    def row(self) -> int:
        """Bytes of a token of width D."""
        return self.model.hidden * self.a

    @property
    def queries(self) -> int:
        """Query positions of a sequence on this rank."""
        return self.config.training.seq // self.config.layout.cp

    @property
    def keys(self) -> int:
        """Keys of a micro-batch that these attend to: all up to the last of them."""
        parts = self.config.layout.cp if self.cp_rank is None else self.cp_rank + 1
        return self.queries * parts * self.config.training.micro_batch

    @cached_property
    def heads(self) -> int:
        return self.model.heads // self.config.layout.tp

    @cached_property
    def kv_groups(self) -> int:
        return self.model.kv_groups // self.config.layout.tp

    @cached_property
    def P(self) -> int:
        """Ranks that share the experts."""
        return self.config.layout.experts_over

    @cached_property
    def e(self) -> int:
        return self.model.experts_count // self.P

    @property
    def C(self) -> int:
        """Assignments: tokens times K."""
        return self.T * self.model.top_k

    @cached_property
    def static(self) -> bool:
        """Whether buffers are sized for the worst-case routing."""
        return self.config.toggles.sync_free >= STATIC

    @cached_property
    def most(self) -> int:
        """Experts of one rank that a token can be routed to."""
        return min(self.model.top_k, self.e)

    @cached_property
    def rows(self) -> int:
        """Rows of this rank's experts that hold a token."""
        if self.routed is not None:
            return self.routed.rows
        return min(self.buffer_rows, round(self.C * (self.imbalance if self.P > 1 else 1)))

    @property
    def buffer_rows(self) -> int:
        """Rows of a worst-case buffer: every token of every rank goes to experts of this rank."""
        return self.P * self.T * self.most

    @property
    def R(self) -> int:
        """Rows of the buffers of this rank's experts."""
        return self.buffer_rows if self.static else self.rows

    @property
    def copies_sent(self) -> int:
        """Copies of this rank's tokens, one per rank with any of its experts, this rank included."""
        return round(self.copies * self.T) if self.routed is None else self.routed.copies_sent

    @property
    def copies_received(self) -> int:
        """Copies of tokens for experts of this rank."""
        if self.routed is not None:
            return self.routed.copies_received
        return min(self.P * self.T, round(self.copies_sent * (self.imbalance if self.P > 1 else 1)))

    @cached_property
    def copies(self) -> float:
        """Mean number of ranks with an expert of a token, of a router without preference."""
        return balanced_spread(self.model, self.P, self.P).ranks

    def gemm(self, m: int, k: int, n: int, matrices: int = 1) -> tuple[Kernel]:
        """A GEMM of m rows in all with (k, n) weight matrices.

        It takes 2mnk FLOPs, and as many for the gradient of each operand. Each operand is read once and the
        result written once. The backward reads output gradient, input and weights, writes the input gradient,
        and accumulates the weight gradient.
        """
        weights, flops, rows = matrices * k * n, 2 * m * k * n, m / matrices
        forward = Load(flops, (m * k + weights + m * n) * self.a, (Gemm(rows, k, n, matrices),))
        gradients = Gemm(rows, n, k, matrices), Gemm(rows, k, n, matrices, "weight")
        backward = Load(2 * flops, (2 * m * k + 3 * weights + 2 * m * n) * self.a, gradients)
        return (Kernel("gemm", forward, backward),)


def norm(t: Tape, s: RankSizes, x: Value) -> Value:
    """RMS norm of the residual stream."""
    with t.part("activations.norms"):
        return _norm(t, s, x, s.model.hidden, s.T, "norms")


def _norm(t: Tape, s: RankSizes, x: Value, width: int, rows: int, component: str) -> Value:
    """RMS norm: saves its input and one float32 per row."""
    size = rows * width * s.a
    return t.op(
        [x], size, saves=[x], extra=rows * FLOAT32, weights=width * s.a, kernels=moves(2 * size, 3 * size),
        weight=Weight("stage", component),
    )  # fmt: skip


def add(t: Tape, x: Value, y: Value) -> Value:
    """Sum with the residual stream, whose gradient both share."""
    moved = 3 * x.bytes
    return t.op([x, y], x.bytes, gradient="same", kernels=moves(moved, moved))


def linear(
    t: Tape,
    s: RankSizes,
    x: Value,
    rows: int,
    inside: int,
    outside: int,
    replicas: str = "dense",
    kernels: Sequence[Kernel] | None = None,
) -> Value:
    """A GEMM with a weight, from one width to another: saves its input.

    Tensor parallelism shards the weight unless `replicas` is "stage". `kernels` stand for its GEMM if that is
    computed with another one.
    """
    return t.op(
        [x], rows * outside * s.a, saves=[x], weights=inside * outside * s.a,
        kernels=s.gemm(rows, inside, outside) if kernels is None else kernels,
        weight=Weight(replicas, t.scope),
    )  # fmt: skip


def side_by_side(t: Tape, s: RankSizes, x: Value, inside: int, *widths: int) -> list[Value]:
    """GEMMs of one input, which kernels can compute as one: it counts at the first."""
    return [
        linear(t, s, x, s.A, inside, width, kernels=() if number else s.gemm(s.A, inside, sum(widths)))
        for number, width in enumerate(widths)
    ]


def gather(t: Tape, s: RankSizes, x: Value) -> Value:
    """All-gather of the positions over tensor parallelism."""
    if s.config.layout.tp == 1:
        return x
    messages, _ = _sharded(s)
    return t.op([x], s.A * s.row, waits=s.config.toggles.tp_overlap == "off", messages=messages)


def scatter_linear(t: Tape, s: RankSizes, x: Value, width: int) -> Value:
    """A GEMM with a weight, and its reduce-scatter over tensor parallelism."""
    D, tp = s.model.hidden, s.config.layout.tp
    if tp == 1:
        return linear(t, s, x, s.A, width, D)
    _, messages = _sharded(s)
    if s.config.toggles.tp_overlap == "off":
        return t.op([linear(t, s, x, s.A, width, D)], s.T * s.row, waits=True, messages=messages)
    # One op, whose backward gathers the gradient of all positions for the weight gradient.
    return t.op(
        [x], s.T * s.row, saves=[x], weights=width * D * s.a, scratch=s.A * s.row,
        backward_scratch=s.A * s.row, saves_last=True, kernels=s.gemm(s.A, width, D), messages=messages,
        weight=Weight("dense", t.scope),
    )  # fmt: skip


def _sharded(s: RankSizes) -> tuple[PassMessages, PassMessages]:
    """Messages of tensor parallelism before and after a block: gather all positions, scatter the results."""
    part, full = s.T * s.row, s.A * s.row
    gathered = Exchange("positions", "all_gather", "tp", part, full)
    scattered = gathered.transposed
    match s.config.toggles.tp_overlap:
        case "off":
            return PassMessages((gathered,), (scattered,)), PassMessages((scattered,), (gathered,))
        case "symmetric":
            return PassMessages((), (scattered,)), PassMessages()
    ranks = s.config.layout.tp
    broadcasts = (Exchange("positions", "broadcast", "tp", part, part),) * ranks
    sizes = [rows * s.row for rows in shares(s.T, CHUNKS) if rows]
    pieces = tuple(scattered._replace(sent=size * ranks, received=size) for size in sizes)
    return PassMessages(broadcasts, (scattered,)), PassMessages(pieces, broadcasts)


def shares(rows: int, parts: int) -> list[int]:
    """Sizes of parts that differ by at most one row."""
    ends = [rows * part // parts for part in range(parts + 1)]
    return [end - start for start, end in pairwise(ends)]


def rotate(t: Tape, x: Value, size: int) -> Value:
    """Rotary positions: saves nothing, since its tables have no gradient.

    Torch's ops are two products and a concatenation.
    """
    kernels = *moves(2 * size, 2 * size), *eager(6 * size, 7 * size, "concat")
    return t.op([x], size, scratch=2 * size, backward_scratch=2 * size, kernels=kernels)


def swiglu(t: Tape, gate: Value, up: Value, kernels: Sequence[Kernel] | None = None) -> Value:
    """silu(gate) * up; `kernels` if they are not its own."""
    silu = t.op([gate], gate.bytes, saves=[gate])
    own = swiglu_kernels(up.bytes) if kernels is None else kernels
    return t.op([silu, up], up.bytes, saves=[silu, up], kernels=own)


def swiglu_kernels(size: int) -> tuple[Kernel, ...]:
    """Reads two tensors of this size and writes one; the backward reads three and writes two.

    Torch's ops are SiLU and a product; the backward two products, the gradient of SiLU, and a concatenation.
    """
    return *moves(3 * size, 5 * size), *eager(2 * size, 8 * size, "triad")


def gated(t: Tape, s: RankSizes, x: Value, ffn: int) -> Value:
    """down(silu(gate(x)) * up(x))."""
    F, D = ffn // s.config.layout.tp, s.model.hidden
    gate, up = side_by_side(t, s, gather(t, s, x), D, F, F)
    return scatter_linear(t, s, swiglu(t, gate, up), F)


def attention(t: Tape, s: RankSizes, x: Value, kernel: AttentionKernel) -> Value:
    """Norm, projections, attention and output projection."""
    x = gather(t, s, norm(t, s, x))
    q, k, v = _latent(t, s, x) if s.model.attention == "mla" else _grouped(t, s, x)
    m, size = s.model, s.A * s.heads * s.model.value_dim * s.a
    # Scores take 2q FLOPs per query and key in each head, and the weighted sum of values 2v. The backward
    # reads inputs, outputs and output gradient, and writes the input gradients.
    moved = q.bytes + k.bytes + v.bytes + size
    batch, queries = s.config.training.micro_batch, s.queries
    keys = s.keys // batch
    # Twice the scores: half a square need not be a whole number.
    twice = 2 * queries * keys
    if kernel == "flash":
        twice = queries * queries if keys == queries else twice - queries * (queries - 1)
    twice *= s.heads * batch
    forward_flops = twice * (m.query_dim + m.value_dim)
    backward_flops = 2 * forward_flops + (0 if kernel == "math" else twice * m.query_dim)
    dims = (keys, m.query_dim, m.value_dim)
    attention_kernel = Kernel(
        "attention",
        Load(forward_flops, moved, (AttentionPass(forward_flops, *dims, is_backward=False),)),
        Load(backward_flops, 2 * moved, (AttentionPass(backward_flops, *dims, is_backward=True),)),
    )
    if kernel == "math":
        scores = s.A * s.heads * keys
        grouped = s.heads * m.kv_groups // m.heads if m.attention == "gqa" else s.heads
        k_all = k if grouped == s.heads else t.op([k], s.keys * s.heads * m.query_dim * s.a)
        v_all = v if grouped == s.heads else t.op([v], s.keys * s.heads * m.value_dim * s.a)
        # GEMMs that save all scores; queries and keys are scaled before their GEMM.
        q, k_all = t.op([q], q.bytes), t.op([k_all], k_all.bytes)
        score = t.op([q, k_all], scores * s.a, saves=[q, k_all])
        weight = t.op([score], scores * s.a, keep=True)
        y = t.op([weight, v_all], size, saves=[weight, v_all], kernels=(attention_kernel,))
    else:
        # A kernel that saves one float32 per query. Its backward accumulates query gradients in float32.
        accumulated = s.A * s.heads * m.query_dim * FLOAT32 if s.a < FLOAT32 else 0
        row = s.A * s.heads * FLOAT32
        y = t.op(
            [q, k, v], size, saves=[q, k, v], extra=row, gradient="new",
            backward_scratch=accumulated + 2 * row, keep=True, kernels=(attention_kernel,),
        )  # fmt: skip
    return scatter_linear(t, s, y, s.heads * m.value_dim)


def _grouped(t: Tape, s: RankSizes, x: Value) -> tuple[Value, Value, Value]:
    """Queries, keys and values of grouped-query attention."""
    m, groups = s.model, s.kv_groups
    q, k, v = side_by_side(
        t, s, x, m.hidden, s.heads * m.query_dim, groups * m.query_dim, groups * m.value_dim
    )
    q, k = rotate(t, q, q.bytes), rotate(t, k, k.bytes)
    if s.config.layout.cp > 1:
        both = t.op([k, v], k.bytes + v.bytes, gradient="same")
        gathered = t.collective(both, both.bytes * s.config.layout.cp, "keys", "all_gather", "cp")
        k, v = t.split(gathered, [s.keys * groups * width * s.a for width in (m.query_dim, m.value_dim)])
    return q, k, v


def _latent(t: Tape, s: RankSizes, x: Value) -> tuple[Value, Value, Value]:
    """Queries, keys and values of multi-head latent attention (arXiv:2405.04434, section 2.1)."""
    m, D, n = s.model, s.model.hidden, s.heads
    seen = s.keys
    width, replicas = (m.q_lora, "stage") if m.q_lora else (n * m.query_dim, "dense")
    q = linear(t, s, x, s.A, D, width, replicas)
    kv = linear(t, s, x, s.A, D, m.kv_lora + m.rope_dim, "stage")
    if m.q_lora:
        q = linear(t, s, _norm(t, s, q, m.q_lora, s.A, t.scope), s.A, m.q_lora, n * m.query_dim)
    latent, rotary = t.split(kv, [s.A * m.kv_lora * s.a, s.A * m.rope_dim * s.a])
    latent, rotary = _norm(t, s, latent, m.kv_lora, s.A, t.scope), rotate(t, rotary, rotary.bytes)
    kv = t.op([latent, rotary], kv.bytes, gradient="same")
    if s.config.layout.cp > 1:
        kv = t.collective(kv, kv.bytes * s.config.layout.cp, "keys", "all_gather", "cp")
    latent, rotary = t.split(kv, [seen * m.kv_lora * s.a, seen * m.rope_dim * s.a])
    # Each rank up-projects the latents of all keys that it attends to.
    heads = linear(t, s, latent, seen, m.kv_lora, n * (m.qk_dim + m.v_dim))
    k, v = t.split(heads, [seen * n * m.qk_dim * s.a, seen * n * m.v_dim * s.a])
    wide = t.op([rotary], seen * n * m.rope_dim * s.a, of=rotary)
    # Heads of both parts side by side; the backward puts the gradient of `heads` together.
    joined = eager(seen * n * (m.qk_dim + m.query_dim) * s.a, 2 * heads.bytes, "concat")
    k = t.op([k, wide], seen * n * m.query_dim * s.a, gradient="same", kernels=joined)
    q, q_rotary = t.split(q, [s.A * n * m.qk_dim * s.a, s.A * n * m.rope_dim * s.a])
    q_rotary = rotate(t, q_rotary, q_rotary.bytes)
    size = s.A * n * m.query_dim * s.a
    return t.op([q, q_rotary], size, gradient="same", kernels=eager(2 * size, 2 * size, "concat")), k, v


def embed(t: Tape, s: RankSizes, token: Value) -> Value:
    """Embedding lookup; its gradient, as large as the whole weight, accumulates.

    Torch clears that gradient, adds rows to it, and then accumulates it.
    """
    size, table = s.T * s.row, s.model.vocab * s.row
    kernels = *moves(2 * size, 3 * size), *eager(0, 4 * table, "triad"), *eager(0, 2 * size, "scatter")
    return t.op(
        [token], size, gradient="none", weights=table, kernels=kernels, weight=Weight("stage", t.scope)
    )


def head(t: Tape, s: RankSizes, x: Value) -> Value:
    """Norm, logits and loss: torch ops in float32, or one kernel that saves the gradient.

    The kernel reads the logits and overwrites them with their gradient. Torch's ops cast them to float32 and
    read and write those for the softmax; the backward likewise.
    """
    V, T = s.model.vocab, s.T
    logits = linear(t, s, norm(t, s, x), T, s.model.hidden, V, "stage")
    if s.config.toggles.loss == "fused":
        gradient = t.op([], T * V * s.a, reads=[logits])
        moved = moves(2 * logits.bytes, 2 * logits.bytes)
        loss = t.op([logits], FLOAT32, saves=[gradient], gradient="saved", kernels=moved)
    else:
        wide = logits if s.a == FLOAT32 else t.op([logits], T * V * FLOAT32)
        log = t.op([wide], T * V * FLOAT32, keep=True)
        moved = moves(logits.bytes + 3 * log.bytes, logits.bytes + 3 * log.bytes)
        # Softmax reads its input twice, and the gradient of the loss begins as zeros.
        moved += eager(2 * log.bytes, 2 * log.bytes, "triad")
        loss = t.op([log], FLOAT32, saves=[log], kernels=moved)
        t.touch(wide)
    t.touch(logits)
    return loss


def tokens(s: RankSizes) -> int:
    """Bytes of the token ids of this step and the next."""
    return 2 * INT64 * s.T * s.config.training.micro_batches


def layer_config(config: Config) -> Config:
    """The run reduced to what its layers depend on, so that many layouts share them."""
    layout, ep = config.layout, config.layout.experts_over
    return replace(
        config,
        layout=Layout(ranks=layout.cp * layout.tp * ep, cp=layout.cp, tp=layout.tp, ep=ep),
        toggles=replace(config.toggles, recompute_layer_ids=()),
        training=replace(config.training, micro_batches=2),
    )
