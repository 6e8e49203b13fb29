"""Attention, backward, of PyTorch's own ops.

Flash attention keeps no scores and makes them again, so its backward pass has five GEMMs to the forward's
two (Dao 2022): S = QKᵀ again, dV = PᵀdO, dP = dO·Vᵀ, dQ = dS·K and dK = dSᵀQ. Three are Dqk wide and two Dv:
2·B·H·Nq·Nk·(3·Dqk + 2·Dv), less what the mask leaves out (see forward.py).

Bytes: queries, keys, values, the output, its gradient and the log-sum-exp once; the three gradients once.
"""

from __future__ import annotations

from tracelens.costs.attention.forward import efficient_attention, flash_attention, heads_first_attention
from tracelens.costs.call import OpCall
from tracelens.costs.model import OpCost, cost


@cost("aten::_scaled_dot_product_flash_attention_backward")
def sdpa_flash_backward(call: OpCall) -> OpCost:
    """Gradients of flash attention of (B, H, N, D) tensors."""
    return heads_first_attention(call, 1, causal=11, top_left=False).backward()


@cost("aten::_scaled_dot_product_flash_attention_for_cpu_backward")
def sdpa_cpu_backward(call: OpCall) -> OpCost:
    """Gradients of flash attention on the CPU, (B, H, N, D)."""
    return heads_first_attention(call, 1, causal=7, bias=8).backward()


@cost("aten::_scaled_dot_product_efficient_attention_backward")
def sdpa_efficient_backward(call: OpCall) -> OpCost:
    """Gradients of memory-efficient attention of (B, H, N, D) tensors."""
    return heads_first_attention(call, 1, causal=11, bias=4).backward()


@cost("aten::_scaled_dot_product_cudnn_attention_backward", "aten::_cudnn_attention_backward")
def cudnn_backward(call: OpCall) -> OpCost:
    """Gradients of cuDNN attention of (B, H, N, D) tensors."""
    return heads_first_attention(call, 1, causal=14, bias=8).backward()


@cost("aten::_scaled_dot_product_fused_attention_overrideable_backward")
def sdpa_overrideable_backward(call: OpCall) -> OpCost:
    """Gradients of another backend's attention, (B, H, N, D)."""
    return heads_first_attention(call, 1, causal=13, bias=4).backward()


@cost("aten::_flash_attention_backward")
def flash_backward(call: OpCall) -> OpCost:
    """Gradients of flash attention of (B, N, H, D) tensors, or of packed sequences (T, H, D)."""
    return flash_attention(call, 1, bounds=6, longest=8, causal=11, window=15).backward()


@cost("aten::_efficient_attention_backward")
def efficient_backward(call: OpCall) -> OpCost:
    """Gradients of memory-efficient attention of (B, N, H, D) tensors, or of packed ones."""
    return efficient_attention(call, 1, bias=4, bounds=6, longest=8, mask=14).backward()
