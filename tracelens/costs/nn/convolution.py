"""Convolutions of one to three dimensions, their transposes and gradients.

Every element of the output is an inner product over the C/groups channels and all taps of the filter:
2·prod(output)·prod(filter[1:]) FLOPs, the filter being (K, C/groups, taps…). A transposed convolution has the
filter (C, K/groups, taps…) and spreads every element of its input: 2·prod(input)·prod(filter[1:]). Its two
gradients (of the input and of the filter) each take as many. The bias is in bytes only.

Sizes follow the documentation of torch.nn.Conv2d and ConvTranspose2d; padded zeros count as work, as there.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from tracelens.costs.call import OpCall, Tensor, Uncounted, size
from tracelens.costs.gemm import math_dtype
from tracelens.costs.model import OpCost, cost


class Arguments(NamedTuple):
    """Where an op has its arguments, -1 where it has none; input and filter are always 0 and 1."""

    bias: int
    stride: int
    padding: int
    dilation: int = -1
    groups: int = -1
    output_padding: int = -1
    flag: int = -1
    transposed: bool = False


_GENERAL = Arguments(bias=2, stride=3, padding=4, dilation=5, groups=8, output_padding=7, flag=6)
_PUBLIC = Arguments(bias=2, stride=3, padding=4, dilation=5, groups=6)
_TRANSPOSE = Arguments(bias=2, stride=3, padding=4, output_padding=5, groups=6, dilation=7, transposed=True)
_MIOPEN = Arguments(bias=2, padding=3, stride=4, dilation=5, groups=6)
_SLOW = Arguments(bias=3, stride=4, padding=5)
_DILATED = Arguments(bias=3, stride=4, padding=5, dilation=6)
_SLOW_TRANSPOSE = Arguments(bias=3, stride=4, padding=5, output_padding=6, dilation=7, transposed=True)

_ARGUMENTS = {
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
    "aten::cudnn_convolution": Arguments(bias=-1, padding=2, stride=3, dilation=4, groups=5),
    "aten::cudnn_convolution_transpose": Arguments(
        bias=-1, padding=2, output_padding=3, stride=4, dilation=5, groups=6, transposed=True
    ),
    "aten::cudnn_convolution_add_relu": Arguments(bias=4, stride=5, padding=6, dilation=7, groups=8),
    "aten::miopen_convolution_add_relu": Arguments(bias=4, stride=5, padding=6, dilation=7, groups=8),
    "aten::miopen_convolution": _MIOPEN,
    "aten::miopen_depthwise_convolution": _MIOPEN,
    "aten::mkldnn_convolution": _MIOPEN,
    "aten::miopen_convolution_transpose": Arguments(
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
    "ConvBias_": Arguments(bias=2, padding=3, stride=4),
    "ConvBiasReLU_": Arguments(bias=2, padding=3, stride=4),
    "ConvBiasMaskReLU_": Arguments(bias=2, padding=4, stride=5),
}

_VECTOR = ("aten::_conv_depthwise2d", "aten::conv_depthwise3d")
_TAPS = "TRS"


@cost(*_ARGUMENTS)
def convolution(call: OpCall) -> OpCost:
    """Convolution, forward: 2·prod(output)·prod(filter[1:]), transposed 2·prod(input)·prod(filter[1:])."""
    arguments = _ARGUMENTS[call.name]
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
        dims=_dims(x.shape, out[1], weight),
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
    if forward.name not in _ARGUMENTS:
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
    dims = _dims(x.shape, channels, weight)
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
    call: OpCall, arguments: Arguments, x: Tensor, weight: Tensor, transposed: bool
) -> tuple[int, ...]:
    """Shape of the output (N, K, …)."""
    taps = weight.shape[2:]
    groups = call.integer(arguments.groups) if arguments.groups >= 0 else 1
    stride = _each(call, arguments.stride, len(taps))
    padding = _each(call, arguments.padding, len(taps))
    dilation = _each(call, arguments.dilation, len(taps)) if arguments.dilation >= 0 else [1] * len(taps)
    if min(stride) < 1:
        raise Uncounted("a stride of 0 is recorded")
    sides = zip(x.shape[2:], taps, stride, padding, dilation, strict=True)
    if not transposed:
        return (
            x.shape[0],
            weight.shape[0],
            *(max((n + 2 * p - d * (k - 1) - 1) // s + 1, 0) for n, k, s, p, d in sides),
        )
    more = _each(call, arguments.output_padding, len(taps))
    return (
        x.shape[0],
        weight.shape[1] * groups,
        *(
            max((n - 1) * s - 2 * p + d * (k - 1) + extra + 1, 0)
            for (n, k, s, p, d), extra in zip(sides, more, strict=True)
        ),
    )


def _each(call: OpCall, index: int, count: int) -> list[int]:
    """One number a dimension; a single one stands for all."""
    numbers = call.integers(index)
    if len(numbers) == 1:
        return numbers * count
    if len(numbers) != count:
        raise Uncounted("stride or padding not recorded as numbers")
    return numbers


def _dims(x: tuple[int, ...], channels: int, weight: Tensor) -> tuple[tuple[str, int], ...]:
    sides = zip("DHW"[5 - len(weight.shape) :], x[2:], strict=True)
    taps = zip(_TAPS[5 - len(weight.shape) :], weight.shape[2:], strict=True)
    return (("N", x[0]), ("C", x[1]), ("K", channels), *sides, *taps)
