"""Parameters of the model and of each rank."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from tracelens.planner.block import (
    Section,
    Weight,
    attention_section,
    embedding_section,
    head_section,
    mlp_section,
    moe_section,
)
from tracelens.planner.config import Config, Layout, Model
from tracelens.planner.expected.share import Share


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
    for (replicas, component), elements, times in each_parameter(Share(config, rank)):
        counts = by_group.setdefault(replicas, defaultdict(int))
        counts[component] += elements * times
    return {replicas: dict(counts) for replicas, counts in by_group.items()}


def totals(model: Model) -> Totals:
    """Parameters of a whole model."""
    total = sum(elements * times for _, elements, times in each_parameter(Share(Config(model, Layout()), 0)))
    idle = model.moe_layers * (model.experts_count - model.top_k)
    return Totals(total, total - idle * 3 * model.hidden * model.expert_ffn)


def each_parameter(share: Share) -> Iterator[tuple[Weight, int, int]]:
    """The parameters of a rank: what each is, its elements, and how many are alike."""
    for section, count in _sections(share):
        for op in section.ops:
            if op.weight is not None:
                yield op.weight, op.weights // share.element, count


def _sections(share: Share) -> Iterator[tuple[Section, int]]:
    """The sections of the model on a rank, with their number."""
    s, layers = share.sizes, len(share.layers)
    moe_layers = sum(map(share.is_moe, share.layers))
    if share.is_first:
        yield embedding_section(s), 1
    if layers:
        yield attention_section(s, "flash"), layers
    if moe_layers < layers:
        yield mlp_section(s), layers - moe_layers
    if moe_layers:
        yield moe_section(s), moe_layers
    if share.is_last:
        yield head_section(s), 1
