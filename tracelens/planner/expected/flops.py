"""FLOPs of GEMMs and attention in one step of one rank, by scope, from sizes alone.

A GEMM of (m, k) and (k, n) takes 2mnk; its backward is two such GEMMs, one per operand. Norms, rotary
positions, softmax and other elementwise ops do not count.

Attention in each of n heads: scores take 2q per query and key, the weighted sum of values 2v. Which scores
are computed, and how often, depends on the kernel, see `AttentionKernel`.

GEMMs that tensor parallelism does not shard (the down-projections of "mla", the router, the head) count on
each rank.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

from tracelens.planner.config import Config
from tracelens.planner.expected.routed import Routing, known
from tracelens.planner.expected.share import Share

AttentionKernel = Literal["flash", "masked", "math"]
"""How attention is computed.

- flash: skips masked scores: half of a square, by the convention of the FlashAttention papers (Dao 2022), and
  exactly where there are more keys than queries. The backward recomputes the scores: five GEMMs to the
  forward's two, three of width q and two of width v.
- masked: the same, but computes all scores, since the mask is a tensor.
- math: computes all scores with separate GEMMs and saves them: the backward has four GEMMs.
"""


class Work(NamedTuple):
    """FLOPs of a scope in one step.

    Attributes:
        forward: of all micro-batches.
        backward: without recompute.
        recomputed: forward that runs again in the backward.
    """

    forward: int = 0
    backward: int = 0
    recomputed: int = 0

    @property
    def total(self) -> int:
        return sum(self)

    def times(self, count: int) -> Work:
        return Work(*(count * flops for flops in self))

    @classmethod
    def summed(cls, parts: Iterable[Work]) -> Work:
        return cls(*map(sum, zip(*parts, strict=True)))


def gemm(m: int, k: int, n: int) -> Work:
    """A GEMM with its backward for both operands."""
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
        rank: of the run.
        routing: of the step, as reported by the run; not needed with routing=balanced or `buffers`.
        attention: how attention is computed; see `attention_kernel` for what torch selects.
        buffers: count all rows of the expert buffers, as the shapes in a trace do with sync_free=3, not only
            those that hold a token.
        broken_off: also count the last GEMM of a recomputed layer, before which recompute stops early. A
            trace shows its op without a kernel; on a CPU it looks as if it had run.

    Returns:
        scope (`L{i}.attention`, `L{i}.mlp`, `L{i}.router`, `L{i}.experts`, `L{i}.shared`, `head`) to FLOPs.

    Raises:
        TracelensError: no such rank, or the routing is needed but unknown.
    """
    share, model, toggles = Share(config, rank), config.model, config.toggles
    batches = config.training.micro_batches
    # Recompute stops at the last tensor that the backward needs, before the last GEMM; if GEMM and
    # reduce-scatter are one operation, after it.
    to_the_end = broken_off or (config.layout.tp > 1 and toggles.tp_overlap != "off")
    routed = None if buffers or not any(map(share.is_moe, share.layers)) else known(config, rank, routing)
    by_scope: dict[str, Work] = {}
    for layer in share.layers:
        recompute = share.is_recomputed(layer)
        work = {"attention": _with_recompute(attention_work(share, attention), recompute).times(batches)}
        if share.is_moe(layer):
            router = gemm(share.tokens, model.hidden, model.experts_count)
            work["router"] = _with_recompute(router, recompute).times(batches)
            rows = share.buffer_rows * batches
            if routed is not None:
                rows = sum(sum(routed.at(layer, batch).rows) for batch in range(batches))
            # Gate, up and down are GEMMs of equal FLOPs.
            work["experts"] = _with_recompute(gemm(rows, model.hidden, 3 * model.expert_ffn), recompute)
            if model.shared_ffn:
                runs_down = to_the_end or toggles.overlap_shared
                work["shared"] = _gated_work(share, model.shared_ffn, recompute, runs_down).times(batches)
        else:
            work["mlp"] = _gated_work(share, model.dense_ffn, recompute, to_the_end).times(batches)
        by_scope |= {f"L{layer}.{name}": scope_work for name, scope_work in work.items()}
    if share.is_last:
        by_scope["head"] = gemm(share.tokens, model.hidden, model.vocab).times(batches)
    return by_scope


def attention_work(share: Share, kernel: AttentionKernel) -> Work:
    """FLOPs of the attention of one layer and micro-batch, projections included."""
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
            # Each rank up-projects the latents of all keys that it attends to.
            gemm(keys, model.kv_lora, heads * (model.qk_dim + model.v_dim)),
        ]
    parts += [gemm(positions, heads * model.value_dim, D), scores_work(share, kernel)]
    return Work.summed(parts)


def scores_work(share: Share, kernel: AttentionKernel) -> Work:
    """FLOPs of the scores of one layer and micro-batch, and of the weighted sum of values."""
    model, queries, keys = share.config.model, share.queries, share.keys
    # Twice the scores: half a square need not be a whole number.
    twice = 2 * queries * keys
    if kernel == "flash":
        twice = queries * queries if keys == queries else twice - queries * (queries - 1)
    twice *= share.heads * share.config.training.micro_batch
    forward = twice * (model.query_dim + model.value_dim)
    recomputed_scores = 0 if kernel == "math" else twice * model.query_dim
    return Work(forward, 2 * forward + recomputed_scores)


def attention_kernel(config: Config, rank: int, device: str) -> AttentionKernel:
    """The kernel that torch's scaled_dot_product_attention selects.

    Args:
        config: of the run.
        rank: ranks of context parallelism differ.
        device: "cpu" or "cuda" (NVIDIA and AMD alike).
    """
    share, model = Share(config, rank), config.model
    if device == "cpu":
        if model.query_dim != model.value_dim:
            return "math"
        return "flash" if share.keys == share.queries else "masked"
    grouped = model.attention == "gqa" and model.heads != model.kv_groups
    # Flash attention has no float32 kernel, and the memory-efficient one no grouped heads.
    return "math" if grouped and config.training.dtype == "float32" else "flash"


def _gated_work(share: Share, ffn: int, is_recomputed: bool, runs_down: bool) -> Work:
    """A gated MLP in one micro-batch on this rank; recomputed in full, or without its last GEMM."""
    D, F = share.config.model.hidden, share.cut(ffn)
    up = _with_recompute(gemm(share.gathered, D, 2 * F), is_recomputed)
    down = _with_recompute(gemm(share.gathered, F, D), is_recomputed and runs_down)
    return Work.summed((up, down))


def _with_recompute(work: Work, is_recomputed: bool) -> Work:
    return work._replace(recomputed=work.forward) if is_recomputed else work
