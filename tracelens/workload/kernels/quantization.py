"""Quantization to FP8 with a scale per row in Triton: one kernel reads a row twice and writes it once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tracelens.workload.kernels.reference import LEAST_AMAX, e4m3

# Of a tile, which the compiler holds in registers.
ROWS = 4
COLUMNS = 1024
# Of a tile that is transposed: square, so that reads and writes are both of whole cache lines.
SIDE = 64
WARPS = 4


def quantize(x_ZK: Tensor) -> tuple[Tensor, Tensor]:
    """FP8 numbers of x, and the float32 scale of each row: the last side is a row, the others count rows."""
    x_ZK = x_ZK.contiguous()
    K, rows = x_ZK.shape[-1], x_ZK.numel() // max(x_ZK.shape[-1], 1)
    q_ZK = torch.empty_like(x_ZK, dtype=e4m3(x_ZK.device))
    scale_Z = x_ZK.new_empty(x_ZK.shape[:-1], dtype=torch.float32)
    if rows:
        columns = min(triton.next_power_of_2(K), COLUMNS)
        _quantize_kernel[(triton.cdiv(rows, ROWS),)](
            x_ZK, q_ZK, scale_Z, rows, torch.finfo(q_ZK.dtype).max, LEAST_AMAX, K, ROWS, columns,
            num_warps=WARPS,
        )  # fmt: skip
    return q_ZK, scale_Z


def quantize_transposed(w_eKN: Tensor) -> tuple[Tensor, Tensor]:
    """FP8 numbers of the transposed matrices, e x N x K, and the float32 scale of each row, e x N."""
    w_eKN = w_eKN.contiguous()
    e, K, N = w_eKN.shape
    q_eNK = w_eKN.new_empty(e, N, K, dtype=e4m3(w_eKN.device))
    scale_eN = w_eKN.new_empty(e, N, dtype=torch.float32)
    if w_eKN.numel():
        _quantize_transposed_kernel[(triton.cdiv(N, SIDE), e)](
            w_eKN, q_eNK, scale_eN, torch.finfo(q_eNK.dtype).max, LEAST_AMAX, K, N, SIDE, num_warps=WARPS
        )
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
