"""Sparse attention: each query sees a list of keys, which are rows of latents and values at once.

With H heads, queries and keys of width D, values the first Dv of a row, and n (query, key) pairs in all
lists: 2·n·H·(D + Dv) FLOPs. How many entries of a list are used is in GPU memory, so n is an upper bound: the
length of the lists. Bytes: queries and lists once, each row once, of as many as there are pairs at most, the
output once. (DeepSeek-V3.2-Exp, 2025, DeepSeek Sparse Attention.)

Sources: ROCm/aiter, aiter/ops/pa_sparse_prefill_opus.py; sgl-project/sglang,
python/sglang/srt/layers/attention/nsa/tilelang_kernel.py.
"""

from __future__ import annotations

from tracelens.costs.call import OpCall, Tensor, Uncounted, size
from tracelens.costs.model import OpCost, cost

_LISTS = "upper bound: every list entry is a key"
_VALUE_WIDTH = 512  # of a latent; the default of the function


@cost("aiter::pa_sparse_prefill_opus_fwd")
def prefill(call: OpCall) -> OpCost:
    """Queries (T, H, D) over rows of a cache and of the new tokens, each with lists and their bounds.

    Queries, cached rows, their lists and bounds, new rows, their lists and bounds, sinks, the output.
    """
    q, cache, new, out = call.tensor(0), call.tensor(1), call.tensor(4), call.tensor(8)
    lists, bounds = (call.tensor(2), call.tensor(5)), call.bytes(3, 6, 7)
    width = q.shape[-1] if q.shape else 0
    parts = list(zip((cache, new), lists, strict=True))
    rows = sum(_rows(pool, pairs.numel, width) for pool, pairs in parts)
    read = q.bytes + sum(pairs.bytes for pairs in lists) + bounds + rows
    return _cost(q, sum(pairs.numel for pairs in lists), width, read, out.bytes)


@cost("sglang_profiler::tilelang_kernel_tilelang_sparse_fwd*")
def tilelang(call: OpCall) -> OpCost:
    """Queries (T, H, D), latents (N, 1, D), lists (T, 1, k); argument 4 is the width of the values."""
    q, latents, lists = call.tensor(0), call.tensor(1), call.tensor(2)
    width = call.integer(4, _VALUE_WIDTH)
    if len(q.shape) != 3 or len(latents.shape) != 3 or len(lists.shape) != 3 or not 0 < width <= q.shape[2]:
        raise Uncounted("queries, latents or lists in an unknown layout")
    read = q.bytes + lists.bytes + _rows(latents, lists.numel, q.shape[2])
    # The result of 8-bit queries has 16 bits.
    out = "bf16" if q.dtype.startswith("fp8") else q.dtype
    return _cost(q, lists.numel, width, read, size(q.shape[0] * q.shape[1] * width, out))


def _rows(pool: Tensor, pairs: int, width: int) -> int:
    """Bytes of the rows that so many pairs can name."""
    count = pool.numel // width if width else 0
    return size(min(pairs, count) * width, pool.dtype)


def _cost(q: Tensor, pairs: int, value_width: int, read: int, written: int) -> OpCost:
    if len(q.shape) != 3:
        raise Uncounted("queries in an unknown layout")
    tokens, heads, width = q.shape
    dims = (("H", heads), ("Nq", tokens), ("pairs", pairs), ("D", width), ("Dv", value_width))
    flops = 2 * pairs * heads * (width + value_width)
    return OpCost(flops, read, written, q.dtype, "matrix", dims=dims, note=_LISTS)
