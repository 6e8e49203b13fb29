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
from math import prod

from tracelens.costs.call import OpCall, Tensor, Uncounted, size
from tracelens.costs.gemm import math_dtype
from tracelens.costs.model import OpCost, cost
from tracelens.costs.moe.routing import rows_of

_EXPERTS = "upper bound: as many experts in use as there are rows, at most all"
_PAIRS = ("fp4x2", "u8")
_MX_GROUP = 32  # elements of a scale of a byte (OCP Microscaling Formats)
# Layouts and types of result, rows and weights; rows, columns and depth of a tile; parts of the depth. A
# persistent kernel (`_p_matmul`) has a grid of its own.
_MATMUL = re.compile(r"^_matmul(?:_ogs)?_[NT]+_\w+?x(bf16|fp16)x(\w+?)_(\d+)x(\d+)x\d+x(\d+)(?:_|$)")
_OGS_TYPES = {"mxfp4": "fp4", "mxfp8": "fp8", "fp8e5": "fp8", "fp8e4": "fp8"}


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
        raise Uncounted("weights of the experts not recorded")
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
    dtype = math_dtype(call, x, weight) if not pairs else "fp4" if x.dtype in _PAIRS else x.dtype
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
        raise Uncounted("weights of the experts not recorded")
    experts, count = weights[0].shape[0], tokens.shape[0]
    rows = count * k
    packed = 2 if _in_pairs(tokens, weights[0]) else 1
    used = min(experts, rows)
    flops = 2 * rows * packed * sum(prod(weight.shape[1:]) for weight in weights)
    read = tokens.bytes + sum(weight.bytes * used // experts for weight in weights)
    dtype = "fp4" if packed == 2 else weights[0].dtype
    dims = (("E", experts), ("rows", rows), ("H", tokens.shape[-1]))
    return OpCost(flops, read, out.dense_bytes, dtype, "matrix", dims=dims, note=_EXPERTS)
