"""Experts of an MoE layer: both GEMMs in one fused op, or each in an op of its own.

With T tokens of H elements, each sent to k of E experts, the GEMMs run on all T·k rows: 2·T·k·(size of one
expert's weights) FLOPs. No more than T·k experts are in use; the weights and scales of so many are read, all
where T·k is at least E. Weights of 4 bits are packed in pairs: a row of K elements is K/2 bytes long.

Sources: vLLM, vllm/model_executor/layers/fused_moe; ROCm/aiter, aiter/ops/moe_op.py; SGLang,
python/sglang/srt/layers/moe/fused_moe_triton/fused_moe_triton_kernels.py. Ops of `sglang_profiler` record
tensors only (AMD-AGI/TraceLens, kernel shape profiler).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import prod

from tracelens.costs.elementwise import GELU, GELU_BACKWARD, SILU
from tracelens.costs.gemm import PAIRS, math_dtype
from tracelens.costs.model import OpCall, OpCost, Tensor, Uncounted, cost, size

_NO_WEIGHTS = "weights of the experts not recorded"
_NO_ROWS = "number of permuted rows not recorded"
_EXPERTS = "upper bound: as many experts in use as there are rows, at most all"
_MX_GROUP = 32  # elements of a scale of a byte (OCP Microscaling Formats)
# Layouts and types of result, rows and weights; rows, columns and depth of a tile; parts of the depth. A
# persistent kernel (`_p_matmul`) has a grid of its own.
_MATMUL = re.compile(r"^_matmul(?:_ogs)?_[NT]+_\w+?x(bf16|fp16)x(\w+?)_(\d+)x(\d+)x\d+x(\d+)(?:_|$)")
_OGS_TYPES = {"mxfp4": "fp4", "mxfp8": "fp8", "fp8e5": "fp8", "fp8e4": "fp8"}

_ROUTING = 5
_SHARED = "lower bound: one shared expert"
_ANOTHER = "an autograd function of the same name as one of triton_kernels"

_SILU_BACKWARD = 9


@cost(
    "vllm::inplace_fused_experts", "vllm::outplace_fused_experts", "sglang::inplace_fused_experts",
    "sglang::outplace_fused_experts", "aiter::fused_moe_", "aiter::fused_moe", "vllm::rocm_aiter_fused_moe",
)  # fmt: skip
def fused_experts(call: OpCall) -> OpCost:
    """Tokens, both weights of all experts, weights and indices of the routing."""
    tokens, topk = rows_of(call, 0), rows_of(call, 4)
    return _experts(call, tokens, (call.tensor(1), call.tensor(2)), topk.shape[1], tokens)


@cost(
    "aiter::fmoe", "aiter::fmoe_g1u1", "aiter::fmoe_g1u1_tkw1", "aiter::fmoe_int8_g1u0",
    "aiter::fmoe_fp8_blockscale_g1u1",
)  # fmt: skip
def fused_experts_sorted(call: OpCall) -> OpCost:
    """Result, tokens, both weights of all experts, the sorted rows; k is a number."""
    out, tokens = rows_of(call, 0), rows_of(call, 1)
    return _experts(call, tokens, (call.tensor(2), call.tensor(3)), call.integer(8), out)


@cost("aiter::ck_moe_stage1", "aiter::ck_moe_stage1_fwd", "aiter::ck_moe_stage2", "aiter::ck_moe_stage2_fwd")
def expert_stage(call: OpCall) -> OpCost:
    """One of the two GEMMs of all experts: rows, both weights, the sorted rows, the result, k."""
    rows, out = call.tensor(0), call.tensor(6)
    if not rows.shape or not out.shape:
        raise Uncounted("tokens without dimensions")
    return _experts(call, rows, (call.tensor(1 if "stage1" in call.name else 2),), call.integer(7), out)


@cost("aiter::moe_cktile2stages_gemm1_ck", "aiter::moe_cktile2stages_gemm2_ck")
def expert_tiles(call: OpCall) -> OpCost:
    """One of both GEMMs: x (T, H) or (T, k, F), weight (E, N, K), the result, the sorted rows, k."""
    x, weight = call.tensor(0), call.tensor(1)
    rows = prod(x.shape[:-1]) if x.shape else 0
    if "gemm1" in call.name:
        rows *= call.integer(6)
    return _one_gemm(call, x, weight, call.tensor(2), rows, scales=(10, 11, 12))


@cost("sglang_profiler::fused_moe_triton_kernels_invoke_fused_moe_kernel*")
def expert_launch(call: OpCall) -> OpCost:
    """One of both GEMMs: x, weight (E, N, K), bias, the result, scales, weights and indices of the routing.

    The first takes T rows of tokens to T·k, the second has T·k rows from the beginning.
    """
    x, weight, out = call.tensor(0), call.tensor(1), call.tensor(3)
    if not out.shape or not out.shape[-1]:
        raise Uncounted("result without dimensions")
    return _one_gemm(call, x, weight, out, out.numel // out.shape[-1], scales=(2, 4, 5, 6))


@cost("vllm::moe_forward", "vllm::moe_forward_shared", inner=True)
def layer_of_triton(call: OpCall) -> OpCost:
    """An MoE layer of vLLM on Triton's matmul_ogs: tokens (T, H), logits (T, E); weights are no arguments.

    The first GEMM's kernel has tile sizes and element types in its name, and its launch has a grid of as many
    tiles as T·k rows of E experts can have, times those of its columns, times the parts that its depth is
    split in; k is in the routing's own ops (triton-lang/triton, python/triton_kernels: matmul_ogs.py,
    routing.py). The second GEMM has half as many rows in its weights as the first has columns, which SwiGLU
    halves: in the first kernel, or where its depth is split in the kernel that adds up the parts.
    """
    tokens, logits = rows_of(call, 0), rows_of(call, 1)
    launches = call.launches or ((call.kernel, call.blocks),)
    tile, blocks = next(
        ((tile, count) for name, count in launches if (tile := _MATMUL.search(name))), (None, -1)
    )
    if tile is None or not any("swiglu" in name for name, _ in launches):
        raise Uncounted("the weights of the experts are no arguments")
    inputs, weight, (tile_rows, tile_columns, splits) = tile[1], tile[2], (int(tile[n]) for n in (3, 4, 5))
    (count, hidden), experts, k = tokens.shape, logits.shape[1], _chosen(call)
    rows = count * k
    # Every expert but one may end in a tile that is not full.
    tiles = rows if rows <= experts else -(-(rows - experts + 1) // tile_rows) + experts - 1
    columns, rest = divmod(blocks, tiles * splits) if tiles and splits else (0, 1)
    if columns < 1 or rest:
        raise Uncounted("launch grid not recorded, or not that of all rows")
    width = columns * tile_columns
    inner = width // 2
    elements = hidden * (width + inner)
    used = min(experts, rows)
    scales = elements // _MX_GROUP if weight.startswith("mx") else 0
    read = tokens.bytes + logits.bytes + used * (size(elements, _OGS_TYPES.get(weight, weight)) + scales)
    dims = (("E", experts), ("rows", rows), ("H", hidden), ("inner", inner))
    return OpCost(2 * rows * elements, read, tokens.dense_bytes, inputs, "matrix", dims=dims,
                  note=f"weight sizes from the launch grid, in whole tiles; {_EXPERTS}")  # fmt: skip


def _chosen(call: OpCall) -> int:
    """Experts a token by the ops of the routing inside a layer."""
    for inner in call.inner:
        if inner.name == "TopK":
            return inner.integer(1)
        if inner.name == "SortTokens" and inner.has(0) and len(inner.tensor(0).shape) == 2:
            return inner.tensor(0).shape[1]
    raise Uncounted("number of experts a token not recorded")


def _one_gemm(
    call: OpCall, x: Tensor, weight: Tensor, out: Tensor, rows: int, scales: tuple[int, ...]
) -> OpCost:
    """A GEMM of `rows` rows, each with the weight (N, K) of one expert."""
    if len(weight.shape) != 3 or not weight.shape[0] or not x.shape:
        raise Uncounted(_NO_WEIGHTS)
    experts, n, stored = weight.shape
    pairs = _in_pairs(x, weight)
    k = stored * (2 if pairs else 1)
    used = min(experts, rows)
    of_experts = [weight, *(call.tensor(index) for index in scales if call.has(index))]
    read = x.bytes + sum(
        tensor.bytes * used // experts if tensor.shape[:1] == (experts,) else tensor.bytes
        for tensor in of_experts
    )
    # Rows are quantized before this op, or not at all: those of 16 bits are multiplied as such.
    dtype = math_dtype(call, x, weight) if not pairs else "fp4" if x.dtype in PAIRS else x.dtype
    dims = (("E", experts), ("rows", rows), ("N", n), ("K", k))
    return OpCost(2 * rows * n * k, read, out.dense_bytes, dtype, "matrix", dims=dims, note=_EXPERTS)


def _in_pairs(rows: Tensor, weight: Tensor) -> bool:
    """Whether two 4-bit elements share a byte of the weight, which is then half as wide as the rows."""
    if weight.dtype == "u8":
        return rows.dtype == "u8" or rows.shape[-1] == 2 * weight.shape[-1]
    return weight.dtype == "fp4x2"


def _experts(call: OpCall, tokens: Tensor, weights: tuple[Tensor, ...], k: int, out: Tensor) -> OpCost:
    """GEMMs of all rows with these weights (E, ., .), the first three dimensions of one expert's."""
    if any(len(weight.shape) != 3 or not weight.shape[0] for weight in weights) or k < 1:
        raise Uncounted(_NO_WEIGHTS)
    experts, count = weights[0].shape[0], tokens.shape[0]
    rows = count * k
    packed = 2 if _in_pairs(tokens, weights[0]) else 1
    used = min(experts, rows)
    flops = 2 * rows * packed * sum(prod(weight.shape[1:]) for weight in weights)
    read = tokens.bytes + sum(weight.bytes * used // experts for weight in weights)
    dtype = "fp4" if packed == 2 else weights[0].dtype
    dims = (("E", experts), ("rows", rows), ("H", tokens.shape[-1]))
    return OpCost(flops, read, out.dense_bytes, dtype, "matrix", dims=dims, note=_EXPERTS)


# ====================
# Mixture of experts: routing, sorting, permuting tokens.
#
# With T tokens of H elements, each sent to k of E experts:
#
# - Routing reads the logits (T, E) and writes k weights and indices a token. Softmax (4 operations) and top-k
#   (1) are counted on each logit.
# - Sorting and aligning read the indices and write the sorted ones; comparisons are not counted.
# - Permuting reads T rows and writes a row for each (token, expert); unpermuting reads those and adds them up
#   to T rows: 1 operation an element, 2 with weights.
#
# Sources: vLLM, csrc/moe/torch_bindings.cpp; aiter, ops/moe_op.py, moe_sorting.py and topk.py; SGLang,
# sgl-kernel and python/sglang/srt/layers/moe/fused_moe_triton; TransformerEngine, pytorch/permutation.py;
# Primus-Turbo, kernels/moe; triton-lang/triton, python/triton_kernels (topk.py, routing.py). DeepEP's
# dispatch and combine do not record how many tokens go to other ranks.


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
        raise Uncounted(_NO_ROWS)
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
    return OpCost(0, sum(tensor.bytes for tensor in call.tensors()), rows.dense_bytes, rows.dtype)


@cost("_moe_permute_mask_map", "_moe_permute_index_map")
def permute_function(call: OpCall) -> OpCost:
    """TransformerEngine's autograd function: tokens, map, number of permuted rows."""
    if call.integer(2, 0) > 0:
        return permute_te(call)
    # A map of indices (T, k) has one row for each; a mask does not tell how many are set.
    tokens, routing = rows_of(call, 0), rows_of(call, 1)
    if routing.dtype == "bool" or call.name.endswith("mask_map"):
        raise Uncounted(_NO_ROWS)
    return _permuted(call, tokens, routing.numel)


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
def exchange_tokens(call: OpCall) -> OpCost:
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
    return OpCost(flops, call.bytes(*reads), call.bytes(*writes), dtype or first.dtype)


def _permuted(call: OpCall, tokens: Tensor, rows: int) -> OpCost:
    read = sum(tensor.bytes for tensor in call.tensors())
    hidden = tokens.shape[1]
    return OpCost(
        0, read, size(rows * hidden, tokens.dtype), tokens.dtype, dims=(("rows", rows), ("H", hidden))
    )


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


# ====================
# Fused gated activations: act(a) · b of the two halves of one tensor, in the libraries' own ops.
#
# Known by name in any namespace (vLLM `_C::silu_and_mul`, SGLang `sgl_kernel::silu_and_mul`, AITER
# `aiter::silu_and_mul`, FlashInfer, Megatron `SwiGLUFunction`, ...). Of two tensors the one of twice the
# elements is read and the other written, whichever comes first: the libraries do not agree on the order.


@cost(
    "*::silu_and_mul", "*::mul_and_silu", "*::swiglu", "*::fused_swiglu", "*::silu_and_mul_clamp",
)  # fmt: skip
def silu_and_mul(call: OpCall) -> OpCost:
    """2N to N elements, 6 operations each: SiLU and a product."""
    return _halved(call, SILU + 1)


@cost("*::gelu_and_mul", "*::geglu", "*::fused_geglu")
def gelu_and_mul(call: OpCall) -> OpCost:
    """2N to N elements, 6 operations each: GELU (error function) and a product."""
    return _halved(call, GELU["none"] + 1)


@cost("*::gelu_tanh_and_mul")
def gelu_tanh_and_mul(call: OpCall) -> OpCost:
    """2N to N elements, 10 operations each: GELU (tanh form) and a product."""
    return _halved(call, GELU["tanh"] + 1)


@cost("*::fatrelu_and_mul", "*::relu_and_mul", "*::reglu")
def relu_and_mul(call: OpCall) -> OpCost:
    """2N to N elements, 2 operations each: a comparison and a product."""
    return _halved(call, 2)


@cost("*::scaled_silu_and_mul", "*::silu_and_mul_quant")
def scaled_silu_and_mul(call: OpCall) -> OpCost:
    """2N to N elements in a narrower type, 7 operations each: SiLU, a product and a scale."""
    return _halved(call, SILU + 2)


@cost("SwiGLUFunction", "BiasSwiGLUFunction", "WeightedSwiGLUFunction")
def swiglu_function(call: OpCall) -> OpCost:
    """Megatron's SwiGLU: (..., 2N) to (..., N), with a bias to add or a weight a token to multiply with."""
    return _megatron(call, SILU + 1)


@cost("BiasGeGLUFunction", "GeGLUFunction", "WeightedQuickGeGLUFunction")
def geglu_function(call: OpCall) -> OpCost:
    """Megatron's GeGLU: (..., 2N) to (..., N), GELU in the tanh form."""
    return _megatron(call, GELU["tanh"] + 1)


@cost(
    "SwiGLUFunctionBackward", "BiasSwiGLUFunctionBackward", "WeightedSwiGLUFunctionBackward", forward=True,
)  # fmt: skip
def swiglu_backward(call: OpCall) -> OpCost:
    """Gradients of both halves from the (..., N) gradient and the (..., 2N) input of the forward op."""
    return _megatron_backward(call, _SILU_BACKWARD + SILU + 1)


@cost("BiasGeGLUFunctionBackward", "GeGLUFunctionBackward", forward=True)
def geglu_backward(call: OpCall) -> OpCost:
    """Gradients of both halves from the (..., N) gradient and the (..., 2N) input of the forward op."""
    return _megatron_backward(call, GELU_BACKWARD["tanh"] + GELU["tanh"] + 1)


@cost("LigerSiLUMulFunction")
def silu_mul(call: OpCall) -> OpCost:
    """SiLU(a) · b of two tensors, 6 operations an element."""
    a, b = call.tensor(0), call.tensor(1)
    return OpCost((SILU + 1) * a.numel, a.bytes + b.bytes, a.dense_bytes, a.dtype)


@cost("LigerSiLUMulFunctionBackward", forward=True)
def silu_mul_backward(call: OpCall) -> OpCost:
    """Gradients of a and b from that of SiLU(a) · b, and from a and b."""
    gradient = call.tensor(0)
    read = 3 * gradient.bytes
    flops = (_SILU_BACKWARD + SILU + 1) * gradient.numel
    return OpCost(flops, read, 2 * gradient.dense_bytes, gradient.dtype)


def _halved(call: OpCall, operations: int) -> OpCost:
    tensors = call.tensors()
    source = max(tensors[:2], key=lambda tensor: tensor.numel)
    extras = list(tensors)
    extras.remove(source)
    half = _half(source)
    written = next((tensor for tensor in extras if tensor.numel == half), None)
    if written:
        extras.remove(written)
    extra = sum(tensor.bytes for tensor in extras)
    result = size(half, written.dtype if written else source.dtype)
    return OpCost(operations * half, source.bytes + extra, result, source.dtype)


def _megatron(call: OpCall, operations: int) -> OpCost:
    source, *extras = call.tensors()
    half = _half(source)
    read = source.bytes + sum(tensor.bytes for tensor in extras)
    return OpCost((operations + len(extras)) * half, read, size(half, source.dtype), source.dtype)


def _megatron_backward(call: OpCall, operations: int) -> OpCost:
    gradient = call.tensor(0)
    source = call.forward.tensor(0) if call.forward else None
    both = size(2 * gradient.numel, gradient.dtype)
    if source and source.numel != 2 * gradient.numel:
        raise Uncounted("gradient and input of the forward op do not match")
    read = gradient.bytes + (source.bytes if source else both)
    return OpCost(operations * gradient.numel, read, both, gradient.dtype)


def _half(source: Tensor) -> int:
    if not source.shape or source.shape[-1] % 2:
        raise Uncounted("the last dimension of the input cannot be halved")
    return source.numel // 2
