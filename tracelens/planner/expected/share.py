"""The share of one rank: its layers, and the sizes of what it holds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from tracelens.errors import TracelensError
from tracelens.planner.block import RoutedCounts, Sizes, layer_config
from tracelens.planner.config import Config


@dataclass(frozen=True)
class Share:
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
    def sizes(self) -> Sizes:
        """Sizes of its tensors, but for those that depend on the routing."""
        return Sizes(layer_config(self.config), cp_rank=self.coordinates["cp"])

    def routed(self, counts: RoutedCounts | None) -> Sizes:
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
