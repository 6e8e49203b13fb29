"""Softmax and log-softmax, forward and backward, masked and scaled ones too.

FLOPs an element: forward 5 (maximum, subtract, exponential, sum, divide), backward 4 (product, sum, subtract,
product), a scale or a mask 1 more. Bytes: input and mask once, output once; backward reads the output and its
gradient.
"""

from __future__ import annotations

from tracelens.costs.call import OpCall, Tensor, size
from tracelens.costs.model import OpCost, cost
from tracelens.dtypes import SCALAR_TYPES


@cost("aten::_softmax", "aten::_log_softmax", engine="vector")
def softmax(call: OpCall) -> OpCost:
    """Softmax: 5 FLOPs an element; half types may widen to FP32."""
    x = call.tensor(0)
    return _softmax(x, 5, out="fp32" if call.flag(2) else x.dtype)


@cost("aten::softmax", "aten::log_softmax", "aten::_safe_softmax", "aten::special_softmax", engine="vector")
def softmax_public(call: OpCall) -> OpCost:
    """Softmax as called, with the type that it was asked for: 5 FLOPs an element."""
    x = call.tensor(0)
    return _softmax(x, 5, out=SCALAR_TYPES.get(call.text(2), x.dtype))


@cost("aten::_softmax_backward_data", "aten::_log_softmax_backward_data", engine="vector")
def softmax_backward(call: OpCall) -> OpCost:
    """Softmax, backward: 4 FLOPs an element; the gradient has the type that the input had."""
    grad, out = call.tensor(0), call.tensor(1)
    written = size(out.numel, SCALAR_TYPES.get(call.text(3), out.dtype))
    return OpCost(4 * out.numel, grad.bytes + out.bytes, written, grad.dtype, dims=_dims(out))


@cost("aten::_masked_softmax", "ScaledMaskedSoftmax", "GenericScaledMaskedSoftmax", engine="vector")
def masked_softmax(call: OpCall) -> OpCost:
    """Softmax of scores with a mask (and a scale, in Megatron's): 6 FLOPs an element."""
    x = call.tensor(0)
    return _softmax(x, 6, out=x.dtype, extra=call.bytes(1))


@cost("ScaledSoftmax", engine="vector")
def scaled_softmax(call: OpCall) -> OpCost:
    """Megatron's softmax of scaled scores: 6 FLOPs an element."""
    x = call.tensor(0)
    return _softmax(x, 6, out=x.dtype)


@cost("ScaledUpperTriangMaskedSoftmax", "ScaledAlignedCausalMaskedSoftmax", engine="vector")
def causal_softmax(call: OpCall) -> OpCost:
    """Megatron's softmax of scaled causal scores: half are neither read nor counted, all are written."""
    x = call.tensor(0)
    written = x.dense_bytes
    return OpCost(
        3 * x.numel, x.bytes // 2, written, x.dtype, dims=_dims(x), note="causal: half of the scores"
    )


@cost("aten::_masked_softmax_backward", engine="vector")
def masked_softmax_backward(call: OpCall) -> OpCost:
    """Softmax with a mask, backward: 5 FLOPs an element."""
    grad, out, mask = call.tensor(0), call.tensor(1), call.tensor(2)
    read = grad.bytes + out.bytes + mask.bytes
    return OpCost(5 * out.numel, read, out.dense_bytes, out.dtype, dims=_dims(out))


@cost(
    "ScaledMaskedSoftmaxBackward", "GenericScaledMaskedSoftmaxBackward", "ScaledSoftmaxBackward",
    "ScaledUpperTriangMaskedSoftmaxBackward", "ScaledAlignedCausalMaskedSoftmaxBackward",
engine="vector")  # fmt: skip
def scaled_backward(call: OpCall) -> OpCost:
    """Megatron's softmax, backward: 5 FLOPs an element; the saved output is as large as its gradient."""
    grad = call.tensor(0)
    each = grad.dense_bytes
    return OpCost(5 * grad.numel, grad.bytes + each, each, grad.dtype, dims=_dims(grad))


def _softmax(x: Tensor, flops: int, out: str, extra: int = 0) -> OpCost:
    return OpCost(flops * x.numel, x.bytes + extra, size(x.numel, out), x.dtype, dims=_dims(x))


def _dims(x: Tensor) -> tuple[tuple[str, int], ...]:
    if not x.shape or not x.shape[-1]:
        return ()
    return (("rows", x.numel // x.shape[-1]), ("width", x.shape[-1]))
