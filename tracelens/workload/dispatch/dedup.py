"""One copy of a token for each rank that has one of its experts: as DeepEP does it, in torch's ops.

Which copies go where is computed on the device. The copies carry the weights and the numbers of the experts,
and each rank sums up what its own experts made of a token before one result goes back.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tracelens.workload.dispatch.base import Dispatcher, OnTheWay, RoutedTokens, Sent
from tracelens.workload.parallel import AllToAll, Pending, finish, host, run_collective, start
from tracelens.workload.rows import RowMap, permute, spread_rows


@dataclass(kw_only=True)
class _SentCopies(Sent):
    """With what `send` knows of the copies."""

    rows: RowMap  # which token each copy is of
    how: AllToAll  # the all-to-all
    # On their way, R x 2K in float32: weights of the copies, and their experts, by number on the copy's rank
    # + 1, 0 for those of other ranks.
    routing: Pending
    expert_rows: int  # rows that this rank's experts will have, or as many as there may be


class DedupDispatch(Dispatcher):
    """A token travels to a rank once, however many of that rank's experts it chose."""

    def send(self, x_TD: Tensor, weight_TK: Tensor, expert_TK: Tensor) -> Sent:
        """Send one copy of a token to each rank with an expert of its choice, and how it is routed."""
        T, K = expert_TK.shape
        rank_TK = expert_TK // self.experts
        rank_P = torch.arange(self.ranks, device=x_TD.device)
        goes_TP = (rank_TK.unsqueeze(2) == rank_P).any(1)
        rank_TP = torch.where(goes_TP, rank_P, self.ranks)
        how, expert_rows = AllToAll(self.group), T * min(K, self.experts)
        if self.static:
            rows = spread_rows(self.sort(rank_TP, self.ranks, T * self.ranks), self.ranks, T)
            expert_rows *= self.ranks
        else:
            # To each rank, and from each: copies, and how many experts they chose there.
            count_P = torch.zeros_like(goes_TP[0], dtype=torch.int64)
            count_P = count_P.scatter_add(0, rank_TK.flatten(), torch.ones_like(rank_TK.flatten()))
            sent_P2 = torch.stack([goes_TP.sum(0), count_P], 1)
            received_P2 = run_collective(sent_P2, AllToAll(self.group))
            copies, arriving, rows_from = host(sent_P2[:, 0], received_P2[:, 0], received_P2[:, 1])
            rows = self.sort(rank_TP, self.ranks, sum(copies))
            if self.group is not None:
                how = AllToAll(self.group, copies, arriving)
            expert_rows = sum(rows_from)
        # Weights and experts of each copy.
        rank_R = rows.choice_R.clamp(min=0) % self.ranks
        both = permute(torch.cat([weight_TK, expert_TK.to(weight_TK.dtype)], 1), rows)
        weight_RK, expert_RK = both.chunk(2, dim=1)
        local_RK = expert_RK.detach() - (rank_R * self.experts).unsqueeze(1)
        local_RK = torch.where((local_RK >= 0) & (local_RK < self.experts), local_RK + 1, 0)
        local_RK = torch.where((rows.choice_R >= 0).unsqueeze(1), local_RK, 0)
        routing = start(torch.cat([weight_RK, local_RK], 1), how)
        tokens = start(self.permute(x_TD, rows), how)
        return _SentCopies(tokens=tokens, rows=rows, how=how, routing=routing, expert_rows=expert_rows)

    def receive(self, sent: Sent) -> RoutedTokens:
        """Wait for the copies, and give each expert a row of those that chose it."""
        assert isinstance(sent, _SentCopies)
        weight_NK, local_NK = finish(sent.routing).chunk(2, dim=1)
        local_NK = local_NK.detach().long()
        expert_NK = torch.where(local_NK > 0, local_NK - 1, self.experts)
        rows = self.sort(expert_NK, self.experts, sent.expert_rows)
        return RoutedTokens(self.permute(finish(sent.tokens), rows), rows, weight_NK, sent)

    def send_back(self, y_RD: Tensor, routed: RoutedTokens) -> tuple[OnTheWay, Sent]:
        """One result for each copy: the weighted sum of what this rank's experts made of it."""
        assert isinstance(routed.sent, _SentCopies)
        y_ND = self.unpermute(y_RD, routed.weight_NK, routed.rows)
        return start(y_ND, routed.sent.how.transposed), routed.sent

    def combine(self, returned: tuple[OnTheWay, Sent]) -> Tensor:
        pending, sent = returned
        assert isinstance(sent, _SentCopies)
        return self.unpermute(finish(pending), None, sent.rows)
