"""A copy of a token for each of its experts, by all-to-all: the dispatcher that most code starts with."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tracelens.planner.config import DEVICE_PERMUTE
from tracelens.workload.dispatch.base import Dispatcher, OnTheWay, RoutedTokens, Sent
from tracelens.workload.parallel import AllToAll, finish, host, run_collective, start
from tracelens.workload.rows import RowMap, spread_rows


@dataclass(kw_only=True)
class _SentRows(Sent):
    """With the token of each row, its weights, the all-to-all, and rows from each rank for an expert."""

    rows: RowMap
    weight_TK: Tensor
    how: AllToAll
    count_Pe: Tensor


class AllToAllDispatch(Dispatcher):
    """Rows sorted by expert go to the experts' ranks; the weights stay where the tokens are.

    Experts of one rank have neighboring numbers, so rows sorted by expert are sorted by rank. What arrives
    is in order of rank, and is sorted by expert once more.
    """

    def send(self, x_TD: Tensor, weight_TK: Tensor, expert_TK: Tensor) -> Sent:
        """Sort tokens by expert, tell each rank how many rows come, and send them."""
        T, K = expert_TK.shape
        rows = self.sort(expert_TK, self.ranks * self.experts, T * K)
        count_Pe = run_collective(rows.rows_e.view(self.ranks, -1), AllToAll(self.group))
        how = AllToAll(self.group)
        if self.static and self.group is not None:
            # A token chooses an expert once, so at most this many of its copies go to one rank.
            rows = spread_rows(rows, self.ranks, T * min(K, self.experts))
        elif self.group is not None:
            # Rows to and from each rank, which the host must know to launch the all-to-all.
            send_P, receive_P = rows.rows_e.view(self.ranks, -1).sum(1), count_Pe.sum(1)
            if self.toggles.sync_free < DEVICE_PERMUTE:
                how = AllToAll(self.group, send_P.tolist(), receive_P.tolist())
            else:
                how = AllToAll(self.group, *host(send_P, receive_P))
        tokens = start(self.permute(x_TD, rows), how)
        return _SentRows(tokens=tokens, rows=rows, weight_TK=weight_TK, how=how, count_Pe=count_Pe)

    def receive(self, sent: Sent) -> RoutedTokens:
        """Wait for the rows, and sort those of all ranks by expert."""
        assert isinstance(sent, _SentRows)
        x_ND = finish(sent.tokens)
        if self.group is None:
            return RoutedTokens(x_ND, sent.rows, None, sent)
        # The expert of each row as they come, in order of rank and expert.
        count_Pe, N = sent.count_Pe, len(x_ND)
        if self.static:
            slot_PC = torch.arange(N // self.ranks, device=count_Pe.device).repeat(self.ranks, 1)
            expert_N1 = torch.searchsorted(count_Pe.cumsum(1), slot_PC, right=True).view(-1, 1)
        else:
            expert_Pe = torch.arange(self.experts, device=count_Pe.device).repeat(self.ranks)
            expert_N1 = expert_Pe.repeat_interleave(count_Pe.flatten(), output_size=N).unsqueeze(1)
        rows = self.sort(expert_N1, self.experts, N)
        return RoutedTokens(self.permute(x_ND, rows), rows, None, sent)

    def send_back(self, y_RD: Tensor, routed: RoutedTokens) -> tuple[OnTheWay, Sent]:
        """Send results back in the order in which their rows came."""
        assert isinstance(routed.sent, _SentRows)
        if self.group is not None:
            y_RD = self.unpermute(y_RD, None, routed.rows)
        return start(y_RD, routed.sent.how.transposed), routed.sent

    def combine(self, returned: tuple[OnTheWay, Sent]) -> Tensor:
        """Weighted sum of a token's rows."""
        pending, sent = returned
        assert isinstance(sent, _SentRows)
        return self.unpermute(finish(pending), sent.weight_TK, sent.rows)
