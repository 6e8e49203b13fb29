"""Convolutions of one to three dimensions, their transposes and gradients.

Every element of the output is an inner product over the C/groups channels and all taps of the filter:
2·prod(output)·prod(filter[1:]) FLOPs, the filter being (K, C/groups, taps…). A transposed convolution has the
filter (C, K/groups, taps…) and spreads every element of its input: 2·prod(input)·prod(filter[1:]). Its two
gradients (of the input and of the filter) each take as many. The bias is in bytes only.

Sizes follow the documentation of torch.nn.Conv2d and ConvTranspose2d; padded zeros count as work, as there.
"""

from __future__ import annotations

import re
from math import log2, prod

from msgspec import Struct

from tracelens.costs.gemm import math_dtype
from tracelens.costs.model import OpCall, OpCost, Tensor, Uncounted, cost, size
from tracelens.costs.tensors import REAL


class ConvolutionArguments(Struct, frozen=True):
    """Where an op has its arguments, -1 where it has none; input and filter are always 0 and 1."""

    bias: int
    stride: int
    padding: int
    dilation: int = -1
    groups: int = -1
    output_padding: int = -1
    flag: int = -1
    transposed: bool = False


_GENERAL = ConvolutionArguments(bias=2, stride=3, padding=4, dilation=5, groups=8, output_padding=7, flag=6)
_PUBLIC = ConvolutionArguments(bias=2, stride=3, padding=4, dilation=5, groups=6)
_TRANSPOSE = ConvolutionArguments(
    bias=2, stride=3, padding=4, output_padding=5, groups=6, dilation=7, transposed=True
)
_MIOPEN = ConvolutionArguments(bias=2, padding=3, stride=4, dilation=5, groups=6)
_SLOW = ConvolutionArguments(bias=3, stride=4, padding=5)
_DILATED = ConvolutionArguments(bias=3, stride=4, padding=5, dilation=6)
_SLOW_TRANSPOSE = ConvolutionArguments(
    bias=3, stride=4, padding=5, output_padding=6, dilation=7, transposed=True
)
_CONVOLUTIONS = {
    "aten::convolution": _GENERAL,
    "aten::_convolution": _GENERAL,
    "aten::convolution_overrideable": _GENERAL,
    "aten::conv1d": _PUBLIC,
    "aten::conv2d": _PUBLIC,
    "aten::conv3d": _PUBLIC,
    "aten::cudnn_convolution_relu": _PUBLIC,
    "aten::miopen_convolution_relu": _PUBLIC,
    "aten::conv_transpose1d": _TRANSPOSE,
    "aten::conv_transpose2d": _TRANSPOSE,
    "aten::conv_transpose3d": _TRANSPOSE,
    "aten::cudnn_convolution": ConvolutionArguments(bias=-1, padding=2, stride=3, dilation=4, groups=5),
    "aten::cudnn_convolution_transpose": ConvolutionArguments(
        bias=-1, padding=2, output_padding=3, stride=4, dilation=5, groups=6, transposed=True
    ),
    "aten::cudnn_convolution_add_relu": ConvolutionArguments(
        bias=4, stride=5, padding=6, dilation=7, groups=8
    ),
    "aten::miopen_convolution_add_relu": ConvolutionArguments(
        bias=4, stride=5, padding=6, dilation=7, groups=8
    ),
    "aten::miopen_convolution": _MIOPEN,
    "aten::miopen_depthwise_convolution": _MIOPEN,
    "aten::mkldnn_convolution": _MIOPEN,
    "aten::miopen_convolution_transpose": ConvolutionArguments(
        bias=2, padding=3, output_padding=4, stride=5, dilation=6, groups=7, transposed=True
    ),
    "aten::thnn_conv2d": _SLOW,
    "aten::_slow_conv2d_forward": _SLOW,
    "aten::slow_conv3d": _SLOW,
    "aten::slow_conv3d_forward": _SLOW,
    "aten::slow_conv_dilated2d": _DILATED,
    "aten::slow_conv_dilated3d": _DILATED,
    "aten::_conv_depthwise2d": _DILATED,
    "aten::conv_depthwise3d": _DILATED,
    "aten::slow_conv_transpose2d": _SLOW_TRANSPOSE,
    "aten::slow_conv_transpose3d": _SLOW_TRANSPOSE,
    "ConvBias_": ConvolutionArguments(bias=2, padding=3, stride=4),
    "ConvBiasReLU_": ConvolutionArguments(bias=2, padding=3, stride=4),
    "ConvBiasMaskReLU_": ConvolutionArguments(bias=2, padding=4, stride=5),
}
_VECTOR = ("aten::_conv_depthwise2d", "aten::conv_depthwise3d")
_TAPS = "TRS"

