"""GEMMs across the ranks of tensor parallelism, with the sequence shared out between them.

Between two blocks a rank holds some positions of the sequence at full width. A block gathers all positions
before its first GEMM and scatters their sums after its last one: all-gather + GEMM and GEMM + reduce-scatter.
Weights are as in nn.Linear, output x input. See `rows` for the letters of shapes; here also N, the width
inside a block on this rank, T, the rows of this rank (positions times sequences), and A, those of all ranks
in their order.

Every variant keeps the gathered input for the backward, where the gradients of the weights need it, rather
than gather it again; the gathered gradient lives only until these are made.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from tracelens.planner.config import TensorOverlapName
from tracelens.workload.parallel import tensor_chunked, tensor_symmetric
from tracelens.workload.parallel.collectives import AllGather, Group, ReduceScatter, run_collective

_VARIANTS: dict[TensorOverlapName, ModuleType] = {"chunked": tensor_chunked, "symmetric": tensor_symmetric}
"""Modules with `gather_gemms` and `scatter_gemms`."""


def require(overlap: TensorOverlapName, group: Group, device: torch.device) -> None:
    """Check that a variant can run, before anything is trained; all ranks of the group must call it.

    Raises:
        TracelensError: this device, torch or group cannot do it.
    """
    if group is not None and overlap == "symmetric":
        tensor_symmetric.require(group, device)


def gather_matmul(
    x_SBD: Tensor, weights: Sequence[Tensor], group: Group, overlap: TensorOverlapName
) -> list[Tensor]:
    """For each weight y_SBN: the positions of all ranks times that weight.

    Raises:
        TracelensError: this device, torch or group cannot do it in that way.
    """
    if group is None or overlap == "off":
        x_SBD = run_collective(x_SBD, AllGather(group))
        return [F.linear(x_SBD, weight_ND) for weight_ND in weights]
    require(overlap, group, x_SBD.device)
    outputs = _GatherMatmul.apply(x_SBD.flatten(0, 1), group, _VARIANTS[overlap], *weights)
    return [y_AN.unflatten(0, (-1, x_SBD.shape[1])) for y_AN in outputs]


def matmul_scatter(x_SBN: Tensor, weight_DN: Tensor, group: Group, overlap: TensorOverlapName) -> Tensor:
    """y_SBD: this rank's positions of the sum over ranks of x times weight.

    Raises:
        TracelensError: this device, torch or group cannot do it in that way.
    """
    if group is None or overlap == "off":
        return run_collective(F.linear(x_SBN, weight_DN), ReduceScatter(group))
    require(overlap, group, x_SBN.device)
    y_TD = _MatmulScatter.apply(x_SBN.flatten(0, 1), group, _VARIANTS[overlap], weight_DN)
    return y_TD.unflatten(0, (-1, x_SBN.shape[1]))


class _GatherMatmul(Function):
    @staticmethod
    def forward(
        ctx: Any, x_TD: Tensor, group: Group, variant: ModuleType, *weights: Tensor
    ) -> tuple[Tensor, ...]:
        x_AD, outputs = variant.gather_gemms(x_TD, [weight_ND.T for weight_ND in weights], group)
        ctx.group = group
        ctx.save_for_backward(x_AD, *weights)
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x_AD, *weights = ctx.saved_tensors
        g_AD = gradients[0] @ weights[0]
        for g_AN, weight_ND in zip(gradients[1:], weights[1:], strict=True):
            g_AD.addmm_(g_AN, weight_ND)
        # One collective for any number of weights, whose own gradients hide it: they are as much work again.
        g_TD, leaving = ReduceScatter(ctx.group).launch(g_AD)
        by_weights = [g_AN.T @ x_AD for g_AN in gradients]
        leaving.wait()
        return g_TD, None, None, *by_weights


class _MatmulScatter(Function):
    @staticmethod
    def forward(ctx: Any, x_AN: Tensor, group: Group, variant: ModuleType, weight_DN: Tensor) -> Tensor:
        ctx.group, ctx.variant = group, variant
        ctx.save_for_backward(x_AN, weight_DN)
        return variant.scatter_gemms(x_AN, weight_DN.T, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x_AN, weight_DN = ctx.saved_tensors
        g_AD, (g_AN,) = ctx.variant.gather_gemms(gradients[0], [weight_DN], ctx.group)
        return g_AN, None, None, g_AD.T @ x_AN
