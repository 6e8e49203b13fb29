"""Pooling and resampling, forward and backward.

Sizes follow the documentation of torch.nn.MaxPool2d: floor((n + 2·pad - dilation·(k - 1) - 1) / stride) + 1,
with ceil instead of floor where asked for, less one window that would begin in the padding on the right.

FLOPs: an output of a pool takes one comparison or addition an element of its window; an upsampled element two
(multiply, add) a neighbor it is mixed of: linear 2, bilinear 4, bicubic 16, trilinear 8, nearest none.
Anti-aliased resampling mixes the neighbors of one dimension after the other; where it shrinks, the window
grows with the ratio of sizes. Backward spreads each gradient over the same elements. Bytes: input once,
output and indices once.
"""

from __future__ import annotations

import re
from math import prod

from tracelens.costs.call import OpCall, Tensor, Uncounted, size
from tracelens.costs.model import OpCost, cost

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
_BACKWARD = {f"{name}_backward": neighbours for name, neighbours in _NEIGHBOURS.items()}
_WINDOW = {
    "aten::_upsample_bilinear2d_aa": 2,
    "aten::_upsample_bicubic2d_aa": 4,
    "aten::_upsample_lanczos2d_aa": 6,
}
"""Neighbors in one dimension where it does not shrink."""
_SAMPLED = {0: {2: 4, 3: 8}, 1: {2: 0, 3: 0}, 2: {2: 16}}
"""Neighbors by interpolation (linear, nearest, cubic) and number of dimensions."""
_RANK = re.compile(r"(\d)d")


@cost(*_MAX_POOLS, *_AVERAGE_POOLS, engine="vector")
def pool(call: OpCall) -> OpCost:
    """Pooling: one FLOP an element of every window."""
    x, rank = call.tensor(0), _rank(call)
    kernel = _each(call.integers(1), rank, "size of the window")
    out = _pooled(call, x, kernel)
    written = size(prod(out), x.dtype) + (8 * prod(out) if "with_indices" in call.name else 0)
    return OpCost(prod(out) * prod(kernel), x.bytes, written, x.dtype, dims=_dims(x, out, rank))


@cost("aten::max_pool2d_with_indices_backward", "aten::max_pool3d_with_indices_backward", engine="vector")
def max_pool_backward(call: OpCall) -> OpCost:
    """Max pooling, backward: every gradient is added at the place its index tells, 1 FLOP."""
    grad, x, indices = call.tensor(0), call.tensor(1), call.tensor(7)
    rank = _rank(call)
    written = x.dense_bytes
    dims = _dims(x, grad.shape, rank)
    return OpCost(grad.numel, grad.bytes + indices.bytes, written, x.dtype, dims=dims)


@cost("aten::avg_pool2d_backward", "aten::avg_pool3d_backward", engine="vector")
def avg_pool_backward(call: OpCall) -> OpCost:
    """Average pooling, backward: every gradient is added to the elements of its window."""
    grad, x = call.tensor(0), call.tensor(1)
    rank = _rank(call)
    kernel = _each(call.integers(2), rank, "size of the window")
    written = x.dense_bytes
    return OpCost(grad.numel * prod(kernel), grad.bytes, written, x.dtype, dims=_dims(x, grad.shape, rank))


@cost(
    "aten::adaptive_avg_pool1d", "aten::adaptive_avg_pool2d", "aten::_adaptive_avg_pool2d",
    "aten::adaptive_avg_pool3d", "aten::_adaptive_avg_pool3d", "aten::adaptive_max_pool2d",
    "aten::adaptive_max_pool3d", engine="vector",
)  # fmt: skip
def adaptive_pool(call: OpCall) -> OpCost:
    """Pooling to a given size: one FLOP an element of the input (overlaps of windows once)."""
    x, rank = call.tensor(0), _rank(call)
    sides = _each(call.integers(1), rank, "size of the output")
    out = _resized(x, sides)
    indices = 8 * prod(out) if "max" in call.name else 0
    return OpCost(x.numel, x.bytes, size(prod(out), x.dtype) + indices, x.dtype, dims=_dims(x, out, rank))


@cost(
    "aten::_adaptive_avg_pool2d_backward", "aten::_adaptive_avg_pool3d_backward",
    "aten::adaptive_max_pool2d_backward", "aten::adaptive_max_pool3d_backward",
engine="vector")  # fmt: skip
def adaptive_pool_backward(call: OpCall) -> OpCost:
    """Pooling to a given size, backward: one FLOP an element of the input (average) or output (maximum)."""
    grad, x = call.tensor(0), call.tensor(1)
    largest = "max" in call.name
    read = grad.bytes + (call.tensor(2).bytes if largest else 0)
    flops = grad.numel if largest else x.numel
    rank = _rank(call)
    return OpCost(flops, read, x.dense_bytes, x.dtype, dims=_dims(x, grad.shape, rank))


