"""What all dispatchers share: rows that arrive are sorted by this rank's experts, and results are summed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tracelens.planner.config import DEVICE_PERMUTE, STATIC, Config
from tracelens.recording import span
from tracelens.workload.parallel import Groups
from tracelens.workload.rows import RowMap, permute, sort_rows, sort_rows_by_host, unpermute

OnTheWay = Any
"""What a dispatcher has sent and will wait for: a Pending of `collectives`, or a library's own."""


@dataclass(kw_only=True)
class Sent:
    """Tokens x_ND on their way to the experts; a dispatcher adds what it needs to bring results back."""

    tokens: OnTheWay


def enter(value: object, change: Callable[[Any], Any]) -> None:
    """Let what is on its way enter a region of the trace, whose backward scope ends with its gradient.

    `value` is whatever a stage of the MoE layer takes; only what is on its way changes.
    """
    parts = vars(value).values() if isinstance(value, Sent) else value if isinstance(value, tuple) else ()
    for part in parts:
        if hasattr(part, "enter"):
            part.enter(change)


@dataclass
class RoutedTokens:
    """Rows for the experts of this rank."""

    x_RD: Tensor  # tokens, sorted by expert
    rows: RowMap  # of x_RD among the N tokens that came
    weight_NK: Tensor | None  # weights to sum the results with; None where the token's own rank does it
    sent: Sent  # of this rank's own tokens


class Dispatcher:
    """One way to bring tokens to experts; a subclass says how they travel."""

    def __init__(self, config: Config, groups: Groups, name: str) -> None:
        self.toggles, self.group = config.toggles, groups.ep
        self.ranks = config.layout.experts_over
        self.experts = config.model.experts_count // self.ranks
        self.first_expert = groups.coordinate("ep") * self.experts
        self.permute_span = f"{name}.permute"
        self.static = config.toggles.sync_free >= STATIC

    def send(self, x_TD: Tensor, weight_TK: Tensor, expert_TK: Tensor) -> Sent:
        """Send tokens to the ranks of the experts that they chose."""
        raise NotImplementedError

    def receive(self, sent: Sent) -> RoutedTokens:
        """Wait for the tokens that chose this rank's experts, and sort them."""
        raise NotImplementedError

    def send_back(self, y_RD: Tensor, routed: RoutedTokens) -> tuple[OnTheWay, Sent]:
        """Send the experts' results to where their tokens came from."""
        raise NotImplementedError

    def combine(self, returned: tuple[OnTheWay, Sent]) -> Tensor:
        """Wait for the results, and sum them for each token: y_TD."""
        raise NotImplementedError

    def sort(self, expert_NK: Tensor, experts: int, rows: int) -> RowMap:
        """Rows by expert, in the way that `sync_free` asks for; padded where the host knows no sizes."""
        with span(self.permute_span):
            if self.toggles.sync_free < DEVICE_PERMUTE:
                return sort_rows_by_host(expert_NK, experts)
            return sort_rows(expert_NK, experts, rows, padded=self.static)

    def permute(self, x_ND: Tensor, rows: RowMap) -> Tensor:
        with span(self.permute_span):
            return permute(x_ND, rows, self.toggles.permute)

    def unpermute(self, y_RD: Tensor, weight_NK: Tensor | None, rows: RowMap) -> Tensor:
        """y_ND: for each token the sum of its rows, with these weights."""
        with span(self.permute_span):
            return unpermute(y_RD, weight_NK, rows, self.toggles.permute)

    def local(self, expert_TK: Tensor) -> Tensor:
        """Numbers of experts among this rank's own; `experts` for those of other ranks."""
        own_TK = expert_TK - self.first_expert
        return torch.where((own_TK >= 0) & (own_TK < self.experts), own_TK, self.experts)
