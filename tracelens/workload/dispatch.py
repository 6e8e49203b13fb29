"""From tokens to rows sorted by expert, and back. Works without the host ever reading a device value.

Letters of shapes, here and in the modules beside this one: B sequences, S tokens of a sequence, T = B * S
tokens, D model width, K experts per token, R = T * K rows (a token once for each of its experts), r rows of
one expert, E experts, F inner width of an expert, V vocabulary, H heads.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tracelens.workload import spans


@dataclass(frozen=True)
class Routed:
    """Rows sorted by expert.

    Attributes:
        x_RD: the tokens, each once for each of its experts.
        weight_R: router weight of a row.
        token_R: int64, the token of a row.
        rows_E: int64, rows of each expert; rows of expert 0 come first.
    """

    x_RD: Tensor
    weight_R: Tensor
    token_R: Tensor
    rows_E: Tensor


def dispatch(x_TD: Tensor, weight_TK: Tensor, expert_TK: Tensor, experts: int) -> Routed:
    """Sort rows by expert.

    Args:
        x_TD: tokens.
        weight_TK: router weights.
        expert_TK: int64, the experts chosen.
        experts: E.
    """
    with spans.span(spans.DISPATCH):
        top_k = expert_TK.shape[1]
        expert_R = expert_TK.flatten()
        order_R = torch.argsort(expert_R, stable=True)
        token_R = order_R // top_k
        # scatter_add rather than bincount: bincount reads its maximum back to the host.
        rows_E = torch.zeros(experts, dtype=torch.int64, device=x_TD.device)
        rows_E = rows_E.scatter_add(0, expert_R, torch.ones_like(expert_R))
        return Routed(
            x_RD=x_TD.index_select(0, token_R),
            weight_R=weight_TK.flatten().index_select(0, order_R),
            token_R=token_R,
            rows_E=rows_E,
        )


def combine(y_RD: Tensor, routed: Routed, tokens: int) -> Tensor:
    """Weighted sum of the experts' outputs for each token: y_TD, T = `tokens`."""
    with spans.span(spans.COMBINE):
        weighted_RD = y_RD * routed.weight_R.unsqueeze(1).to(y_RD.dtype)
        y_TD = torch.zeros(tokens, y_RD.shape[1], dtype=y_RD.dtype, device=y_RD.device)
        return y_TD.index_add(0, routed.token_R, weighted_RD)
