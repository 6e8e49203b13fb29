"""The functions of `reference` as kernels in Triton, for NVIDIA and AMD GPUs.

They accumulate in float32, count with 64 bits wherever a whole tensor is addressed, and assume nothing of the
size of a warp.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from tracelens.planner.config import Model
from tracelens.workload.kernels.reference import LEAST_AMAX, e4m3

if TYPE_CHECKING:
    from tracelens.workload.rows import RowMap  # which needs these kernels

__all__ = [
    "cross_entropy",
    "permute",
    "quantize",
    "quantize_transposed",
    "route",
    "route_backward",
    "swiglu",
    "swiglu_backward",
    "unpermute",
    "unpermute_backward",
]

# Tokens to rows and back in Triton: each program has a token, and finds its rows in row_TK.
#
# So a token is read once however many rows it has, sums need no atomics, and rows without a token are never
# touched, whatever lies there.

# Elements of a row that one program of `permute` and `unpermute` moves: 16 bytes a thread and more.
ROW_BLOCK = 2048
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
    block = min(triton.next_power_of_2(D), ROW_BLOCK)
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


# The choice of experts in Triton: one program a token, each way one kernel; see `routing` for what it does.
#
# Ties go to the expert, and the group, of the lowest number. A NaN counts as the best, as in torch.topk, so
# that a run that diverges ends in a loss of NaN and never in an expert that does not exist.

# A token's scores fit into one warp, whose threads find a maximum without waiting for others.
ROUTER_WARPS = 1


def route(logits_TE: Tensor, model: Model) -> tuple[Tensor, Tensor, Tensor]:
    """weight_TK and score_TE in float32, expert_TK in int64."""
    (T, E), K, G = logits_TE.shape, model.top_k, model.expert_groups
    weight_TK = logits_TE.new_empty(T, K, dtype=torch.float32)
    expert_TK = logits_TE.new_empty(T, K, dtype=torch.int64)
    score_TE = logits_TE.new_empty(T, E, dtype=torch.float32)
    if T:
        fused_topk_routing_kernel[(T,)](
            logits_TE.contiguous(), weight_TK, expert_TK, score_TE, K, G, E // G, model.top_groups,
            model.score == "sigmoid", *map(triton.next_power_of_2, (K, G, E // G)), num_warps=ROUTER_WARPS,
        )  # fmt: skip
    return weight_TK, expert_TK, score_TE


def route_backward(g_TK: Tensor, g_TE: Tensor, expert_TK: Tensor, score_TE: Tensor, model: Model) -> Tensor:
    """Gradient of the logits in float32, from those of the weights and of the scores."""
    (T, E), K = score_TE.shape, model.top_k
    g_logits_TE = score_TE.new_empty(T, E)
    if T:
        fused_topk_routing_backward_kernel[(T,)](
            g_TK.contiguous(), g_TE.contiguous(), expert_TK, score_TE, g_logits_TE, K, E,
            model.score == "sigmoid", *map(triton.next_power_of_2, (K, E)), num_warps=ROUTER_WARPS,
        )  # fmt: skip
    return g_logits_TE


@triton.jit
def fused_topk_routing_kernel(
    logits_TE: tl.tensor,
    weight_TK: tl.tensor,
    expert_TK: tl.tensor,
    score_TE: tl.tensor,
    K: tl.constexpr,
    G: tl.constexpr,
    e: tl.constexpr,
    TOP_GROUPS: tl.constexpr,
    SIGMOID: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_e: tl.constexpr,
) -> None:
    """A token's scores as G groups of e experts, the best K of them, and their weights."""
    token = tl.program_id(0).to(tl.int64)
    group_G = tl.arange(0, BLOCK_G)
    group, member = group_G[:, None], tl.arange(0, BLOCK_e)[None, :]
    expert, real = group * e + member, (group < G) & (member < e)
    x = tl.load(logits_TE + token * (G * e) + expert, mask=real, other=-float("inf")).to(tl.float32)
    if SIGMOID:
        score = tl.sigmoid(x)
    else:
        x = tl.exp(x - tl.max(x))
        score = x / tl.sum(x)
    tl.store(score_TE + token * (G * e) + expert, score, mask=real)

    rank = tl.where(score == score, score, float("inf"))
    rank = tl.where(real, rank, -float("inf"))
    if TOP_GROUPS < G:
        best_G = tl.max(rank, axis=1)
        if SIGMOID and e > 1:
            first_G = tl.min(tl.where(rank == best_G[:, None], member, BLOCK_e), axis=1)
            best_G += tl.max(tl.where(member == first_G[:, None], -float("inf"), rank), axis=1)
        kept_G = group_G < 0
        for _ in tl.static_range(TOP_GROUPS):
            first = tl.min(tl.where(best_G == tl.max(best_G, axis=0), group_G, BLOCK_G), axis=0)
            kept_G = kept_G | (group_G == first)
            best_G = tl.where(group_G == first, -float("inf"), best_G)
        rank = tl.where(kept_G[:, None], rank, -float("inf"))

    k_K = tl.arange(0, BLOCK_K)
    weight_K, expert_K = tl.zeros([BLOCK_K], dtype=tl.float32), tl.zeros([BLOCK_K], dtype=tl.int32)
    for k in tl.static_range(K):
        best = tl.max(rank)
        first = tl.min(tl.where(rank == best, expert, G * e))
        weight_K = tl.where(k_K == k, best, weight_K)
        expert_K = tl.where(k_K == k, first, expert_K)
        rank = tl.where(expert == first, -float("inf"), rank)
    weight_K = tl.where(weight_K == float("inf"), float("nan"), weight_K)
    if SIGMOID:
        weight_K = weight_K / tl.sum(weight_K, axis=0)
    tl.store(weight_TK + token * K + k_K, weight_K, mask=k_K < K)
    tl.store(expert_TK + token * K + k_K, expert_K.to(tl.int64), mask=k_K < K)


