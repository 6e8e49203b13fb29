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

from msgspec import Struct

from tracelens.costs.gemm import math_dtype
from tracelens.costs.model import OpCall, OpCost, Tensor, Uncounted, cost, size
from tracelens.costs.tensors import dtype_argument, shape_of
from tracelens.dtypes import SCALAR_TYPES

_ASSUMED = "all gradients assumed: the required ones are not recorded"


class FusedNorm(Struct, frozen=True):
    """A library's norm: argument indices of its input, of what else it reads and writes (none: new)."""

    x: int
    reads: tuple[int, ...]
    writes: tuple[int, ...] = ()
    flops: int = 4


_FUSED = {
    "_C::rms_norm": FusedNorm(1, (2,), (0,)),
    "_C::fused_add_rms_norm": FusedNorm(0, (1, 2), (0, 1), 5),
    "_C::rms_norm_static_fp8_quant": FusedNorm(1, (2, 3), (0,), 5),
    "_C::fused_add_rms_norm_static_fp8_quant": FusedNorm(1, (2, 3, 4), (0, 2), 6),
    "_C::rms_norm_dynamic_per_token_quant": FusedNorm(1, (2,), (0, 3), 6),
    "sgl_kernel::rmsnorm": FusedNorm(1, (2,), (0,)),
    "sgl_kernel::gemma_rmsnorm": FusedNorm(1, (2,), (0,)),
    "sgl_kernel::fused_add_rmsnorm": FusedNorm(0, (1, 2), (0, 1), 5),
    "sgl_kernel::gemma_fused_add_rmsnorm": FusedNorm(0, (1, 2), (0, 1), 5),
    "aiter::rms_norm": FusedNorm(0, (1,)),
    "aiter::rmsnorm2d_fwd": FusedNorm(0, (1,)),
    "aiter::rmsnorm2d_fwd_ck": FusedNorm(0, (1,)),
    "aiter::rmsnorm": FusedNorm(1, (2,), (0,)),
    "aiter::rms_norm_cu": FusedNorm(1, (2,), (0,)),
    "aiter::rmsnorm_quant": FusedNorm(1, (3,), (0, 2), 6),
    "aiter::fused_add_rms_norm_cu": FusedNorm(0, (1, 2), (0, 1), 5),
    "aiter::add_rmsnorm": FusedNorm(1, (2, 4), (0, 3), 5),
    "aiter::add_rmsnorm_quant": FusedNorm(1, (2, 5), (0, 3, 4), 7),
    "aiter::rmsnorm2d_fwd_with_add": FusedNorm(1, (2, 4), (0, 3), 5),
    "aiter::rmsnorm2d_fwd_with_add_ck": FusedNorm(1, (2, 4), (0, 3), 5),
    "aiter::rmsnorm2d_fwd_with_dynamicquant": FusedNorm(1, (3,), (0, 2), 6),
    "aiter::rmsnorm2d_fwd_with_add_dynamicquant": FusedNorm(1, (2, 5), (0, 3, 4), 7),
    "aiter::rmsnorm2d_fwd_with_dynamicquant_ck": FusedNorm(1, (3,), (0, 2), 6),
    "aiter::rmsnorm2d_fwd_with_add_dynamicquant_ck": FusedNorm(1, (2, 5), (0, 3, 4), 7),
    "aiter::layer_norm": FusedNorm(0, (1, 2), (), 7),
    "aiter::layernorm2d_fwd": FusedNorm(0, (1, 2), (), 7),
    "aiter::layernorm2d_fwd_with_add": FusedNorm(1, (2, 4, 5), (0, 3), 8),
    "aiter::layer_norm_ck": FusedNorm(0, (1, 2), (), 7),
    "aiter::layernorm2d_fwd_ck": FusedNorm(0, (1, 2), (), 7),
    "aiter::layernorm2d_fwd_with_add_ck": FusedNorm(1, (2, 4, 5), (0, 3), 8),
    "FusedLayerNormAffineFunction": FusedNorm(0, (1, 2), (), 7),
    "FusedLayerNormFunction": FusedNorm(0, (), (), 5),
    "FusedRMSNormAffineFunction": FusedNorm(0, (1,)),
    "FusedRMSNormFunction": FusedNorm(0, (), (), 3),
    "LigerRMSNormFunction": FusedNorm(0, (1,)),
    "LigerLayerNormFunction": FusedNorm(0, (1, 2), (), 7),
}

