"""Copies, fills, concatenations and other ops that move elements and compute nothing.

A copy reads what is stored of its source (expanded elements once) and writes every element of its result.
Converting the element type counts as moving. Lists of tensors: the profiler records their shapes (of up to 30
tensors) and no element type, so its size is taken from the kernel's name.
"""

from __future__ import annotations

import re
from math import prod

from tracelens.costs.model import OpCall, OpCost, Tensor, Uncounted, cost, size
from tracelens.costs.tensors import (
    axis,
    dtype_argument,
    length,
    natural,
    outputs,
    recorded,
    result_dtype,
    sizes,
)
from tracelens.dtypes import BITS, known_dtype

# PyTorch's kernels that only move are compiled for an element size or for a type.
_OPAQUE = re.compile(r"OpaqueType<(\d+)u?>")
_TYPED = re.compile(r"CatArray\w*<([\w: ]+)")

_NEW = {"aten::new_zeros": 2, "aten::new_ones": 2, "aten::new_full": 3}

# repeat_interleave(repeats, output_size); the other variants have a tensor to repeat, and more arguments.
_TIMES_ONLY = 2

_GATHER = re.compile(r"vectorized_gather_kernel<(\d+)")
_ELEMENTWISE = re.compile(r"index_elementwise_kernel<(\d+), (\d+)")
_BLOCK_THREADS = 256
_FROM_GRID = "size of the result from the launch grid, indices not counted"
_AT_MOST = "upper bound: size of the result from the launch grid, indices not counted"
_NO_INDICES = "indices not recorded and not counted"
_LISTED = "shapes of the indices, which the profiler does not record"

_COMBINED = frozenset({"add", "multiply", "sum", "prod", "mean", "amax", "amin"})


def moved(source: Tensor, result: int, dtype: str = "", note: str = "") -> OpCost:
    """The cost of reading `source` and writing `result` elements, of the same type unless given."""
    return OpCost(0, source.bytes, size(result, dtype or source.dtype), source.dtype, note=note)


@cost("aten::copy_", "aten::_copy_from", "aten::copy")
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
)  # fmt: skip
def clone(call: OpCall) -> OpCost:
    """All elements read and written once, in the same or another order."""
    source = call.tensor(0)
    return moved(source, source.numel, result_dtype(call, 1))


@cost("aten::_to_copy")
def to_copy(call: OpCall) -> OpCost:
    """All elements read, and written in the element type asked for."""
    source = call.tensor(0)
    return moved(source, source.numel, dtype_argument(call, 1) or result_dtype(call, 1))


@cost(
    "aten::cat", "aten::concat", "aten::_cat", "aten::stack", "aten::_stack", "aten::hstack", "aten::vstack",
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


@cost("aten::_chunk_cat")
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
)  # fmt: skip
def fill(call: OpCall) -> OpCost:
    """One value written everywhere; nothing is read but a value that is a tensor."""
    recorded(call)
    target = call.tensor(0)
    if call.name.startswith("aten::new_"):
        dtype = dtype_argument(call, _NEW[call.name]) or target.dtype
        return OpCost(0, 0, size(prod(sizes(call, 1)), dtype), dtype)
    return OpCost(0, call.bytes(1), target.bytes, target.dtype)


@cost("aten::fill_diagonal_")
def fill_diagonal(call: OpCall) -> OpCost:
    """The diagonal written."""
    target = call.tensor(0)
    return OpCost(0, 0, size(min(target.shape, default=1), target.dtype), target.dtype)


