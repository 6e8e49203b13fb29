"""FLOPs and parameters of one rank: of GEMMs and attention in a step by scope, and of what it holds.

Norms, rotary positions, softmax and other elementwise ops do not count. GEMMs that tensor parallelism does
not shard (the down-projections of "mla", the router, the head) count on each rank. A rank's share of the
model is a `RankShare`; the routing of tokens, as far as FLOPs and messages depend on it, is a `Routing`,
which a run reports or `balanced` computes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from random import Random
from typing import NamedTuple

from tracelens.errors import TracelensError
from tracelens.planner.block import (
    AttentionKernel,
    Op,
    RankSizes,
    RoutedCounts,
    Section,
    Weight,
    attention_section,
    embedding_section,
    head_section,
    layer_config,
    layer_ops,
    mlp_section,
    moe_section,
    recomputed,
)
from tracelens.planner.config import Config, Layout, Model


class ScopeFlops(NamedTuple):
    """FLOPs of a scope in one step."""

    forward: int = 0  # of all micro-batches
    backward: int = 0  # without recompute
    recomputed: int = 0  # forward that runs again in the backward

    @property
    def total(self) -> int:
        return sum(self)

    @classmethod
    def summed(cls, parts: Iterable[ScopeFlops]) -> ScopeFlops:
        return cls(*map(sum, zip(*parts, strict=True)))


class Totals(NamedTuple):
    """Parameters of a whole model; active per token are `top_k` of the routed experts and all the rest."""

    total: int
    active: int


@dataclass(frozen=True)
class RankRouting:
    """One layer's routing of one micro-batch, seen from one rank of the group "ep".

    A token is a row for each of its top-k experts, and a copy for each rank that has one of them.
    """

    rows: tuple[int, ...]  # per expert of this rank
    rows_to: tuple[int, ...]  # sent to each rank
    rows_from: tuple[int, ...]  # received from each rank
    copies_to: tuple[int, ...]  # sent to each rank
    copies_from: tuple[int, ...]  # received from each rank

    @property
    def counts(self) -> RoutedCounts:
        """Sums over experts and ranks."""
        return RoutedCounts(sum(self.rows), sum(self.copies_to), sum(self.copies_from))


@dataclass(frozen=True)
class Routing:
    """The routing of one step, seen from one rank: MoE layer to its routing of each micro-batch."""

    layers: Mapping[int, tuple[RankRouting, ...]]

    def at(self, layer: int, micro_batch: int) -> RankRouting:
        """The routing of a layer and micro-batch; raises TracelensError if it is unknown."""
        batches = self.layers.get(layer, ())
        if micro_batch >= len(batches):
            raise TracelensError(f"the routing of layer {layer} in micro-batch {micro_batch} is unknown")
        return batches[micro_batch]


@dataclass(frozen=True)
class RankShare:
    """Share of one rank; raises TracelensError if the run has no such rank."""

    config: Config
    rank: int

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.config.layout.ranks:
            ranks = self.config.layout.ranks
            raise TracelensError(f"no rank {self.rank}: the run has {ranks} ranks")

    @cached_property
    def coordinates(self) -> dict[str, int]:
        """Index in pp, dp, cp, tp, ep and edp."""
        return self.config.layout.coordinates(self.rank)

    @cached_property
    def chunks(self) -> dict[int, range]:
        """Model chunks of this rank: position in the model to layers."""
        layout = self.config.layout
        numbered = enumerate(layout.chunks(self.config.model.layers))
        return {number: layers for number, layers in numbered if number % layout.pp == self.coordinates["pp"]}

    @property
    def layers(self) -> list[int]:
        return [layer for layers in self.chunks.values() for layer in layers]

    @property
    def is_first(self) -> bool:
        return self.coordinates["pp"] == 0

    @property
    def is_last(self) -> bool:
        return self.coordinates["pp"] == self.config.layout.pp - 1

    def is_moe(self, layer: int) -> bool:
        return layer >= self.config.model.dense_layers

    def is_recomputed(self, layer: int) -> bool:
        return layer in self.config.toggles.recompute_layer_ids

    @cached_property
    def sizes(self) -> RankSizes:
        """Sizes of its tensors, but for those that depend on the routing."""
        return RankSizes(layer_config(self.config), cp_rank=self.coordinates["cp"])

    def routed(self, counts: RoutedCounts | None) -> RankSizes:
        """Sizes of its tensors with this routing."""
        return replace(self.sizes, routed=counts)

    @property
    def tokens(self) -> int:
        """T: tokens of a micro-batch between attention layers."""
        return self.config.tokens

    @property
    def element(self) -> int:
        """Bytes of an element of an activation."""
        return self.config.training.element_bytes

    @property
    def row(self) -> int:
        """Bytes of a token of width D."""
        return self.config.model.hidden * self.element


def flops(
    config: Config,
    rank: int,
    routing: Routing | None = None,
    attention: AttentionKernel = "flash",
    buffers: bool = False,
    broken_off: bool = False,
    dtype: str | None = None,
) -> dict[str, ScopeFlops]:
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
        dtype: only those of this type, as "fp8"; "" for that of the activations.

    Returns:
        scope (`L{i}.attention`, `L{i}.mlp`, `L{i}.router`, `L{i}.experts`, `L{i}.shared`, `head`) to FLOPs.

    Raises:
        TracelensError: no such rank, or the routing is needed but unknown.
    """
    share, batches = RankShare(config, rank), range(config.training.micro_batches)
    routing = None if buffers or not any(map(share.is_moe, share.layers)) else known(config, rank, routing)
    buffer_rows = RoutedCounts(share.sizes.buffer_rows, 0, 0)
    parts: dict[str, list[ScopeFlops]] = defaultdict(list)
    for layer in share.layers:
        is_moe = share.is_moe(layer)
        counts: Counter[RoutedCounts | None] = Counter({buffer_rows if is_moe else None: len(batches)})
        if is_moe and routing is not None:
            counts = Counter(routing.at(layer, batch).counts for batch in batches)
        for routed, times in counts.items():
            ops = layer_ops(share.routed(routed), is_moe, attention)
            runs_again = 0
            if share.is_recomputed(layer):
                runs_again = len(ops) if broken_off else recomputed(ops)
            for scope, work in _work(ops, runs_again, times, dtype):
                parts[f"L{layer}.{scope}"].append(work)
    if share.is_last:
        for scope, work in _work(head_section(share.sizes).ops, 0, len(batches), dtype):
            parts[scope].append(work)
    return {scope: ScopeFlops.summed(works) for scope, works in parts.items()}