_TRAINING_ARGUMENT = 5
"""Index of the argument that says whether it is training."""


class BatchNormArguments(Struct, frozen=True):
    """Where a backward op has the output's gradient, the input, its mode and which gradients are wanted."""

    grad: int
    x: int
    mode: int = -1
    mask: int = -1


_BATCH_NORM_BACKWARD = {
    "aten::native_batch_norm_backward": BatchNormArguments(0, 1, 7, 9),
    "aten::batch_norm_backward": BatchNormArguments(0, 1, 7, 9),
    "aten::cudnn_batch_norm_backward": BatchNormArguments(1, 0),
    "aten::miopen_batch_norm_backward": BatchNormArguments(1, 0),
}

_RMS = 4
_LAYER, _LAYER_BACKWARD = 5, 9

DYNAMIC = 2
"""FLOPs an element where its scale is dynamic."""
MX_GROUP = 32


@cost("aten::native_layer_norm", "aten::layer_norm")
def layer_norm(call: OpCall) -> OpCost:
    """Layer norm: 5 FLOPs an element, 1 more each for weight and bias."""
    x = call.tensor(0)
    affine = _tensors(call, 2, 3)
    rows = x.numel // _width(call, x, 2)
    return _forward(x, 5 + len(affine), affine, 2 * size(rows, statistic(x.dtype)), rows)


@cost("aten::_fused_rms_norm", "aten::rms_norm")
def rms_norm(call: OpCall) -> OpCost:
    """RMS norm: 3 FLOPs an element, 1 more for the weight."""
    x = call.tensor(0)
    affine = _tensors(call, 2)
    rows = x.numel // _width(call, x, 2)
    return _forward(x, 3 + len(affine), affine, size(rows, statistic(x.dtype)), rows)


@cost("aten::native_group_norm", "aten::group_norm")
def group_norm(call: OpCall) -> OpCost:
    """Group norm: as layer norm, over the channels of a group; statistics for every sample and group."""
    x = call.tensor(0)
    native = call.name == "aten::native_group_norm"
    affine = _tensors(call, *((1, 2) if native else (2, 3)))
    groups = call.integer(6 if native else 1)
    rows = groups * x.shape[0] if x.shape else 0
    return _forward(x, 5 + len(affine), affine, 2 * size(rows, affine[0].dtype if affine else x.dtype), rows)


@cost("aten::native_layer_norm_backward")
def layer_norm_backward(call: OpCall) -> OpCost:
    """Layer norm, backward: 9 FLOPs an element, 2 more for the weight's gradient and 1 for the bias's."""
    return _backward(call, _tensors(call, 3, 4, 5), weight=5, mask=7, flops=(9, 2, 1))


@cost("aten::_fused_rms_norm_backward")
def rms_norm_backward(call: OpCall) -> OpCost:
    """RMS norm, backward: 6 FLOPs an element, 2 more for the weight's gradient."""
    return _backward(call, _tensors(call, 3, 4), weight=4, mask=5, flops=(6, 2))


@cost("aten::native_group_norm_backward")
def group_norm_backward(call: OpCall) -> OpCost:
    """Group norm, backward: as layer norm."""
    return _backward(call, _tensors(call, 2, 3, 4), weight=4, mask=9, flops=(9, 2, 1))


@cost(*_FUSED)
def fused_norm(call: OpCall) -> OpCost:
    """A library's norm, with residual or quantization: RMS norm 4 FLOPs an element, 1 for each extra."""
    arguments = _FUSED[call.name]
    x = call.tensor(arguments.x)
    read = x.bytes + call.bytes(*arguments.reads)
    written = sum(call.tensor(index).bytes for index in arguments.writes) or x.dense_bytes
    return OpCost(arguments.flops * x.numel, read, written, x.dtype, dims=_dims(x, _rows(x)))