_MAX_POOLS = (
    "aten::max_pool1d", "aten::max_pool2d", "aten::max_pool3d", "aten::mkldnn_max_pool2d",
    "aten::max_pool1d_with_indices", "aten::max_pool2d_with_indices", "aten::max_pool3d_with_indices",
)  # fmt: skip
_AVERAGE_POOLS = ("aten::avg_pool1d", "aten::avg_pool2d", "aten::avg_pool3d")
_NEIGHBOURS = {
    "aten::upsample_nearest1d": 0,
    "aten::upsample_nearest2d": 0,
    "aten::upsample_nearest3d": 0,
    "aten::_upsample_nearest_exact1d": 0,
    "aten::_upsample_nearest_exact2d": 0,
    "aten::_upsample_nearest_exact3d": 0,
    "aten::upsample_linear1d": 2,
    "aten::upsample_bilinear2d": 4,
    "aten::upsample_bicubic2d": 16,
    "aten::upsample_trilinear3d": 8,
}
_UPSAMPLE_BACKWARD = {f"{name}_backward": neighbours for name, neighbours in _NEIGHBOURS.items()}
_WINDOW = {
    "aten::_upsample_bilinear2d_aa": 2,
    "aten::_upsample_bicubic2d_aa": 4,
    "aten::_upsample_lanczos2d_aa": 6,
}
"""Neighbors in one dimension where it does not shrink."""
_SAMPLED = {0: {2: 4, 3: 8}, 1: {2: 0, 3: 0}, 2: {2: 16}}
"""Neighbors by interpolation (linear, nearest, cubic) and number of dimensions."""
_RANK = re.compile(r"(\d)d")

_COMPLEX_OF = {"fp16": "c32", "fp32": "c64", "fp64": "c128"}


@cost(*_CONVOLUTIONS)
def convolution(call: OpCall) -> OpCost:
    """Convolution, forward: 2·prod(output)·prod(filter[1:]), transposed 2·prod(input)·prod(filter[1:])."""
    arguments = _CONVOLUTIONS[call.name]
    x, weight = _operands(call, 0)
    transposed = arguments.transposed or (arguments.flag >= 0 and call.flag(arguments.flag))
    out = _output(call, arguments, x, weight, transposed)
    extra = call.bytes(arguments.bias)
    if call.name.endswith("add_relu"):
        extra += call.tensor(2).bytes  # the addend
    if call.name == "ConvBiasMaskReLU_":
        extra += call.tensor(3).bytes
    flops = 2 * (x.numel if transposed else prod(out)) * prod(weight.shape[1:])
    return OpCost(
        flops,
        x.bytes + weight.bytes + extra,
        size(prod(out), x.dtype),
        math_dtype(call, x, weight),
        "vector" if call.name in _VECTOR else "matrix",
        dims=_convolution_dims(x.shape, out[1], weight),
    )


@cost("aten::convolution_backward", "aten::convolution_backward_overrideable")
def convolution_backward(call: OpCall) -> OpCost:
    """Convolution, backward: as many FLOPs as forward for each of the gradients of input and filter."""
    shift = 0 if call.name == "aten::convolution_backward" else -1
    return _gradients(call, transposed=call.flag(7 + shift), mask=10 + shift)


@cost("aten::_slow_conv2d_backward")
def slow_backward(call: OpCall) -> OpCost:
    """Convolution through unfolded columns, backward."""
    return _gradients(call, transposed=False, mask=6)