def _work(
    ops: Sequence[Op], runs_again: int, times: int, dtype: str | None
) -> Iterable[tuple[str, ScopeFlops]]:
    """Scope and FLOPs of each op, in a type if any; the first `runs_again` ops are recomputed."""
    for number, op in enumerate(ops):
        for kernel in op.kernels:
            loads = kernel.forward, kernel.backward
            if kernel.kind in ("gemm", "attention") and (
                dtype is None or dtype in (load.dtype for load in loads)
            ):
                forward, backward = (
                    load.flops * times if dtype in (None, load.dtype) else 0 for load in loads
                )
                yield op.scope, ScopeFlops(forward, backward, forward if number < runs_again else 0)


def attention_kernel(config: Config, rank: int, device: str) -> AttentionKernel:
    """The kernel that torch's scaled_dot_product_attention selects on a rank; ranks of one `cp` differ.

    `device` is "cpu" or "cuda" (NVIDIA and AMD alike).
    """
    share, model = RankShare(config, rank), config.model
    if device == "cpu":
        if model.query_dim != model.value_dim:
            return "math"
        # The first rank of context parallelism has as many keys as queries.
        return "masked" if share.coordinates["cp"] else "flash"
    grouped = model.attention == "gqa" and model.heads != model.kv_groups
    # Flash attention has no float32 kernel, and the memory-efficient one no grouped heads.
    return "math" if grouped and config.training.dtype == "float32" else "flash"


