"""FLOPs and bytes of the parts of a layer, in one micro-batch on one rank.

Bytes are a lower bound: each operand of a GEMM is read once and its result written once; what kernels can
fuse (bias, cast, mask) moves nothing. FLOPs come from `planner.expected`.
"""

from __future__ import annotations

from typing import NamedTuple

from tracelens.devices import GemmKind
from tracelens.planner.expected import FLOAT32, Share, quantized, scores_work


class Gemm(NamedTuple):
    """A GEMM of m rows of each of several (k, n) matrices; `kind` as in `tracelens.devices.GemmCurve`."""

    m: float
    k: int
    n: int
    matrices: int = 1
    kind: GemmKind = "output"

    @property
    def flops(self) -> float:
        return 2 * self.m * self.k * self.n * self.matrices


class Attention(NamedTuple):
    """Causal flash attention of a sequence length."""

    flops: int
    seq: int
    query_dim: int
    value_dim: int
    is_backward: bool


class Traffic(NamedTuple):
    """Bytes that are moved in a pattern: a name of `tracelens.devices.Bandwidth`."""

    bytes: int
    pattern: str


class Load(NamedTuple):
    """FLOPs and bytes of one pass of a part.

    Attributes:
        flops: of all its kernels.
        bytes: that they move at least.
        kernels: that have the FLOPs, or move the bytes in another pattern than elementwise.
        dtype: in which the FLOPs run; empty for the type of the activations.
    """

    flops: int
    bytes: int
    kernels: tuple[Gemm | Attention | Traffic, ...] = ()
    dtype: str = ""


class Part(NamedTuple):
    """Ops of a layer.

    Attributes:
        name: of its annotation, without the layer.
        forward: of a micro-batch.
        backward: likewise.
        reruns: whether recompute runs it; recompute stops before the last GEMM.
    """

    name: str
    forward: Load
    backward: Load
    reruns: bool = True


class RoutedRows(NamedTuple):
    """Rows that a rank sends (also to itself), receives and runs through its experts, in one micro-batch."""

    sent: int
    received: int
    computed: int


def attention_parts(share: Share) -> list[Part]:
    """Norm, projections, rotary positions, attention and residual of one layer."""
    model, heads, D = share.config.model, share.heads, share.config.model.hidden
    positions, keys = share.gathered, share.keys * share.config.training.micro_batch
    grouped = model.attention == "gqa"
    kv_heads = share.kv_groups if grouped else heads
    if grouped:
        columns = heads * model.query_dim + kv_heads * (model.query_dim + model.value_dim)
        shapes, latents, rotated = [(positions, D, columns)], 0, heads + kv_heads
    else:
        shapes = [
            (positions, D, model.q_lora),
            (positions, model.q_lora or D, heads * model.query_dim),
            (positions, D, model.kv_lora + model.rope_dim),
            (keys, model.kv_lora, heads * (model.qk_dim + model.v_dim)),
        ]
        latents, rotated = model.q_lora + model.kv_lora, heads + 1
    shapes.append((positions, heads * model.value_dim, D))
    name = "attention"
    parts = [gemm(share, name, *shape) for shape in shapes if all(shape)]
    scores = scores_work(share, "flash")
    inputs = positions * heads * model.query_dim + keys * kv_heads * (model.query_dim + model.value_dim)
    outputs = positions * heads * model.value_dim
    # The backward reads these and the output gradient, and writes the input gradients.
    moved = (inputs + outputs) * share.element
    dims = (share.keys, model.query_dim, model.value_dim)
    forward_kernel, backward_kernel = (
        Attention(flops, *dims, is_backward)
        for flops, is_backward in ((scores.forward, False), (scores.backward, True))
    )
    parts.append(
        Part(
            name,
            Load(scores.forward, moved, (forward_kernel,)),
            Load(scores.backward, 2 * moved, (backward_kernel,)),
        )
    )
    rotary = 2 * positions * rotated * model.rotary_dim
    stream = share.tokens * D
    # Norms read and write, and read one more in the backward; a residual reads two and writes one.
    forward = 2 * stream + 2 * positions * latents + rotary + 3 * stream
    backward = 3 * stream + 3 * positions * latents + rotary + 3 * stream
    return [*parts, elementwise(share, name, forward, backward)]


def gated_parts(share: Share, name: str, ffn: int, reruns_down: bool) -> list[Part]:
    """A gated MLP; recompute runs its last GEMM if `reruns_down`."""
    D, F, positions = share.config.model.hidden, share.cut(ffn), share.gathered
    down = gemm(share, name, positions, F, D)
    return [
        gemm(share, name, positions, D, 2 * F),
        elementwise(share, name, 3 * F * positions, 5 * F * positions),
        down._replace(reruns=reruns_down),
    ]


