"""Mixture of experts: routing, sorting, permuting tokens.

With T tokens of H elements, each sent to k of E experts:

- Routing reads the logits (T, E) and writes k weights and indices a token. Softmax (4 operations) and top-k
  (1) are counted on each logit.
- Sorting and aligning read the indices and write the sorted ones; comparisons are not counted.
- Permuting reads T rows and writes a row for each (token, expert); unpermuting reads those and adds them up
  to T rows: 1 operation an element, 2 with weights.

Sources: vLLM, csrc/moe/torch_bindings.cpp; aiter, ops/moe_op.py, moe_sorting.py and topk.py; SGLang,
sgl-kernel and python/sglang/srt/layers/moe/fused_moe_triton; TransformerEngine, pytorch/permutation.py;
Primus-Turbo, kernels/moe; triton-lang/triton, python/triton_kernels (topk.py, routing.py). DeepEP's dispatch
and combine do not record how many tokens go to other ranks.
"""

from __future__ import annotations

from collections.abc import Iterable

from tracelens.costs.call import OpCall, Tensor, Uncounted, size
from tracelens.costs.model import OpCost, cost

_ROUTING = 5
_SHARED = "lower bound: one shared expert"
_ANOTHER = "an autograd function of the same name as one of triton_kernels"


@cost("_moe_C::topk_softmax", "aiter::topk_softmax", "aiter::topk_softmax_asm")
def topk_softmax(call: OpCall) -> OpCost:
    """Softmax and top-k: weights, indices and positions written, logits read."""
    return _routed(call, call.tensor(3), reads=(3,), writes=(0, 1, 2))


@cost("sgl_kernel::topk_softmax", "sgl_kernel::topk_sigmoid")
def topk_softmax_sglang(call: OpCall) -> OpCost:
    """Softmax and top-k: weights and indices written, logits read."""
    return _routed(call, call.tensor(2), reads=(2,), writes=(0, 1))


@cost("aiter::biased_grouped_topk", "aiter::biased_grouped_topk_hip", "aiter::moe_fused_gate")
def biased_topk(call: OpCall) -> OpCost:
    """Scores, bias and top-k in groups of experts: logits and bias read, weights and indices written."""
    return _routed(call, call.tensor(0), reads=(0, 1), writes=(2, 3))


@cost("aiter::topk_softplus", "aiter::topk_gating")
def topk_softplus(call: OpCall) -> OpCost:
    """Scores by the root of softplus (or softmax, sigmoid), bias and top-k: weights and indices first."""
    return _routed(call, call.tensor(2), reads=(2, 3), writes=(0, 1))


@cost("sglang_profiler::fused_moe_triton_kernels_fused_append_shared_experts*")
def append_shared(call: OpCall) -> OpCost:
    """Shared experts behind the k chosen ones of each token: indices and weights copied into wider ones.

    How many shared experts there are is no tensor; one is counted, the least.
    """
    indices, weights = rows_of(call, 0), rows_of(call, 1)
    (tokens, k), wider = indices.shape, _with_one_more(indices) + _with_one_more(weights)
    return OpCost(0, indices.bytes + weights.bytes, wider, weights.dtype, dims=(("T", tokens), ("k", k + 1)),
                  note=_SHARED)  # fmt: skip


