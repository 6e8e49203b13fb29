"""Cross-entropy and its gradient in one Triton kernel: no tensor as large as the logits is ever in float32.

A program has a token. It reads its logits twice: for the logarithm of the sum of their exponentials, in one
pass whose maximum grows on the way (Milakov and Gimelshein, arXiv:1805.02867), then for the gradient.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

# Elements of a token's logits in flight. Large, and so one or two programs on a multiprocessor: what these
# have read is still in the cache when they read it again.
BLOCK = 16384
WARPS = 16
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
        block = max(min(triton.next_power_of_2(V), BLOCK), NEIGHBOURS)
        warps = max(block * WARPS // BLOCK, 1)
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
