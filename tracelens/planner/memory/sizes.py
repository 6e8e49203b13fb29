"""Tensor sizes on one rank, assuming a balanced routing up to `imbalance`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import comb

from tracelens.planner.config import STATIC, Config, Model


@dataclass(frozen=True)
class Sizes:
    """Of the fullest rank of a stage; letters as in the workload's `rows`, `a` for bytes per element.

    Attributes:
        config: of the run.
        imbalance: rows of this rank's experts / mean over ranks.
    """

    config: Config
    imbalance: float = 1.0

    @property
    def model(self) -> Model:
        return self.config.model

    @cached_property
    def a(self) -> int:
        """Bytes of an element of an activation."""
        return self.config.training.element_bytes

    @cached_property
    def T(self) -> int:
        """Tokens of a micro-batch between attention layers."""
        return self.config.tokens

    @cached_property
    def A(self) -> int:
        """Tokens of a micro-batch on all ranks of tensor parallelism."""
        return self.T * self.config.layout.tp

    @cached_property
    def row(self) -> int:
        """Bytes of a token of width D."""
        return self.model.hidden * self.a

    @property
    def keys(self) -> int:
        """Keys that the last rank of context parallelism attends to: whole sequences."""
        return self.config.training.seq * self.config.training.micro_batch

    @cached_property
    def heads(self) -> int:
        return self.model.heads // self.config.layout.tp

    @cached_property
    def P(self) -> int:
        """Ranks that share the experts."""
        return self.config.layout.experts_over

    @cached_property
    def e(self) -> int:
        return self.model.experts_count // self.P

    @property
    def C(self) -> int:
        """Assignments: tokens times K."""
        return self.T * self.model.top_k

    @cached_property
    def static(self) -> bool:
        """Whether buffers are sized for the worst-case routing."""
        return self.config.toggles.sync_free >= STATIC

    @cached_property
    def most(self) -> int:
        """Experts of one rank that a token can be routed to."""
        return min(self.model.top_k, self.e)

    @cached_property
    def rows(self) -> int:
        """Rows of this rank's experts that hold a token."""
        most = self.P * self.T * self.most
        return min(most, round(self.C * (self.imbalance if self.P > 1 else 1)))

    @cached_property
    def copies(self) -> float:
        """Mean number of ranks with an expert of a token.

        P * (1 - C(E - e, K) / C(E, K)) if its K experts are any of E, e per rank; with expert groups, any of
        those in `top_groups`.
        """
        model = self.model
        share = model.top_groups / model.expert_groups
        ranks, experts = max(1.0, self.P * share), round(model.experts_count * share)
        e = min(experts, round(experts / ranks))
        return ranks * (1 - comb(experts - e, model.top_k) / comb(experts, model.top_k))
