"""FLOPs of GEMMs and attention in one step of one rank, by scope, from sizes alone.

A GEMM of (m, k) and (k, n) takes 2mnk; its backward is two such GEMMs, by either operand. Norms,
rotary positions, softmax and everything elementwise are not counted.

Attention in each of n heads: each query meets keys (2 q a score) and its weight values (2 v). Which scores
are computed, and how often, depends on the kernel, see `AttentionKernel`.

GEMMs that all ranks of tensor parallelism run alike (the down-projections of "mla", the router, the head)
count on each of them.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from tracelens.planner.config import Config
from tracelens.planner.expected.routed import Routing, known
from tracelens.planner.expected.share import Share

AttentionKernel = Literal["flash", "masked", "math"]
"""How attention is computed.

- flash: masked scores are left out: half of a square, by the convention of FlashAttention's papers (Dao
  2022), and one by one where there are more keys than queries. The backward makes the scores again: five
  GEMMs to the forward's two, three of width q and two of width v.
- masked: the same, but all scores are computed, since the mask is a tensor.
- math: all scores, by separate GEMMs that save them: the backward has four GEMMs.
"""


class Work(NamedTuple):
    """FLOPs of a scope in one step.

    Attributes:
        forward: of all micro-batches.
        backward: without what is computed again.
        recomputed: forward once more, in the backward.
    """

    forward: int = 0
    backward: int = 0
    recomputed: int = 0

    @property
    def total(self) -> int:
        return sum(self)

    def times(self, count: int) -> Work:
        return Work(*(count * count_ for count_ in self))


def gemm(m: int, k: int, n: int) -> Work:
    """A GEMM with its backward, for both operands."""
    return Work(2 * m * k * n, 4 * m * k * n)


def flops(
    config: Config,
    rank: int,
    routing: Routing | None = None,
    attention: AttentionKernel = "flash",
    buffers: bool = False,
    broken_off: bool = False,
) -> dict[str, Work]:
    """FLOPs of one step on one rank.

    Args:
        config: of the run.
        rank: number of the rank.
        routing: of the step, as the run reported it; not needed with routing=balanced or `buffers`.
        attention: how attention is computed; `attention_kernel` says what torch chooses.
        buffers: count all rows of the experts' buffers and not only those that hold a token: what shapes in a
            trace say with sync_free=3.
        broken_off: also count the last GEMM of a recomputed layer, at which recompute stops early. A trace
            shows its op, which on a CPU looks as if it had run; no kernel belongs to it.

    Returns:
        scope (`L{i}.attention`, `L{i}.mlp`, `L{i}.router`, `L{i}.experts`, `L{i}.shared`, `head`) to FLOPs.

    Raises:
        TracelensError: there is no such rank, or the routing is needed and not known.
    """
    share, model, by_scope = Share(config, rank), config.model, {}
    batches, toggles = config.training.micro_batches, config.toggles
    # Recompute ends with the last tensor that the backward needs, before the last GEMM; if GEMM and
    # reduce-scatter are one operation, after it.
    to_the_end = broken_off or (config.layout.tp > 1 and toggles.tp_overlap != "off")
    routed = None if buffers or not any(map(share.is_moe, share.layers)) else known(config, rank, routing)
    for layer in share.layers:
        name, is_recomputed = f"L{layer}", share.is_recomputed(layer)
        by_scope[f"{name}.attention"] = _with_recompute(
            attention_work(share, attention), is_recomputed
        ).times(batches)
        if not share.is_moe(layer):
            by_scope[f"{name}.mlp"] = _gated_work(share, model.dense_ffn, is_recomputed, to_the_end).times(
                batches
            )
            continue
        router = gemm(share.tokens, model.hidden, model.experts_count)
        by_scope[f"{name}.router"] = _with_recompute(router, is_recomputed).times(batches)
        rows = share.buffer_rows * batches
        if routed is not None:
            rows = sum(sum(routed.at(layer, batch).rows) for batch in range(batches))
        # Gate, up and down are GEMMs of equal FLOPs.
        by_scope[f"{name}.experts"] = _with_recompute(
            gemm(rows, model.hidden, 3 * model.expert_ffn), is_recomputed
        )
        if model.shared_ffn:
            runs_down = to_the_end or toggles.overlap_shared
            by_scope[f"{name}.shared"] = _gated_work(share, model.shared_ffn, is_recomputed, runs_down).times(
                batches
            )
    if share.is_last:
        by_scope["head"] = gemm(share.tokens, model.hidden, model.vocab).times(batches)
    return by_scope


def attention_work(share: Share, kernel: AttentionKernel) -> Work:
    """FLOPs of one layer's attention in one micro-batch, projections included."""
    model, heads, D = share.config.model, share.heads, share.config.model.hidden
    positions, keys = share.gathered, share.keys * share.config.training.micro_batch
    if model.attention == "gqa":
        columns = heads * model.query_dim + share.kv_groups * (model.query_dim + model.value_dim)
        parts = [gemm(positions, D, columns)]
    else:
        parts = [
            gemm(positions, D, model.q_lora),
            gemm(positions, model.q_lora or D, heads * model.query_dim),
            gemm(positions, D, model.kv_lora + model.rope_dim),
            # Each rank makes the heads of all keys that it needs from their latents.
            gemm(keys, model.kv_lora, heads * (model.qk_dim + model.v_dim)),
        ]
    parts += [gemm(positions, heads * model.value_dim, D), scores_work(share, kernel)]
    return Work(*(sum(column) for column in zip(*parts, strict=True)))


def scores_work(share: Share, kernel: AttentionKernel) -> Work:
    """FLOPs of the scores of one layer and micro-batch, and of their GEMMs with the values."""
    model, queries, keys = share.config.model, share.queries, share.keys
    # Twice, since half a square need not be whole.
    twice = 2 * queries * keys
    if kernel == "flash":
        twice = queries * queries if keys == queries else twice - queries * (queries - 1)
    twice *= share.heads * share.config.training.micro_batch
    forward = twice * (model.query_dim + model.value_dim)
    scores_again = 0 if kernel == "math" else twice * model.query_dim
    return Work(forward, 2 * forward + scores_again)


def attention_kernel(config: Config, rank: int, device: str) -> AttentionKernel:
    """The kernel that torch's scaled_dot_product_attention chooses.

    Args:
        config: of the run.
        rank: number of the rank; the ranks of context parallelism differ.
        device: "cpu" or "cuda" (NVIDIA and AMD alike).
    """
    share, model = Share(config, rank), config.model
    if device == "cpu":
        if model.query_dim != model.value_dim:
            return "math"
        return "flash" if share.keys == share.queries else "masked"
    grouped = model.attention == "gqa" and model.heads != model.kv_groups
    # Flash attention takes no float32, and the memory-efficient one no grouped heads.
    return "math" if grouped and config.training.dtype == "float32" else "flash"


def _gated_work(share: Share, ffn: int, is_recomputed: bool, runs_down: bool) -> Work:
    """A gated MLP of one micro-batch on this rank; recomputed fully, or without its last GEMM."""
    D, F = share.config.model.hidden, share.cut(ffn)
    up = _with_recompute(gemm(share.gathered, D, 2 * F), is_recomputed)
    down = _with_recompute(gemm(share.gathered, F, D), is_recomputed and runs_down)
    return Work(*(sum(column) for column in zip(up, down, strict=True)))


def _with_recompute(work: Work, is_recomputed: bool) -> Work:
    return work._replace(recomputed=work.forward) if is_recomputed else work
