"""Normalisation over rows or groups: layer norm, RMS norm, group norm, forward and backward, and fused ones.

FLOPs an element, a few either way (the transcendental part is one a row and not counted):

- layer and group norm: mean 1, variance 2, subtract and scale 2, weight and bias 1 each;
- RMS norm: square and add 2, scale 1, weight 1; a residual 1;
- backward, layer and group norm: two sums over the row 4, the input gradient 5, those of weight 2 and bias 1;
  RMS norm: one sum 2, the input gradient 4, that of the weight 2.

Bytes: input, residual and parameters once; results, with the statistics saved for backward, once. That a
kernel reads its input a second time, when a row is too long to be kept, is not counted.
(Ba et al. 2016, layer norm; Zhang and Sennrich 2019, RMS norm; Wu and He 2018, group norm.)
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from tracelens.costs.call import OpCall, Tensor, Uncounted, size
from tracelens.costs.model import OpCost, cost

_ASSUMED = "all gradients assumed: the required ones are not recorded"


@cost("aten::native_layer_norm", "aten::layer_norm", engine="vector")
def layer_norm(call: OpCall) -> OpCost:
    """Layer norm: 5 FLOPs an element, 1 more each for weight and bias."""
    x = call.tensor(0)
    affine = _tensors(call, 2, 3)
    rows = x.numel // _width(call, x, 2)
    statistics = 2 * size(rows, statistic(x.dtype))
    return _forward(x, 5 + len(affine), affine, statistics, rows)


@cost("aten::_fused_rms_norm", "aten::rms_norm", engine="vector")
def rms_norm(call: OpCall) -> OpCost:
    """RMS norm: 3 FLOPs an element, 1 more for the weight."""
    x = call.tensor(0)
    affine = _tensors(call, 2)
    rows = x.numel // _width(call, x, 2)
    return _forward(x, 3 + len(affine), affine, size(rows, statistic(x.dtype)), rows)


@cost("aten::native_group_norm", "aten::group_norm", engine="vector")
def group_norm(call: OpCall) -> OpCost:
    """Group norm: as layer norm, over the channels of a group; statistics for every sample and group."""
    x = call.tensor(0)
    native = call.name == "aten::native_group_norm"
    affine = _tensors(call, *((1, 2) if native else (2, 3)))
    groups = call.integer(6 if native else 1)
    rows = groups * x.shape[0] if x.shape else 0
    return _forward(x, 5 + len(affine), affine, 2 * size(rows, affine[0].dtype if affine else x.dtype), rows)


@cost("aten::native_layer_norm_backward", engine="vector")
def layer_norm_backward(call: OpCall) -> OpCost:
    """Layer norm, backward: 9 FLOPs an element, 2 more for the weight's gradient and 1 for the bias's."""
    return _backward(call, _tensors(call, 3, 4, 5), weight=5, mask=7, flops=(9, 2, 1))


@cost("aten::_fused_rms_norm_backward", engine="vector")
def rms_norm_backward(call: OpCall) -> OpCost:
    """RMS norm, backward: 6 FLOPs an element, 2 more for the weight's gradient."""
    return _backward(call, _tensors(call, 3, 4), weight=4, mask=5, flops=(6, 2))


@cost("aten::native_group_norm_backward", engine="vector")
def group_norm_backward(call: OpCall) -> OpCost:
    """Group norm, backward: as layer norm."""
    return _backward(call, _tensors(call, 2, 3, 4), weight=4, mask=9, flops=(9, 2, 1))


class Fused(NamedTuple):
    """A library's norm: argument indices of its input, of what else it reads and writes (none: new)."""

    x: int
    reads: tuple[int, ...]
    writes: tuple[int, ...] = ()
    flops: int = 4


_FUSED = {
    "_C::rms_norm": Fused(1, (2,), (0,)),
    "_C::fused_add_rms_norm": Fused(0, (1, 2), (0, 1), 5),
    "_C::rms_norm_static_fp8_quant": Fused(1, (2, 3), (0,), 5),
    "_C::fused_add_rms_norm_static_fp8_quant": Fused(1, (2, 3, 4), (0, 2), 6),
    "_C::rms_norm_dynamic_per_token_quant": Fused(1, (2,), (0, 3), 6),
    "sgl_kernel::rmsnorm": Fused(1, (2,), (0,)),
    "sgl_kernel::gemma_rmsnorm": Fused(1, (2,), (0,)),
    "sgl_kernel::fused_add_rmsnorm": Fused(0, (1, 2), (0, 1), 5),
    "sgl_kernel::gemma_fused_add_rmsnorm": Fused(0, (1, 2), (0, 1), 5),
    "aiter::rms_norm": Fused(0, (1,)),
    "aiter::rmsnorm2d_fwd": Fused(0, (1,)),
    "aiter::rmsnorm2d_fwd_ck": Fused(0, (1,)),
    "aiter::rmsnorm": Fused(1, (2,), (0,)),
    "aiter::rms_norm_cu": Fused(1, (2,), (0,)),
    "aiter::rmsnorm_quant": Fused(1, (3,), (0, 2), 6),
    "aiter::fused_add_rms_norm_cu": Fused(0, (1, 2), (0, 1), 5),
    "aiter::add_rmsnorm": Fused(1, (2, 4), (0, 3), 5),
    "aiter::add_rmsnorm_quant": Fused(1, (2, 5), (0, 3, 4), 7),
    "aiter::rmsnorm2d_fwd_with_add": Fused(1, (2, 4), (0, 3), 5),
    "aiter::rmsnorm2d_fwd_with_add_ck": Fused(1, (2, 4), (0, 3), 5),
    "aiter::rmsnorm2d_fwd_with_dynamicquant": Fused(1, (3,), (0, 2), 6),
    "aiter::rmsnorm2d_fwd_with_add_dynamicquant": Fused(1, (2, 5), (0, 3, 4), 7),
    "aiter::rmsnorm2d_fwd_with_dynamicquant_ck": Fused(1, (3,), (0, 2), 6),
    "aiter::rmsnorm2d_fwd_with_add_dynamicquant_ck": Fused(1, (2, 5), (0, 3, 4), 7),
    "aiter::layer_norm": Fused(0, (1, 2), (), 7),
    "aiter::layernorm2d_fwd": Fused(0, (1, 2), (), 7),
    "aiter::layernorm2d_fwd_with_add": Fused(1, (2, 4, 5), (0, 3), 8),
    "aiter::layer_norm_ck": Fused(0, (1, 2), (), 7),
    "aiter::layernorm2d_fwd_ck": Fused(0, (1, 2), (), 7),
    "aiter::layernorm2d_fwd_with_add_ck": Fused(1, (2, 4, 5), (0, 3), 8),
    "FusedLayerNormAffineFunction": Fused(0, (1, 2), (), 7),
    "FusedLayerNormFunction": Fused(0, (), (), 5),
    "FusedRMSNormAffineFunction": Fused(0, (1,)),
    "FusedRMSNormFunction": Fused(0, (), (), 3),
    "LigerRMSNormFunction": Fused(0, (1,)),
    "LigerLayerNormFunction": Fused(0, (1, 2), (), 7),
}


