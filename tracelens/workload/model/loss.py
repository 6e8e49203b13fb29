"""Cross-entropy of the tokens of a rank; see `rows` for the letters of shapes."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from tracelens.errors import TracelensError
from tracelens.planner.config import FusionName
from tracelens.workload.kernels import kernels


def token_loss(logits_SBV: Tensor, target_SB: Tensor, fusion: FusionName = "plain") -> Tensor:
    """Sum of the losses of all tokens, a float32 scalar.

    Args:
        logits_SBV: of any float dtype.
        target_SB: int64, the token that comes next.
        fusion: "plain" for torch's ops on logits in float32; "fused" for one kernel that computes the loss
            and the gradient, and keeps only the gradient, in the logits' dtype: backward can run once.
    """
    logits_TV, target_T = logits_SBV.flatten(0, 1), target_SB.flatten()
    if fusion == "fused":
        return _CrossEntropy.apply(logits_TV, target_T)
    return F.cross_entropy(logits_TV.float(), target_T, reduction="sum")


class _CrossEntropy(Function):
    """The gradient is there as soon as the loss is; backward only scales it, in place."""

    @staticmethod
    def forward(ctx: Any, logits_TV: Tensor, target_T: Tensor) -> Tensor:
        loss, gradient_TV = kernels(logits_TV).cross_entropy(logits_TV, target_T)
        # Neither input nor output, so that it can hang here and be gone after its use.
        ctx.gradient_TV = gradient_TV if ctx.needs_input_grad[0] else None
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        gradient_TV, ctx.gradient_TV = ctx.gradient_TV, None
        if gradient_TV is None:
            raise TracelensError("the fused loss supports one backward: use loss=plain for more")
        # A scalar of no dimension would be rounded to the gradient's dtype first.
        return gradient_TV.mul_(gradients[0].view(1)), None
