"""Fused gated activations: act(a) · b of the two halves of one tensor, in the libraries' own ops.

Known by name in any namespace (vLLM `_C::silu_and_mul`, SGLang `sgl_kernel::silu_and_mul`, AITER
`aiter::silu_and_mul`, FlashInfer, Megatron `SwiGLUFunction`, ...). Of two tensors the one of twice the
elements is read and the other written, whichever comes first: the libraries do not agree on the order.
"""

from __future__ import annotations

from tracelens.costs.call import OpCall, Tensor, Uncounted, size
from tracelens.costs.model import OpCost, cost
from tracelens.costs.torch import GELU, GELU_BACKWARD

_SILU, _SILU_BACKWARD = 5, 9


@cost(
    "*::silu_and_mul", "*::mul_and_silu", "*::swiglu", "*::fused_swiglu", "*::silu_and_mul_clamp",
    engine="vector",
)  # fmt: skip
def silu_and_mul(call: OpCall) -> OpCost:
    """2N to N elements, 6 operations each: SiLU and a product."""
    return _halved(call, _SILU + 1)


@cost("*::gelu_and_mul", "*::geglu", "*::fused_geglu", engine="vector")
def gelu_and_mul(call: OpCall) -> OpCost:
    """2N to N elements, 6 operations each: GELU (error function) and a product."""
    return _halved(call, GELU["none"] + 1)


@cost("*::gelu_tanh_and_mul", engine="vector")
def gelu_tanh_and_mul(call: OpCall) -> OpCost:
    """2N to N elements, 10 operations each: GELU (tanh form) and a product."""
    return _halved(call, GELU["tanh"] + 1)


@cost("*::fatrelu_and_mul", "*::relu_and_mul", "*::reglu", engine="vector")
def relu_and_mul(call: OpCall) -> OpCost:
    """2N to N elements, 2 operations each: a comparison and a product."""
    return _halved(call, 2)


@cost("*::scaled_silu_and_mul", "*::silu_and_mul_quant", engine="vector")
def scaled_silu_and_mul(call: OpCall) -> OpCost:
    """2N to N elements in a narrower type, 7 operations each: SiLU, a product and a scale."""
    return _halved(call, _SILU + 2)


@cost("SwiGLUFunction", "BiasSwiGLUFunction", "WeightedSwiGLUFunction", engine="vector")
def swiglu_function(call: OpCall) -> OpCost:
    """Megatron's SwiGLU: (..., 2N) to (..., N), with a bias to add or a weight a token to multiply with."""
    return _function(call, _SILU + 1)


@cost("BiasGeGLUFunction", "GeGLUFunction", "WeightedQuickGeGLUFunction", engine="vector")
def geglu_function(call: OpCall) -> OpCost:
    """Megatron's GeGLU: (..., 2N) to (..., N), GELU in the tanh form."""
    return _function(call, GELU["tanh"] + 1)


@cost(
    "SwiGLUFunctionBackward", "BiasSwiGLUFunctionBackward", "WeightedSwiGLUFunctionBackward", forward=True,
    engine="vector",
)  # fmt: skip
def swiglu_backward(call: OpCall) -> OpCost:
    """Gradients of both halves from the (..., N) gradient and the (..., 2N) input of the forward op."""
    return _backward(call, _SILU_BACKWARD + _SILU + 1)


@cost("BiasGeGLUFunctionBackward", "GeGLUFunctionBackward", forward=True, engine="vector")
def geglu_backward(call: OpCall) -> OpCost:
    """Gradients of both halves from the (..., N) gradient and the (..., 2N) input of the forward op."""
    return _backward(call, GELU_BACKWARD["tanh"] + GELU["tanh"] + 1)


@cost("LigerSiLUMulFunction", engine="vector")
def silu_mul(call: OpCall) -> OpCost:
    """SiLU(a) · b of two tensors, 6 operations an element."""
    a, b = call.tensor(0), call.tensor(1)
    return OpCost((_SILU + 1) * a.numel, a.bytes + b.bytes, a.dense_bytes, a.dtype)


@cost("LigerSiLUMulFunctionBackward", forward=True, engine="vector")
def silu_mul_backward(call: OpCall) -> OpCost:
    """Gradients of a and b from that of SiLU(a) · b, and from a and b."""
    gradient = call.tensor(0)
    read = 3 * gradient.bytes
    flops = (_SILU_BACKWARD + _SILU + 1) * gradient.numel
    return OpCost(flops, read, 2 * gradient.dense_bytes, gradient.dtype)


def _halved(call: OpCall, operations: int) -> OpCost:
    tensors = call.tensors()
    source = max(tensors[:2], key=lambda tensor: tensor.numel)
    extras = list(tensors)
    extras.remove(source)
    half = _half(source)
    written = next((tensor for tensor in extras if tensor.numel == half), None)
    if written:
        extras.remove(written)
    extra = sum(tensor.bytes for tensor in extras)
    result = size(half, written.dtype if written else source.dtype)
    return OpCost(operations * half, source.bytes + extra, result, source.dtype)


def _function(call: OpCall, operations: int) -> OpCost:
    source, *extras = call.tensors()
    half = _half(source)
    read = source.bytes + sum(tensor.bytes for tensor in extras)
    return OpCost((operations + len(extras)) * half, read, size(half, source.dtype), source.dtype)


def _backward(call: OpCall, operations: int) -> OpCost:
    gradient = call.tensor(0)
    source = call.forward.tensor(0) if call.forward else None
    both = size(2 * gradient.numel, gradient.dtype)
    if source and source.numel != 2 * gradient.numel:
        raise Uncounted("gradient and input of the forward op do not match")
    read = gradient.bytes + (source.bytes if source else both)
    return OpCost(operations * gradient.numel, read, both, gradient.dtype)


def _half(source: Tensor) -> int:
    if not source.shape or source.shape[-1] % 2:
        raise Uncounted("the last dimension of the input cannot be halved")
    return source.numel // 2
