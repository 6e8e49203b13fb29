"""By torch's collectives: a copy of a token for each of its experts, for each rank, or for all.

`AllToAllDispatch` is the one that most code starts with. `DedupDispatch` sends one copy to each rank that has
one of a token's experts, as DeepEP does it, in torch's ops: which copies go where is computed on the device;
the copies carry the weights and the numbers of the experts, and each rank sums up what its own experts made
of a token before one result goes back.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tracelens.planner.config import DEVICE_PERMUTE
from tracelens.workload.dispatch.base import Dispatcher, OnTheWay, RoutedTokens, Sent
from tracelens.workload.parallel import (
    AllGather,
    AllToAll,
    Pending,
    ReduceScatter,
    finish,
    host,
    run_collective,
    start,
)
from tracelens.workload.rows import RowMap, permute, spread_rows


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


@dataclass(kw_only=True)
class _SentToAll(Sent):
    """With weights and experts of all ranks' tokens; experts that are not this rank's are `experts`."""

    weight_NK: Tensor
    expert_NK: Tensor


class AllGatherDispatch(Dispatcher):
    """Every rank sees every token and computes what its own experts make of it.

    Sizes of messages never depend on the routing. All ranks must have the same number of tokens.
    """

    def send(self, x_TD: Tensor, weight_TK: Tensor, expert_TK: Tensor) -> Sent:
        """Send the tokens, and before them who chose whom."""
        weight_NK = run_collective(weight_TK, AllGather(self.group))
        expert_NK = self.local(run_collective(expert_TK, AllGather(self.group)))
        return _SentToAll(tokens=start(x_TD, AllGather(self.group)), weight_NK=weight_NK, expert_NK=expert_NK)

    def receive(self, sent: Sent) -> RoutedTokens:
        """Wait for the tokens, and sort those that chose an expert of this rank."""
        assert isinstance(sent, _SentToAll)
        N, K = sent.expert_NK.shape
        count = N * min(K, self.experts)
        if not self.static:
            count = int((sent.expert_NK < self.experts).sum())
        rows = self.sort(sent.expert_NK, self.experts, count)
        x_ND = finish(sent.tokens)
        return RoutedTokens(self.permute(x_ND, rows), rows, sent.weight_NK, sent)

    def send_back(self, y_RD: Tensor, routed: RoutedTokens) -> tuple[OnTheWay, Sent]:
        """Weighted sum of what this rank's experts made of each token, added up over the ranks."""
        y_ND = self.unpermute(y_RD, routed.weight_NK, routed.rows)
        return start(y_ND, ReduceScatter(self.group)), routed.sent

    def combine(self, returned: tuple[OnTheWay, Sent]) -> Tensor:
        return finish(returned[0])


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
