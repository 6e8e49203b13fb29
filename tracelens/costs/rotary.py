"""Rotary position embedding (RoFormer, Su et al. 2021): fused ops of Transformer Engine, apex, AITER, vLLM.

A pair of elements is turned by an angle: x·cos + rotated(x)·sin, 3 FLOPs an element (sines from a table;
where a kernel works them out, that is not counted). Backward turns the other way, at the same cost. Bytes:
input and table once, output once; where only part of a head is turned, the op still moves the whole of it,
unless it works in place.
"""

from __future__ import annotations

from tracelens.costs.model import OpCall, OpCost, Tensor, Uncounted, cost, size
from tracelens.costs.tensors import dtype_argument

_TURN = 3


@cost(
    "FusedRoPEFunc", "FusedRoPECachedFunc", "FusedRoPETHDFunc", "RoPE", "RoPECached", "RoPETHD", "RoPE2D",
)  # fmt: skip
def rotary(call: OpCall) -> OpCost:
    """Rotary embedding of one tensor, with a table of angles or of sines: 3 FLOPs an element."""
    x, *table = call.tensors()
    return _rotary(x, sum(tensor.bytes for tensor in table))


@cost(
    "FusedRoPEFuncBackward", "FusedRoPECachedFuncBackward", "FusedRoPETHDFuncBackward", "RoPEBackward",
    "RoPECachedBackward", "RoPETHDBackward", "RoPE2DBackward",
)  # fmt: skip
def rotary_backward(call: OpCall) -> OpCost:
    """Rotary embedding, backward: 3 FLOPs an element of the gradient; its table is not recorded."""
    return _rotary(call.tensor(0), 0)


@cost(
    "aiter::rope_fwd_impl", "aiter::rope_bwd_impl", "aiter::rope_cached_fwd_impl",
    "aiter::rope_cached_bwd_impl", "aiter::rope_thd_fwd_impl", "aiter::rope_thd_bwd_impl",
    "aiter::rope_2d_fwd_impl", "aiter::rope_2d_bwd_impl",
)  # fmt: skip
def aiter_rotary(call: OpCall) -> OpCost:
    """AITER's rotary embedding of one tensor into another: 3 FLOPs an element."""
    _, x, *table = call.tensors(2)
    return _rotary(x, sum(tensor.bytes for tensor in table))


@cost(
    "aiter::rope_2c_fwd_impl", "aiter::rope_2c_bwd_impl", "aiter::rope_cached_2c_fwd_impl",
    "aiter::rope_cached_2c_bwd_impl",
)  # fmt: skip
def aiter_rotary_pair(call: OpCall) -> OpCost:
    """AITER's rotary embedding of queries and keys into others: 3 FLOPs an element."""
    _, _, x, y, *table = call.tensors(4)
    return _rotary(x, sum(tensor.bytes for tensor in table) + y.bytes, y)


@cost("aiter::rope_cached_positions_2c_fwd_impl")
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


@cost("_C::rotary_embedding", "vllm::rotary_embedding", "sgl_kernel::rotary_embedding")
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
    read = moved + positions.bytes + size(min(positions.numel, table.shape[0]) * width, table.dtype)
    return OpCost(3 * turned, read, moved, query.dtype, dims=(("tokens", positions.numel), ("D", head)))


