"""Tensor sizes on one rank."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from tracelens.planner.block.op import Gemm, Kernel, Load
from tracelens.planner.config import STATIC, Config, Layout, Model
from tracelens.planner.distinct import balanced_spread


def layer_config(config: Config) -> Config:
    """The run reduced to what its layers depend on, so that many layouts share them."""
    layout, ep = config.layout, config.layout.experts_over
    return replace(
        config,
        layout=Layout(ranks=layout.cp * layout.tp * ep, cp=layout.cp, tp=layout.tp, ep=ep),
        toggles=replace(config.toggles, recompute_layer_ids=()),
        training=replace(config.training, micro_batches=2),
    )


class RoutedCounts(NamedTuple):
    """Tokens that arrive at the experts of a rank in one micro-batch, and copies that leave it.

    A token is a row for each of its top-k experts, and a copy for each rank that has one of them.
    """

    rows: int
    copies_sent: int
    copies_received: int


@dataclass(frozen=True)
class Sizes:
    """Letters as in the workload's `rows`, `a` for bytes per element.

    Attributes:
        config: of the run.
        imbalance: rows of this rank's experts / mean over ranks.
        routed: by the routers; None for balanced experts up to `imbalance`, and copies of random choices.
        cp_rank: position in context parallelism; None for the last, which attends to most keys.
    """

    config: Config
    imbalance: float = 1.0
    routed: RoutedCounts | None = None
    cp_rank: int | None = None

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
    def queries(self) -> int:
        """Query positions of a sequence on this rank."""
        return self.config.training.seq // self.config.layout.cp

    @property
    def keys(self) -> int:
        """Keys of a micro-batch that these attend to: all up to the last of them."""
        parts = self.config.layout.cp if self.cp_rank is None else self.cp_rank + 1
        return self.queries * parts * self.config.training.micro_batch

    @cached_property
    def heads(self) -> int:
        return self.model.heads // self.config.layout.tp

    @cached_property
    def kv_groups(self) -> int:
        return self.model.kv_groups // self.config.layout.tp

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
        if self.routed is not None:
            return self.routed.rows
        return min(self.buffer_rows, round(self.C * (self.imbalance if self.P > 1 else 1)))

    @property
    def buffer_rows(self) -> int:
        """Rows of a worst-case buffer: every token of every rank goes to experts of this rank."""
        return self.P * self.T * self.most

    @property
    def R(self) -> int:
        """Rows of the buffers of this rank's experts."""
        return self.buffer_rows if self.static else self.rows

    @property
    def copies_sent(self) -> int:
        """Copies of this rank's tokens, one per rank with any of its experts, this rank included."""
        return round(self.copies * self.T) if self.routed is None else self.routed.copies_sent

    @property
    def copies_received(self) -> int:
        """Copies of tokens for experts of this rank."""
        if self.routed is not None:
            return self.routed.copies_received
        return min(self.P * self.T, round(self.copies_sent * (self.imbalance if self.P > 1 else 1)))

    @cached_property
    def copies(self) -> float:
        """Mean number of ranks with an expert of a token, of a router without preference."""
        return balanced_spread(self.model, self.P, self.P).ranks

    def gemm(self, m: int, k: int, n: int, matrices: int = 1) -> tuple[Kernel]:
        """A GEMM of m rows in all with (k, n) weight matrices.

        It takes 2mnk FLOPs, and as many for the gradient of each operand. Each operand is read once and the
        result written once. The backward reads output gradient, input and weights, writes the input gradient,
        and accumulates the weight gradient.
        """
        weights, flops, rows = matrices * k * n, 2 * m * k * n, m / matrices
        forward = Load(flops, (m * k + weights + m * n) * self.a, (Gemm(rows, k, n, matrices),))
        gradients = Gemm(rows, n, k, matrices), Gemm(rows, k, n, matrices, "weight")
        backward = Load(2 * flops, (2 * m * k + 3 * weights + 2 * m * n) * self.a, gradients)
        return (Kernel("gemm", forward, backward),)