@cost("ConvBias_Backward", "ConvBiasReLU_Backward", "ConvBiasMaskReLU_Backward", forward=True)
def fused_backward(call: OpCall) -> OpCost:
    """Convolution fused with bias (and ReLU), backward, sized by its forward; all three gradients."""
    forward = call.of_forward()
    if forward.name not in _CONVOLUTIONS:
        raise Uncounted("its forward op is not in the trace")
    forward_cost = convolution(forward)
    x, weight = _operands(forward, 0)
    read = forward_cost.write_bytes + x.bytes + weight.bytes
    written = x.bytes + weight.bytes + forward.tensor(2).bytes
    return forward_cost._replace(flops=2 * forward_cost.flops, read_bytes=read, write_bytes=written)


def _gradients(call: OpCall, transposed: bool, mask: int) -> OpCost:
    grad = call.tensor(0)
    x, weight = _operands(call, 1)
    if len(grad.shape) != len(x.shape):
        raise Uncounted("recorded shapes of input and output disagree")
    required = call.flags(mask, 3)
    if not required:
        raise Uncounted("the required gradients are not recorded")
    of_input, of_weight, of_bias = required
    channels = grad.shape[len(grad.shape) - len(weight.shape) + 1]
    once = 2 * (x.numel if transposed else grad.numel) * prod(weight.shape[1:])
    read = grad.bytes + (weight.bytes if of_input else 0) + (x.bytes if of_weight else 0)
    elements = of_input * x.numel + of_weight * weight.numel + of_bias * channels
    dtype = math_dtype(call, x, weight)
    left_out = (("no input gradient", of_input), ("no filter gradient", of_weight))
    missing = ", ".join(text for text, is_wanted in left_out if not is_wanted)
    flops = once * (of_input + of_weight)
    dims = _convolution_dims(x.shape, channels, weight)
    return OpCost(flops, read, size(elements, x.dtype), dtype, "matrix", dims=dims, note=missing)


def _operands(call: OpCall, first: int) -> tuple[Tensor, Tensor]:
    """Input and filter; the input may lack the batch."""
    x, weight = call.tensor(first), call.tensor(first + 1)
    rank = len(weight.shape)
    if not 3 <= rank <= 5 or len(x.shape) not in (rank, rank - 1):
        raise Uncounted(f"an input of {len(x.shape)} dimensions with a filter of {rank}")
    if len(x.shape) < rank:
        x = x._replace(shape=(1, *x.shape))
    return x, weight