@triton.jit
def fused_topk_routing_backward_kernel(
    g_TK: tl.tensor,
    g_TE: tl.tensor,
    expert_TK: tl.tensor,
    score_TE: tl.tensor,
    g_logits_TE: tl.tensor,
    K: tl.constexpr,
    E: tl.constexpr,
    SIGMOID: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_E: tl.constexpr,
) -> None:
    """A token's gradient: of its weights to the scores of the chosen, then through the scores."""
    token = tl.program_id(0).to(tl.int64)
    expert_E = tl.arange(0, BLOCK_E)
    score_E = tl.load(score_TE + token * E + expert_E, mask=expert_E < E, other=0.0)
    g_E = tl.load(g_TE + token * E + expert_E, mask=expert_E < E, other=0.0)
    shift, total = 0.0, 1.0
    if SIGMOID:
        k_K = tl.arange(0, BLOCK_K)
        expert_K = tl.load(expert_TK + token * K + k_K, mask=k_K < K, other=0)
        top_K = tl.load(score_TE + token * E + expert_K, mask=k_K < K, other=0.0)
        g_K = tl.load(g_TK + token * K + k_K, mask=k_K < K, other=0.0)
        total = tl.sum(top_K, axis=0)
        shift = tl.sum(g_K * top_K, axis=0) / total
    for k in tl.static_range(K):
        expert = tl.load(expert_TK + token * K + k)
        g = (tl.load(g_TK + token * K + k) - shift) / total
        g_E += tl.where(expert_E == expert, g, 0.0)
    g_score_E = g_E * score_E
    g_E = g_score_E * (1 - score_E) if SIGMOID else g_score_E - score_E * tl.sum(g_score_E, axis=0)
    tl.store(g_logits_TE + token * E + expert_E, g_E, mask=expert_E < E)


# SwiGLU in Triton for the first rows of a buffer: how many these are stands on the device.

# Of a tile, which has two or three such parts. Few columns: inner widths such as 1408 fill no larger block.
SWIGLU_ROWS = 4
SWIGLU_COLUMNS = 512
SWIGLU_WARPS = 4
# Programs for each multiprocessor: as many as fit at a time, each taking tile after tile. One for each tile
# would be mostly programs that find nothing to do, in a buffer for the worst case.
PROGRAMS = 16


def swiglu(up_RG: Tensor, end_e: Tensor) -> Tensor:
    """silu(gate) * up for the first end_e[-1] rows; those behind are neither read nor written."""
    R, F = len(up_RG), up_RG.shape[1] // 2
    h_RF = up_RG.new_empty(R, F)
    if h_RF.numel():
        columns, grid = _tiles(up_RG, R, F)
        _swiglu_kernel[grid](
            up_RG.contiguous(), end_e, h_RF, len(end_e), F, SWIGLU_ROWS, columns, num_warps=SWIGLU_WARPS
        )  # fmt: skip
    return h_RF


