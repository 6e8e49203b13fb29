"""The share of one rank: its layers, tokens, heads and experts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from tracelens.errors import TracelensError
from tracelens.planner.config import Config

FLOAT32, INT64 = 4, 8
"""Bytes of an element."""


@dataclass(frozen=True)
class Share:
    """Sizes on one rank; raises TracelensError if the run has no such rank."""

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

    @property
    def tokens(self) -> int:
        """T: tokens of a micro-batch between attention layers."""
        return self.config.tokens

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

    @property
    def element(self) -> int:
        """Bytes of an element of an activation."""
        return self.config.training.element_bytes

    @property
    def row(self) -> int:
        """Bytes of a token of width D."""
        return self.config.model.hidden * self.element