def _output(
    call: OpCall, arguments: ConvolutionArguments, x: Tensor, weight: Tensor, transposed: bool
) -> tuple[int, ...]:
    """Shape of the output (N, K, …)."""
    taps = weight.shape[2:]
    groups = call.integer(arguments.groups) if arguments.groups >= 0 else 1
    stride = _one_per_dimension(call, arguments.stride, len(taps))
    padding = _one_per_dimension(call, arguments.padding, len(taps))
    dilation = (
        _one_per_dimension(call, arguments.dilation, len(taps))
        if arguments.dilation >= 0
        else [1] * len(taps)
    )
    if min(stride) < 1:
        raise Uncounted("a stride of 0 is recorded")
    sides = zip(x.shape[2:], taps, stride, padding, dilation, strict=True)
    if not transposed:
        return (
            x.shape[0],
            weight.shape[0],
            *(max((n + 2 * p - d * (k - 1) - 1) // s + 1, 0) for n, k, s, p, d in sides),
        )
    more = _one_per_dimension(call, arguments.output_padding, len(taps))
    return (
        x.shape[0],
        weight.shape[1] * groups,
        *(
            max((n - 1) * s - 2 * p + d * (k - 1) + extra + 1, 0)
            for (n, k, s, p, d), extra in zip(sides, more, strict=True)
        ),
    )


def _one_per_dimension(call: OpCall, index: int, count: int) -> list[int]:
    """One number a dimension; a single one stands for all."""
    numbers = call.integers(index)
    if len(numbers) == 1:
        return numbers * count
    if len(numbers) != count:
        raise Uncounted("stride or padding not recorded as numbers")
    return numbers


def _convolution_dims(x: tuple[int, ...], channels: int, weight: Tensor) -> tuple[tuple[str, int], ...]:
    sides = zip("DHW"[5 - len(weight.shape) :], x[2:], strict=True)
    taps = zip(_TAPS[5 - len(weight.shape) :], weight.shape[2:], strict=True)
    return (("N", x[0]), ("C", x[1]), ("K", channels), *sides, *taps)


# ====================
# Pooling and resampling, forward and backward.
#
# Sizes follow the documentation of torch.nn.MaxPool2d: floor((n + 2·pad - dilation·(k - 1) - 1) / stride) +
# 1, with ceil instead of floor where asked for, less one window that would begin in the padding on the right.
#
# FLOPs: an output of a pool takes one comparison or addition an element of its window; an upsampled element
# two (multiply, add) a neighbor it is mixed of: linear 2, bilinear 4, bicubic 16, trilinear 8, nearest none.
# Anti-aliased resampling mixes the neighbors of one dimension after the other; where it shrinks, the window
# grows with the ratio of sizes. Backward spreads each gradient over the same elements. Bytes: input once,
# output and indices once.


@cost(*_MAX_POOLS, *_AVERAGE_POOLS)
def pool(call: OpCall) -> OpCost:
    """Pooling: one FLOP an element of every window."""
    x, rank = call.tensor(0), _rank(call)
    kernel = _counts(call.integers(1), rank, "size of the window")
    dilated = call.name in _MAX_POOLS
    stride = _counts(call.integers(2), rank, "stride") if call.integers(2) else kernel
    padding = _counts(call.integers(3), rank, "padding")
    dilation = _counts(call.integers(4), rank, "dilation") if dilated else [1] * rank
    if len(x.shape) not in (rank + 1, rank + 2) or min(stride) < 1:
        raise Uncounted(f"an input of {len(x.shape)} dimensions, or a stride of 0, for a {rank}d pool")
    ceil = call.flag(5 if dilated else 4)
    windows = []
    for n, k, s, p, d in zip(x.shape[-rank:], kernel, stride, padding, dilation, strict=True):
        count = (n + 2 * p - d * (k - 1) - 1 + (s - 1 if ceil else 0)) // s + 1
        windows.append(max(count - int(ceil and (count - 1) * s >= n + p), 0))
    out = (*x.shape[:-rank], *windows)
    written = size(prod(out), x.dtype) + (8 * prod(out) if "with_indices" in call.name else 0)
    return OpCost(prod(out) * prod(kernel), x.bytes, written, x.dtype, dims=_plane_dims(x, out, rank))


@cost("aten::max_pool2d_with_indices_backward", "aten::max_pool3d_with_indices_backward")
def max_pool_backward(call: OpCall) -> OpCost:
    """Max pooling, backward: every gradient is added at the place its index tells, 1 FLOP."""
    grad, x, indices = call.tensor(0), call.tensor(1), call.tensor(7)
    rank = _rank(call)
    written = x.dense_bytes
    dims = _plane_dims(x, grad.shape, rank)
    return OpCost(grad.numel, grad.bytes + indices.bytes, written, x.dtype, dims=dims)


@cost("aten::avg_pool2d_backward", "aten::avg_pool3d_backward")
def avg_pool_backward(call: OpCall) -> OpCost:
    """Average pooling, backward: every gradient is added to the elements of its window."""
    grad, x = call.tensor(0), call.tensor(1)
    rank = _rank(call)
    kernel = _counts(call.integers(2), rank, "size of the window")
    written = x.dense_bytes
    return OpCost(
        grad.numel * prod(kernel), grad.bytes, written, x.dtype, dims=_plane_dims(x, grad.shape, rank)
    )


@cost(
    "aten::adaptive_avg_pool1d", "aten::adaptive_avg_pool2d", "aten::_adaptive_avg_pool2d",
    "aten::adaptive_avg_pool3d", "aten::_adaptive_avg_pool3d", "aten::adaptive_max_pool2d",
    "aten::adaptive_max_pool3d",
)  # fmt: skip
def adaptive_pool(call: OpCall) -> OpCost:
    """Pooling to a given size: one FLOP an element of the input (overlaps of windows once)."""
    x, rank = call.tensor(0), _rank(call)
    out = _resized(x, _counts(call.integers(1), rank, "size of the output"))
    indices = 8 * prod(out) if "max" in call.name else 0
    return OpCost(
        x.numel, x.bytes, size(prod(out), x.dtype) + indices, x.dtype, dims=_plane_dims(x, out, rank)
    )


@cost(
    "aten::_adaptive_avg_pool2d_backward", "aten::_adaptive_avg_pool3d_backward",
    "aten::adaptive_max_pool2d_backward", "aten::adaptive_max_pool3d_backward",
)  # fmt: skip
def adaptive_pool_backward(call: OpCall) -> OpCost:
    """Pooling to a given size, backward: one FLOP an element of the input (average) or output (maximum)."""
    grad, x = call.tensor(0), call.tensor(1)
    largest = "max" in call.name
    read = grad.bytes + (call.tensor(2).bytes if largest else 0)
    flops = grad.numel if largest else x.numel
    return OpCost(flops, read, x.dense_bytes, x.dtype, dims=_plane_dims(x, grad.shape, _rank(call)))


@cost(*_NEIGHBOURS)
def upsample(call: OpCall) -> OpCost:
    """Resampling to a given size: 2 FLOPs a neighbor of every output."""
    x, rank, neighbours = call.tensor(0), _rank(call), _NEIGHBOURS[call.name]
    out = _resized(x, _counts(call.integers(1), rank, "size of the output"))
    # A nearest neighbor can be skipped: no more of the input is read than there are outputs.
    read = x.bytes if neighbours else min(x.bytes, size(prod(out), x.dtype))
    flops = 2 * neighbours * prod(out)
    return OpCost(flops, read, size(prod(out), x.dtype), x.dtype, dims=_plane_dims(x, out, rank))


@cost(*_UPSAMPLE_BACKWARD)
def upsample_backward(call: OpCall) -> OpCost:
    """Resampling, backward: 2 FLOPs a neighbor of every gradient, 1 for a nearest one."""
    grad, rank, neighbours = call.tensor(0), _rank(call), _UPSAMPLE_BACKWARD[call.name]
    shape = call.integers(2)
    if len(shape) != rank + 2 or min(shape) < 0:
        raise Uncounted("the size of the input is not recorded")
    flops = (2 * neighbours or 1) * grad.numel
    dims = _plane_dims(Tensor(tuple(shape), grad.dtype, prod(shape)), grad.shape, rank)
    return OpCost(flops, grad.bytes, size(prod(shape), grad.dtype), grad.dtype, dims=dims)


@cost(*_WINDOW)
def upsample_antialiased(call: OpCall) -> OpCost:
    """Anti-aliased resampling, rows before columns: 2 FLOPs a neighbor of both passes' outputs."""
    x = call.tensor(0)
    out = _resized(x, _counts(call.integers(1), 2, "size of the output"))
    (height, width), (out_height, out_width) = x.shape[-2:], out[-2:]
    planes, window = prod(out[:-2]), _WINDOW[call.name]
    down, across = (
        -(-window * max(source, result) // (result or 1))
        for source, result in ((height, out_height), (width, out_width))
    )
    flops = 2 * planes * out_width * (across * height + down * out_height)
    return OpCost(flops, x.bytes, size(prod(out), x.dtype), x.dtype, dims=_plane_dims(x, out, 2))


@cost("aten::grid_sampler_2d", "aten::grid_sampler_3d", "aten::cudnn_grid_sampler")
def grid_sample(call: OpCall) -> OpCost:
    """Samples at the points of a grid: 2 FLOPs a neighbor of every output."""
    x, grid = call.tensor(0), call.tensor(1)
    rank = len(grid.shape) - 2
    if rank not in (2, 3) or len(x.shape) != rank + 2:
        raise Uncounted("input and grid are not of two or three dimensions")
    neighbours = _SAMPLED.get(call.integer(2, 0), {}).get(rank)
    if neighbours is None:
        raise Uncounted("an unknown interpolation")
    out = (*x.shape[:2], *grid.shape[1:-1])
    # No more of the input is read than its samples touch.
    touched = min(x.bytes, size((neighbours or 1) * prod(out), x.dtype))
    written = size(prod(out), x.dtype)
    return OpCost(
        2 * neighbours * prod(out), touched + grid.bytes, written, x.dtype, dims=_plane_dims(x, out, rank)
    )


def _rank(call: OpCall) -> int:
    """Number of dimensions that are pooled or resampled, which the name of the op says."""
    match = _RANK.search(call.name)
    assert match is not None
    return int(match[1])


def _resized(x: Tensor, sides: list[int]) -> tuple[int, ...]:
    if len(x.shape) not in (len(sides) + 1, len(sides) + 2) or min(sides) < 0:
        raise Uncounted(f"an input of {len(x.shape)} dimensions resized in {len(sides)}")
    return (*x.shape[: -len(sides)], *sides)


def _counts(numbers: list[int], count: int, noun: str) -> list[int]:
    """One number a dimension; a single one stands for all."""
    if len(numbers) == 1:
        numbers = numbers * count
    if len(numbers) != count or min(numbers, default=0) < 0:
        raise Uncounted(f"the {noun} is not recorded")
    return numbers


def _plane_dims(x: Tensor, out: tuple[int, ...], rank: int) -> tuple[tuple[str, int], ...]:
    """Planes, and the sizes of one before and after."""
    names = "DHW"[3 - rank :]
    planes = prod(x.shape[:-rank])
    after = zip((f"{name}out" for name in names), out[-rank:], strict=False)
    return (("planes", planes), *zip(names, x.shape[-rank:], strict=False), *after)


# ====================
# Fourier transforms: 5·N·log2 N FLOPs for N complex elements, half as many where one side is real.
#
# The count of a radix-2 transform, by which libraries are compared (Frigo and Johnson 2005, FFTW). A real
# side has N elements of half the size where the complex one has N/2 + 1.


@cost("aten::_fft_c2c")
def complex_to_complex(call: OpCall) -> OpCost:
    """Complex transform over some dimensions."""
    x, dims = _fourier_operand(call)
    return _fourier_cost(x, x.shape, dims, x.dtype, 5)


@cost("aten::_fft_r2c")
def real_to_complex(call: OpCall) -> OpCost:
    """Transform of real elements: half of the last dimension, as the other half mirrors it, unless both."""
    x, dims = _fourier_operand(call)
    shape = list(x.shape)
    if call.flag(3, default=True):
        shape[dims[-1]] = shape[dims[-1]] // 2 + 1
    return _fourier_cost(x, tuple(shape), dims, _COMPLEX_OF.get(x.dtype, ""), 2.5)


@cost("aten::_fft_c2r")
def complex_to_real(call: OpCall) -> OpCost:
    """Transform to real elements, whose last dimension is given."""
    x, dims = _fourier_operand(call)
    shape = list(x.shape)
    shape[dims[-1]] = call.integer(3)
    if shape[dims[-1]] < 0:
        raise Uncounted("the size of the output is negative")
    return _fourier_cost(x, tuple(shape), dims, REAL.get(x.dtype, ""), 2.5)


def _fourier_operand(call: OpCall) -> tuple[Tensor, list[int]]:
    x, rank = call.tensor(0), len(call.tensor(0).shape)
    dims = call.integers(1)
    if not dims or any(not -rank <= dim < rank for dim in dims):
        raise Uncounted("the transformed dimensions are not recorded")
    return x, [dim % rank for dim in dims]


def _fourier_cost(x: Tensor, out: tuple[int, ...], dims: list[int], dtype: str, factor: float) -> OpCost:
    """The cost; the transformed side is the longer of both, which is that with all elements."""
    elements = max(x.numel, prod(out))
    length = prod(max(x.shape[dim], out[dim]) for dim in dims)
    flops = round(factor * elements * log2(length)) if length else 0
    return OpCost(flops, x.bytes, size(prod(out), dtype), x.dtype, dims=(("N", length),))
