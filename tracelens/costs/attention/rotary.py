"""Rotary position embedding (RoFormer, Su et al. 2021): fused ops of Transformer Engine, apex, AITER, vLLM.

A pair of elements is turned by an angle: x·cos + rotated(x)·sin, 3 FLOPs an element (sines from a table;
where a kernel works them out, that is not counted). Backward turns the other way, at the same cost. Bytes:
input and table once, output once; where only part of a head is turned, the op still moves the whole of it,
unless it works in place.
"""

from __future__ import annotations

from tracelens.costs.attention.cache import table_rows
from tracelens.costs.call import OpCall, Tensor, Uncounted, size
from tracelens.costs.model import OpCost, cost


@cost(
    "FusedRoPEFunc", "FusedRoPECachedFunc", "FusedRoPETHDFunc", "RoPE", "RoPECached", "RoPETHD", "RoPE2D",
    engine="vector",
)  # fmt: skip
def rotary(call: OpCall) -> OpCost:
    """Rotary embedding of one tensor, with a table of angles or of sines: 3 FLOPs an element."""
    x, *table = call.tensors()
    return _rotary(x, sum(tensor.bytes for tensor in table))


@cost(
    "FusedRoPEFuncBackward", "FusedRoPECachedFuncBackward", "FusedRoPETHDFuncBackward", "RoPEBackward",
    "RoPECachedBackward", "RoPETHDBackward", "RoPE2DBackward",
engine="vector")  # fmt: skip
def rotary_backward(call: OpCall) -> OpCost:
    """Rotary embedding, backward: 3 FLOPs an element of the gradient; its table is not recorded."""
    grad = call.tensor(0)
    return _rotary(grad, 0)


@cost(
    "aiter::rope_fwd_impl", "aiter::rope_bwd_impl", "aiter::rope_cached_fwd_impl",
    "aiter::rope_cached_bwd_impl", "aiter::rope_thd_fwd_impl", "aiter::rope_thd_bwd_impl",
    "aiter::rope_2d_fwd_impl", "aiter::rope_2d_bwd_impl",
engine="vector")  # fmt: skip
def aiter_rotary(call: OpCall) -> OpCost:
    """AITER's rotary embedding of one tensor into another: 3 FLOPs an element."""
    _, x, *table = _at_least(call, 2)
    return _rotary(x, sum(tensor.bytes for tensor in table))


@cost(
    "aiter::rope_2c_fwd_impl", "aiter::rope_2c_bwd_impl", "aiter::rope_cached_2c_fwd_impl",
    "aiter::rope_cached_2c_bwd_impl",
engine="vector")  # fmt: skip
def aiter_rotary_pair(call: OpCall) -> OpCost:
    """AITER's rotary embedding of queries and keys into others: 3 FLOPs an element."""
    _, _, x, y, *table = _at_least(call, 4)
    return _rotary(x, sum(tensor.bytes for tensor in table) + y.bytes, y)


@cost("aiter::rope_cached_positions_2c_fwd_impl", engine="vector")
def aiter_rotary_positions(call: OpCall) -> OpCost:
    """Rotary embedding of queries and keys into others, by the rows of two tables at given positions.

    Both results, queries, keys, cosines, sines, positions, a style, whether one half of a row stands for
    both (ROCm/aiter, aiter/ops/rope.py). Elements that are not turned are copied.
    """
    x, y, cosines, sines, positions = (call.tensor(index) for index in (2, 3, 4, 5, 6))
    if not x.shape or not y.shape or not cosines.shape or not x.shape[-1] or x.shape[-1] != y.shape[-1]:
        raise Uncounted("queries, keys or tables in an unknown layout")
    width = min(cosines.shape[-1] * (2 if call.flag(8) else 1), x.shape[-1])
    turned = (x.numel + y.numel) * width // x.shape[-1]
    tables = sum(table_rows(table, positions.numel) for table in (cosines, sines))
    read = x.bytes + y.bytes + positions.bytes + tables
    written = call.tensor(0).dense_bytes + call.tensor(1).dense_bytes
    dims = (("tokens", positions.numel), ("D", x.shape[-1]))
    return OpCost(3 * turned, read, written, x.dtype, dims=dims)


@cost("_C::rotary_embedding", "vllm::rotary_embedding", "sgl_kernel::rotary_embedding", engine="vector")
def serving_rotary(call: OpCall) -> OpCost:
    """Rotary embedding in place of queries and keys at given positions, whose rows of the table are read.

    Arguments: positions, queries, keys (or none), head size, table (positions, width). 3 FLOPs an element;
    only the table's width of each head is turned, and the rest of a wider head is neither read nor written.
    """
    positions, query = call.tensor(0), call.tensor(1)
    table = call.tensor(4)
    if len(table.shape) != 2:
        raise Uncounted("a table of sines in an unknown layout")
    head = call.integer(3)
    width = table.shape[1]
    if head < width:
        raise Uncounted("a table of sines wider than a head")
    turned = query.numel + (call.tensor(2).numel if call.has(2) else 0)
    turned = turned * width // (head or 1)
    moved = size(turned, query.dtype)
    rows = min(positions.numel, table.shape[0])
    read = moved + positions.bytes + size(rows * width, table.dtype)
    return OpCost(3 * turned, read, moved, query.dtype, dims=(("tokens", positions.numel), ("D", head)))


def _rotary(x: Tensor, extra: int, key: Tensor | None = None) -> OpCost:
    elements = x.numel + (key.numel if key else 0)
    dims = (("rows", x.numel // x.shape[-1]), ("D", x.shape[-1])) if x.shape and x.shape[-1] else ()
    return OpCost(3 * elements, x.bytes + extra, size(elements, x.dtype), x.dtype, dims=dims)


def _at_least(call: OpCall, count: int) -> list[Tensor]:
    tensors = call.tensors()
    if len(tensors) < count:
        raise Uncounted(f"{len(tensors)} recorded tensors instead of {count}")
    return tensors
