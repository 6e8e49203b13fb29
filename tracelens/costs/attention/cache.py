"""Writing keys and values into a cache, alone or with the rotary embedding in front of it.

A cache is as large as the memory allows; what is written is the rows of the new tokens, in the cache's type.
Tokens added as padding have no slot in the cache, which is not recorded: all are counted. Rotary embedding
as in rotary.py: 3 FLOPs an element of the part that is turned, of the tables the rows at the positions.

Sources: vllm-project/vllm, csrc/cache.h; sgl-project/sglang, python/sglang/srt/mem_cache/memory_pool.py;
ROCm/aiter, aiter/ops/cache.py and aiter/ops/triton/fusions/fused_kv_cache.py.
"""

from __future__ import annotations

from tracelens.costs.call import OpCall, Tensor, size
from tracelens.costs.model import OpCost, cost
from tracelens.costs.torch import dtype_argument

_TURN = 3


@cost(
    "sglang::store_cache", "sglang_profiler::memory_pool__set_kv_buffer_impl*",
    "_C_cache_ops::reshape_and_cache", "_C_cache_ops::reshape_and_cache_flash", "aiter::reshape_and_cache",
    "aiter::reshape_and_cache_flash", engine="vector",
)  # fmt: skip
def store(call: OpCall) -> OpCost:
    """Keys and values of new tokens into both caches: keys, values, caches, slots."""
    k, v, slots = call.tensor(0), call.tensor(1), call.tensor(4)
    written = size(k.numel, call.tensor(2).dtype) + size(v.numel, call.tensor(3).dtype)
    return OpCost(0, k.bytes + v.bytes + slots.bytes, written, k.dtype, dims=(("tokens", slots.numel),))


@cost("_C_cache_ops::concat_and_cache_mla", "aiter::concat_and_cache_mla", engine="vector")
def store_latents(call: OpCall) -> OpCost:
    """Latents and rotary keys of new tokens into one cache: both, the cache, slots."""
    latent, rope, slots = call.tensor(0), call.tensor(1), call.tensor(3)
    written = size(latent.numel + rope.numel, call.tensor(2).dtype)
    read = latent.bytes + rope.bytes + slots.bytes
    return OpCost(0, read, written, latent.dtype, dims=(("tokens", slots.numel),))


@cost("aiter::fused_qk_rope_concat_and_cache_mla", engine="vector")
def rotate_and_store(call: OpCall) -> OpCost:
    """Turn the rotary parts of queries and keys; join queries, and write latents and keys into the cache.

    Queries without and with rotary part, latents, rotary keys, cache, joined queries, slots, two scales,
    positions, cosines, sines.
    """
    parts = [call.tensor(index) for index in range(4)]
    cache, out = call.tensor(4), call.tensor(5)
    read = call.bytes(6, 7, 8) + _tables(call, 9, 10, 11)
    return _rotated(parts, read, out.bytes + _rows(parts, cache))


@cost("aiter::fused_qk_rope_cat_and_cache_mla", engine="vector")
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
