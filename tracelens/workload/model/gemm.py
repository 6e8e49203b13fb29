"""Grouped GEMMs, the rows of each group times that group's matrix: of torch, and in FP8.

In FP8 operands are quantized to e4m3 row by row, the result is in the model's type. Each row of the
activations and each column of a weight matrix has a float32 scale, amax / largest e4m3 number. The forward
and the input gradient run in FP8; the weight gradient stays in the model's type: it sums over tokens, and a
scale per token cannot be taken out of that sum. That is the recipe "rowwise_with_gw_hp" of torchao
(https://github.com/pytorch/ao/tree/main/torchao/float8, 2025). The backward quantizes the weights again,
along their other side, so nothing in FP8 is saved between the passes.

Letters of shapes as in `rows`, and K and N for the sides of a weight matrix.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tracelens.errors import TracelensError
from tracelens.workload.kernels import kernels

# What torch's scaled grouped GEMM runs on: Hopper and later, MI300 and later.
_FP8_CAPABILITY = (9, 0)
_FP8_ARCHITECTURES = ("gfx94", "gfx95")


def grouped_mm(x_RK: Tensor, w_eKN: Tensor, end_e: Tensor) -> Tensor:
    """y_RN: the rows of each group times that group's matrix.

    The rows are sorted by group; `end_e`, int32, is the row after the last of each.

    Raises:
        TracelensError: this torch has no grouped GEMM.
    """
    # Public since torch 2.10; the same op under a private name before that.
    op: Callable[..., Tensor] | None = getattr(F, "grouped_mm", None) or getattr(torch, "_grouped_mm", None)
    if op is None:
        raise TracelensError(
            f"torch {torch.__version__} has no grouped_mm: use experts=loop or a newer torch"
        )
    return op(x_RK, w_eKN, offs=end_e)


def grouped_mm_fp8(x_RK: Tensor, w_eKN: Tensor, end_e: Tensor) -> Tensor:
    """y_RN: the rows of each group times that group's matrix, in FP8.

    Raises:
        TracelensError: a GPU whose torch has no scaled grouped GEMM, or a type that it does not write.
    """
    if x_RK.is_cuda:
        require_op(x_RK.dtype)
    y_RN: Tensor = _GroupedMM.apply(x_RK, w_eKN, end_e)
    return y_RN


def has_scaled_op(x: Tensor) -> bool:
    """Whether the device multiplies FP8: torch has the op for GPUs alone."""
    return x.is_cuda


def lacks_fp8(device: torch.device) -> str:
    """What a device lacks to multiply FP8 in groups, "" for nothing."""
    if device.type != "cuda":
        return "fp8=experts gains nothing on a CPU, which multiplies it in float32"
    if reason := _lacks_op():
        return reason
    properties = torch.cuda.get_device_properties(device)
    if torch.version.hip:
        is_able = properties.gcnArchName.startswith(_FP8_ARCHITECTURES)
    else:
        is_able = (properties.major, properties.minor) >= _FP8_CAPABILITY
    return "" if is_able else f"fp8=experts: {properties.name} does not multiply FP8 in groups"


def require_op(dtype: torch.dtype) -> None:
    """Raise TracelensError where torch cannot multiply FP8 and write this type."""
    if reason := _lacks_op():
        raise TracelensError(f"{reason}: use fp8=off or a newer torch")
    if dtype != torch.bfloat16:
        raise TracelensError(
            f"fp8=experts needs dtype=bfloat16 on a GPU, not {dtype}: its GEMM writes no other"
        )


def _lacks_op() -> str:
    has_op = hasattr(torch, "_scaled_grouped_mm")
    return "" if has_op else f"torch {torch.__version__} has no scaled grouped GEMM"


class _GroupedMM(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_RK: Tensor, w_eKN: Tensor, end_e: Tensor) -> Tensor:
        ctx.save_for_backward(x_RK, w_eKN, end_e)
        quantizers = kernels(x_RK)
        rows, matrices = quantizers.quantize(x_RK), quantizers.quantize_transposed(w_eKN)
        return _scaled_grouped_mm(rows, matrices, end_e, x_RK.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        g_RN = gradients[0].contiguous()
        x_RK, w_eKN, end_e = ctx.saved_tensors
        quantize = kernels(g_RN).quantize
        # No names for the FP8 operands: they would live on beside the weight gradient.
        g_RK = _scaled_grouped_mm(quantize(g_RN), quantize(w_eKN), end_e, x_RK.dtype)
        return g_RK, grouped_mm(x_RK.t(), g_RN, end_e), None


def _scaled_grouped_mm(
    rows: tuple[Tensor, Tensor], matrices: tuple[Tensor, Tensor], end_e: Tensor, dtype: torch.dtype
) -> Tensor:
    """y_RN of FP8 numbers and their scales, R x K and e x N x K: the side that is summed over comes last."""
    (x_RK, scale_R), (w_eNK, scale_eN) = rows, matrices
    if has_scaled_op(x_RK) and len(x_RK):
        op: Callable[..., Tensor] = torch._scaled_grouped_mm
        return op(
            x_RK, w_eNK.transpose(1, 2), scale_R, scale_eN, offs=end_e, out_dtype=dtype, use_fast_accum=True
        )
    # A CPU has no such op: the same numbers, multiplied in float32.
    x = x_RK.float() * scale_R.unsqueeze(1)
    w = w_eNK.float() * scale_eN.unsqueeze(2)
    return grouped_mm(x, w.transpose(1, 2), end_e).to(dtype)