@cost(*_FUSED, engine="vector")
def fused_norm(call: OpCall) -> OpCost:
    """A library's norm, with residual or quantization: RMS norm 4 FLOPs an element, 1 for each extra."""
    arguments = _FUSED[call.name]
    x = call.tensor(arguments.x)
    read = x.bytes + call.bytes(*arguments.reads)
    written = sum(call.tensor(index).bytes for index in arguments.writes) or x.dense_bytes
    rows = x.numel // (x.shape[-1] or 1) if x.shape else 0
    return OpCost(arguments.flops * x.numel, read, written, x.dtype, dims=_dims(x, rows))


@cost(
    "FusedLayerNormAffineFunctionBackward", "FusedLayerNormFunctionBackward",
    "FusedRMSNormAffineFunctionBackward", "FusedRMSNormFunctionBackward",
    "LigerLayerNormFunctionBackward", "LigerRMSNormFunctionBackward",
    forward=True,
engine="vector")  # fmt: skip
def fused_norm_backward(call: OpCall) -> OpCost:
    """A library's norm, backward, sized by its forward: gradients of the input and of all parameters."""
    forward = call.of_forward()
    x = forward.tensor(0)
    each = (6, 2) if "RMSNorm" in call.name else (9, 2, 1)
    parameters = _tensors(forward, 1, 2)[: len(each) - 1]
    same, vectors = x.dense_bytes, sum(tensor.bytes for tensor in parameters)
    flops = sum(each[: len(parameters) + 1]) * x.numel
    rows = x.numel // (x.shape[-1] or 1) if x.shape else 0
    return OpCost(flops, x.bytes + same + vectors, same + vectors, x.dtype, dims=_dims(x, rows))


def statistic(dtype: str) -> str:
    """The type in which sums over elements of a type are kept."""
    return "fp64" if dtype == "fp64" else "fp32"


def _forward(x: Tensor, flops: int, affine: list[Tensor], statistics: int, rows: int) -> OpCost:
    read = x.bytes + sum(tensor.bytes for tensor in affine)
    written = x.dense_bytes + statistics
    return OpCost(flops * x.numel, read, written, x.dtype, dims=_dims(x, rows))


def _backward(call: OpCall, saved: list[Tensor], weight: int, mask: int, flops: tuple[int, ...]) -> OpCost:
    """Gradients of the input and of up to two parameters of the weight's size.

    Args:
        call: with the gradient of the output and the input first.
        saved: what else is read.
        weight: index of the weight, whose size and type the parameters' gradients have.
        mask: index of the flags of wanted gradients.
        flops: an element, for each gradient.
    """
    grad, x = call.tensor(0), call.tensor(1)
    known = call.flags(mask, len(flops))
    required = known or [True] * len(flops)
    parameter = call.bytes(weight)
    written = required[0] * x.dense_bytes + sum(required[1:]) * parameter
    work = sum(each for each, want in zip(flops, required, strict=True) if want) * x.numel
    read = grad.bytes + x.bytes + sum(tensor.bytes for tensor in saved)
    rows = saved[0].numel if saved else 0
    return OpCost(work, read, written, x.dtype, dims=_dims(x, rows), note="" if known else _ASSUMED)


def _tensors(call: OpCall, *indices: int) -> list[Tensor]:
    return [call.tensor(index) for index in indices if call.has(index)]


def _width(call: OpCall, x: Tensor, weight: int) -> int:
    """Elements that are normalized together."""
    shape = call.integers(1) or (call.tensor(weight).shape if call.has(weight) else ())
    if not shape:
        raise Uncounted("the normalized shape is not recorded")
    if prod(shape) <= 0:
        raise Uncounted("rows without elements")
    if x.numel % prod(shape):
        raise Uncounted("the normalized shape does not divide the input")
    return prod(shape)


def _dims(x: Tensor, rows: int) -> tuple[tuple[str, int], ...]:
    return (("rows", rows), ("width", x.numel // rows)) if rows else ()
