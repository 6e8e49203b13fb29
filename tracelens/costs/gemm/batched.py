"""Batched GEMMs of libraries, whose rows are quantized on the way: the absorbed projections of MLA.

B GEMMs of (M, K) and (K, N), 2·B·M·N·K FLOPs in the type that the weights have. Rows may be stored as
(B, M, K) or (M, B, K). Bytes: rows, weights, scales, bias once, the result once; the quantized rows exist in
registers only.

Sources: ROCm/aiter, aiter/ops/triton/gemm/batched, batched_gemm_a16wfp4.py and
batched_gemm_a8w8_a_per_token_group_prequant_w_per_batched_tensor_quant.py. The op of the latter is a wrapper
that records tensors only (AMD-AGI/TraceLens, kernel shape profiler).
"""

from __future__ import annotations

from math import prod

from tracelens.costs.call import OpCall, Tensor, Uncounted, size
from tracelens.costs.gemm.dense import agree, sizes
from tracelens.costs.model import OpCost, cost
from tracelens.costs.torch import dtype_argument


@cost("aiter::batched_gemm_a16wfp4_", "aiter::batched_gemm_a16wfp4")
def batched_fp4(call: OpCall) -> OpCost:
    """Rows of 16 bits, weight (B, N, K/2) of 4-bit pairs, its scales; a flag leaves the rows in 16 bits."""
    x, weight = call.tensor(0), call.tensor(1)
    out = call.tensor(4).dtype if call.has(4) else dtype_argument(call, 3) or "bf16"
    return _batched(x, weight, 2, call.bytes(2, 8), out, "fp4" if call.flag(7, True) else x.dtype)


@cost(
    "sglang_profiler::batched_gemm_a8w8_a_per_token_group_prequant_w_per_batched_tensor_quant*",
    "aiter::batched_gemm_a8w8_a_per_token_group_prequant_w_per_batched_tensor_quant*",
)  # fmt: skip
def batched_fp8(call: OpCall) -> OpCost:
    """Rows of 16 bits, weight (B, N, K) of 8 bits, its scale, bias and, in some calls, the result."""
    x, weight = call.tensor(0), call.tensor(1)
    others = [call.tensor(index) for index in range(2, len(call.dtypes)) if call.has(index)]
    elements = prod(x.shape[:-1]) * (weight.shape[1] if len(weight.shape) == 3 else 0)
    results = [tensor for tensor in others if len(tensor.shape) == 3 and tensor.numel == elements]
    extra = sum(tensor.bytes for tensor in others if tensor not in results)
    return _batched(x, weight, 1, extra, results[-1].dtype if results else "bf16", weight.dtype)


def _batched(x: Tensor, weight: Tensor, packed: int, extra: int, out: str, dtype: str) -> OpCost:
    if len(x.shape) != 3 or len(weight.shape) != 3:
        raise Uncounted("operands of a batched GEMM without 3 dimensions")
    batch, n, k = weight.shape[0], weight.shape[1], weight.shape[2] * packed
    agree(x.shape[-1], k)
    rows = prod(x.shape[:-1])
    if not batch or rows % batch:
        raise Uncounted("recorded shapes disagree on the number of GEMMs")
    read = x.bytes + weight.bytes + extra
    dims = (("B", batch), *sizes(rows // batch, n, k))
    return OpCost(2 * rows * n * k, read, size(rows * n, out), dtype, "matrix", dims=dims)
