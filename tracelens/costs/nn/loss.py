"""Losses: negative log-likelihood and cross-entropy, squared and absolute errors, binary cross-entropy.

FLOPs a few an element, told with each. Bytes: predictions and targets once. A mean or sum is one value;
without reduction there is one value an element (reduction 0 none, 1 mean, 2 sum, as PyTorch records it).
"""

from __future__ import annotations

from typing import NamedTuple

from tracelens.costs.call import OpCall, size
from tracelens.costs.model import OpCost, cost


@cost(
    "aten::nll_loss_forward", "aten::nll_loss2d_forward", "aten::nll_loss", "aten::nll_loss_nd",
    engine="vector",
)  # fmt: skip
def nll_loss(call: OpCall) -> OpCost:
    """Negative log-likelihood: one prediction a target is read, 2 FLOPs (weight, add)."""
    x, target = call.tensor(0), call.tensor(1)
    note = _reduction_note(call, 3)
    results = target.numel if call.text(3) == "0" else 1
    weight = call.bytes(2)
    read = size(target.numel, x.dtype) + target.bytes + weight
    # The sum of the weights is a result too.
    written = size(results + 1, x.dtype)
    return OpCost(2 * target.numel, read, written, x.dtype, dims=_classes(call, 0), note=note)


@cost("aten::nll_loss_backward", "aten::nll_loss2d_backward", engine="vector")
def nll_loss_backward(call: OpCall) -> OpCost:
    """Negative log-likelihood, backward: one value a target is written, 2 FLOPs.

    The zeros around it are written by a memset of their own.
    """
    grad, x, target = call.tensor(0), call.tensor(1), call.tensor(2)
    weight = call.bytes(3)
    read = grad.bytes + target.bytes + weight
    return OpCost(2 * target.numel, read, size(target.numel, x.dtype), x.dtype, dims=_classes(call, 1))


@cost("aten::cross_entropy_loss", engine="vector")
def cross_entropy(call: OpCall) -> OpCost:
    """Cross-entropy of logits: log-softmax and selection, 5 FLOPs a logit."""
    x, target = call.tensor(0), call.tensor(1)
    note = _reduction_note(call, 3)
    written = size(target.numel if call.text(3) == "0" else 1, x.dtype)
    return OpCost(5 * x.numel, x.bytes + target.bytes, written, x.dtype, dims=_classes(call, 0), note=note)


@cost("CrossEntropyFunction", "LigerCrossEntropyFunction", engine="vector")
def fused_cross_entropy(call: OpCall) -> OpCost:
    """Fused cross-entropy that puts the gradient in the place of the logits: 7 FLOPs a logit.

    Transformer Engine's and Liger's kernels: softmax 5, subtract the target 1, scale 1; one FP32 loss a row.
    """
    x, target = call.tensor(0), call.tensor(1)
    written = x.dense_bytes + 4 * target.numel
    return OpCost(7 * x.numel, x.bytes + target.bytes, written, x.dtype, dims=_classes(call, 0))


@cost("CrossEntropyFunctionBackward", "LigerCrossEntropyFunctionBackward", forward=True, engine="vector")
def fused_cross_entropy_backward(call: OpCall) -> OpCost:
    """Fused cross-entropy, backward: the gradient, made in forward, is scaled in place, 1 FLOP a logit."""
    forward = call.of_forward()
    x = forward.tensor(0)
    return OpCost(x.numel, x.dense_bytes, x.dense_bytes, x.dtype, dims=_classes(forward, 0))


class Pointwise(NamedTuple):
    """A loss of two tensors of one shape: FLOPs an element and where the reduction stands."""

    flops: int
    reduction: int = 2


_POINTWISE = {
    "aten::mse_loss": Pointwise(3),
    "aten::l1_loss": Pointwise(3),
    "aten::smooth_l1_loss": Pointwise(5),
    "aten::huber_loss": Pointwise(5),
    "aten::kl_div": Pointwise(4),
    "aten::soft_margin_loss": Pointwise(5),
    "aten::binary_cross_entropy": Pointwise(7, 3),
    "aten::binary_cross_entropy_with_logits": Pointwise(8, 4),
}

_BACKWARD = {
    "aten::mse_loss_backward": 3,
    "aten::smooth_l1_loss_backward": 4,
    "aten::huber_loss_backward": 4,
    "aten::soft_margin_loss_backward": 5,
    "aten::binary_cross_entropy_backward": 5,
}


@cost(*_POINTWISE, engine="vector")
def pointwise_loss(call: OpCall) -> OpCost:
    """Error of every element, and its mean: 3 (squared) to 8 (binary cross-entropy) FLOPs an element."""
    model = _POINTWISE[call.name]
    x, target = call.tensor(0), call.tensor(1)
    elements = max(x.numel, target.numel)
    weights = call.bytes(*range(2, model.reduction))
    results = elements if call.text(model.reduction) == "0" else 1
    read = x.bytes + target.bytes + weights
    note = _reduction_note(call, model.reduction)
    return OpCost(model.flops * elements, read, size(results, x.dtype), x.dtype, note=note)


@cost(*_BACKWARD, engine="vector")
def pointwise_loss_backward(call: OpCall) -> OpCost:
    """Gradient of an error of every element: 3 to 5 FLOPs an element."""
    grad, x, target = call.tensor(0), call.tensor(1), call.tensor(2)
    weights = call.bytes(3)
    read = grad.bytes + x.bytes + target.bytes + weights
    return OpCost(_BACKWARD[call.name] * x.numel, read, x.dense_bytes, x.dtype)


def _reduction_note(call: OpCall, index: int) -> str:
    return "" if call.text(index) else "one result assumed: the reduction is not recorded"


def _classes(call: OpCall, index: int) -> tuple[tuple[str, int], ...]:
    x = call.tensor(index)
    if not x.shape:
        return ()
    # (N, C), (N, C, …) or (C): the classes are second, or all there is.
    classes = x.shape[1] if len(x.shape) > 1 else x.shape[0]
    return (("rows", x.numel // classes), ("classes", classes)) if classes else ()
