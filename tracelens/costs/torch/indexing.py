"""Reading and writing at given positions: index, gather, scatter, masks and embeddings.

Of a table only the rows that are used move: as many as there are indices, or all of them if the table is
smaller. How many rows lists of indices and masks select is not recorded. Where a second tensor has that size
it is used; `aten::index` else takes it from the launch grid, which PyTorch's two kernels for it derive from
the size of the result:

- `vectorized_gather_kernel<A, ...>`: one block per row and 256·A bytes of it, so the number of rows is exact;
- `index_elementwise_kernel<T, V, ...>`: T·V elements a block, an upper bound, by T·V - 1 at most.
"""

from __future__ import annotations

import re
from math import prod

from tracelens.costs.call import OpCall, Tensor, Uncounted, size
from tracelens.costs.model import OpCost, cost
from tracelens.costs.torch.tensors import axis, length, natural, outputs

_GATHER = re.compile(r"vectorized_gather_kernel<(\d+)")
_ELEMENTWISE = re.compile(r"index_elementwise_kernel<(\d+), (\d+)")
_BLOCK_THREADS = 256

_FROM_GRID = "size of the result from the launch grid, indices not counted"
_AT_MOST = "upper bound: size of the result from the launch grid, indices not counted"
_NO_INDICES = "indices not recorded and not counted"
_LISTED = "shapes of the indices, which the profiler does not record"


@cost("aten::index", "aten::_unsafe_index", engine="vector")
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
engine="vector")  # fmt: skip
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
        read, written = (
            values.bytes + size(x.numel if add else x.numel - put, x.dtype),
            x.dense_bytes,
        )
    return OpCost(values.numel if add else 0, read, written, x.dtype, note=_NO_INDICES)


@cost("aten::index_select", "aten::take", "aten::_index_select", engine="vector")
def index_select(call: OpCall) -> OpCost:
    """One row per index read and written."""
    table = call.tensor(0)
    indices = call.tensor(1 if call.name == "aten::take" else 2)
    row = 1 if call.name == "aten::take" else _row(table, _dim(call, table))
    return _lookup(table, indices, row)


@cost("aten::embedding", engine="vector")
def embedding(call: OpCall) -> OpCost:
    """One row of the table per index read and written."""
    table = call.tensor(0)
    return _lookup(table, call.tensor(1), _row(table, 0))


def _lookup(table: Tensor, indices: Tensor, row: int) -> OpCost:
    count = indices.numel * row
    read = size(min(count, table.stored), table.dtype) + indices.bytes
    return OpCost(0, read, size(count, table.dtype), table.dtype)


@cost("aten::embedding_dense_backward", engine="vector")
def embedding_dense_backward(call: OpCall) -> OpCost:
    """The gradient added up in the rows of the table: one addition an element; the whole table is written."""
    gradient, indices = call.tensor(0), call.tensor(1)
    written = size(natural(call, 2) * _last(gradient), gradient.dtype)
    return OpCost(gradient.numel, gradient.bytes + indices.bytes, written, gradient.dtype)


@cost("aten::_embedding_bag", "aten::_embedding_bag_forward_only", "aten::embedding_bag", engine="vector")
def embedding_bag(call: OpCall) -> OpCost:
    """One row per index read and added up by bag; the sums and the bag of every index written."""
    table, indices, offsets = call.tensor(0), call.tensor(1), call.tensor(2)
    row = _row(table, 0)
    count = indices.numel * row
    read = size(min(count, table.stored), table.dtype) + indices.bytes + offsets.bytes
    written = size(offsets.numel * row, table.dtype) + indices.bytes
    return OpCost(count, read, written, table.dtype)


@cost("aten::_embedding_bag_dense_backward", engine="vector")
def embedding_bag_backward(call: OpCall) -> OpCost:
    """The gradient of every bag added to the rows of its indices; the whole table is written."""
    gradient, indices = call.tensor(0), call.tensor(1)
    row = _last(gradient)
    written = size(natural(call, 5) * row, gradient.dtype)
    return OpCost(indices.numel * row, gradient.bytes + 2 * indices.bytes, written, gradient.dtype)


@cost("aten::gather", engine="vector")
def gather(call: OpCall) -> OpCost:
    """One element per index read and written."""
    return _lookup(call.tensor(0), call.tensor(2), 1)


@cost(
    "aten::scatter", "aten::scatter_", "aten::scatter_add", "aten::scatter_add_", "aten::scatter_reduce",
    "aten::scatter_reduce_",
engine="vector")  # fmt: skip
def scatter(call: OpCall) -> OpCost:
    """One element of the source (or one value) per index written, or combined with what is there."""
    x, indices = call.tensor(0), call.tensor(2)
    source = call.tensor(3) if call.has(3) else None
    count = indices.numel
    read = indices.bytes + (size(min(count, source.stored), source.dtype) if source else 0)
    combined = "scatter_add" in call.name or "reduce" in call.name or call.text(4) in _COMBINED
    return _into(call, x, count, read, count if combined else 0)


_COMBINED = frozenset({"add", "multiply", "sum", "prod", "mean", "amax", "amin"})


@cost(
    "aten::index_add", "aten::index_add_", "aten::index_copy", "aten::index_copy_", "aten::index_reduce",
    "aten::index_reduce_",
engine="vector")  # fmt: skip
def index_add(call: OpCall) -> OpCost:
    """One row of the source per index written, or combined with the row that is there."""
    x, indices, source = call.tensor(0), call.tensor(2), call.tensor(3)
    scaled = "index_add" in call.name and call.text(4) not in ("", "1", "1.0", "1.")
    flops = 0 if "copy" in call.name else source.numel * (2 if scaled else 1)
    return _into(call, x, source.numel, indices.bytes + source.bytes, flops)


@cost("aten::index_fill", "aten::index_fill_", engine="vector")
def index_fill(call: OpCall) -> OpCost:
    """One value written to one row per index."""
    x, indices = call.tensor(0), call.tensor(2)
    row = _row(x, _dim(call, x))
    return _into(call, x, indices.numel * row, indices.bytes, 0)


@cost("aten::put_", engine="vector")
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


@cost("aten::masked_select", engine="vector")
def masked_select(call: OpCall) -> OpCost:
    """The mask read, the selected elements read and written."""
    x, mask = call.tensor(0), call.tensor(1)
    config = _ELEMENTWISE.search(call.kernel) if call.blocks > 0 else None
    if not config:
        raise Uncounted("the number of selected elements, which depends on the data")
    count = min(call.blocks * int(config[1]) * int(config[2]), max(x.numel, mask.numel))
    selected = size(count, x.dtype)
    return OpCost(0, mask.bytes + selected, selected, x.dtype, note=_AT_MOST)


@cost("aten::masked_scatter", "aten::masked_scatter_", engine="vector")
def masked_scatter(call: OpCall) -> OpCost:
    """The mask read, and the elements of the source written where it is set."""
    x, mask, source = call.tensor(0), call.tensor(1), call.tensor(2)
    count = min(source.numel, x.numel)
    cost_ = _into(call, x, count, mask.bytes + size(count, source.dtype), 0)
    return OpCost(0, cost_.read_bytes, cost_.write_bytes, x.dtype, note="upper bound: all of the source used")


@cost("aten::nonzero", "aten::argwhere", engine="vector")
def nonzero(call: OpCall) -> OpCost:
    """All elements read and compared; how many positions are written is in the data."""
    x = call.tensor(0)
    return OpCost(x.numel, x.bytes, 0, x.dtype, note="positions written not recorded and not counted")


@cost("aten::nonzero_static", engine="vector")
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
