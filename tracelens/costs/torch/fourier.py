"""Fourier transforms: 5·N·log2 N FLOPs for N complex elements, half as many where one side is real.

The count of a radix-2 transform, by which libraries are compared (Frigo and Johnson 2005, FFTW). A real side
has N elements of half the size where the complex one has N/2 + 1.
"""

from __future__ import annotations

from math import log2, prod

from tracelens.costs.call import OpCall, Tensor, Uncounted, size
from tracelens.costs.model import OpCost, cost

_COMPLEX = {"fp16": "c32", "fp32": "c64", "fp64": "c128"}
_REAL = {"c32": "fp16", "c64": "fp32", "c128": "fp64"}


@cost("aten::_fft_c2c", engine="vector")
def complex_to_complex(call: OpCall) -> OpCost:
    """Complex transform over some dimensions."""
    x, dims = _operand(call)
    return _transform(x, x.shape, dims, x.dtype, 5)


@cost("aten::_fft_r2c", engine="vector")
def real_to_complex(call: OpCall) -> OpCost:
    """Transform of real elements: half of the last dimension, as the other half mirrors it, unless both."""
    x, dims = _operand(call)
    shape = list(x.shape)
    if call.flag(3, default=True):
        shape[dims[-1]] = shape[dims[-1]] // 2 + 1
    return _transform(x, tuple(shape), dims, _COMPLEX.get(x.dtype, ""), 2.5)


@cost("aten::_fft_c2r", engine="vector")
def complex_to_real(call: OpCall) -> OpCost:
    """Transform to real elements, whose last dimension is given."""
    x, dims = _operand(call)
    shape = list(x.shape)
    shape[dims[-1]] = call.integer(3)
    if shape[dims[-1]] < 0:
        raise Uncounted("the size of the output is negative")
    return _transform(x, tuple(shape), dims, _REAL.get(x.dtype, ""), 2.5)


def _operand(call: OpCall) -> tuple[Tensor, list[int]]:
    x, rank = call.tensor(0), len(call.tensor(0).shape)
    dims = call.integers(1)
    if not dims or any(not -rank <= dim < rank for dim in dims):
        raise Uncounted("the transformed dimensions are not recorded")
    return x, [dim % rank for dim in dims]


def _transform(x: Tensor, out: tuple[int, ...], dims: list[int], dtype: str, factor: float) -> OpCost:
    """The cost; the transformed side is the longer of both, which is that with all elements."""
    elements = max(x.numel, prod(out))
    length = prod(max(x.shape[dim], out[dim]) for dim in dims)
    flops = round(factor * elements * log2(length)) if length else 0
    return OpCost(flops, x.bytes, size(prod(out), dtype), x.dtype, dims=(("N", length),))
