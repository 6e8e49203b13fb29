"""Parameters of the model and of each rank, counted from sizes alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from tracelens.planner.config import Config, Layout, Model
from tracelens.planner.expected.share import Share


class Parameter(NamedTuple):
    """One parameter of a rank; `replicas` is a key of REPLICA_GROUPS."""

    replicas: str
    component: str
    elements: int


class Totals(NamedTuple):
    """Parameters of a whole model; active per token are `top_k` of the routed experts and all the rest."""

    total: int
    active: int


def parameters(config: Config, rank: int) -> dict[str, dict[str, int]]:
    """Parameters that a rank holds: key of REPLICA_GROUPS to component to count, without zeros.

    Components are embedding, norms, attention, mlp, router, experts, shared and head.

    Raises:
        TracelensError: no such rank.
    """
    by_group: dict[str, dict[str, int]] = {}
    for replicas, component, elements in each_parameter(Share(config, rank)):
        counts = by_group.setdefault(replicas, defaultdict(int))
        counts[component] += elements
    return {replicas: dict(counts) for replicas, counts in by_group.items()}


def totals(model: Model) -> Totals:
    """Parameters of a whole model."""
    total = sum(parameter.elements for parameter in each_parameter(Share(Config(model, Layout()), 0)))
    idle = model.moe_layers * (model.experts_count - model.top_k)
    return Totals(total, total - idle * 3 * model.hidden * model.expert_ffn)


def each_parameter(share: Share) -> Iterator[Parameter]:
    """Every parameter of a rank."""
    model, D = share.config.model, share.config.model.hidden
    if share.is_first:
        yield Parameter("stage", "embedding", model.vocab * D)
    for layer in share.layers:
        yield from (Parameter("stage", "norms", D),) * 2
        yield from _latent(share) if model.attention == "mla" else _grouped(share)
        if share.is_moe(layer):
            yield Parameter("stage", "router", model.experts_count * D)
            yield Parameter("edp", "experts", share.experts * D * 2 * model.expert_ffn)
            yield Parameter("edp", "experts", share.experts * D * model.expert_ffn)
            if model.shared_ffn:
                yield from (Parameter("dense", "shared", D * share.cut(model.shared_ffn)),) * 3
        else:
            yield from (Parameter("dense", "mlp", D * share.cut(model.dense_ffn)),) * 3
    if share.is_last:
        yield Parameter("stage", "norms", D)
        yield Parameter("stage", "head", model.vocab * D)


def _latent(share: Share) -> Iterator[Parameter]:
    """Multi-head latent attention (arXiv:2405.04434, section 2.1), including the norms of its latents."""
    model, n, D = share.config.model, share.heads, share.config.model.hidden
    unsharded = [D * (model.kv_lora + model.rope_dim), model.kv_lora]
    if model.q_lora:
        unsharded += [D * model.q_lora, model.q_lora]
    by_head = [(model.q_lora or D) * model.query_dim, model.kv_lora * (model.qk_dim + model.v_dim)]
    for count in unsharded:
        yield Parameter("stage", "attention", count)
    for width in (*by_head, model.v_dim * D):
        yield Parameter("dense", "attention", n * width)


def _grouped(share: Share) -> Iterator[Parameter]:
    """Grouped-query attention: queries, keys, values and output."""
    model = share.config.model
    for heads in (share.heads, share.kv_groups, share.kv_groups, share.heads):
        yield Parameter("dense", "attention", heads * model.head_dim * model.hidden)