@cost("TopK")
def topk_triton(call: OpCall) -> OpCost:
    """Softmax and top-k of triton_kernels: logits, k; weights, indices and a bit for each expert written."""
    if "topk" not in call.kernel:
        raise Uncounted(_ANOTHER)
    logits, k = rows_of(call, 0), call.integer(1)
    (tokens, experts), chosen = logits.shape, logits.shape[0] * max(k, 0)
    written = size(chosen, logits.dtype) + size(chosen, "i16") + 4 * tokens * -(-experts // 32)
    return OpCost(_ROUTING * logits.numel, logits.bytes, written, logits.dtype)


@cost("SortTokens")
def sort_triton(call: OpCall) -> OpCost:
    """Sorting of triton_kernels: weights and indices (T, k), number of experts.

    Weights in order of the experts, indices there and back, rows of each expert; maps of tiles not counted.
    """
    if "routing" not in call.kernel and "bitmatrix" not in call.kernel:
        raise Uncounted(_ANOTHER)
    weights, indices, experts = rows_of(call, 0), rows_of(call, 1), call.integer(2)
    written = weights.dense_bytes + 2 * size(weights.numel, "i32") + 4 * max(experts, 0)
    return OpCost(0, weights.bytes + indices.bytes, written, weights.dtype)


@cost("aiter::grouped_topk", "aiter::grouped_topk_hip")
def grouped_topk(call: OpCall) -> OpCost:
    """The same without a bias."""
    return _routed(call, call.tensor(0), reads=(0,), writes=(1, 2))


@cost(
    "_moe_C::moe_align_block_size", "_moe_C::sgl_moe_align_block_size", "vllm::moe_align_block_size",
    "sgl_kernel::moe_align_block_size",
)  # fmt: skip
def align(call: OpCall) -> OpCost:
    """Indices read, sorted and padded positions, experts of blocks and their number written."""
    return _moved(call, reads=(0,), writes=(3, 4, 5))


@cost("aiter::moe_sorting_fwd", "aiter::moe_sorting_opus_fwd")
def sorting(call: OpCall) -> OpCost:
    """Indices and weights read; sorted ones, experts, their number and the zeroed result written."""
    return _moved(call, reads=(0, 1), writes=(2, 3, 4, 5, 6))


@cost("_moe_C::moe_sum", "aiter::moe_sum", "sgl_kernel::moe_sum")
def moe_sum(call: OpCall) -> OpCost:
    """The k results of each token added up."""
    rows = call.tensor(0)
    return _moved(call, reads=(0,), writes=(1,), flops=rows.numel, dtype=rows.dtype)


@cost("_moe_C::moe_permute")
def permute_vllm(call: OpCall) -> OpCost:
    """Tokens, weights and indices read, permuted rows and maps written."""
    return _moved(call, reads=range(4), writes=range(4, len(call.dtypes)), dtype=call.tensor(0).dtype)


@cost("primus_turbo_cpp_extension::permute")
def permute_primus(call: OpCall) -> OpCost:
    """Tokens, scales, probabilities and map read, the permuted ones written."""
    return _moved(call, reads=(0, 2, 4, 6), writes=(1, 3, 5), dtype=call.tensor(0).dtype)


@cost("primus_turbo_cpp_extension::unpermute")
def unpermute_primus(call: OpCall) -> OpCost:
    """Permuted rows, probabilities and map read, sums written."""
    rows = call.tensor(0)
    return _moved(call, reads=(0, 2, 4), writes=(1, 3), flops=rows.numel, dtype=rows.dtype)


@cost("te_moe::permute_mask_map_fwd", "te_moe::permute_index_map")
def permute_te(call: OpCall) -> OpCost:
    """Tokens (T, H) and map read, as many rows written as the op is told, or one for each index."""
    tokens, routing = rows_of(call, 0), rows_of(call, 1)
    rows = call.integer(2, 0)
    if rows <= 0 and call.name.endswith("mask_map_fwd"):
        raise Uncounted("number of permuted rows not recorded")
    return _permuted(call, tokens, rows if rows > 0 else routing.numel)


@cost("te_moe::unpermute_mask_map_fwd", "te_moe::unpermute_index_map_fwd")
def unpermute_te(call: OpCall) -> OpCost:
    """Permuted rows, map and weights read, their sums for T tokens written."""
    rows = rows_of(call, 0)
    return _summed(call, rows, call.integer(3), 2 if call.has(2) and call.tensor(2).numel else 1)


@cost("te_moe::permute_mask_map_bwd", "te_moe::permute_index_map_bwd")
def permute_te_backward(call: OpCall) -> OpCost:
    """Gradients of the permuted rows added up for T tokens."""
    return _summed(call, rows_of(call, 0), call.integer(4 if "mask" in call.name else 2), 1)


@cost("te_moe::chunk_sort_fwd", "_moe_chunk_sort")
def chunk_sort(call: OpCall) -> OpCost:
    """Chunks of rows in another order: all rows read and written."""
    rows = rows_of(call, 0)
    read = sum(tensor.bytes for tensor in call.tensors())
    return OpCost(0, read, rows.dense_bytes, rows.dtype)


@cost("_moe_permute_mask_map", "_moe_permute_index_map")
def permute_function(call: OpCall) -> OpCost:
    """TransformerEngine's autograd function: tokens, map, number of permuted rows."""
    return permute_te(call) if call.integer(2, 0) > 0 else _by_index(call)


@cost("_moe_unpermute_mask_map")
def unpermute_function(call: OpCall) -> OpCost:
    """TransformerEngine's autograd function: rows and a map with one row a token."""
    return _summed(call, rows_of(call, 0), rows_of(call, 1).shape[0], 2 if call.has(2) else 1)


@cost(
    "_moe_permute_mask_mapBackward", "_moe_permute_index_mapBackward", "_moe_unpermute_mask_mapBackward",
    "_moe_unpermute_index_mapBackward", "_moe_chunk_sortBackward", forward=True,
)  # fmt: skip
def moved_back(call: OpCall) -> OpCost:
    """Gradients read, the gradient of the forward's rows written; that of the weights is not counted."""
    gradient, rows = rows_of(call, 0), rows_of(call.of_forward(), 0)
    read = sum(tensor.bytes for tensor in call.tensors())
    # Only where rows were copied are they added up: more in the gradient than in the result.
    additions = gradient.numel if gradient.shape[0] > rows.shape[0] else 0
    return OpCost(additions, read, rows.dense_bytes, rows.dtype)


@cost(
    "FusedDispatch", "FusedDispatchBackward", "FusedCombine", "FusedCombineBackward", "MoEDispatch",
    "MoEDispatchBackward", "MoECombine", "MoECombineBackward", "HybridEPDispatch", "HybridEPDispatchBackward",
    "HybridEPCombine", "HybridEPCombineBackward", "primus_turbo::moe_dispatch*", "primus_turbo::moe_combine*",
)  # fmt: skip
def dispatch(call: OpCall) -> OpCost:
    """Dispatch and combine of DeepEP and its like."""
    raise Uncounted("number of tokens that go to other ranks not recorded")


def _routed(call: OpCall, logits: Tensor, reads: tuple[int, ...], writes: tuple[int, ...]) -> OpCost:
    return _moved(call, reads, writes, _ROUTING * logits.numel, logits.dtype)


def _with_one_more(table: Tensor) -> int:
    """Bytes of a table (T, k) with a column added."""
    return size(table.shape[0] * (table.shape[1] + 1), table.dtype)


def _moved(
    call: OpCall, reads: Iterable[int], writes: Iterable[int], flops: int = 0, dtype: str = ""
) -> OpCost:
    """The tensor arguments at these indices read or written once."""
    first = call.tensor(0)  # where nothing was recorded, this says so
    read = call.bytes(*reads)
    written = call.bytes(*writes)
    return OpCost(flops, read, written, dtype or first.dtype)


def _permuted(call: OpCall, tokens: Tensor, rows: int) -> OpCost:
    read = sum(tensor.bytes for tensor in call.tensors())
    hidden = tokens.shape[1]
    return OpCost(
        0, read, size(rows * hidden, tokens.dtype), tokens.dtype, dims=(("rows", rows), ("H", hidden))
    )


def _by_index(call: OpCall) -> OpCost:
    """A map of indices (T, k) has one row for each; a mask does not tell how many are set."""
    tokens, routing = rows_of(call, 0), rows_of(call, 1)
    if routing.dtype == "bool" or call.name.endswith("mask_map"):
        raise Uncounted("number of permuted rows not recorded")
    return _permuted(call, tokens, routing.numel)


def _summed(call: OpCall, rows: Tensor, tokens: int, operations: int) -> OpCost:
    if tokens < 0:
        raise Uncounted("number of tokens not recorded")
    read = sum(tensor.bytes for tensor in call.tensors())
    written = size(tokens * rows.shape[1], rows.dtype)
    dims = (("rows", rows.shape[0]), ("T", tokens), ("H", rows.shape[1]))
    return OpCost(operations * rows.numel, read, written, rows.dtype, dims=dims)


def rows_of(call: OpCall, index: int) -> Tensor:
    """Tensor argument with two dimensions."""
    tensor = call.tensor(index)
    if len(tensor.shape) != 2:
        raise Uncounted(f"argument {index} with {len(tensor.shape)} dimensions instead of 2")
    return tensor