@cost(
    "FusedLayerNormAffineFunctionBackward", "FusedLayerNormFunctionBackward",
    "FusedRMSNormAffineFunctionBackward", "FusedRMSNormFunctionBackward",
    "LigerLayerNormFunctionBackward", "LigerRMSNormFunctionBackward",
    forward=True,
)  # fmt: skip
def fused_norm_backward(call: OpCall) -> OpCost:
    """A library's norm, backward, sized by its forward: gradients of the input and of all parameters."""
    forward = call.of_forward()
    x = forward.tensor(0)
    each = (6, 2) if "RMSNorm" in call.name else (9, 2, 1)
    parameters = _tensors(forward, 1, 2)[: len(each) - 1]
    same, vectors = x.dense_bytes, sum(tensor.bytes for tensor in parameters)
    flops = sum(each[: len(parameters) + 1]) * x.numel
    return OpCost(flops, x.bytes + same + vectors, same + vectors, x.dtype, dims=_dims(x, _rows(x)))


def statistic(dtype: str) -> str:
    """The type in which sums over elements of a type are kept."""
    return "fp64" if dtype == "fp64" else "fp32"


def _forward(x: Tensor, flops: int, affine: list[Tensor], statistics: int, rows: int) -> OpCost:
    read = x.bytes + sum(tensor.bytes for tensor in affine)
    return OpCost(flops * x.numel, read, x.dense_bytes + statistics, x.dtype, dims=_dims(x, rows))


def _backward(call: OpCall, saved: list[Tensor], weight: int, mask: int, flops: tuple[int, ...]) -> OpCost:
    """Gradients of the input and of up to two parameters, of the size and type of argument `weight`.

    `saved` is read besides the output's gradient and the input, arguments 0 and 1; `mask` has the flags of
    wanted gradients, and `flops` are those an element of each.
    """
    grad, x = call.tensor(0), call.tensor(1)
    known = call.flags(mask, len(flops))
    required = known or [True] * len(flops)
    written = required[0] * x.dense_bytes + sum(required[1:]) * call.bytes(weight)
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


def _rows(x: Tensor) -> int:
    return x.numel // (x.shape[-1] or 1) if x.shape else 0


