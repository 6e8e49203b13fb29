"""How tokens were routed, as far as FLOPs and messages depend on it: told by a run, or known beforehand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Any

from tracelens.errors import TracelensError
from tracelens.planner.config import Config
from tracelens.planner.expected.share import Share


@dataclass(frozen=True)
class Routed:
    """One layer's routing of one micro-batch, seen from one rank.

    Ranks are those of its group "ep", in their order. A row is a token once for each expert that it chose, a
    copy is a token once for each rank with such an expert.

    Attributes:
        rows: of each expert of this rank.
        rows_to: of this rank's tokens, to each rank.
        rows_from: to this rank, from each.
        copies_to: of this rank's tokens, to each rank.
        copies_from: to this rank, from each.
    """

    rows: tuple[int, ...]
    rows_to: tuple[int, ...]
    rows_from: tuple[int, ...]
    copies_to: tuple[int, ...]
    copies_from: tuple[int, ...]


@dataclass(frozen=True)
class Routing:
    """The routing of one step, seen from one rank.

    Attributes:
        layers: number of a layer with experts to its routing of each micro-batch.
    """

    layers: Mapping[int, tuple[Routed, ...]]

    def at(self, layer: int, micro_batch: int) -> Routed:
        """The routing of a layer and micro-batch.

        Raises:
            TracelensError: it is not known.
        """
        batches = self.layers.get(layer, ())
        if micro_batch >= len(batches):
            raise TracelensError(f"the routing of layer {layer} is not known for micro-batch {micro_batch}")
        return batches[micro_batch]

    def as_dict(self) -> dict[str, list[dict[str, list[int]]]]:
        return {
            str(layer): [{name: list(counts) for name, counts in vars(routed).items()} for routed in batches]
            for layer, batches in self.layers.items()
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Routing:
        """What `as_dict` made, read back.

        Raises:
            TracelensError: it is something else.
        """
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
        except (TypeError, ValueError, AttributeError) as error:
            raise TracelensError(f"this is no routing of a run ({error}): record the run again") from None


def known(config: Config, rank: int, routing: Routing | None) -> Routing:
    """The routing that a run reported; with routing=balanced it is known without.

    Raises:
        TracelensError: none is given, and it depends on the weights.
    """
    if routing is not None:
        return routing
    if config.training.routing == "balanced":
        return balanced(config, rank)
    raise TracelensError(
        f"where tokens go with routing={config.training.routing} depends on the weights: pass the routing "
        "that the run reported, or take routing=balanced"
    )


def balanced(config: Config, rank: int) -> Routing:
    """The routing of routing=balanced: choice c of a rank takes place c % E of a shuffled order."""
    share, model, ranks = Share(config, rank), config.model, config.layout.experts_over
    choices, (ep_rank, e) = share.tokens * model.top_k, (share.coordinates["ep"], share.experts)
    order = _order(config)
    count_E = [0] * model.experts_count
    for position, expert in enumerate(order):
        count_E[expert] = choices // model.experts_count + (position < choices % model.experts_count)
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
    """Experts shuffled by the seed, so that a token's lie on several ranks."""
    experts = config.model.experts_count
    return tuple(Random(config.training.seed).sample(range(experts), experts))


@lru_cache
def _balanced_copies(tokens: int, top_k: int, order: tuple[int, ...], ranks: int) -> tuple[int, ...]:
    """Copies to each rank: token t takes the places from t * K on, round and round."""
    copies, experts = [0] * ranks, len(order)
    for token in range(tokens):
        positions = range(token * top_k, (token + 1) * top_k)
        for rank in {order[position % experts] * ranks // experts for position in positions}:
            copies[rank] += 1
    return tuple(copies)
