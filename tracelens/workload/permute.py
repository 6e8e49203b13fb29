"""Tokens to rows sorted by expert, and their sum back; see `rows` for the letters of shapes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from tracelens.planner.config import FusionName
from tracelens.workload.kernels import kernels
from tracelens.workload.rows import RowMap


def permute(x_TD: Tensor, rows: RowMap, fusion: FusionName = "plain") -> Tensor:
    """x_RD: each row its token; rows without one hold anything (fused) or zeros (plain)."""
    if fusion == "fused":
        return _Permute.apply(x_TD, rows)
    return _select(x_TD, rows.token_R, rows.padded)


def unpermute(y_RD: Tensor, weight_TK: Tensor | None, rows: RowMap, fusion: FusionName = "plain") -> Tensor:
    """y_TD: for each token the sum of its rows, each times its weight (1 where there are none)."""
    if fusion == "fused":
        return _Unpermute.apply(y_RD, weight_TK, rows)
    token_R = rows.token_R
    if rows.padded:
        # Nothing has written these rows, and what lies there may not be a number.
        y_RD, token_R = torch.where((token_R >= 0).unsqueeze(1), y_RD, 0), token_R.clamp(min=0)
    if weight_TK is not None:
        weight_R = _select(weight_TK.flatten(), rows.choice_R, rows.padded)
        y_RD = y_RD * weight_R.unsqueeze(1).to(y_RD.dtype)
    y_TD = y_RD.new_zeros(len(rows.row_TK), y_RD.shape[1])
    return y_TD.index_add(0, token_R, y_RD)


def _select(x: Tensor, index_R: Tensor, padded: bool) -> Tensor:
    """Elements of x, zeros (and no gradient) for -1."""
    if not padded:
        return x.index_select(0, index_R)
    used_R = (index_R >= 0).view(-1, *[1] * (x.dim() - 1))
    return torch.where(used_R, x.index_select(0, index_R.clamp(min=0)), 0)


class _Permute(Function):
    """Rows of tokens; its gradient is gathered, where that of index_select adds up row by row."""

    @staticmethod
    def forward(ctx: Any, x_TD: Tensor, rows: RowMap) -> Tensor:
        ctx.rows = rows
        return kernels(x_TD).permute(x_TD, rows)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (g_RD,) = gradients
        return kernels(g_RD).unpermute(g_RD, None, ctx.rows), None


class _Unpermute(Function):
    @staticmethod
    def forward(ctx: Any, y_RD: Tensor, weight_TK: Tensor | None, rows: RowMap) -> Tensor:
        ctx.rows = rows
        ctx.save_for_backward(y_RD, weight_TK)
        return kernels(y_RD).unpermute(y_RD, weight_TK, rows)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor | None, None]:
        (g_TD,) = gradients
        y_RD, weight_TK = ctx.saved_tensors
        g_RD, g_TK = kernels(g_TD).unpermute_backward(g_TD, y_RD, weight_TK, ctx.rows)
        return g_RD, g_TK, None