def _rotary(x: Tensor, extra: int, key: Tensor | None = None) -> OpCost:
    elements = x.numel + (key.numel if key else 0)
    dims = (("rows", x.numel // x.shape[-1]), ("D", x.shape[-1])) if x.shape and x.shape[-1] else ()
    return OpCost(3 * elements, x.bytes + extra, size(elements, x.dtype), x.dtype, dims=dims)


# ====================
# Writing keys and values into a cache, alone or with the rotary embedding in front of it.
#
# A cache is as large as the memory allows; what is written is the rows of the new tokens, in the cache's
# type. Tokens added as padding have no slot in the cache, which is not recorded: all are counted. Rotary
# embedding as above: 3 FLOPs an element of the part that is turned, of the tables the rows at the positions.
#
# Sources: vllm-project/vllm, csrc/cache.h; sgl-project/sglang, python/sglang/srt/mem_cache/memory_pool.py;
# ROCm/aiter, aiter/ops/cache.py and aiter/ops/triton/fusions/fused_kv_cache.py.


@cost(
    "sglang::store_cache", "sglang_profiler::memory_pool__set_kv_buffer_impl*",
    "_C_cache_ops::reshape_and_cache", "_C_cache_ops::reshape_and_cache_flash", "aiter::reshape_and_cache",
    "aiter::reshape_and_cache_flash",
)  # fmt: skip
def store(call: OpCall) -> OpCost:
    """Keys and values of new tokens into both caches: keys, values, caches, slots."""
    k, v, slots = call.tensor(0), call.tensor(1), call.tensor(4)
    written = size(k.numel, call.tensor(2).dtype) + size(v.numel, call.tensor(3).dtype)
    return OpCost(0, k.bytes + v.bytes + slots.bytes, written, k.dtype, dims=(("tokens", slots.numel),))


@cost("_C_cache_ops::concat_and_cache_mla", "aiter::concat_and_cache_mla")
def store_latents(call: OpCall) -> OpCost:
    """Latents and rotary keys of new tokens into one cache: both, the cache, slots."""
    latent, rope, slots = call.tensor(0), call.tensor(1), call.tensor(3)
    written = size(latent.numel + rope.numel, call.tensor(2).dtype)
    read = latent.bytes + rope.bytes + slots.bytes
    return OpCost(0, read, written, latent.dtype, dims=(("tokens", slots.numel),))


@cost("aiter::fused_qk_rope_concat_and_cache_mla")
def rotate_and_store(call: OpCall) -> OpCost:
    """Turn the rotary parts of queries and keys; join queries, and write latents and keys into the cache.

    Queries without and with rotary part, latents, rotary keys, cache, joined queries, slots, two scales,
    positions, cosines, sines.
    """
    parts = [call.tensor(index) for index in range(4)]
    cache, out = call.tensor(4), call.tensor(5)
    read = call.bytes(6, 7, 8) + _tables(call, 9, 10, 11)
    return _rotated(parts, read, out.bytes + _rows(parts, cache))


@cost("aiter::fused_qk_rope_cat_and_cache_mla")
def rotate_and_store_triton(call: OpCall) -> OpCost:
    """The same, with turned keys as a further result, and of decoding tokens their turned queries and zeros.

    Queries without and with rotary part, latents, rotary keys, cache, slots, positions, cosines, sines,
    scale; argument 11 is the number of decoding tokens that need zeros, 13 the joined queries, 16 their type.
    """
    parts = [call.tensor(index) for index in range(4)]
    nope, rope, _, keys = parts
    out = call.tensor(13).dtype if call.has(13) else dtype_argument(call, 16) or nope.dtype
    joined = size(nope.numel + rope.numel, out)
    tokens = nope.shape[0] if nope.shape else 0
    decoding = min(max(call.integer(11, 0), 0), tokens)
    zeros = (nope.dense_bytes + rope.dense_bytes) * decoding // tokens if tokens else 0
    read = call.bytes(5, 9) + _tables(call, 6, 7, 8)
    return _rotated(parts, read, joined + keys.dense_bytes + zeros + _rows(parts, call.tensor(4)))


def _rotated(parts: list[Tensor], read: int, written: int) -> OpCost:
    nope, rope, _, keys = parts
    turned = rope.numel + keys.numel
    read += sum(tensor.bytes for tensor in parts)
    heads = rope.shape[1] if len(rope.shape) == 3 else 1
    dims = (("tokens", nope.shape[0] if nope.shape else 0), ("H", heads))
    return OpCost(_TURN * turned, read, written, nope.dtype, dims=dims)


def _rows(parts: list[Tensor], cache: Tensor) -> int:
    """Bytes of the new tokens' rows in the cache."""
    return size(parts[2].numel + parts[3].numel, cache.dtype)


def _tables(call: OpCall, positions: int, cosines: int, sines: int) -> int:
    """Bytes of positions and of the rows of both tables that they name."""
    tokens = call.tensor(positions)
    return tokens.bytes + sum(table_rows(call.tensor(index), tokens.numel) for index in (cosines, sines))


def table_rows(table: Tensor, count: int) -> int:
    """Bytes of so many rows of a table (positions, ..., width), of all where there are fewer."""
    rows = table.shape[0] if table.shape else 0
    return table.bytes * min(count, rows) // rows if rows else 0
