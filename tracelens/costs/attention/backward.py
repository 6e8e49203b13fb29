"""Attention, backward, of PyTorch's own ops.

Flash attention keeps no scores and makes them again, so its backward pass has five GEMMs to the forward's
two (Dao 2022): S = QKᵀ again, dV = PᵀdO, dP = dO·Vᵀ, dQ = dS·K and dK = dSᵀQ. Three are Dqk wide and two Dv:
2·B·H·Nq·Nk·(3·Dqk + 2·Dv), less what the mask leaves out (see attention.py).

Bytes: queries, keys, values, the output, its gradient and the log-sum-exp once; the three gradients once.
"""

from __future__ import annotations

from tracelens.costs.attention.forward import (
    Mask,
    Sizes,
    causal_flag,
    efficient_scores,
    heads_first,
    packed,
    tokens_first,
    twice_unmasked,
)
from tracelens.costs.call import OpCall, Tensor, size
from tracelens.costs.model import OpCost, cost


def backward_cost(
    q: Tensor, k: Tensor, v: Tensor, sizes: Sizes, twice_scores: int, note: str = "", extra: int = 0
) -> OpCost:
    """The cost of the gradients of attention over so many scores a head and batch.

    Args:
        q: queries.
        k: keys.
        v: values.
        sizes: of the attention.
        twice_scores: twice the scores of one head that are computed.
        note: on the count of scores.
        extra: further bytes read (bias).
    """
    rows = sizes.batch * sizes.heads * sizes.nq
    flops = sizes.batch * sizes.heads * twice_scores * (3 * sizes.d + 2 * sizes.dv)
    # The output and its gradient, in the type of the queries, and the log-sum-exp.
    read = q.bytes + k.bytes + v.bytes + 2 * size(rows * sizes.dv, q.dtype) + 4 * rows + extra
    written = size(q.numel, q.dtype) + size(k.numel, k.dtype) + size(v.numel, v.dtype)
    return OpCost(flops, read, written, q.dtype, "matrix", dims=sizes.dims, note=note)


@cost("aten::_scaled_dot_product_flash_attention_backward")
def sdpa_flash_backward(call: OpCall) -> OpCost:
    """Gradients of flash attention of (B, H, N, D) tensors."""
    return _heads_first(call, causal=11, top_left=False)


@cost("aten::_scaled_dot_product_flash_attention_for_cpu_backward")
def sdpa_cpu_backward(call: OpCall) -> OpCost:
    """Gradients of flash attention on the CPU, (B, H, N, D)."""
    return _heads_first(call, causal=7, bias=8)


@cost("aten::_scaled_dot_product_efficient_attention_backward")
def sdpa_efficient_backward(call: OpCall) -> OpCost:
    """Gradients of memory-efficient attention of (B, H, N, D) tensors."""
    return _heads_first(call, causal=11, bias=4)


@cost("aten::_scaled_dot_product_cudnn_attention_backward", "aten::_cudnn_attention_backward")
def cudnn_backward(call: OpCall) -> OpCost:
    """Gradients of cuDNN attention of (B, H, N, D) tensors."""
    return _heads_first(call, causal=14, bias=8)


@cost("aten::_scaled_dot_product_fused_attention_overrideable_backward")
def sdpa_overrideable_backward(call: OpCall) -> OpCost:
    """Gradients of another backend's attention, (B, H, N, D)."""
    return _heads_first(call, causal=13, bias=4)


@cost("aten::_flash_attention_backward")
def flash_backward(call: OpCall) -> OpCost:
    """Gradients of flash attention of (B, N, H, D) tensors, or of packed sequences (T, H, D)."""
    q, k, v = call.tensor(1), call.tensor(2), call.tensor(3)
    sizes = tokens_first(q, k, v)
    causal = causal_flag(call, 11)
    # Without packed sequences the arguments for their bounds hold tensors of no elements.
    if call.has(6) and call.tensor(6).shape and call.tensor(6).numel:
        scores, note = packed(sizes, call.tensor(6).numel - 1, call.integer(8), call.integer(9), causal)
    else:
        mask = Mask(causal, call.integer(15, -1), call.integer(16, -1))
        scores, note = twice_unmasked(sizes.nq, sizes.nk, mask)
    return backward_cost(q, k, v, sizes, scores, note)


@cost("aten::_efficient_attention_backward")
def efficient_backward(call: OpCall) -> OpCost:
    """Gradients of memory-efficient attention of (B, N, H, D) tensors, or of packed ones."""
    q, k, v = call.tensor(1), call.tensor(2), call.tensor(3)
    sizes = tokens_first(q, k, v)
    scores, note = efficient_scores(call, sizes, cu=6, longest=8, mask=14)
    return backward_cost(q, k, v, sizes, scores, note, call.tensor(4).bytes if call.has(4) else 0)


def _heads_first(call: OpCall, causal: int, bias: int = -1, top_left: bool = True) -> OpCost:
    q, k, v = call.tensor(1), call.tensor(2), call.tensor(3)
    sizes = heads_first(q, k, v)
    scores, note = twice_unmasked(sizes.nq, sizes.nk, Mask(causal_flag(call, causal), top_left=top_left))
    extra = call.tensor(bias).bytes if bias >= 0 and call.has(bias) else 0
    return backward_cost(q, k, v, sizes, scores, note, extra)
