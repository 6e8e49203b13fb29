"""Copies, fills, concatenations and other ops that move elements and compute nothing.

A copy reads what is stored of its source (expanded elements once) and writes every element of its result.
Converting the element type counts as moving. Lists of tensors: the profiler records their shapes (of up to 30
tensors) and no element type, so its size is taken from the kernel's name.
"""

from __future__ import annotations

import re
from math import prod

from tracelens.costs.call import OpCall, Tensor, Uncounted, size
from tracelens.costs.model import OpCost, cost
from tracelens.costs.torch.tensors import dtype_argument, natural, outputs, recorded, result_dtype, sizes
from tracelens.dtypes import BITS, known_dtype

# PyTorch's kernels that only move are compiled for an element size or for a type.
_OPAQUE = re.compile(r"OpaqueType<(\d+)u?>")
_TYPED = re.compile(r"CatArray\w*<([\w: ]+)")


def moved(source: Tensor, result: int, dtype: str = "", note: str = "") -> OpCost:
    """The cost of reading `source` and writing `result` elements, of the same type unless given."""
    return OpCost(0, source.bytes, size(result, dtype or source.dtype), source.dtype, note=note)


@cost("aten::copy_", "aten::_copy_from", "aten::copy", engine="vector")
def copy(call: OpCall) -> OpCost:
    """The source read, the destination written."""
    first, second = call.tensor(0), call.tensor(1)
    into, source = (second, first) if call.name == "aten::_copy_from" else (first, second)
    return OpCost(0, source.bytes, into.bytes, source.dtype)


@cost(
    "aten::clone", "aten::contiguous", "aten::lift_fresh_copy", "aten::detach_copy", "aten::view_copy",
    "aten::permute_copy", "aten::transpose_copy", "aten::t_copy", "aten::unsqueeze_copy",
    "aten::squeeze_copy", "aten::_reshape_copy", "aten::alias_copy", "aten::_pin_memory",
    "aten::flip", "aten::roll", "aten::rot90",
    "aten::native_channel_shuffle", "aten::channel_shuffle", "aten::pixel_shuffle", "aten::pixel_unshuffle",
    "aten::split_with_sizes_copy", "aten::split_copy", "aten::unbind_copy",
    engine="vector",
)  # fmt: skip
def clone(call: OpCall) -> OpCost:
    """All elements read and written once, in the same or another order."""
    source = call.tensor(0)
    return moved(source, source.numel, result_dtype(call, 1))


@cost("aten::_to_copy", engine="vector")
def to_copy(call: OpCall) -> OpCost:
    """All elements read, and written in the element type asked for."""
    source = call.tensor(0)
    return moved(source, source.numel, dtype_argument(call, 1) or result_dtype(call, 1))


