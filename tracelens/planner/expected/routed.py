"""The routing of tokens, as far as FLOPs and messages depend on it: reported by a run, or balanced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Any

from tracelens.errors import TracelensError
from tracelens.planner.block import RoutedCounts
from tracelens.planner.config import Config
from tracelens.planner.expected.share import Share


@dataclass(frozen=True)
class Routed:
    """One layer's routing of one micro-batch, seen from one rank of the group "ep".

    A token is a row for each of its top-k experts, and a copy for each rank that has one of them.

    Attributes:
        rows: per expert of this rank.
        rows_to: sent to each rank.
        rows_from: received from each rank.
        copies_to: sent to each rank.
        copies_from: received from each rank.
    """

    rows: tuple[int, ...]
    rows_to: tuple[int, ...]
    rows_from: tuple[int, ...]
    copies_to: tuple[int, ...]
    copies_from: tuple[int, ...]

    @property
    def counts(self) -> RoutedCounts:
        """Sums over experts and ranks."""
        return RoutedCounts(sum(self.rows), sum(self.copies_to), sum(self.copies_from))


@dataclass(frozen=True)
class Routing:
    """The routing of one step, seen from one rank: MoE layer to its routing of each micro-batch."""

    layers: Mapping[int, tuple[Routed, ...]]

    def at(self, layer: int, micro_batch: int) -> Routed:
        """The routing of a layer and micro-batch; raises TracelensError if it is unknown."""
        batches = self.layers.get(layer, ())
        if micro_batch >= len(batches):
            raise TracelensError(f"the routing of layer {layer} in micro-batch {micro_batch} is unknown")
        return batches[micro_batch]

    def as_dict(self) -> dict[str, list[dict[str, list[int]]]]:
        return {
            str(layer): [{name: list(counts) for name, counts in vars(routed).items()} for routed in batches]
            for layer, batches in self.layers.items()
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Routing:
        """The inverse of `as_dict`; raises TracelensError for anything else."""
        try:
            return cls(
                {
                    int(layer): tuple(
                        Routed(**{name: tuple(map(int, counts)) for name, counts in routed.items()})
                        for routed in batches
                    )
                    for layer, batches in content.items()
                }
            )
        except (TypeError, ValueError, AttributeError):
            raise TracelensError("not the routing of a run: record the run again") from None


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
    share, model, ranks = Share(config, rank), config.model, config.layout.experts_over
    assignments, ep_rank, e = share.tokens * model.top_k, share.coordinates["ep"], share.sizes.e
    order = _order(config)
    count_E = [0] * model.experts_count
    for position, expert in enumerate(order):
        count_E[expert] = assignments // model.experts_count + (position < assignments % model.experts_count)
    rows_to = tuple(sum(count_E[first : first + e]) for first in range(0, model.experts_count, e))
    copies_to = _balanced_copies(share.tokens, model.top_k, order, ranks)
    routed = Routed(
        rows=tuple(ranks * count for count in count_E[ep_rank * e : (ep_rank + 1) * e]),
        rows_to=rows_to,
        rows_from=(rows_to[ep_rank],) * ranks,
        copies_to=copies_to,
        copies_from=(copies_to[ep_rank],) * ranks,
    )
    batches = (routed,) * config.training.micro_batches
    return Routing({layer: batches for layer in share.layers if share.is_moe(layer)})


def _order(config: Config) -> tuple[int, ...]:
    """Experts shuffled by the seed, so that a token's experts lie on several ranks."""
    experts = config.model.experts_count
    return tuple(Random(config.training.seed).sample(range(experts), experts))


@lru_cache
def _balanced_copies(tokens: int, top_k: int, order: tuple[int, ...], ranks: int) -> tuple[int, ...]:
    """Copies to each rank: token t takes the K experts from order[t * K] on, cyclically."""
    copies, experts = [0] * ranks, len(order)
    for token in range(tokens):
        positions = range(token * top_k, (token + 1) * top_k)
        for rank in {order[position % experts] * ranks // experts for position in positions}:
            copies[rank] += 1
    return tuple(copies)
