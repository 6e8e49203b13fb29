"""One copy of a token for each rank that has one of its experts: as DeepEP does it, in torch's ops.

Which copies go where is computed on the device. The copies carry the weights and the numbers of the experts,
and each rank sums up what its own experts made of a token before one result goes back.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tracelens.workload.dispatch.base import Dispatcher, OnTheWay, Routed, Sent
from tracelens.workload.parallel import AllToAll, Pending, exchange, finish, host, start
from tracelens.workload.permute import permute
from tracelens.workload.rows import RowMap, spread_rows


@dataclass(kw_only=True)
class _Sent(Sent):
    """With what `send` has to say of the copies.

    Attributes:
        rows: which token each copy is of.
        how: the exchange.
        routing: on their way, weights and experts of the copies: see `_routing`.
        chosen: rows that this rank's experts will have, or as many as there may be.
    """

    rows: RowMap
    how: AllToAll
    routing: Pending
    chosen: int


class DedupDispatch(Dispatcher):
    """A token travels to a rank once, however many of that rank's experts it chose."""

    def send(self, x_TD: Tensor, weight_TK: Tensor, expert_TK: Tensor) -> Sent:
        """Send one copy of a token to each rank with an expert of its choice, and how it is routed."""
        T, K = expert_TK.shape
        rank_TK = expert_TK // self.experts
        place_P = torch.arange(self.ranks, device=x_TD.device)
        goes_TP = (rank_TK.unsqueeze(2) == place_P).any(1)
        rank_TP = torch.where(goes_TP, place_P, self.ranks)
        how, chosen = AllToAll(self.group), T * min(K, self.experts)
        if self.static:
            rows = spread_rows(self.sort(rank_TP, self.ranks, T * self.ranks), self.ranks, T)
            chosen *= self.ranks
        else:
            copies, arriving, chosen_from = self._sizes(goes_TP, rank_TK)
            rows = self.sort(rank_TP, self.ranks, sum(copies))
            if self.group is not None:
                how = AllToAll(self.group, copies, arriving)
            chosen = sum(chosen_from)
        routing = start(self._routing(weight_TK, expert_TK, rows), how)
        tokens = start(self.permute(x_TD, rows), how)
        return _Sent(tokens=tokens, rows=rows, how=how, routing=routing, chosen=chosen)

    def _sizes(self, goes_TP: Tensor, rank_TK: Tensor) -> tuple[list[int], list[int], list[int]]:
        """Copies to each rank, copies from each, and how many experts these chose here."""
        chosen_P = torch.zeros_like(goes_TP[0], dtype=torch.int64)
        chosen_P = chosen_P.scatter_add(0, rank_TK.flatten(), torch.ones_like(rank_TK.flatten()))
        told_P2 = torch.stack([goes_TP.sum(0), chosen_P], 1)
        heard_P2 = exchange(told_P2, AllToAll(self.group))
        copies, arriving, chosen = host(told_P2[:, 0], heard_P2[:, 0], heard_P2[:, 1])
        return copies, arriving, chosen

    def _routing(self, weight_TK: Tensor, expert_TK: Tensor, rows: RowMap) -> Tensor:
        """float32, R x 2K: weights, and experts by their number on the row's rank + 1, 0 for other ranks'."""
        rank_R = rows.choice_R.clamp(min=0) % self.ranks
        both = permute(torch.cat([weight_TK, expert_TK.to(weight_TK.dtype)], 1), rows)
        weight_RK, expert_RK = both.chunk(2, dim=1)
        there_RK = expert_RK.detach() - (rank_R * self.experts).unsqueeze(1)
        there_RK = torch.where((there_RK >= 0) & (there_RK < self.experts), there_RK + 1, 0)
        there_RK = torch.where((rows.choice_R >= 0).unsqueeze(1), there_RK, 0)
        return torch.cat([weight_RK, there_RK], 1)

    def receive(self, sent: Sent) -> Routed:
        """Wait for the copies, and give each expert a row of those that chose it."""
        assert isinstance(sent, _Sent)
        weight_NK, there_NK = finish(sent.routing).chunk(2, dim=1)
        there_NK = there_NK.detach().long()
        expert_NK = torch.where(there_NK > 0, there_NK - 1, self.experts)
        rows = self.sort(expert_NK, self.experts, sent.chosen)
        return Routed(self.permute(finish(sent.tokens), rows), rows, weight_NK, sent)

    def send_back(self, y_RD: Tensor, routed: Routed) -> tuple[OnTheWay, Sent]:
        """One result for each copy: the weighted sum of what this rank's experts made of it."""
        assert isinstance(routed.sent, _Sent)
        y_ND = self.unpermute(y_RD, routed.weight_NK, routed.rows)
        return start(y_ND, routed.sent.how.transposed), routed.sent

    def combine(self, returned: tuple[OnTheWay, Sent]) -> Tensor:
        pending, sent = returned
        assert isinstance(sent, _Sent)
        return self.unpermute(finish(pending), None, sent.rows)
