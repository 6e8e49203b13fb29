"""Tokens to rows and back in Triton: each program has a token, and finds its rows in row_TK.

So a token is read once however many rows it has, sums need no atomics, and rows without a token are never
touched, whatever lies there.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tracelens.workload.rows import RowMap

# Elements of a row that one program of `permute` and `unpermute` moves: 16 bytes a thread and more.
BLOCK = 2048
# Elements for each warp of it; MI300X has the threads of two warps in one.
WARP_ELEMENTS = 512
# More would be more threads than a program may have where a warp has 64.
MOST_WARPS = 16


def permute(x_TD: Tensor, rows: RowMap) -> Tensor:
    """x_RD: each row its token; rows without one are not written."""
    x_RD = x_TD.new_empty(len(rows.token_R), x_TD.shape[1])
    if x_TD.numel():
        block, grid = _blocks(x_TD)
        row_TK = rows.row_TK.contiguous()
        _permute_kernel[grid](
            x_TD.contiguous(), row_TK, x_RD, x_TD.shape[1], row_TK.shape[1], block, num_warps=_warps(block)
        )
    return x_RD


def unpermute(y_RD: Tensor, weight_TK: Tensor | None, rows: RowMap) -> Tensor:
    """y_TD: for each token the sum of its rows, each times its weight, in float32."""
    T, K = rows.row_TK.shape
    y_TD = y_RD.new_empty(T, y_RD.shape[1])
    if y_TD.numel():
        block, grid = _blocks(y_TD)
        # Where there are no weights the kernel takes any pointer, and leaves it alone.
        weight = y_RD if weight_TK is None else weight_TK.contiguous()
        _unpermute_kernel[grid](
            y_RD.contiguous(), weight, rows.row_TK.contiguous(), y_TD,
            y_RD.shape[1], K, weight_TK is not None, block, num_warps=_warps(block),
        )  # fmt: skip
    return y_TD


def unpermute_backward(
    g_TD: Tensor, y_RD: Tensor, weight_TK: Tensor | None, rows: RowMap
) -> tuple[Tensor, Tensor | None]:
    """Gradients of `unpermute` by y_RD (rows without a token are not written) and by weight_TK."""
    if weight_TK is None:
        return permute(g_TD, rows), None
    T, K = rows.row_TK.shape
    D = y_RD.shape[1]
    g_RD, g_TK = torch.empty_like(y_RD, memory_format=torch.contiguous_format), weight_TK.new_empty(T, K)
    if T:
        block = triton.next_power_of_2(D)
        _unpermute_backward_kernel[(T,)](
            g_TD.contiguous(), y_RD.contiguous(), weight_TK.contiguous(), rows.row_TK.contiguous(),
            g_RD, g_TK, D, K, block, num_warps=_warps(block),
        )  # fmt: skip
    return g_RD, g_TK


def _blocks(x_TD: Tensor) -> tuple[int, tuple[int, int]]:
    """Elements of a program, and the grid: tokens by parts of a row."""
    T, D = x_TD.shape
    block = min(triton.next_power_of_2(D), BLOCK)
    return block, (T, triton.cdiv(D, block))


def _warps(block: int) -> int:
    return min(max(block // WARP_ELEMENTS, 1), MOST_WARPS)


@triton.jit
def _permute_kernel(
    x_TD: tl.tensor, row_TK: tl.tensor, x_RD: tl.tensor, D: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr
) -> None:
    """A part of a token to each of its rows."""
    token = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x_D = tl.load(x_TD + token * D + d, mask=d < D)
    for k in tl.static_range(K):
        row = tl.load(row_TK + token * K + k)
        tl.store(x_RD + row * D + d, x_D, mask=(d < D) & (row >= 0))


@triton.jit
def _unpermute_kernel(
    y_RD: tl.tensor,
    weight_TK: tl.tensor,
    row_TK: tl.tensor,
    y_TD: tl.tensor,
    D: tl.constexpr,
    K: tl.constexpr,
    WEIGHTED: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """A part of a token: the sum of its rows."""
    token = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    sum_D = tl.zeros([BLOCK], dtype=tl.float32)
    for k in tl.static_range(K):
        row = tl.load(row_TK + token * K + k)
        y_D = tl.load(y_RD + row * D + d, mask=(d < D) & (row >= 0), other=0.0).to(tl.float32)
        if WEIGHTED:
            y_D *= tl.load(weight_TK + token * K + k, mask=row >= 0, other=0.0).to(tl.float32)
        sum_D += y_D
    tl.store(y_TD + token * D + d, sum_D.to(y_TD.dtype.element_ty), mask=d < D)


@triton.jit
def _unpermute_backward_kernel(
    g_TD: tl.tensor,
    y_RD: tl.tensor,
    weight_TK: tl.tensor,
    row_TK: tl.tensor,
    g_RD: tl.tensor,
    g_TK: tl.tensor,
    D: tl.constexpr,
    K: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """A whole token's gradient to its rows; the weights get its dot products with what is in them."""
    token = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, BLOCK)
    g_D = tl.load(g_TD + token * D + d, mask=d < D, other=0.0).to(tl.float32)
    for k in tl.static_range(K):
        row = tl.load(row_TK + token * K + k)
        used = (d < D) & (row >= 0)
        y_D = tl.load(y_RD + row * D + d, mask=used, other=0.0).to(tl.float32)
        weight = tl.load(weight_TK + token * K + k, mask=row >= 0, other=0.0).to(tl.float32)
        tl.store(g_RD + row * D + d, (g_D * weight).to(g_RD.dtype.element_ty), mask=used)
        # A token without rows may have anything for a gradient, and 0 times that need not be 0.
        dot = tl.where(row >= 0, tl.sum(g_D * y_D, axis=0), 0.0)
        tl.store(g_TK + token * K + k, dot.to(g_TK.dtype.element_ty))
