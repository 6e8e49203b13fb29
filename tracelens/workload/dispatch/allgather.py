"""All tokens to all ranks, by all-gather; results are summed on their way back, by reduce-scatter."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from tracelens.workload.dispatch.base import Dispatcher, OnTheWay, RoutedTokens, Sent
from tracelens.workload.parallel import AllGather, ReduceScatter, finish, run_collective, start


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