def stream_part(share: Share, name: str, sums: int) -> Part:
    """The norm before a block, and `sums` additions to the residual stream after it."""
    stream = share.tokens * share.config.model.hidden
    return elementwise(share, name, (2 + 3 * sums) * stream, (3 + 3 * sums) * stream)


def router_parts(share: Share) -> list[Part]:
    """Router logits, and softmax in float32."""
    tokens, model = share.tokens, share.config.model
    soft = Load(0, 2 * tokens * model.experts_count * FLOAT32)
    logits = gemm(share, "router", tokens, model.hidden, model.experts_count)
    return [logits, Part("router", soft, soft)]


def expert_parts(share: Share, rows: RoutedRows) -> list[Part]:
    """Dispatch, experts and combine on this rank."""
    model, count = share.config.model, share.experts
    D, F = model.hidden, model.expert_ffn
    moved = (share.tokens + rows.sent + rows.received + rows.computed) * D
    return [
        elementwise(share, "dispatch", moved, moved),
        *expert_gemm(share, rows.computed, D, 2 * F, count),
        elementwise(share, "experts", 3 * F * rows.computed, 5 * F * rows.computed),
        *expert_gemm(share, rows.computed, F, D, count),
        elementwise(share, "combine", moved, moved),
    ]


def expert_gemm(share: Share, m: int, k: int, n: int, matrices: int) -> list[Part]:
    """One GEMM over all experts: in the type of the activations, or quantized to FP8.

    In FP8 quantization reads the operands in their type and writes them; the GEMM reads the copies. The
    weight gradient is computed from the operands in their type.
    """
    if share.config.toggles.fp8 == "off":
        return [gemm(share, "experts", m, k, n, matrices)]
    copies, flops, a, weights = quantized(m, k, n, matrices), 2 * m * k * n, share.element, matrices * k * n
    output, input_gradient, weight_gradient = _gemm_kernels(m, k, n, matrices)
    return [
        Part(
            "experts",
            Load(0, (m * k + weights) * a + copies.forward),
            Load(0, (m * n + weights) * a + copies.backward),
        ),
        Part(
            "experts",
            Load(flops, copies.forward + m * n * a, (output,), "fp8"),
            Load(flops, copies.backward + m * k * a, (input_gradient,), "fp8"),
        ),
        Part("experts", Load(0, 0), Load(flops, (m * k + m * n + 2 * weights) * a, (weight_gradient,))),
    ]


def embedding_parts(share: Share) -> list[Part]:
    """Embedding lookup, and accumulation of its gradients."""
    stream = share.tokens * share.config.model.hidden
    return [elementwise(share, "embedding", 2 * stream, 3 * stream)]


def head_parts(share: Share) -> list[Part]:
    """Final norm, logits and loss.

    The fused loss reads the logits and overwrites them with their gradient. Torch's ops cast them to float32
    and read and write those for the softmax; the backward likewise.
    """
    tokens, model = share.tokens, share.config.model
    logits = tokens * model.vocab
    is_fused = share.config.toggles.loss == "fused"
    loss = Load(0, logits * (2 * share.element if is_fused else share.element + 3 * FLOAT32))
    return [
        elementwise(share, "head", 2 * tokens * model.hidden, 3 * tokens * model.hidden),
        gemm(share, "head", tokens, model.hidden, model.vocab),
        Part("head", loss, loss),
    ]


def gemm(share: Share, name: str, m: int, k: int, n: int, matrices: int = 1) -> Part:
    """A GEMM of m rows with one of several (k, n) weight matrices.

    The backward reads output gradient, input and weights, writes the input gradient, and accumulates the
    weight gradient.
    """
    weights = matrices * k * n
    forward = m * k + weights + m * n
    backward = 2 * m * k + 3 * weights + 2 * m * n
    output, *gradients = _gemm_kernels(m, k, n, matrices)
    return Part(
        name,
        Load(2 * m * k * n, forward * share.element, (output,)),
        Load(4 * m * k * n, backward * share.element, tuple(gradients)),
    )


def _gemm_kernels(m: int, k: int, n: int, matrices: int) -> tuple[Gemm, Gemm, Gemm]:
    """The GEMM of the forward, of the input gradient and of the weight gradient."""
    rows = m / matrices
    return Gemm(rows, k, n, matrices), Gemm(rows, n, k, matrices), Gemm(rows, k, n, matrices, "weight")


def elementwise(share: Share, name: str, forward: int, backward: int) -> Part:
    """An op that reads and writes this many activation elements."""
    return Part(name, Load(0, forward * share.element), Load(0, backward * share.element))