@cost(
    "aten::constant_pad_nd", "aten::reflection_pad1d", "aten::reflection_pad2d", "aten::reflection_pad3d",
    "aten::replication_pad1d", "aten::replication_pad2d", "aten::replication_pad3d",
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


@cost("aten::reflection_pad*_backward", "aten::replication_pad*_backward")
def pad_backward(call: OpCall) -> OpCost:
    """The gradient read and added up in the shape of the input: one addition an element."""
    gradient, x = call.tensor(0), call.tensor(1)
    return OpCost(gradient.numel, gradient.bytes, size(x.numel, gradient.dtype), gradient.dtype)


@cost("aten::tril", "aten::triu", "aten::tril_", "aten::triu_")
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


@cost("aten::repeat", "aten::tile")
def repeat(call: OpCall) -> OpCost:
    """All elements read once, and written as often as they are repeated."""
    source = call.tensor(0)
    return moved(source, source.numel * prod(sizes(call, 1)))


@cost("aten::repeat_interleave")
def repeat_interleave(call: OpCall) -> OpCost:
    """Positions written, each as often as the tensor says; or elements, a fixed number of times."""
    source = call.tensor(0)
    if len(call.shapes) <= _TIMES_ONLY:
        return moved(source, natural(call, 1))
    if call.has(1):
        raise Uncounted("size of the result, which depends on the data")
    return moved(source, source.numel * natural(call, 1))


@cost(
    "aten::slice_backward", "aten::select_backward", "aten::diagonal_backward", "aten::unfold_backward",
    "aten::trace_backward",
)  # fmt: skip
def view_backward(call: OpCall) -> OpCost:
    """The gradient of a view put into zeros of the size of what was viewed."""
    return moved(call.tensor(0), prod(sizes(call, 1)))


@cost(
    "aten::slice_scatter", "aten::select_scatter", "aten::diagonal_scatter", "aten::as_strided_scatter",
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


# ====================
# Copies and memsets by the copy engines, and single values that the host waits for.
#
# A copy over a link is held against the link alone; what it moves in the device's own memory is told beside
# it. A copy within one device's memory reads and writes every byte there.


@cost("memcpy::htod")
def host_to_device(call: OpCall) -> OpCost:
    """So many bytes from the host: over the host link, written to memory."""
    count = call.tensor(0).bytes
    return OpCost(0, 0, count, "u8", link="host", link_bytes=count)


@cost("memcpy::dtoh")
def device_to_host(call: OpCall) -> OpCost:
    """So many bytes to the host: read from memory, over the host link."""
    count = call.tensor(0).bytes
    return OpCost(0, count, 0, "u8", link="host", link_bytes=count)


@cost("memcpy::ptop")
def device_to_device(call: OpCall) -> OpCost:
    """So many bytes to another device: read here, over the link between GPUs, written there."""
    count = call.tensor(0).bytes
    return OpCost(0, count, count, "u8", link="gpu", link_bytes=count)


@cost("memcpy::dtod")
def within_device(call: OpCall) -> OpCost:
    """So many bytes within one device's memory: read and written."""
    count = call.tensor(0).bytes
    return OpCost(0, count, count, "u8")


@cost("memset::device")
def memset(call: OpCall) -> OpCost:
    """So many bytes set: written, nothing is read."""
    return OpCost(0, 0, call.tensor(0).bytes, "u8")


@cost("aten::_local_scalar_dense", "aten::item")
def item(call: OpCall) -> OpCost:
    """One value to the host (`tensor.item()`): one element over the host link."""
    dtype = call.tensor(0).dtype
    count = size(1, dtype)
    return OpCost(0, count, 0, dtype, link="host", link_bytes=count)


# ====================
# Reading and writing at given positions: index, gather, scatter, masks and embeddings.
#
# Of a table only the rows that are used move: as many as there are indices, or all of them if the table is
# smaller. How many rows lists of indices and masks select is not recorded. Where a second tensor has that
# size it is used; `aten::index` else takes it from the launch grid, which PyTorch's two kernels for it derive
# from the size of the result:
#
# - `vectorized_gather_kernel<A, ...>`: one block per row and 256·A bytes of it, so the number of rows is
#   exact;
# - `index_elementwise_kernel<T, V, ...>`: T·V elements a block, an upper bound, by T·V - 1 at most.


@cost("aten::index", "aten::_unsafe_index")
def index(call: OpCall) -> OpCost:
    """The selected elements read and written."""
    x = call.tensor(0)
    out = outputs(call, 2)
    if out and out[0].numel:
        count, note = out[0].numel, _NO_INDICES
    else:
        count, note = _selected(call, x)
    return OpCost(0, size(min(count, x.stored), x.dtype), size(count, x.dtype), x.dtype, note=note)


def _selected(call: OpCall, x: Tensor) -> tuple[int, str]:
    """Number of elements that `x[indices]` has, by its kernel's launch grid, and what to note about it."""
    if call.blocks > 0:
        gather = _GATHER.search(call.kernel)
        if gather:
            shape = x.shape
            while len(shape) > 1 and shape[0] == 1:
                shape = shape[1:]
            row = prod(shape[1:])
            parts = -(-size(row, x.dtype) // (_BLOCK_THREADS * int(gather[1])))
            if parts and call.blocks % parts == 0:
                return call.blocks // parts * row, _FROM_GRID
        elementwise = _ELEMENTWISE.search(call.kernel)
        if elementwise:
            return call.blocks * int(elementwise[1]) * int(elementwise[2]), _AT_MOST
    raise Uncounted(_LISTED)


@cost(
    "aten::index_put_", "aten::_index_put_impl_", "aten::index_put", "aten::_unsafe_index_put",
    "aten::_index_put_impl",
)  # fmt: skip
def index_put(call: OpCall) -> OpCost:
    """Values read and put (or added) to as many positions; a functional one copies the rest too."""
    x, values = call.tensor(0), call.tensor(2)
    if values.numel == 1 and x.numel > 1:
        raise Uncounted(f"{_LISTED}; its single value does not show how many positions it fills")
    put = min(values.numel, x.numel)
    add = call.flag(3)
    touched = size(put, x.dtype)
    read, written = values.bytes + (touched if add else 0), touched
    if not call.name.endswith("_"):
        read, written = (values.bytes + size(x.numel if add else x.numel - put, x.dtype), x.dense_bytes)
    return OpCost(values.numel if add else 0, read, written, x.dtype, note=_NO_INDICES)


@cost("aten::index_select", "aten::take", "aten::_index_select")
def index_select(call: OpCall) -> OpCost:
    """One row per index read and written."""
    table = call.tensor(0)
    indices = call.tensor(1 if call.name == "aten::take" else 2)
    row = 1 if call.name == "aten::take" else _row(table, _dim(call, table))
    return _lookup(table, indices, row)


@cost("aten::embedding")
def embedding(call: OpCall) -> OpCost:
    """One row of the table per index read and written."""
    table = call.tensor(0)
    return _lookup(table, call.tensor(1), _row(table, 0))


def _lookup(table: Tensor, indices: Tensor, row: int) -> OpCost:
    count = indices.numel * row
    read = size(min(count, table.stored), table.dtype) + indices.bytes
    return OpCost(0, read, size(count, table.dtype), table.dtype)


@cost("aten::embedding_dense_backward")
def embedding_dense_backward(call: OpCall) -> OpCost:
    """The gradient added up in the rows of the table: one addition an element; the whole table is written."""
    gradient, indices = call.tensor(0), call.tensor(1)
    written = size(natural(call, 2) * _last(gradient), gradient.dtype)
    return OpCost(gradient.numel, gradient.bytes + indices.bytes, written, gradient.dtype)


@cost("aten::_embedding_bag", "aten::_embedding_bag_forward_only", "aten::embedding_bag")
def embedding_bag(call: OpCall) -> OpCost:
    """One row per index read and added up by bag; the sums and the bag of every index written."""
    table, indices, offsets = call.tensor(0), call.tensor(1), call.tensor(2)
    row = _row(table, 0)
    count = indices.numel * row
    read = size(min(count, table.stored), table.dtype) + indices.bytes + offsets.bytes
    return OpCost(count, read, size(offsets.numel * row, table.dtype) + indices.bytes, table.dtype)


@cost("aten::_embedding_bag_dense_backward")
def embedding_bag_backward(call: OpCall) -> OpCost:
    """The gradient of every bag added to the rows of its indices; the whole table is written."""
    gradient, indices = call.tensor(0), call.tensor(1)
    row = _last(gradient)
    written = size(natural(call, 5) * row, gradient.dtype)
    return OpCost(indices.numel * row, gradient.bytes + 2 * indices.bytes, written, gradient.dtype)


@cost("aten::gather")
def gather(call: OpCall) -> OpCost:
    """One element per index read and written."""
    return _lookup(call.tensor(0), call.tensor(2), 1)


@cost(
    "aten::scatter", "aten::scatter_", "aten::scatter_add", "aten::scatter_add_", "aten::scatter_reduce",
    "aten::scatter_reduce_",
)  # fmt: skip
def scatter(call: OpCall) -> OpCost:
    """One element of the source (or one value) per index written, or combined with what is there."""
    x, indices = call.tensor(0), call.tensor(2)
    source = call.tensor(3) if call.has(3) else None
    count = indices.numel
    read = indices.bytes + (size(min(count, source.stored), source.dtype) if source else 0)
    combined = "scatter_add" in call.name or "reduce" in call.name or call.text(4) in _COMBINED
    return _into(call, x, count, read, count if combined else 0)


@cost(
    "aten::index_add", "aten::index_add_", "aten::index_copy", "aten::index_copy_", "aten::index_reduce",
    "aten::index_reduce_",
)  # fmt: skip
def index_add(call: OpCall) -> OpCost:
    """One row of the source per index written, or combined with the row that is there."""
    x, indices, source = call.tensor(0), call.tensor(2), call.tensor(3)
    scaled = "index_add" in call.name and call.text(4) not in ("", "1", "1.0", "1.")
    flops = 0 if "copy" in call.name else source.numel * (2 if scaled else 1)
    return _into(call, x, source.numel, indices.bytes + source.bytes, flops)


@cost("aten::index_fill", "aten::index_fill_")
def index_fill(call: OpCall) -> OpCost:
    """One value written to one row per index."""
    x, indices = call.tensor(0), call.tensor(2)
    return _into(call, x, indices.numel * _row(x, _dim(call, x)), indices.bytes, 0)


@cost("aten::put_")
def put(call: OpCall) -> OpCost:
    """One element of the source per index written, or added to what is there."""
    x, indices, source = call.tensor(0), call.tensor(1), call.tensor(2)
    flops = indices.numel if call.flag(3) else 0
    return _into(call, x, indices.numel, indices.bytes + source.bytes, flops)


def _into(call: OpCall, x: Tensor, count: int, read: int, flops: int) -> OpCost:
    """Write `count` elements to x, or to a copy of it; with `flops` they are combined with what is there."""
    touched = min(count, x.numel)
    if call.name.endswith("_"):
        before, written = touched if flops else 0, touched
    else:
        before, written = x.numel if flops else x.numel - touched, x.numel
    return OpCost(flops, read + size(before, x.dtype), size(written, x.dtype), x.dtype)


@cost("aten::masked_select")
def masked_select(call: OpCall) -> OpCost:
    """The mask read, the selected elements read and written."""
    x, mask = call.tensor(0), call.tensor(1)
    config = _ELEMENTWISE.search(call.kernel) if call.blocks > 0 else None
    if not config:
        raise Uncounted("the number of selected elements, which depends on the data")
    count = min(call.blocks * int(config[1]) * int(config[2]), max(x.numel, mask.numel))
    selected = size(count, x.dtype)
    return OpCost(0, mask.bytes + selected, selected, x.dtype, note=_AT_MOST)


@cost("aten::masked_scatter", "aten::masked_scatter_")
def masked_scatter(call: OpCall) -> OpCost:
    """The mask read, and the elements of the source written where it is set."""
    x, mask, source = call.tensor(0), call.tensor(1), call.tensor(2)
    count = min(source.numel, x.numel)
    cost_ = _into(call, x, count, mask.bytes + size(count, source.dtype), 0)
    return OpCost(0, cost_.read_bytes, cost_.write_bytes, x.dtype, note="upper bound: all of the source used")


@cost("aten::nonzero", "aten::argwhere")
def nonzero(call: OpCall) -> OpCost:
    """All elements read and compared; how many positions are written is in the data."""
    x = call.tensor(0)
    return OpCost(x.numel, x.bytes, 0, x.dtype, note="positions written not recorded and not counted")


@cost("aten::nonzero_static")
def nonzero_static(call: OpCall) -> OpCost:
    """All elements read and compared, a given number of positions written."""
    x = call.tensor(0)
    return OpCost(x.numel, x.bytes, size(natural(call, 1) * max(len(x.shape), 1), "i64"), x.dtype)


def _dim(call: OpCall, x: Tensor) -> int:
    return axis(call, 1, x, 0 if len(x.shape) <= 1 else None)


def _row(table: Tensor, dim: int) -> int:
    """Elements that one index along `dim` selects."""
    return prod(table.shape[:dim] + table.shape[dim + 1 :])


def _last(tensor: Tensor) -> int:
    return length(tensor, -1)
