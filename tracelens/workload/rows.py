"""Tokens to rows sorted by expert, and their sum back.

Letters of shapes, here and in the modules beside this one: S positions of a sequence on this rank, B
sequences, T = S * B tokens, D model width, K experts a token, C = T * K choices, E experts, e experts of this
rank, P ranks that share the experts, R rows (a token once for each of its experts that are meant here), F
inner width of an expert, H heads, V vocabulary.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from tracelens.planner.config import FusionName
from tracelens.workload.kernels import kernels


class RowMap(NamedTuple):
    """Which token, for which of its choices, stands in which row."""

    token_R: Tensor  # int64, token of a row, -1 for a row without one
    choice_R: Tensor  # int64, token * K + choice of a row, -1 for a row without one
    row_TK: Tensor  # int64, row of a choice; -1 for a choice that has none
    rows_e: Tensor  # int64, rows of each expert; the first expert's come first
    padded: bool  # whether there may be rows without a token: the host does not know how many have one


def sort_rows(expert_TK: Tensor, experts: int, rows: int, padded: bool = False) -> RowMap:
    """Rows in order of expert, in order of token within one, without the host ever reading a device value.

    There are so many `experts`; that number stands for none of them in expert_TK. `rows` is R, all choices
    of one of them; or, padded, as many as there may be.
    """
    T, K = expert_TK.shape
    expert_C = expert_TK.flatten()
    order_C = torch.argsort(expert_C, stable=True)
    row_C = torch.empty_like(order_C)
    row_C[order_C] = torch.arange(T * K, device=order_C.device)
    # scatter_add rather than bincount, which reads its maximum back to the host.
    count = torch.zeros(experts + 1, dtype=torch.int64, device=order_C.device)
    rows_e = count.scatter_add(0, expert_C, torch.ones_like(expert_C))[:experts]
    choice_R = order_C[:rows]
    token_R = choice_R // K
    if padded:
        used_R = torch.arange(rows, device=order_C.device) < rows_e.sum()
        choice_R, token_R = torch.where(used_R, choice_R, -1), torch.where(used_R, token_R, -1)
    row_TK = torch.where(expert_C < experts, row_C, -1).view(T, K)
    return RowMap(token_R, choice_R, row_TK, rows_e, padded)


def sort_rows_by_host(expert_TK: Tensor, experts: int) -> RowMap:
    """The same, as most model code starts out: by a mask of who chose whom, whose size the host reads."""
    T, K = expert_TK.shape
    expert_C = expert_TK.flatten()
    mask_eC = torch.arange(experts, device=expert_C.device).unsqueeze(1) == expert_C
    choice_R = mask_eC.nonzero()[:, 1]
    row_C = torch.full_like(expert_C, -1)
    row_C[choice_R] = torch.arange(len(choice_R), device=row_C.device)
    return RowMap(choice_R // K, choice_R, row_C.view(T, K), mask_eC.sum(1), padded=False)


def spread_rows(rows: RowMap, parts: int, capacity: int) -> RowMap:
    """The same rows in parts of one size, so that the host need not know how many each part has.

    Each part takes as many experts, and `capacity` rows, at least as many as it has.
    """
    rows_p = rows.rows_e.view(parts, -1).sum(1)
    end_p = rows_p.cumsum(0)
    position_R = torch.arange(len(rows.token_R), device=end_p.device)
    part_R = torch.searchsorted(end_p, position_R, right=True).clamp(max=parts - 1)
    slot_R = torch.where(rows.token_R >= 0, part_R * capacity + position_R - (end_p - rows_p)[part_R], -1)
    # Rows without a token go to one more slot behind all others, which is cut off.
    empty = torch.full((parts * capacity + 1,), -1, dtype=torch.int64, device=end_p.device)
    sources = (rows.token_R, rows.choice_R)
    token, choice = (empty.index_copy(0, slot_R % len(empty), of_R)[:-1] for of_R in sources)
    row_TK = torch.where(rows.row_TK >= 0, slot_R[rows.row_TK], -1)
    return RowMap(token, choice, row_TK, rows.rows_e, padded=True)


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