def parameters(config: Config, rank: int) -> dict[str, dict[str, int]]:
    """Parameters that a rank holds: key of REPLICA_GROUPS to component to count, without zeros.

    Components are embedding, norms, attention, mlp, router, experts, shared and head.

    Raises:
        TracelensError: no such rank.
    """
    by_group: dict[str, dict[str, int]] = {}
    for (replicas, component), elements, times in each_parameter(RankShare(config, rank)):
        counts = by_group.setdefault(replicas, defaultdict(int))
        counts[component] += elements * times
    return {replicas: dict(counts) for replicas, counts in by_group.items()}


def totals(model: Model) -> Totals:
    """Parameters of a whole model."""
    total = sum(
        elements * times for _, elements, times in each_parameter(RankShare(Config(model, Layout()), 0))
    )
    idle = model.moe_layers * (model.experts_count - model.top_k)
    return Totals(total, total - idle * 3 * model.hidden * model.expert_ffn)


def each_parameter(share: RankShare) -> Iterator[tuple[Weight, int, int]]:
    """The parameters of a rank: what each is, its elements, and how many are alike."""
    s, layers = share.sizes, len(share.layers)
    moe_layers = sum(map(share.is_moe, share.layers))
    sections: list[tuple[Section, int]] = []
    if share.is_first:
        sections.append((embedding_section(s), 1))
    if layers:
        sections.append((attention_section(s, "flash"), layers))
    if moe_layers < layers:
        sections.append((mlp_section(s), layers - moe_layers))
    if moe_layers:
        sections.append((moe_section(s), moe_layers))
    if share.is_last:
        sections.append((head_section(s), 1))
    for section, count in sections:
        for op in section.ops:
            if op.weight is not None:
                yield op.weight, op.weights // share.element, count


def known(config: Config, rank: int, routing: Routing | None) -> Routing:
    """The routing that a run reported, or with routing=balanced the computed one.

    Raises:
        TracelensError: there is none, and it depends on the weights.
    """
    if routing is not None:
        return routing
    if config.training.routing == "balanced":
        return balanced(config, rank)
    raise TracelensError(
        f"routing={config.training.routing} depends on the weights: pass the routing that the run reported, "
        "or set routing=balanced"
    )


def balanced(config: Config, rank: int) -> Routing:
    """The routing of routing=balanced: assignment c of a rank goes to expert order[c % E]."""
    share, model, ranks = RankShare(config, rank), config.model, config.layout.experts_over
    assignments, ep_rank, e = share.tokens * model.top_k, share.coordinates["ep"], share.sizes.e
    # Experts shuffled by the seed, so that a token's experts lie on several ranks.
    experts = model.experts_count
    order = tuple(Random(config.training.seed).sample(range(experts), experts))
    count_E = [0] * experts
    for position, expert in enumerate(order):
        count_E[expert] = assignments // experts + (position < assignments % experts)
    rows_to = tuple(sum(count_E[first : first + e]) for first in range(0, experts, e))
    copies_to = _balanced_copies(share.tokens, model.top_k, order, ranks)
    routed = RankRouting(
        rows=tuple(ranks * count for count in count_E[ep_rank * e : (ep_rank + 1) * e]),
        rows_to=rows_to,
        rows_from=(rows_to[ep_rank],) * ranks,
        copies_to=copies_to,
        copies_from=(copies_to[ep_rank],) * ranks,
    )
    batches = (routed,) * config.training.micro_batches
    return Routing({layer: batches for layer in share.layers if share.is_moe(layer)})


@lru_cache
def _balanced_copies(tokens: int, top_k: int, order: tuple[int, ...], ranks: int) -> tuple[int, ...]:
    """Copies to each rank: token t takes the K experts from order[t * K] on, cyclically."""
    copies, experts = [0] * ranks, len(order)
    for token in range(tokens):
        positions = range(token * top_k, (token + 1) * top_k)
        for rank in {order[position % experts] * ranks // experts for position in positions}:
            copies[rank] += 1
    return tuple(copies)