@cost(
    "aten::cat", "aten::concat", "aten::_cat", "aten::stack", "aten::_stack", "aten::hstack", "aten::vstack",
    engine="vector",
)  # fmt: skip
def concatenate(call: OpCall) -> OpCost:
    """All tensors of the list read and written once."""
    out = outputs(call, 1)
    dtype, width = (out[0].dtype, BITS.get(out[0].dtype, 0)) if out else _kernel_element(call.kernel)
    parts = call.listed(0, dtype)
    if not width:
        raise Uncounted("element type of the tensors in a list, which the profiler does not record")
    count = -(-sum(prod(part.shape) for part in parts) * width // 8)
    return OpCost(0, count, count, dtype, dims=(("tensors", len(parts)),))


@cost("aten::_chunk_cat", engine="vector")
def chunk_cat(call: OpCall) -> OpCost:
    """Tensors of a list into a given result that pads each to whole chunks: read once, all of it written."""
    out = outputs(call, 1)
    if not out:
        return concatenate(call)
    dtype, width = _kernel_element(call.kernel)
    parts = call.listed(0, dtype or out[0].dtype)
    width = width or BITS.get(out[0].dtype, 0)
    read = -(-sum(prod(part.shape) for part in parts) * width // 8)
    return OpCost(0, read, out[0].bytes, out[0].dtype, dims=(("tensors", len(parts)),))


@cost(
    "aten::fill_", "aten::zero_", "aten::ones_like", "aten::zeros_like", "aten::full_like", "aten::fill",
    "aten::new_zeros", "aten::new_ones", "aten::new_full",
    engine="vector",
)  # fmt: skip
def fill(call: OpCall) -> OpCost:
    """One value written everywhere; nothing is read but a value that is a tensor."""
    recorded(call)
    target = call.tensor(0)
    if call.name.startswith("aten::new_"):
        dtype = dtype_argument(call, _NEW[call.name]) or target.dtype
        return OpCost(0, 0, size(prod(sizes(call, 1)), dtype), dtype)
    value = call.bytes(1)
    return OpCost(0, value, target.bytes, target.dtype)


_NEW = {"aten::new_zeros": 2, "aten::new_ones": 2, "aten::new_full": 3}


@cost("aten::fill_diagonal_", engine="vector")
def fill_diagonal(call: OpCall) -> OpCost:
    """The diagonal written."""
    target = call.tensor(0)
    return OpCost(0, 0, size(min(target.shape, default=1), target.dtype), target.dtype)


@cost(
    "aten::constant_pad_nd", "aten::reflection_pad1d", "aten::reflection_pad2d", "aten::reflection_pad3d",
    "aten::replication_pad1d", "aten::replication_pad2d", "aten::replication_pad3d",
    engine="vector",
)  # fmt: skip
def pad(call: OpCall) -> OpCost:
    """All elements read, the padded result written; paddings are given from the last dimension on."""
    source = call.tensor(0)
    out = outputs(call, 2)
    if out and out[0].numel:
        return OpCost(0, source.bytes, out[0].bytes, source.dtype)
    padding = call.integers(1)
    if not padding or len(padding) % 2 or len(padding) > 2 * len(source.shape):
        raise Uncounted("argument 1 (padding) has no recorded value")
    shape = list(source.shape)
    for axis_index in range(len(padding) // 2):
        shape[-1 - axis_index] = max(
            0, shape[-1 - axis_index] + padding[2 * axis_index] + padding[2 * axis_index + 1]
        )
    return moved(source, prod(shape))


@cost("aten::reflection_pad*_backward", "aten::replication_pad*_backward", engine="vector")
def pad_backward(call: OpCall) -> OpCost:
    """The gradient read and added up in the shape of the input: one addition an element."""
    gradient, x = call.tensor(0), call.tensor(1)
    return OpCost(gradient.numel, gradient.bytes, size(x.numel, gradient.dtype), gradient.dtype)


@cost("aten::tril", "aten::triu", "aten::tril_", "aten::triu_", engine="vector")
def triangle(call: OpCall) -> OpCost:
    """The kept triangle of every matrix read, the whole written; in place only the rest is, with zeros."""
    x = call.tensor(0)
    if len(x.shape) < 2:
        raise Uncounted(f"a tensor with {len(x.shape)} dimensions instead of 2 or more")
    rows, columns = x.shape[-2:]
    diagonal = call.integer(1, None if call.values else 0)
    above = upper(rows, columns, diagonal if "triu" in call.name else diagonal + 1)
    share = above if "triu" in call.name else rows * columns - above
    kept, numel = prod(x.shape[:-2]) * share, x.numel
    if call.name.endswith("_"):
        return OpCost(0, 0, size(numel - kept, x.dtype), x.dtype)
    return OpCost(0, size(kept, x.dtype), size(numel, x.dtype), x.dtype)


def upper(rows: int, columns: int, diagonal: int) -> int:
    """Elements (i, j) of a matrix with j - i >= diagonal.

    Rows up to -diagonal are whole; the following ones hold one element less each, until none is left.
    """
    full_rows = min(max(-diagonal, 0), rows)
    first = min(max(columns - max(diagonal + full_rows, 0), 0), columns)
    count = min(rows - full_rows, first)
    return full_rows * columns + count * (2 * first - count + 1) // 2


@cost("aten::repeat", "aten::tile", engine="vector")
def repeat(call: OpCall) -> OpCost:
    """All elements read once, and written as often as they are repeated."""
    source = call.tensor(0)
    return moved(source, source.numel * prod(sizes(call, 1)))


@cost("aten::repeat_interleave", engine="vector")
def repeat_interleave(call: OpCall) -> OpCost:
    """Positions written, each as often as the tensor says; or elements, a fixed number of times."""
    source = call.tensor(0)
    if len(call.shapes) <= _TIMES_ONLY:
        return moved(source, natural(call, 1))
    if call.has(1):
        raise Uncounted("size of the result, which depends on the data")
    return moved(source, source.numel * natural(call, 1))


# repeat_interleave(repeats, output_size); the other variants have a tensor to repeat, and more arguments.
_TIMES_ONLY = 2


@cost(
    "aten::slice_backward", "aten::select_backward", "aten::diagonal_backward", "aten::unfold_backward",
    "aten::trace_backward",
    engine="vector",
)  # fmt: skip
def view_backward(call: OpCall) -> OpCost:
    """The gradient of a view put into zeros of the size of what was viewed."""
    return moved(call.tensor(0), prod(sizes(call, 1)))


@cost(
    "aten::slice_scatter", "aten::select_scatter", "aten::diagonal_scatter", "aten::as_strided_scatter",
    engine="vector",
)  # fmt: skip
def view_scatter(call: OpCall) -> OpCost:
    """A copy of one tensor with another in part of it: what is not replaced is read, and all is written."""
    x, source = call.tensor(0), call.tensor(1)
    rest = max(x.numel - source.numel, 0)
    return OpCost(0, size(rest, x.dtype) + source.bytes, x.dense_bytes, x.dtype)


def _kernel_element(kernel: str) -> tuple[str, int]:
    """Type ("" where only the size is known) and bits of the elements that a kernel moves; 0: not known."""
    opaque = _OPAQUE.search(kernel)
    if opaque:
        return "", 8 * int(opaque[1])
    typed = _TYPED.search(kernel)
    dtype = known_dtype(typed[1]) if typed else ""
    return dtype, BITS.get(dtype, 0)
