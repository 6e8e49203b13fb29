"""GEMMs of libraries: aiter, Primus-Turbo, hipBLASLt, vLLM, SGLang, DeepGEMM, TensorRT-LLM, bitsandbytes.

All are x · Wᵀ with 2·M·N·K FLOPs, M the rows of x, and differ in where the operands stand and whether the
weight is stored as (N, K) or (K, N). Where a flag for that is not recorded, the side of the weight that is
as long as K decides; a square weight costs the same either way. Bytes: operands, scales, bias and result
once. 4-bit types are packed in pairs: a row of K elements is K/2 bytes long.

Sources: ROCm/aiter, aiter/ops/gemm_op_a8w8.py and its neighbors (a4w4, a16w16) and
aiter/ops/triton/gemm/basic/gemm_afp4wfp4.py; AMD-AGI/Primus-Turbo, primus_turbo/pytorch/kernels/gemm and
csrc/pytorch/bindings_pytorch.cpp; vllm-project/vllm, csrc/torch_bindings.cpp, vllm/_aiter_ops.py and
vllm/model_executor/layers/quantization/quark; sgl-project/sglang, sgl-kernel; NVIDIA/TensorRT-LLM,
cpp/tensorrt_llm/thop/cublasScaledMM.cpp; bitsandbytes-foundation/bitsandbytes, bitsandbytes/_ops.py.
"""

from __future__ import annotations

from math import prod

from tracelens.costs.call import OpCall, Tensor, Uncounted, size
from tracelens.costs.gemm.dense import agree, gemm_cost, other_side, sizes
from tracelens.costs.model import OpCost, cost
from tracelens.costs.torch import dtype_argument

_PAIRS = ("fp4x2", "u8")


@cost(
    "aiter::gemm_a8w8*", "aiter::gemm_a16w16*", "aiter::gemm_a16w8*", "aiter::flatmm_a8w8*", "aiter::hipb_mm",
    "aiter::rocb_mm", "aiter::wv_splitk*", "aiter::wvSplitK*", "aiter::LLMM1", "_rocm_C::LLMM1",
    "_rocm_C::wvSplitK", "vllm::rocm_unquantized_gemm", "vllm::rocm_unquantized_gemm_impl",
    "vllm::w8a8_block_fp8_matmul_func", "vllm::w8a8_triton_block_scaled_mm_func",
    "vllm::rocm_aiter_gemm_w8a8", "vllm::rocm_aiter_gemm_w8a8_blockscale", "vllm::rocm_aiter_gemm_a8w8*",
    "sgl_kernel::fp8_scaled_mm", "sgl_kernel::int8_scaled_mm", "sgl_kernel::fp8_blockwise_scaled_mm",
    "primus_turbo_cpp_extension::gemm_fp8", "primus_turbo_cpp_extension::ck_gemm_fp8",
    "primus_turbo_cpp_extension::turbo_gemm_fp8", "aiter::gfx950_a8w8_blockscale_asm",
    "vllm::_rocm_aiter_preshuffled_per_token_w8a8_gemm", "vllm::rocm_aiter_triton_gemm_a8w8_blockscale",
    "sglang_profiler::fp8_utils_gemm_a8w8_blockscale*",
    "sglang_profiler::gemm_a8w8_blockscale_gemm_a8w8_blockscale*",
    "sglang_profiler::gemm_kernels_flydsl_hgemm*",
)  # fmt: skip
def operands_first(call: OpCall) -> OpCost:
    """Rows and weight come first, behind them scales, bias and, in some, the result."""
    return _scaled(call, 0, 1)


@cost("aiter::gemm_a4w4*", "aiter::gemm_afp4wfp4_", "sgl_kernel::scaled_fp4_mm")
def operands_first_fp4(call: OpCall) -> OpCost:
    """The same of 4-bit matrices packed in pairs."""
    return _scaled(call, 0, 1, packed=True)


@cost("aiter::_gemm_a4w4_asm")
def assembly_fp4(call: OpCall) -> OpCost:
    """The same, their scales, and a result whose rows may be padded to a multiple of 32."""
    return _scaled(call, 0, 1, result=4, packed=True)


@cost("aiter::_gemm_a8w8_blockscale_bpreshuffle_asm")
def assembly_fp8(call: OpCall) -> OpCost:
    """Rows, weight (N, K), the result, scales, bias."""
    return _scaled(call, 0, 1, result=2)