def swiglu_backward(g_RF: Tensor, up_RG: Tensor, end_e: Tensor) -> Tensor:
    """Gradient of `swiglu` by up_RG; rows behind end_e[-1] are neither read nor written."""
    R, F = g_RF.shape
    g_RG = torch.empty_like(up_RG, memory_format=torch.contiguous_format)
    if g_RF.numel():
        columns, grid = _tiles(up_RG, R, F)
        _swiglu_backward_kernel[grid](
            g_RF.contiguous(), up_RG.contiguous(), end_e, g_RG, len(end_e), F, SWIGLU_ROWS, columns,
            num_warps=SWIGLU_WARPS,
        )  # fmt: skip
    return g_RG


def _tiles(x: Tensor, R: int, F: int) -> tuple[int, tuple[int]]:
    """Columns of a tile, and the grid."""
    columns = min(triton.next_power_of_2(F), SWIGLU_COLUMNS)
    tiles = triton.cdiv(R, SWIGLU_ROWS) * triton.cdiv(F, columns)
    return columns, (min(tiles, multiprocessors(x) * PROGRAMS),)


def multiprocessors(x: Tensor) -> int:
    """Of the GPU that the tensor is on."""
    count: int = torch.cuda.get_device_properties(x.device).multi_processor_count
    return count


