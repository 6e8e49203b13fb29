"""SwiGLU in Triton for the first rows of a buffer: how many these are stands on the device."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

# Of a tile, which has two or three such parts. Few columns: inner widths such as 1408 fill no larger block.
ROWS = 4
COLUMNS = 512
WARPS = 4
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
            up_RG.contiguous(), end_e, h_RF, len(end_e), F, ROWS, columns, num_warps=WARPS
        )  # fmt: skip
    return h_RF


def swiglu_backward(g_RF: Tensor, up_RG: Tensor, end_e: Tensor) -> Tensor:
    """Gradient of `swiglu` by up_RG; rows behind end_e[-1] are neither read nor written."""
    R, F = g_RF.shape
    g_RG = torch.empty_like(up_RG, memory_format=torch.contiguous_format)
    if g_RF.numel():
        columns, grid = _tiles(up_RG, R, F)
        _swiglu_backward_kernel[grid](
            g_RF.contiguous(), up_RG.contiguous(), end_e, g_RG, len(end_e), F, ROWS, columns, num_warps=WARPS
        )
    return g_RG


def _tiles(x: Tensor, R: int, F: int) -> tuple[int, tuple[int]]:
    """Columns of a tile, and the grid."""
    columns = min(triton.next_power_of_2(F), COLUMNS)
    tiles = triton.cdiv(R, ROWS) * triton.cdiv(F, columns)
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