@cost("aiter::_gemm_a16w16_asm")
def assembly_16bit(call: OpCall) -> OpCost:
    """Rows, weight (N, K), the result; of the workspaces behind them only the bias is read."""
    a, b = call.tensor(0), call.tensor(1)
    if not a.shape or len(b.shape) != 2:
        raise Uncounted("GEMM operands without their dimensions")
    n, k = b.shape
    agree(a.shape[-1], k)
    others = [call.tensor(index) for index in range(4, len(call.dtypes)) if call.has(index)]
    bias = next((tensor.bytes for tensor in others if tensor.shape in ((n,), (1, n))), 0)
    return gemm_cost(call, a, b, prod(a.shape[:-1]), n, k, extra=bias, out=call.tensor(2).dtype)


@cost("vllm::gemm_with_dynamic_quant")
def quark_fp4(call: OpCall) -> OpCost:
    """MXFP4 linear of vLLM: x (M, K), quantized in the op, or packed (M, K/2) with scales; weight (N, K/2).

    Older versions have the result in front of them. The quantized x in between is not counted.
    """
    first = 1 if call.has(2) and not _packs(call.tensor(0), call.tensor(1)) else 0
    x, weight = call.tensor(first), call.tensor(first + 1)
    if not _packs(x, weight):
        raise Uncounted("neither operand order of the op fits the recorded shapes")
    rows, (n, half) = prod(x.shape[:-1]), weight.shape
    out = call.tensor(0).dtype if first else dtype_argument(call, 4) or "bf16"
    scales = call.bytes(first + 2, *range(first + 3, len(call.dtypes)))
    read = x.bytes + weight.bytes + scales
    return OpCost(2 * rows * n * 2 * half, read, size(rows * n, out), "fp4", "matrix",
                  dims=sizes(rows, n, 2 * half))  # fmt: skip


@cost("trtllm::cublas_scaled_mm")
def tensorrt_scaled(call: OpCall) -> OpCost:
    """Operands (M, K) and (K, N), their scales, bias, the result's type, by default that of the first."""
    a, b = call.tensor(0), call.tensor(1)
    if len(a.shape) != 2 or len(b.shape) != 2:
        raise Uncounted("GEMM operands without their dimensions")
    (m, k), (k2, n) = a.shape, b.shape
    agree(k, k2)
    return gemm_cost(call, a, b, m, n, k, extra=call.bytes(2, 3, 4), out=dtype_argument(call, 5))


@cost("bitsandbytes::int8_linear_matmul", "bitsandbytes::int8_linear_matmul.out")
def int8_linear(call: OpCall) -> OpCost:
    """8-bit rows (..., K) and weight (N, K) to 32-bit sums."""
    a, b = call.tensor(0), call.tensor(1)
    if not a.shape or len(b.shape) != 2:
        raise Uncounted("GEMM operands without their dimensions")
    n, k = b.shape
    agree(a.shape[-1], k)
    return gemm_cost(call, a, b, prod(a.shape[:-1]), n, k, out="i32")


@cost("_C::cutlass_scaled_mm", "_C::cutlass_scaled_mm_azp", "_C::cutlass_scaled_sparse_mm")
def cutlass_scaled(call: OpCall) -> OpCost:
    """The result first, then a (M, K) and b (K, N)."""
    return _scaled(call, 1, 2, result=0)


@cost("_C::cutlass_scaled_fp4_mm")
def cutlass_scaled_fp4(call: OpCall) -> OpCost:
    """The same of 4-bit matrices packed in pairs."""
    return _scaled(call, 1, 2, result=0, packed=True)


@cost("vllm::fp8_gemm_nt_op", "vllm::deep_gemm_fp8_nt")
def deep_gemm(call: OpCall) -> OpCost:
    """DeepGEMM: x, its scale, weight (N, K), its scale, the result."""
    return _scaled(call, 0, 2, result=4)


@cost(
    "primus_turbo_cpp_extension::hipblaslt_gemm", "primus_turbo_cpp_extension::hipblaslt_gemm_fp8",
    "primus_turbo_cpp_extension::hipblaslt_gemm_fp4", "primus_turbo::hipblaslt_gemm_fp8",
    "primus_turbo::hipblaslt_gemm_fp4",
)  # fmt: skip
def hipblaslt(call: OpCall) -> OpCost:
    """A, its scale, B, its scale, the result's type, flags for transposed A and B; argument 10 is added."""
    out = dtype_argument(call, 4) or ("bf16" if "_fp" in call.name else "")
    return _flagged(call, (0, 5), (2, 6), (1, 3, 10), out)