@triton.jit
def _swiglu_kernel(
    up_RG: tl.tensor,
    end_e: tl.tensor,
    h_RF: tl.tensor,
    experts: tl.tensor,
    F: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """Tile after tile, up to the last row."""
    end = tl.load(end_e + experts - 1)
    across = tl.cdiv(F, COLUMNS)
    for tile in range(tl.program_id(0), tl.cdiv(end, ROWS) * across, tl.num_programs(0)):
        row = (tile // across * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
        f = (tile % across * COLUMNS + tl.arange(0, COLUMNS))[None, :]
        used = (row < end) & (f < F)
        gate = tl.load(up_RG + row * (2 * F) + f, mask=used, other=0.0).to(tl.float32)
        up = tl.load(up_RG + row * (2 * F) + F + f, mask=used, other=0.0).to(tl.float32)
        h = gate * tl.sigmoid(gate) * up
        tl.store(h_RF + row * F + f, h.to(h_RF.dtype.element_ty), mask=used)


@triton.jit
def _swiglu_backward_kernel(
    g_RF: tl.tensor,
    up_RG: tl.tensor,
    end_e: tl.tensor,
    g_RG: tl.tensor,
    experts: tl.tensor,
    F: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """Tile after tile, up to the last row."""
    end = tl.load(end_e + experts - 1)
    across = tl.cdiv(F, COLUMNS)
    for tile in range(tl.program_id(0), tl.cdiv(end, ROWS) * across, tl.num_programs(0)):
        row = (tile // across * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
        f = (tile % across * COLUMNS + tl.arange(0, COLUMNS))[None, :]
        used = (row < end) & (f < F)
        g = tl.load(g_RF + row * F + f, mask=used, other=0.0).to(tl.float32)
        gate = tl.load(up_RG + row * (2 * F) + f, mask=used, other=0.0).to(tl.float32)
        up = tl.load(up_RG + row * (2 * F) + F + f, mask=used, other=0.0).to(tl.float32)
        sigmoid = tl.sigmoid(gate)
        silu = gate * sigmoid
        by_gate = g * up * (sigmoid + silu * (1 - sigmoid))
        tl.store(g_RG + row * (2 * F) + f, by_gate.to(g_RG.dtype.element_ty), mask=used)
        tl.store(g_RG + row * (2 * F) + F + f, (g * silu).to(g_RG.dtype.element_ty), mask=used)


# Quantization to FP8 with a scale per row in Triton: one kernel reads a row twice and writes it once.

# Of a tile, which the compiler holds in registers.
QUANTIZE_ROWS = 4
QUANTIZE_COLUMNS = 1024
# Of a tile that is transposed: square, so that reads and writes are both of whole cache lines.
QUANTIZE_SIDE = 64
QUANTIZE_WARPS = 4


def quantize(x_ZK: Tensor) -> tuple[Tensor, Tensor]:
    """FP8 numbers of x, and the float32 scale of each row: the last side is a row, the others count rows."""
    x_ZK = x_ZK.contiguous()
    K, rows = x_ZK.shape[-1], x_ZK.numel() // max(x_ZK.shape[-1], 1)
    q_ZK = torch.empty_like(x_ZK, dtype=e4m3(x_ZK.device))
    scale_Z = x_ZK.new_empty(x_ZK.shape[:-1], dtype=torch.float32)
    if rows:
        columns = min(triton.next_power_of_2(K), QUANTIZE_COLUMNS)
        _quantize_kernel[(triton.cdiv(rows, QUANTIZE_ROWS),)](
            x_ZK, q_ZK, scale_Z, rows, torch.finfo(q_ZK.dtype).max, LEAST_AMAX, K, QUANTIZE_ROWS, columns,
            num_warps=QUANTIZE_WARPS,
        )  # fmt: skip
    return q_ZK, scale_Z


def quantize_transposed(w_eKN: Tensor) -> tuple[Tensor, Tensor]:
    """FP8 numbers of the transposed matrices, e x N x K, and the float32 scale of each row, e x N."""
    w_eKN = w_eKN.contiguous()
    e, K, N = w_eKN.shape
    q_eNK = w_eKN.new_empty(e, N, K, dtype=e4m3(w_eKN.device))
    scale_eN = w_eKN.new_empty(e, N, dtype=torch.float32)
    if w_eKN.numel():
        _quantize_transposed_kernel[(triton.cdiv(N, QUANTIZE_SIDE), e)](
            w_eKN, q_eNK, scale_eN, torch.finfo(q_eNK.dtype).max, LEAST_AMAX, K, N, QUANTIZE_SIDE,
            num_warps=QUANTIZE_WARPS,
        )  # fmt: skip
    return q_eNK, scale_eN


@triton.jit
def _quantize_kernel(
    x_ZK: tl.tensor,
    q_ZK: tl.tensor,
    scale_Z: tl.tensor,
    rows: tl.tensor,
    largest: tl.tensor,
    least_amax: tl.tensor,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """ROWS rows: the largest number of each, then its quotients; the second read comes from the cache."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    amax = tl.zeros([ROWS], tl.float32)
    for first in range(0, K, COLUMNS):
        k = first + tl.arange(0, COLUMNS)
        used = (row < rows)[:, None] & (k < K)[None, :]
        x = tl.load(x_ZK + row[:, None] * K + k[None, :], mask=used, other=0.0).to(tl.float32)
        amax = tl.maximum(amax, tl.max(tl.abs(x), axis=1))
    scale = tl.maximum(amax, least_amax) / largest
    tl.store(scale_Z + row, scale, mask=row < rows)
    for first in range(0, K, COLUMNS):
        k = first + tl.arange(0, COLUMNS)
        used = (row < rows)[:, None] & (k < K)[None, :]
        x = tl.load(x_ZK + row[:, None] * K + k[None, :], mask=used, other=0.0).to(tl.float32)
        q = tl.minimum(tl.maximum(x / scale[:, None], -largest), largest)
        tl.store(q_ZK + row[:, None] * K + k[None, :], q.to(q_ZK.dtype.element_ty), mask=used)


@triton.jit
def _quantize_transposed_kernel(
    w_eKN: tl.tensor,
    q_eNK: tl.tensor,
    scale_eN: tl.tensor,
    largest: tl.tensor,
    least_amax: tl.tensor,
    K: tl.constexpr,
    N: tl.constexpr,
    SIDE: tl.constexpr,
) -> None:
    """SIDE columns of a matrix: the largest number of each, then its quotients, tile by tile."""
    n = tl.program_id(0) * SIDE + tl.arange(0, SIDE)
    matrix = tl.program_id(1).to(tl.int64) * K * N
    amax = tl.zeros([SIDE], tl.float32)
    for first in range(0, K, SIDE):
        k = first + tl.arange(0, SIDE)
        used = (k < K)[:, None] & (n < N)[None, :]
        w = tl.load(w_eKN + matrix + k[:, None] * N + n[None, :], mask=used, other=0.0).to(tl.float32)
        amax = tl.maximum(amax, tl.max(tl.abs(w), axis=0))
    scale = tl.maximum(amax, least_amax) / largest
    tl.store(scale_eN + tl.program_id(1) * N + n, scale, mask=n < N)
    for first in range(0, K, SIDE):
        k = first + tl.arange(0, SIDE)
        used = (k < K)[:, None] & (n < N)[None, :]
        w = tl.load(w_eKN + matrix + k[:, None] * N + n[None, :], mask=used, other=0.0).to(tl.float32)
        q = tl.minimum(tl.maximum(w / scale[None, :], -largest), largest)
        transposed = tl.trans(q).to(q_eNK.dtype.element_ty)
        used = (n < N)[:, None] & (k < K)[None, :]
        tl.store(q_eNK + matrix + n[:, None] * K + k[None, :], transposed, mask=used)


# Cross-entropy and its gradient in one Triton kernel: no tensor as large as the logits is ever in float32.
#
# A program has a token. It reads its logits twice: for the logarithm of the sum of their exponentials, in one
# pass whose maximum grows on the way (Milakov and Gimelshein, arXiv:1805.02867), then for the gradient.

# Elements of a token's logits in flight. Large, and so one or two programs on a multiprocessor: what these
# have read is still in the cache when they read it again.
LOSS_BLOCK = 16384
LOSS_WARPS = 16
# Neighbors that one thread loads at once share their running maximum and sum.
NEIGHBOURS = 8


def cross_entropy(logits_TV: Tensor, target_T: Tensor) -> tuple[Tensor, Tensor]:
    """Sum of the losses of all tokens, a float32 scalar, and its gradient by the logits in their own dtype.

    The loss is NaN for a target that is not in the vocabulary.
    """
    T, V = logits_TV.shape
    gradient_TV = torch.empty_like(logits_TV, memory_format=torch.contiguous_format)
    loss_T = logits_TV.new_empty(T, dtype=torch.float32)
    if T:
        block = max(min(triton.next_power_of_2(V), LOSS_BLOCK), NEIGHBOURS)
        warps = max(block * LOSS_WARPS // LOSS_BLOCK, 1)
        _cross_entropy_kernel[(T,)](
            logits_TV.contiguous(), target_T.contiguous(), loss_T, gradient_TV, V, block // NEIGHBOURS,
            NEIGHBOURS, num_warps=warps,
        )  # fmt: skip
    return loss_T.sum(), gradient_TV


@triton.jit
def _cross_entropy_kernel(
    logits_TV: tl.tensor,
    target_T: tl.tensor,
    loss_T: tl.tensor,
    gradient_TV: tl.tensor,
    V: tl.constexpr,
    GROUPS: tl.constexpr,
    NEIGHBOURS: tl.constexpr,
) -> None:
    """A token's loss, then the gradient of its logits."""
    token = tl.program_id(0).to(tl.int64)
    x_V, gradient_V = logits_TV + token * V, gradient_TV + token * V
    offset = tl.arange(0, GROUPS)[:, None] * NEIGHBOURS + tl.arange(0, NEIGHBOURS)[None, :]
    # Not minus infinity: the difference of two of them is not a number.
    most = tl.full([GROUPS], -3.0e38, dtype=tl.float32)
    total = tl.zeros([GROUPS], dtype=tl.float32)
    for start in range(0, V, GROUPS * NEIGHBOURS):
        x = tl.load(x_V + start + offset, mask=start + offset < V, other=-float("inf")).to(tl.float32)
        higher = tl.maximum(most, tl.max(x, axis=1))
        total = total * tl.exp(most - higher) + tl.sum(tl.exp(x - higher[:, None]), axis=1)
        most = higher
    top = tl.max(most, axis=0)
    log_sum = top + tl.log(tl.sum(total * tl.exp(most - top), axis=0))
    target = tl.load(target_T + token)
    known = (target >= 0) & (target < V)
    tl.store(loss_T + token, log_sum - tl.load(x_V + target, mask=known, other=float("nan")).to(tl.float32))

    # Backwards: what was read last is the likeliest to be in the cache still.
    last = (V - 1) // (GROUPS * NEIGHBOURS) * (GROUPS * NEIGHBOURS)
    for behind in range(0, V, GROUPS * NEIGHBOURS):
        v = last - behind + offset
        x = tl.load(x_V + v, mask=v < V, other=0.0, eviction_policy="evict_first").to(tl.float32)
        gradient = tl.exp(x - log_sum) - tl.where(v == target, 1.0, 0.0)
        gradient = gradient.to(gradient_TV.dtype.element_ty)
        tl.store(gradient_V + v, gradient, mask=v < V, eviction_policy="evict_first")
