"""Batch norm (Ioffe and Szegedy 2015), forward and backward: PyTorch's own, cuDNN's and MIOpen's.

FLOPs an element: in training mean 1, variance 2, subtract and scale 2, weight and bias 1 each; in inference,
where the statistics are given, one scale and one shift. Backward: two sums 4, the input gradient 5 (in
inference a product); the gradients of weight and bias are those sums.

Bytes: input and the vectors of one value a channel once; the output once, in training also the saved mean and
deviation and the running ones. A training kernel needs its statistics before it can write and reads its input
twice; the least is once.
"""

from __future__ import annotations

from typing import NamedTuple

from tracelens.costs.call import OpCall, Tensor, Uncounted, size
from tracelens.costs.model import OpCost, cost
from tracelens.costs.nn.norm import statistic

_TRAINING = 5
"""Index of the argument that says whether it is training."""


@cost(
    "aten::batch_norm", "aten::native_batch_norm", "aten::_batch_norm_impl_index", "aten::cudnn_batch_norm",
    "aten::miopen_batch_norm", "aten::_native_batch_norm_legit", "aten::_native_batch_norm_legit_functional",
    "aten::instance_norm", engine="vector",
)  # fmt: skip
def batch_norm(call: OpCall) -> OpCost:
    """Batch norm: 7 FLOPs an element in training (5 without weight and bias), 2 in inference."""
    text = call.text(_TRAINING).lower()
    if text not in ("true", "false"):
        return _forward(call, True, "training assumed: the mode is not recorded")
    return _forward(call, text == "true")


@cost("aten::_batch_norm_with_update", engine="vector")
def batch_norm_training(call: OpCall) -> OpCost:
    """Batch norm in training."""
    return _forward(call, True)


@cost("aten::_native_batch_norm_legit_no_training", "aten::_batch_norm_no_update", engine="vector")
def batch_norm_inference(call: OpCall) -> OpCost:
    """Batch norm in inference."""
    return _forward(call, False)


class Arguments(NamedTuple):
    """Where a backward op has the output's gradient, the input, its mode and which gradients are wanted."""

    grad: int
    x: int
    mode: int = -1
    mask: int = -1


_BACKWARD = {
    "aten::native_batch_norm_backward": Arguments(0, 1, 7, 9),
    "aten::batch_norm_backward": Arguments(0, 1, 7, 9),
    "aten::cudnn_batch_norm_backward": Arguments(1, 0),
    "aten::miopen_batch_norm_backward": Arguments(1, 0),
}


@cost(*_BACKWARD, engine="vector")
def batch_norm_backward(call: OpCall) -> OpCost:
    """Batch norm, backward: 9 FLOPs an element in training, 5 in inference; statistics are read."""
    arguments = _BACKWARD[call.name]
    grad, x = call.tensor(arguments.grad), call.tensor(arguments.x)
    channels = _channels(x)
    training = arguments.mode < 0 or call.flag(arguments.mode, True)
    known = call.flags(arguments.mask, 3) if arguments.mask >= 0 else [True] * 3
    required = known or [True] * 3
    vectors = (2, 5, 6) if training else (2, 3, 4)
    read = grad.bytes + x.bytes + call.bytes(*vectors)
    parameter = call.tensor(2).dtype if call.has(2) else statistic(x.dtype)
    written = required[0] * x.dense_bytes + sum(required[1:]) * size(channels, parameter)
    note = "" if known else "all gradients assumed: the required ones are not recorded"
    return OpCost((9 if training else 5) * x.numel, read, written, x.dtype, dims=_dims(x), note=note)


def _forward(call: OpCall, training: bool, note: str = "") -> OpCost:
    x = call.tensor(0)
    channels = _channels(x)
    vectors = {index: call.tensor(index) for index in (1, 2, 3, 4) if call.has(index)}
    read, written = x.bytes, x.dense_bytes
    for index, vector in vectors.items():
        running = index > 2
        # Running statistics are blended with new ones in training, and are the statistics in inference.
        read += vector.bytes
        written += vector.bytes if running and training else 0
    if training:
        written += 2 * size(channels, statistic(x.dtype))
    flops = 5 + (1 in vectors) + (2 in vectors) if training else 2
    return OpCost(flops * x.numel, read, written, x.dtype, dims=_dims(x), note=note)


def _channels(x: Tensor) -> int:
    if len(x.shape) < 2:
        raise Uncounted("an input without channels")
    return x.shape[1]


def _dims(x: Tensor) -> tuple[tuple[str, int], ...]:
    channels = x.shape[1]
    return (("C", channels), ("each", x.numel // channels)) if channels else ()