@cost("primus_turbo::gemm_impl")
def primus(call: OpCall) -> OpCost:
    """Operands, each followed by a flag for its transposition, the result's type, bias."""
    return _flagged(call, (0, 1), (2, 3), (7,), dtype_argument(call, 4))


@cost("primus_turbo::gemm_fp8_impl", "primus_turbo::gemm_fp4_impl")
def primus_fp8(call: OpCall) -> OpCost:
    """Operands, each followed by its scale and a flag for its transposition, the result's type."""
    return _flagged(call, (0, 2), (3, 5), (1, 4), dtype_argument(call, 6) or "bf16")


@cost("primus_turbo::gemm_fp6_impl")
def primus_fp6(call: OpCall) -> OpCost:
    """Packed operands and scales; M, N and K are given as numbers."""
    read = call.bytes(*range(4))
    m, n, k = call.integer(4), call.integer(5), call.integer(6)
    if min(m, n, k) < 0:
        raise Uncounted("GEMM sizes not recorded")
    out = dtype_argument(call, 7) or "bf16"
    return OpCost(2 * m * n * k, read, size(m * n, out), "fp6", "matrix", dims=sizes(m, n, k))


def _scaled(call: OpCall, x: int, w: int, result: int = -1, packed: bool = False) -> OpCost:
    """Rows (..., K) times a weight (N, K) or (K, N); all other tensors once, the result of bf16 or given."""
    a, b = call.tensor(x), call.tensor(w)
    if not a.shape or len(b.shape) != 2:
        raise Uncounted("GEMM operands without their dimensions")
    rows, k = prod(a.shape[:-1]), a.shape[-1]
    n = other_side(b.shape, k)
    indices = [index for index in range(len(call.dtypes)) if index not in (x, w) and call.has(index)]
    extras = {index: call.tensor(index) for index in indices}
    if result < 0:
        shape = (*a.shape[:-1], n)
        result = next((index for index in reversed(indices) if extras[index].shape == shape), -1)
    out_tensor = extras.pop(result, None)
    plain = a.dtype in ("bf16", "fp16", "fp32")
    out = out_tensor.dtype if out_tensor else a.dtype if plain else "bf16"
    extra = sum(tensor.bytes for tensor in extras.values())
    if not packed and "fp4x2" not in (a.dtype, b.dtype):
        return gemm_cost(call, a, b, rows, n, k, extra=extra, out=out)
    read, k = a.bytes + b.bytes + extra, 2 * k
    return OpCost(2 * rows * n * k, read, size(rows * n, out), "fp4", "matrix", dims=sizes(rows, n, k))


def _flagged(
    call: OpCall, a_index: tuple[int, int], b_index: tuple[int, int], more: tuple[int, ...], out: str
) -> OpCost:
    """op(A) · op(B) with operands and flags at these arguments; `more` are scales and bias."""
    a, b = call.tensor(a_index[0]), call.tensor(b_index[0])
    m, k = sides(a, not call.flag(a_index[1]))
    n, k2 = sides(b, call.flag(b_index[1]))
    agree(k, k2)
    extra = call.bytes(*more)
    if "fp4" not in call.name:
        return gemm_cost(call, a, b, m, n, k, extra=extra, out=out)
    read, k = a.bytes + b.bytes + extra, 2 * k
    return OpCost(2 * m * n * k, read, size(m * n, out), "fp4", "matrix", dims=sizes(m, n, k))


def _packs(x: Tensor, weight: Tensor) -> bool:
    """Whether a weight (N, K/2) of 4-bit pairs fits rows of K elements, or of as many pairs."""
    if weight.dtype not in _PAIRS or len(weight.shape) != 2 or not x.shape:
        return False
    return x.shape[-1] == weight.shape[1] * (1 if x.dtype in _PAIRS else 2)


def sides(tensor: Tensor, k_last: bool) -> tuple[int, int]:
    """The outer and the inner size of an operand, whose leading dimensions are rows."""
    if len(tensor.shape) < 2:
        raise Uncounted("GEMM operands without their dimensions")
    first, last = prod(tensor.shape[:-1]), tensor.shape[-1]
    return (first, last) if k_last else (last, first)
