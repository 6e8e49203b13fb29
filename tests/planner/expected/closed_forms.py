"""Parameters, FLOPs and messages in closed form, written apart from the ops that the planner reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from tracelens.planner.config import STATIC, Config
from tracelens.planner.expected import (
    CHUNKS,
    FLOAT32,
    INT64,
    AttentionKernel,
    Collective,
    RankRouting,
    Routing,
    group_ranks,
)
from tracelens.planner.expected import RankShare as RankShare


@dataclass(frozen=True)
class RankShare(RankShare):
    """The share of a rank, with the widths that the formulas use."""

    @property
    def gathered(self) -> int:
        """Tokens of a micro-batch on all ranks of tensor parallelism."""
        return self.tokens * self.config.layout.tp

    @property
    def queries(self) -> int:
        """Query positions of a sequence on this rank."""
        return self.config.training.seq // self.config.layout.cp

    @property
    def keys(self) -> int:
        """Key positions that these attend to: all up to the last of them."""
        return self.queries * (self.coordinates["cp"] + 1)

    def cut(self, width: int) -> int:
        """Shard of a width under tensor parallelism."""
        return width // self.config.layout.tp

    @property
    def heads(self) -> int:
        return self.cut(self.config.model.heads)

    @property
    def kv_groups(self) -> int:
        return self.cut(self.config.model.kv_groups)

    @property
    def experts(self) -> int:
        return self.config.model.experts_count // self.config.layout.experts_over

    @property
    def buffer_rows(self) -> int:
        """Rows of a worst-case buffer: every token of every rank goes to experts of this rank."""
        return self.config.layout.experts_over * self.tokens * min(self.config.model.top_k, self.experts)


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
    routing: Routing | None,
    attention: AttentionKernel = "flash",
    to_the_end: bool = False,
) -> dict[str, Work]:
    """FLOPs of a step by scope; without a routing all rows of the buffers count.

    Recompute stops at the last tensor that the backward needs, before the last GEMM; if GEMM and
    reduce-scatter are one operation, after it.
    """
    share, model, toggles = RankShare(config, rank), config.model, config.toggles
    batches = config.training.micro_batches
    to_the_end = to_the_end or (config.layout.tp > 1 and toggles.tp_overlap != "off")
    by_scope: dict[str, Work] = {}
    for layer in share.layers:
        recompute = share.is_recomputed(layer)
        work = {"attention": _with_recompute(attention_work(share, attention), recompute).times(batches)}
        if share.is_moe(layer):
            router = gemm(share.tokens, model.hidden, model.experts_count)
            work["router"] = _with_recompute(router, recompute).times(batches)
            rows = share.buffer_rows * batches
            if routing is not None:
                rows = sum(sum(routing.at(layer, batch).rows) for batch in range(batches))
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


def attention_work(share: RankShare, kernel: AttentionKernel) -> Work:
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


def scores_work(share: RankShare, kernel: AttentionKernel) -> Work:
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


def _gated_work(share: RankShare, ffn: int, is_recomputed: bool, runs_down: bool) -> Work:
    """A gated MLP in one micro-batch on this rank; recomputed in full, or without its last GEMM."""
    D, F = share.config.model.hidden, share.cut(ffn)
    up = _with_recompute(gemm(share.gathered, D, 2 * F), is_recomputed)
    down = _with_recompute(gemm(share.gathered, F, D), is_recomputed and runs_down)
    return Work.summed((up, down))


def _with_recompute(work: Work, is_recomputed: bool) -> Work:
    return work._replace(recomputed=work.forward) if is_recomputed else work


def parameters(config: Config, rank: int) -> Counter[tuple[str, str]]:
    """Parameters of a rank by replica group and component."""
    counts: Counter[tuple[str, str]] = Counter()
    for replicas, component, elements in each_parameter(RankShare(config, rank)):
        counts[replicas, component] += elements
    return counts


def each_parameter(share: RankShare) -> Iterator[tuple[str, str, int]]:
    """Every parameter of a rank."""
    model, D = share.config.model, share.config.model.hidden
    if share.is_first:
        yield ("stage", "embedding", model.vocab * D)
    for layer in share.layers:
        yield from (("stage", "norms", D),) * 2
        yield from _latent(share) if model.attention == "mla" else _grouped(share)
        if share.is_moe(layer):
            yield ("stage", "router", model.experts_count * D)
            yield ("edp", "experts", share.experts * D * 2 * model.expert_ffn)
            yield ("edp", "experts", share.experts * D * model.expert_ffn)
            if model.shared_ffn:
                yield from (("dense", "shared", D * share.cut(model.shared_ffn)),) * 3
        else:
            yield from (("dense", "mlp", D * share.cut(model.dense_ffn)),) * 3
    if share.is_last:
        yield ("stage", "norms", D)
        yield ("stage", "head", model.vocab * D)


def _latent(share: RankShare) -> Iterator[tuple[str, str, int]]:
    """Multi-head latent attention (arXiv:2405.04434, section 2.1), including the norms of its latents."""
    model, n, D = share.config.model, share.heads, share.config.model.hidden
    unsharded = [D * (model.kv_lora + model.rope_dim), model.kv_lora]
    if model.q_lora:
        unsharded += [D * model.q_lora, model.q_lora]
    by_head = [(model.q_lora or D) * model.query_dim, model.kv_lora * (model.qk_dim + model.v_dim)]
    for count in unsharded:
        yield ("stage", "attention", count)
    for width in (*by_head, model.v_dim * D):
        yield ("dense", "attention", n * width)


def _grouped(share: RankShare) -> Iterator[tuple[str, str, int]]:
    """Grouped-query attention: queries, keys, values and output."""
    model = share.config.model
    for heads in (share.heads, share.kv_groups, share.kv_groups, share.heads):
        yield ("dense", "attention", heads * model.head_dim * model.hidden)


TRANSPOSED: dict[Collective, Collective] = {
    "all_to_all": "all_to_all",
    "all_gather": "reduce_scatter",
    "reduce_scatter": "all_gather",
    "deepep": "deepep",
}
"""Collective of the forward to that of its gradients."""


class LayerMessage(NamedTuple):
    """The fields of a Message that depend on the layer alone."""

    scope: str
    what: str
    collective: Collective
    group: str
    sent: int
    received: int

    @property
    def transposed(self) -> LayerMessage:
        """The message of the gradient."""
        scope, what, collective, group, sent, received = self
        return LayerMessage(scope, what, TRANSPOSED[collective], group, received, sent)


class Step(NamedTuple):
    """Messages of a forward that belong together, and those of its backward."""

    forward: list[LayerMessage]
    backward: list[LayerMessage]


def layer_steps(share: RankShare, layer: int, routed: RankRouting | None) -> list[Step]:
    """The steps of a layer in execution order; `routed` is needed where sizes depend on the routing."""
    model, name = share.config.model, f"L{layer}"
    steps = _attention(share, f"{name}.attention")
    if not share.is_moe(layer):
        return [*steps, *_sharded(share, f"{name}.mlp")]
    if model.aux_loss:
        # The balance loss counts tokens of the whole sequence; the counts have no gradient.
        size = share.config.training.micro_batch * model.experts_count * FLOAT32
        steps.append(Step([LayerMessage(f"{name}.router", "counts", "all_reduce", "cp_tp", size, size)], []))
    shared = _sharded(share, f"{name}.shared") if model.shared_ffn else []
    *dispatch, combine = _dispatch(share, name, routed)
    if share.config.toggles.overlap_shared:
        return [*steps, *dispatch, *shared, combine]
    return [*steps, *dispatch, combine, *shared]


def _both_ways(scope: str, what: str, collective: Collective, group: str, sent: int, received: int) -> Step:
    """A message whose gradient travels in the opposite direction."""
    message = LayerMessage(scope, what, collective, group, sent, received)
    return Step([message], [message.transposed])


def _sharded(share: RankShare, scope: str) -> list[Step]:
    """A block sharded by tensor parallelism: gathers all positions, reduce-scatters the results."""
    overlap, ranks = share.config.toggles.tp_overlap, share.config.layout.tp
    part, full = share.tokens * share.row, share.gathered * share.row
    gather = LayerMessage(scope, "positions", "all_gather", "tp", part, full)
    scatter = LayerMessage(scope, "positions", "reduce_scatter", "tp", full, part)
    if overlap == "off":
        return [Step([gather], [scatter]), Step([scatter], [gather])]
    if overlap == "symmetric":
        return [Step([], [scatter]), Step([], [])]
    broadcasts = [LayerMessage(scope, "positions", "broadcast", "tp", part, part)] * ranks
    ends = [share.tokens * piece // CHUNKS for piece in range(CHUNKS + 1)]
    sizes = [(end - start) * share.row for start, end in pairwise(ends) if start < end]
    pieces = [scatter._replace(sent=size * ranks, received=size) for size in sizes]
    return [Step(broadcasts, [scatter]), Step(pieces, broadcasts)]


def _attention(share: RankShare, scope: str) -> list[Step]:
    model, (first, last) = share.config.model, _sharded(share, scope)
    # "mla" sends the latents, which each rank then up-projects to keys and values.
    width = model.kv_lora + model.rope_dim
    if model.attention == "gqa":
        width = share.kv_groups * (model.query_dim + model.value_dim)
    part = share.gathered * width * share.element
    return [first, _both_ways(scope, "keys", "all_gather", "cp", part, part * share.config.layout.cp), last]


def _dispatch(share: RankShare, name: str, routed: RankRouting | None) -> list[Step]:
    """Dispatch of tokens to the experts, and combine as the last step."""
    toggles, scope, combine = share.config.toggles, f"{name}.dispatch", f"{name}.combine"
    if toggles.dispatch == "allgather":
        return _gathered(share, scope, combine)
    sent, received = (count * share.row for count in _rows(share, routed))
    if toggles.dispatch == "deepep":
        return [
            _both_ways(scope, "tokens", "deepep", "ep", sent, received),
            _both_ways(combine, "results", "deepep", "ep", received, sent),
        ]
    return [
        *_sizes_first(share, scope, routed),
        _both_ways(scope, "tokens", "all_to_all", "ep", sent, received),
        _both_ways(combine, "results", "all_to_all", "ep", received, sent),
    ]


def _gathered(share: RankShare, scope: str, combine: str) -> list[Step]:
    ranks, K = share.config.layout.experts_over, share.config.model.top_k
    weights, experts, tokens = (share.tokens * size for size in (K * FLOAT32, K * INT64, share.row))
    return [
        _both_ways(scope, "weights", "all_gather", "ep", weights, ranks * weights),
        Step([LayerMessage(scope, "experts", "all_gather", "ep", experts, ranks * experts)], []),
        _both_ways(scope, "tokens", "all_gather", "ep", tokens, ranks * tokens),
        _both_ways(combine, "results", "reduce_scatter", "ep", ranks * tokens, tokens),
    ]


def _sizes_first(share: RankShare, scope: str, routed: RankRouting | None) -> list[Step]:
    """Messages ahead of an all-to-all of tokens: counts, and with copies their routing."""
    toggles, model, ranks = share.config.toggles, share.config.model, share.config.layout.experts_over
    steps = []
    has_copies = toggles.dispatch == "dedup"
    if not has_copies or toggles.sync_free < STATIC:
        # dedup: number of copies, and of the rows that they expand to.
        size = (2 * ranks if has_copies else model.experts_count) * INT64
        steps.append(Step([LayerMessage(scope, "counts", "all_to_all", "ep", size, size)], []))
    if has_copies:
        sent, received = (2 * model.top_k * FLOAT32 * count for count in _rows(share, routed))
        steps.append(_both_ways(scope, "routing", "all_to_all", "ep", sent, received))
    return steps


def _rows(share: RankShare, routed: RankRouting | None) -> tuple[int, int]:
    """Rows of tokens that this rank sends and receives; without a routing those of static buffers."""
    has_copies = share.config.toggles.dispatch != "alltoall"
    if routed is None:
        rows = share.config.layout.experts_over * share.tokens if has_copies else share.buffer_rows
        return rows, rows
    if has_copies:
        return sum(routed.copies_to), sum(routed.copies_from)
    return sum(routed.rows_to), sum(routed.rows_from)


def layer_messages(
    share: RankShare, layer: int, routed: RankRouting | None
) -> Iterator[tuple[str, LayerMessage]]:
    """Phase and message: forward, recompute, backward; `routed` where sizes depend on the routing."""
    steps = layer_steps(share, layer, routed)
    forward = [message for step in steps for message in step.forward]
    yield from (("forward", message) for message in forward)
    if share.is_recomputed(layer):
        yield from (("recompute", message) for message in _recompute_messages(share, layer, forward))
    for step in reversed(steps):
        for message in step.backward:
            yield "backward", message._replace(scope=f"{message.scope}.B")


def sent(share: RankShare, layer: int, routed: RankRouting | None) -> list[tuple[str, LayerMessage]]:
    """`layer_messages` of groups of several ranks."""
    return [
        (phase, message)
        for phase, message in layer_messages(share, layer, routed)
        if group_ranks(share.config.layout, message.group) > 1
    ]


def _recompute_messages(share: RankShare, layer: int, forward: list[LayerMessage]) -> list[LayerMessage]:
    """Messages of a recomputed layer, without the reduction at its end.

    That is not left out if GEMM and reduction are one operation, nor if the shared expert comes after it.
    """
    *rest, last = forward
    is_fused = share.config.layout.tp > 1 and share.config.toggles.tp_overlap != "off"
    is_moe, toggles = share.is_moe(layer), share.config.toggles
    ends_in_gemm = not is_moe or (share.config.model.shared_ffn and not toggles.overlap_shared)
    if ends_in_gemm and (is_fused or last.group != "tp"):
        return forward
    return rest if last.collective in ("reduce_scatter", "deepep") else forward
