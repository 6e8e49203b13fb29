"""Attention over a cache of blocks that tables assign to sequences: vLLM's and aiter's paged attention.

Keys lie as (blocks, heads, D/x, block, x), values as (blocks, heads, D, block) or (blocks, heads, block/x,
D, x): see vllm-project/vllm, csrc/attention, and ROCm/aiter, aiter/ops/attention.py. The lengths of the
sequences are in GPU memory: the label of the serving step tells their sums, see paged.py.
"""

from __future__ import annotations

from tracelens.costs.attention.paged import Paged, of_token
from tracelens.costs.call import NO_SHAPES, OpCall, Tensor, Uncounted
from tracelens.costs.model import OpCost, cost

_LAYOUTS = [(3, 5, 4), (3, 5, 5)]
"""Dimensions of the queries (T, heads, D), of the keys and of the values in the cache."""


@cost(
    "_C::paged_attention*",
    "_rocm_C::paged_attention*",
    "aiter::paged_attention*",
    "aiter::pa_fwd*",
    batch=True,
)
def blocked(call: OpCall) -> OpCost:
    """Decoding over a cache of blocks: queries, keys and values follow each other, behind the outputs."""
    q, k, v = _inputs(call)
    blocks, heads, width = k.shape[0], k.shape[1], q.shape[2]
    block = _length(k, blocks * heads * width)
    keys, values = of_token(k, heads, width), of_token(v, heads, _length(v, blocks * heads * block))
    return Paged(q, keys, values, keys=blocks * block).forward(call)


def _inputs(call: OpCall) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values: the position among the arguments differs between ops and their versions."""
    for first in range(len(call.dtypes) - 2):
        if not all(call.has(index) for index in range(first, first + 3)):
            continue
        q, k, v = (call.tensor(index) for index in range(first, first + 3))
        layout = tuple(len(tensor.shape) for tensor in (q, k, v))
        if layout in _LAYOUTS and k.shape[:2] == v.shape[:2]:
            return q, k, v
    raise Uncounted("a KV cache in an unknown layout" if call.shapes else NO_SHAPES)


def _length(cache: Tensor, rest: int) -> int:
    """Elements along the remaining dimension of a cache."""
    if not rest or cache.numel % rest:
        raise Uncounted("recorded shapes of queries, keys and values disagree")
    return cache.numel // rest
