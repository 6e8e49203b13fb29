"""What one rank of a run has: its layers, and its part of tokens, heads and experts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from tracelens.errors import TracelensError
from tracelens.planner.config import Config


@dataclass(frozen=True)
class Share:
    """Sizes on one rank; letters as in `rows`.

    Attributes:
        config: of the run.
        rank: number of the rank.
    """

    config: Config
    rank: int

    def __post_init__(self) -> None:
        """Raise TracelensError for a rank that the run does not have."""
        if not 0 <= self.rank < self.config.layout.ranks:
            ranks = self.config.layout.ranks
            raise TracelensError(f"there is no rank {self.rank}: the run has {ranks} ranks")

    @cached_property
    def coordinates(self) -> dict[str, int]:
        """In the grid: pp, dp, cp, tp, ep and edp."""
        return self.config.layout.coordinates(self.rank)

    @cached_property
    def chunks(self) -> dict[int, range]:
        """Model chunks of this rank: number in the order of the model to its layers."""
        layout = self.config.layout
        numbered = enumerate(layout.chunks(self.config.model.layers))
        return {number: layers for number, layers in numbered if number % layout.pp == self.coordinates["pp"]}

    @property
    def layers(self) -> list[int]:
        """Numbers of the layers of this rank."""
        return [layer for layers in self.chunks.values() for layer in layers]

    @property
    def is_first(self) -> bool:
        """Whether the embedding is here."""
        return self.coordinates["pp"] == 0

    @property
    def is_last(self) -> bool:
        return self.coordinates["pp"] == self.config.layout.pp - 1

    def is_moe(self, layer: int) -> bool:
        """Whether a layer has experts."""
        return layer >= self.config.model.dense_layers

    def is_recomputed(self, layer: int) -> bool:
        """Whether the forward of a layer runs again in the backward."""
        return layer in self.config.toggles.recompute_layer_ids

    @property
    def tokens(self) -> int:
        """T: tokens of a micro-batch between attention layers."""
        return self.config.tokens

    @property
    def gathered(self) -> int:
        """Tokens of a micro-batch that the ranks of tensor parallelism have together."""
        return self.tokens * self.config.layout.tp

    @property
    def queries(self) -> int:
        """Positions of a sequence for which this rank computes attention."""
        return self.config.training.seq // self.config.layout.cp

    @property
    def keys(self) -> int:
        """Positions that these see: all up to the last of them."""
        return self.queries * (self.coordinates["cp"] + 1)

    def cut(self, width: int) -> int:
        """A rank's part of a width that tensor parallelism shares out."""
        return width // self.config.layout.tp

    @property
    def heads(self) -> int:
        return self.cut(self.config.model.heads)

    @property
    def kv_groups(self) -> int:
        """Heads of keys and values with grouped queries."""
        return self.cut(self.config.model.kv_groups)

    @property
    def experts(self) -> int:
        return self.config.model.experts_count // self.config.layout.experts_over

    @property
    def buffer_rows(self) -> int:
        """Rows of a buffer for the worst case: every token of every rank chooses only experts of this one."""
        return self.config.layout.experts_over * self.tokens * min(self.config.model.top_k, self.experts)

    @property
    def element(self) -> int:
        """Bytes of an element of an activation."""
        return self.config.training.element_bytes

    @property
    def row(self) -> int:
        """Bytes of a token of full width."""
        return self.config.model.hidden * self.element