@cost(*_NEIGHBOURS, engine="vector")
def upsample(call: OpCall) -> OpCost:
    """Resampling to a given size: 2 FLOPs a neighbor of every output."""
    x, rank, neighbours = call.tensor(0), _rank(call), _NEIGHBOURS[call.name]
    out = _resized(x, _each(call.integers(1), rank, "size of the output"))
    # A nearest neighbor can be skipped: no more of the input is read than there are outputs.
    read = x.bytes if neighbours else min(x.bytes, size(prod(out), x.dtype))
    flops = 2 * neighbours * prod(out)
    return OpCost(flops, read, size(prod(out), x.dtype), x.dtype, dims=_dims(x, out, rank))


@cost(*_BACKWARD, engine="vector")
def upsample_backward(call: OpCall) -> OpCost:
    """Resampling, backward: 2 FLOPs a neighbor of every gradient, 1 for a nearest one."""
    grad, rank, neighbours = call.tensor(0), _rank(call), _BACKWARD[call.name]
    shape = call.integers(2)
    if len(shape) != rank + 2 or min(shape) < 0:
        raise Uncounted("the size of the input is not recorded")
    flops = (2 * neighbours or 1) * grad.numel
    dims = _dims(Tensor(tuple(shape), grad.dtype, prod(shape)), grad.shape, rank)
    return OpCost(flops, grad.bytes, size(prod(shape), grad.dtype), grad.dtype, dims=dims)


@cost(*_WINDOW, engine="vector")
def upsample_antialiased(call: OpCall) -> OpCost:
    """Anti-aliased resampling, rows before columns: 2 FLOPs a neighbor of both passes' outputs."""
    x = call.tensor(0)
    out = _resized(x, _each(call.integers(1), 2, "size of the output"))
    (height, width), (out_height, out_width) = x.shape[-2:], out[-2:]
    planes, window = prod(out[:-2]), _WINDOW[call.name]
    down, across = (
        -(-window * max(source, result) // (result or 1))
        for source, result in ((height, out_height), (width, out_width))
    )
    flops = 2 * planes * out_width * (across * height + down * out_height)
    return OpCost(flops, x.bytes, size(prod(out), x.dtype), x.dtype, dims=_dims(x, out, 2))


@cost("aten::grid_sampler_2d", "aten::grid_sampler_3d", "aten::cudnn_grid_sampler", engine="vector")
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
        2 * neighbours * prod(out), touched + grid.bytes, written, x.dtype, dims=_dims(x, out, rank)
    )


def _rank(call: OpCall) -> int:
    """Number of dimensions that are pooled or resampled, which the name of the op says."""
    match = _RANK.search(call.name)
    assert match is not None
    return int(match[1])


def _pooled(call: OpCall, x: Tensor, kernel: list[int]) -> tuple[int, ...]:
    rank, dilated = len(kernel), call.name in _MAX_POOLS
    stride = _each(call.integers(2), rank, "stride") if call.integers(2) else kernel
    padding = _each(call.integers(3), rank, "padding")
    dilation = _each(call.integers(4), rank, "dilation") if dilated else [1] * rank
    if len(x.shape) not in (rank + 1, rank + 2) or min(stride) < 1:
        raise Uncounted(f"an input of {len(x.shape)} dimensions, or a stride of 0, for a {rank}d pool")
    ceil = call.flag(5 if dilated else 4)
    sides = zip(x.shape[-rank:], kernel, stride, padding, dilation, strict=True)
    return (*x.shape[:-rank], *(_side(n, k, s, p, d, ceil) for n, k, s, p, d in sides))


def _side(n: int, k: int, stride: int, pad: int, dilation: int, ceil: bool) -> int:
    room = n + 2 * pad - dilation * (k - 1) - 1
    windows = (room + (stride - 1 if ceil else 0)) // stride + 1
    if ceil and (windows - 1) * stride >= n + pad:
        windows -= 1
    return max(windows, 0)


def _resized(x: Tensor, sides: list[int]) -> tuple[int, ...]:
    if len(x.shape) not in (len(sides) + 1, len(sides) + 2) or min(sides) < 0:
        raise Uncounted(f"an input of {len(x.shape)} dimensions resized in {len(sides)}")
    return (*x.shape[: -len(sides)], *sides)


def _each(numbers: list[int], count: int, noun: str) -> list[int]:
    """One number a dimension; a single one stands for all."""
    if len(numbers) == 1:
        numbers = numbers * count
    if len(numbers) != count or min(numbers, default=0) < 0:
        raise Uncounted(f"the {noun} is not recorded")
    return numbers


def _dims(x: Tensor, out: tuple[int, ...], rank: int) -> tuple[tuple[str, int], ...]:
    """Planes, and the sizes of one before and after."""
    names = "DHW"[3 - rank :]
    planes = prod(x.shape[:-rank])
    after = zip((f"{name}out" for name in names), out[-rank:], strict=False)
    return (("planes", planes), *zip(names, x.shape[-rank:], strict=False), *after)