def _dims(x: Tensor, rows: int) -> tuple[tuple[str, int], ...]:
    return (("rows", rows), ("width", x.numel // rows)) if rows else ()


# ====================
# Batch norm (Ioffe and Szegedy 2015), forward and backward: PyTorch's own, cuDNN's and MIOpen's.
#
# FLOPs an element: in training mean 1, variance 2, subtract and scale 2, weight and bias 1 each; in
# inference, where the statistics are given, one scale and one shift. Backward: two sums 4, the input gradient
# 5 (in inference a product); the gradients of weight and bias are those sums.
#
# Bytes: input and the vectors of one value a channel once; the output once, in training also the saved mean
# and deviation and the running ones. A training kernel needs its statistics before it can write and reads its
# input twice; the least is once.


@cost(
    "aten::batch_norm", "aten::native_batch_norm", "aten::_batch_norm_impl_index", "aten::cudnn_batch_norm",
    "aten::miopen_batch_norm", "aten::_native_batch_norm_legit", "aten::_native_batch_norm_legit_functional",
    "aten::instance_norm",
)  # fmt: skip
def batch_norm(call: OpCall) -> OpCost:
    """Batch norm: 7 FLOPs an element in training (5 without weight and bias), 2 in inference."""
    text = call.text(_TRAINING_ARGUMENT).lower()
    if text not in ("true", "false"):
        return _batch_norm(call, True, "training assumed: the mode is not recorded")
    return _batch_norm(call, text == "true")


@cost("aten::_batch_norm_with_update")
def batch_norm_training(call: OpCall) -> OpCost:
    """Batch norm in training."""
    return _batch_norm(call, True)


@cost("aten::_native_batch_norm_legit_no_training", "aten::_batch_norm_no_update")
def batch_norm_inference(call: OpCall) -> OpCost:
    """Batch norm in inference."""
    return _batch_norm(call, False)


@cost(*_BATCH_NORM_BACKWARD)
def batch_norm_backward(call: OpCall) -> OpCost:
    """Batch norm, backward: 9 FLOPs an element in training, 5 in inference; statistics are read."""
    arguments = _BATCH_NORM_BACKWARD[call.name]
    grad, x = call.tensor(arguments.grad), call.tensor(arguments.x)
    channels = _channels(x)
    training = arguments.mode < 0 or call.flag(arguments.mode, True)
    known = call.flags(arguments.mask, 3) if arguments.mask >= 0 else [True] * 3
    required = known or [True] * 3
    vectors = (2, 5, 6) if training else (2, 3, 4)
    read = grad.bytes + x.bytes + call.bytes(*vectors)
    parameter = call.tensor(2).dtype if call.has(2) else statistic(x.dtype)
    written = required[0] * x.dense_bytes + sum(required[1:]) * size(channels, parameter)
    note = "" if known else _ASSUMED
    return OpCost((9 if training else 5) * x.numel, read, written, x.dtype, dims=_channel_dims(x), note=note)


def _batch_norm(call: OpCall, training: bool, note: str = "") -> OpCost:
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
    return OpCost(flops * x.numel, read, written, x.dtype, dims=_channel_dims(x), note=note)


def _channels(x: Tensor) -> int:
    if len(x.shape) < 2:
        raise Uncounted("an input without channels")
    return x.shape[1]


def _channel_dims(x: Tensor) -> tuple[tuple[str, int], ...]:
    channels = x.shape[1]
    return (("C", channels), ("each", x.numel // channels)) if channels else ()


# ====================
# Norms fused with what follows them: quantization, padding, modulation; their results are no arguments.
#
# FLOPs an element as above (RMS norm 4 with its weight, layer norm 5) and of quantization (2 where the scale
# is dynamic), 1 for a residual. Bytes: inputs and parameters once, the quantized elements with their scales,
# the sum with the residual and, if requested, the rows before quantization once.
#
# Sources: ROCm/aiter, aiter/ops/groupnorm.py, aiter/ops/triton/quant/fused_mxfp4_quant.py and
# fused_fp8_quant.py; vllm-project/vllm, vllm/_aiter_ops.py; ROCm/ATOM, atom/model_ops/layernorm.py;
# AMD-AGI/Primus, ops `primus::fused_ln_modulate`. Ops of `sglang_profiler` record tensors only
# (AMD-AGI/TraceLens, kernel shape profiler).


@cost("vllm::rocm_aiter_rmsnorm_fp8_group_quant")
def rms_norm_fp8(call: OpCall) -> OpCost:
    """RMS norm of x to fp8 with a float for each group of a row: x, weight, epsilon, group size."""
    return _rms_norm_fp8(call, None, 1, 3)


@cost("vllm::rocm_aiter_rmsnorm_with_add_fp8_group_quant")
def add_rms_norm_fp8(call: OpCall) -> OpCost:
    """The same of x + residual, which is a result too: x, residual, weight, epsilon, group size."""
    return _rms_norm_fp8(call, call.tensor(1), 2, 4)


@cost("aiter::_fuse_rmsnorm_fp4_quant")
def rms_norm_mxfp4(call: OpCall) -> OpCost:
    """RMS norm of x to MXFP4, of a second x without quantization, with a residual of the first.

    Arguments: x, weight, epsilon, second x, its weight, its epsilon, residual, two flags for the layout of
    scales, a flag for rows before quantization.
    """
    second = (call.tensor(3), call.tensor(4)) if call.has(3) else None
    return _rms_norm_mxfp4(call, second, call.tensor(6) if call.has(6) else None, call.flag(9))


@cost("sglang_profiler::fused_mxfp4_quant_fused_rms_mxfp4_quant*")
def rms_norm_mxfp4_launcher(call: OpCall) -> OpCost:
    """The same function without its numbers: a matrix behind which a vector stands is the second x."""
    first, _, *rest = call.tensors(2)
    second, residual = None, None
    for index, tensor in enumerate(rest):
        following = rest[index + 1].shape if index + 1 < len(rest) else ()
        if len(tensor.shape) != 2:
            continue
        if len(following) == 1 and second is None:
            second = (tensor, rest[index + 1])
        elif tensor.shape == first.shape and residual is None:
            residual = tensor
    return _rms_norm_mxfp4(call, second, residual, False)


@cost("aiter::fused_add_rmsnorm_pad_", "vllm::rocm_aiter_triton_add_rmsnorm_pad")
def add_rms_norm_padded(call: OpCall) -> OpCost:
    """RMS norm of x + residual, rows padded to a multiple: x, weight, epsilon, residual, the multiple."""
    x, residual = call.tensor(0), call.tensor(3)
    if not x.shape:
        raise Uncounted("an operand without dimensions")
    multiple = call.integer(4, 0)
    # Zeros behind a row are results as well.
    padded = -(-x.shape[-1] // multiple) * multiple if multiple > 0 else x.shape[-1]
    rows = x.numel // (x.shape[-1] or 1)
    written = size(rows * padded, x.dtype) + residual.dense_bytes
    return _fused_cost(x, _RMS + 1, x.bytes + residual.bytes + call.tensor(1).bytes, written)


@cost("aiter::_groupnorm_run")
def group_norm_run(call: OpCall) -> OpCost:
    """Group norm with weight and bias; newer versions have the result and a workspace in front."""
    first = 0 if call.text(1).isdigit() else 2
    x = call.tensor(first)
    parameters = call.tensor(first + 2).bytes + call.tensor(first + 3).bytes
    return _fused_cost(x, _LAYER + 2, x.bytes + parameters, x.dense_bytes)


@cost("primus::fused_ln_modulate")
def modulated(call: OpCall) -> OpCost:
    """Layer norm of x (S, B, H) times 1 + scale plus shift, (B, H) each; mean and deviation of rows saved."""
    x, scale, shift = call.tensor(0), call.tensor(1), call.tensor(2)
    written = x.dense_bytes + 2 * size(_rows(x), statistic(x.dtype))
    return _fused_cost(x, _LAYER + 2, x.bytes + scale.bytes + shift.bytes, written)


@cost("primus::fused_ln_modulate_backward")
def modulated_backward(call: OpCall) -> OpCost:
    """Gradients of x, scale (2 FLOPs an element) and shift (1) from the output's, x, statistics, scale."""
    grad, x, scale = call.tensor(0), call.tensor(1), call.tensor(4)
    read = grad.bytes + x.bytes + scale.bytes + call.tensor(2).bytes + call.tensor(3).bytes
    return _fused_cost(x, _LAYER_BACKWARD + 3, read, x.dense_bytes + 2 * scale.dense_bytes)


def _rms_norm_fp8(call: OpCall, residual: Tensor | None, weight: int, group: int) -> OpCost:
    x = call.tensor(0)
    read = x.bytes + call.tensor(weight).bytes + (residual.bytes if residual else 0)
    written = size(x.numel, "fp8") + 4 * groups(x, call.integer(group))
    written += residual.dense_bytes if residual else 0
    return _fused_cost(x, _RMS + DYNAMIC + (residual is not None), read, written)


def _rms_norm_mxfp4(
    call: OpCall, second: tuple[Tensor, Tensor] | None, residual: Tensor | None, plain: bool
) -> OpCost:
    x = call.tensor(0)
    read = x.bytes + call.tensor(1).bytes
    written = mxfp4_bytes(x) + (x.dense_bytes if plain else 0)
    if residual:
        read, written = read + residual.bytes, written + x.dense_bytes
    counted = _fused_cost(x, _RMS + DYNAMIC + (residual is not None), read, written)
    if second is None:
        return counted
    other, weight = second
    return counted._replace(
        flops=counted.flops + _RMS * other.numel,
        read_bytes=read + other.bytes + weight.bytes,
        write_bytes=written + other.dense_bytes,
    )


def _fused_cost(x: Tensor, flops: int, read: int, written: int) -> OpCost:
    return OpCost(flops * x.numel, read, written, x.dtype, dims=_dims(x, _rows(x)))


# ====================
# Quantization to 8 and 4 bits, with dynamic or static scales.
#
# FLOPs: 1 an element for its scale, 1 more where the scale is the greatest element's (of a tensor, a row or a
# group). Bytes: input once, quantized elements and scales once. Elements of 4 bits are packed in pairs, a
# scale of an MX format is a byte (E8M0) for 32 elements (Open Compute Project, "OCP Microscaling Formats (MX)
# Specification", 2023). Rows added as padding, rotation and stochastic rounding are not counted.
#
# Sources: ROCm/aiter, aiter/ops/quant.py and aiter/ops/triton/quant; vllm-project/vllm,
# vllm/model_executor/layers/quantization/utils/fp8_utils.py; AMD-AGI/Primus-Turbo,
# primus_turbo/pytorch/kernels/quantization/quantization_impl.py. Ops of `sglang_profiler` are wrappers around
# functions of the same name that record tensors only (AMD-AGI/TraceLens, kernel shape profiler).


@cost(
    "aiter::dynamic_per_tensor_quant", "aiter::dynamic_per_token_scaled_quant",
    "aiter::dynamic_per_group_scaled_quant", "aiter::dynamic_per_group_scaled_quant_fp4",
)  # fmt: skip
def dynamic(call: OpCall) -> OpCost:
    """Quantized elements, input, scales: 2 FLOPs an element."""
    return _into(call, call.tensor(1), (0, 2), DYNAMIC)


@cost("aiter::static_per_tensor_quant")
def static(call: OpCall) -> OpCost:
    """Quantized elements, input, the scale: 1 FLOP an element."""
    return _into(call, call.tensor(1), (0,), 1, extra=call.bytes(2))


@cost(
    "aiter::fused_dynamic_mx_quant_moe_sort_hip", "aiter::fused_dynamic_mxfp4_quant_moe_sort_hip",
)  # fmt: skip
def dynamic_sorted(call: OpCall) -> OpCost:
    """The same with scales in the order of the sorted (token, expert) pairs: result, scales, input, order."""
    return _into(call, call.tensor(2), (0, 1), DYNAMIC, extra=call.bytes(3, 4))


@cost("aiter::mxfp4_moe_sort_hip")
def sort_scales(call: OpCall) -> OpCost:
    """Scales into the order of the sorted (token, expert) pairs: sorted scales, scales, order."""
    read, written = call.bytes(1, 2, 3), call.tensor(0)
    return OpCost(0, read, written.bytes, call.tensor(1).dtype)


@cost("vllm::triton_per_token_group_quant_fp8")
def per_group(call: OpCall) -> OpCost:
    """Rows to fp8, with a float for each group of a row."""
    x, group = call.tensor(0), call.integer(1)
    return _new(x, size(x.numel, "fp8") + 4 * groups(x, group))


@cost(
    "sglang_profiler::quant_dynamic_mxfp4_quant*",
    "sglang_profiler::fused_mxfp4_quant_fused_flatten_mxfp4_quant*",
)
def mxfp4(call: OpCall) -> OpCost:
    """Rows to MXFP4; of three dimensions the last two are one row."""
    x = call.tensor(0)
    if "flatten" in call.name:
        rows, first, second = shape_of(x, 3)
        x = x._replace(shape=(rows, first * second))
    return _new(x, mxfp4_bytes(x))


@cost(
    "primus::quantize_mxfp4_dual", "primus_turbo::quantize_mxfp4_dual",
    "primus_turbo_cpp_extension::quantize_mxfp4_dual",
)  # fmt: skip
def mxfp4_both_ways(call: OpCall) -> OpCost:
    """A matrix and its transpose to MXFP4, each with scales of its own: 4 FLOPs an element."""
    x = call.tensor(0)
    transposed = x._replace(shape=shape_of(x, 2)[::-1])
    return _new(x, mxfp4_bytes(x) + mxfp4_bytes(transposed), 2 * DYNAMIC)


@cost(
    "primus_turbo::quantize_fp8_tensorwise", "primus_turbo_cpp_extension::quantize_fp8_tensorwise",
)  # fmt: skip
def tensorwise(call: OpCall) -> OpCost:
    """A tensor to fp8 with one scale, dynamic or an argument; its inverse is a result."""
    x = call.tensor(0)
    out = dtype_argument(call, 1) or "fp8"
    counted = _new(x, size(x.numel, out) + 4, 1 if call.has(2) else DYNAMIC)
    return counted._replace(read_bytes=x.bytes + call.bytes(2))


def groups(x: Tensor, group: int) -> int:
    """Groups of so many elements in all rows of a tensor, the last of a row perhaps shorter."""
    if group <= 0 or not x.shape:
        raise Uncounted("size of the groups not recorded")
    return prod(x.shape[:-1]) * -(-x.shape[-1] // group)


def mxfp4_bytes(x: Tensor) -> int:
    """Bytes of a tensor in MXFP4: half a byte an element, a byte for 32 of a row."""
    return size(x.numel, "fp4") + groups(x, MX_GROUP)


def _into(call: OpCall, x: Tensor, results: tuple[int, ...], flops: int, extra: int = 0) -> OpCost:
    """Results that are arguments; a quantized one may be packed."""
    written = sum(call.tensor(index).bytes for index in results)
    return OpCost(flops * x.numel, x.bytes + extra, written, x.dtype, dims=_row_dims(x))


def _new(x: Tensor, written: int, flops: int = DYNAMIC) -> OpCost:
    return OpCost(flops * x.numel, x.bytes, written, x.dtype, dims=_row_dims(x))


def _row_dims(x: Tensor) -> tuple[tuple[str, int], ...]:
    return (("rows", prod(x.shape[:-1])), ("width", x.shape[-1])) if x.shape else ()


# ====================
# Softmax and log-softmax, forward and backward, masked and scaled ones too.
#
# FLOPs an element: forward 5 (maximum, subtract, exponential, sum, divide), backward 4 (product, sum,
# subtract, product), a scale or a mask 1 more. Bytes: input and mask once, output once; backward reads the
# output and its gradient.


@cost("aten::_softmax", "aten::_log_softmax")
def softmax(call: OpCall) -> OpCost:
    """Softmax: 5 FLOPs an element; half types may widen to FP32."""
    x = call.tensor(0)
    return _softmax(x, 5, out="fp32" if call.flag(2) else x.dtype)


@cost("aten::softmax", "aten::log_softmax", "aten::_safe_softmax", "aten::special_softmax")
def softmax_public(call: OpCall) -> OpCost:
    """Softmax as called, with the type that it was asked for: 5 FLOPs an element."""
    x = call.tensor(0)
    return _softmax(x, 5, out=SCALAR_TYPES.get(call.text(2), x.dtype))


@cost("aten::_softmax_backward_data", "aten::_log_softmax_backward_data")
def softmax_backward(call: OpCall) -> OpCost:
    """Softmax, backward: 4 FLOPs an element; the gradient has the type that the input had."""
    grad, out = call.tensor(0), call.tensor(1)
    written = size(out.numel, SCALAR_TYPES.get(call.text(3), out.dtype))
    return OpCost(4 * out.numel, grad.bytes + out.bytes, written, grad.dtype, dims=_softmax_dims(out))


@cost("aten::_masked_softmax", "ScaledMaskedSoftmax", "GenericScaledMaskedSoftmax")
def masked_softmax(call: OpCall) -> OpCost:
    """Softmax of scores with a mask (and a scale, in Megatron's): 6 FLOPs an element."""
    x = call.tensor(0)
    return _softmax(x, 6, out=x.dtype, extra=call.bytes(1))


@cost("ScaledSoftmax")
def scaled_softmax(call: OpCall) -> OpCost:
    """Megatron's softmax of scaled scores: 6 FLOPs an element."""
    x = call.tensor(0)
    return _softmax(x, 6, out=x.dtype)


@cost("ScaledUpperTriangMaskedSoftmax", "ScaledAlignedCausalMaskedSoftmax")
def causal_softmax(call: OpCall) -> OpCost:
    """Megatron's softmax of scaled causal scores: half are neither read nor counted, all are written."""
    x = call.tensor(0)
    written = x.dense_bytes
    return OpCost(
        3 * x.numel, x.bytes // 2, written, x.dtype, dims=_softmax_dims(x), note="causal: half of the scores"
    )


@cost("aten::_masked_softmax_backward")
def masked_softmax_backward(call: OpCall) -> OpCost:
    """Softmax with a mask, backward: 5 FLOPs an element."""
    grad, out, mask = call.tensor(0), call.tensor(1), call.tensor(2)
    read = grad.bytes + out.bytes + mask.bytes
    return OpCost(5 * out.numel, read, out.dense_bytes, out.dtype, dims=_softmax_dims(out))


@cost(
    "ScaledMaskedSoftmaxBackward", "GenericScaledMaskedSoftmaxBackward", "ScaledSoftmaxBackward",
    "ScaledUpperTriangMaskedSoftmaxBackward", "ScaledAlignedCausalMaskedSoftmaxBackward",
)  # fmt: skip
def scaled_backward(call: OpCall) -> OpCost:
    """Megatron's softmax, backward: 5 FLOPs an element; the saved output is as large as its gradient."""
    grad = call.tensor(0)
    each = grad.dense_bytes
    return OpCost(5 * grad.numel, grad.bytes + each, each, grad.dtype, dims=_softmax_dims(grad))


def _softmax(x: Tensor, flops: int, out: str, extra: int = 0) -> OpCost:
    return OpCost(flops * x.numel, x.bytes + extra, size(x.numel, out), x.dtype, dims=_softmax_dims(x))


def _softmax_dims(x: Tensor) -> tuple[tuple[str, int], ...]:
    if not x.shape or not x.shape[-1]:
        return ()
    return (("rows", x.numel // x.shape[-1]), ("width", x.shape[-1]))


# ====================
# Manifold-constrained hyper-connections (Xie et al., "mHC", 2025): n streams of a residual of width C.
#
# Of each token: logits = (all n·C elements) · fn, fn being (n² + 2n, n·C), scaled by the root of the sum of
# squares. They give weights to mix the streams into a layer's input (n), to add its output to them (n), and a
# doubly stochastic matrix (n, n) between them, by Sinkhorn iterations.
#
# - logits: 2·M·(n² + 2n)·n·C FLOPs, which are a GEMM, and 2 an element for squares;
# - after a layer: out = post · x + comb · residual, 2·M·n·C·(1 + n);
# - before a layer: input = pre · residual, 2·M·n·C; with RMS norm 4·M·C more. The iterations work on n²
#   numbers a token and are not counted.
#
# Bytes: inputs and parameters once, results once; logits are there once for each part of a split inner
# dimension, as recorded. Source: ROCm/aiter, aiter/ops/mhc.py.


@cost("aiter::mhc_pre_gemm_sqrsum")
def logits(call: OpCall) -> OpCost:
    """Logits and sums of squares of x (M, n, C) by fn: both results first."""
    x, fn = call.tensor(2), call.tensor(3)
    tokens, _, _ = _streams(x)
    flops = _projection(tokens, fn, x)
    counted = _stream_cost(flops, x.bytes + fn.bytes, call.tensor(0).bytes + call.tensor(1).bytes, x)
    return counted._replace(engine="matrix", dtype=math_dtype(call, x, fn))


@cost("aiter::mhc_post")
def after_layer(call: OpCall) -> OpCost:
    """Next residual (M, n, C), first, from a layer's output, the residual and both mixes."""
    out, residual = call.tensor(0), call.tensor(2)
    tokens, streams, width = _streams(residual)
    read = sum(call.tensor(index).bytes for index in (1, 2, 3, 4))
    return _stream_cost(2 * tokens * streams * width * (1 + streams), read, out.bytes, residual)


@cost("aiter::mhc_fused_post_pre_gemm_sqrsum")
def after_layer_and_logits(call: OpCall) -> OpCost:
    """The next residual, and at once its logits and sums of squares: three results first."""
    residual, fn = call.tensor(4), call.tensor(7)
    tokens, streams, width = _streams(residual)
    flops = 2 * tokens * streams * width * (1 + streams) + _projection(tokens, fn, residual)
    read = sum(call.tensor(index).bytes for index in (3, 4, 5, 6, 7))
    counted = _stream_cost(flops, read, sum(call.tensor(index).bytes for index in (0, 1, 2)), residual)
    return counted._replace(engine="matrix", dtype=math_dtype(call, residual, fn))


@cost("aiter::mhc_pre_big_fuse", "aiter::mhc_pre_big_fuse_rmsnorm")
def before_layer(call: OpCall) -> OpCost:
    """Both mixes and a layer's input (M, C), first, from logits, sums of squares and the residual."""
    residual = call.tensor(7)
    tokens, streams, width = _streams(residual)
    norm = call.name.endswith("rmsnorm")
    reads = (3, 4, 5, 6, 7, *((8,) if norm else ()))
    flops = 2 * tokens * streams * width + (_RMS * tokens * width if norm else 0)
    read, written = (sum(call.tensor(index).bytes for index in part) for part in (reads, (0, 1, 2)))
    return _stream_cost(flops, read, written, residual)


def _streams(residual: Tensor) -> tuple[int, int, int]:
    if len(residual.shape) != 3:
        raise Uncounted(f"a residual with {len(residual.shape)} dimensions instead of 3")
    tokens, streams, width = residual.shape
    return tokens, streams, width


def _projection(tokens: int, fn: Tensor, residual: Tensor) -> int:
    _, streams, width = _streams(residual)
    if len(fn.shape) != 2 or fn.shape[1] != streams * width:
        raise Uncounted("recorded shapes of streams and their projection disagree")
    return 2 * tokens * fn.shape[0] * fn.shape[1] + 2 * residual.numel


def _stream_cost(flops: int, read: int, written: int, residual: Tensor) -> OpCost:
    tokens, streams, width = _streams(residual)
    dims = (("M", tokens), ("streams", streams), ("C", width))
    return OpCost(flops, read, written, residual.dtype, dims=dims)
