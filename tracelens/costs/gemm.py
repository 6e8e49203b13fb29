"""GEMMs: mm, addmm, bmm, baddbmm, linear, matmul and the scaled (fp8, fp4) ones.

A GEMM of (M, K) and (K, N) is M·N inner products of length K: 2·M·N·K FLOPs, times the batch. Adding a
bias is not counted (it is part of the epilogue); its bytes are.
"""

from __future__ import annotations

import re
from itertools import zip_longest
from math import prod

from tracelens.costs.model import OpCall, OpCost, Tensor, Uncounted, cost, size
from tracelens.costs.tensors import dtype_argument, shape_of

_TF32 = re.compile(r"tf32|xf32|_s1688", re.IGNORECASE)
# Widest first: a GEMM of mixed types runs in the wider one.
_WIDTH = ("fp64", "fp32", "bf16", "fp16", "fp8e5m2", "fp8e4m3", "i8", "u8", "fp6", "fp4x2", "fp4")

PAIRS = ("fp4x2", "u8")
"""Types of a byte that holds two elements of 4 bits."""

_NO_DIMENSIONS = "GEMM operands without their dimensions"
_NOT_GROUPED = "operands of a grouped GEMM without 2 or 3 dimensions"
_ROWS = "upper bound: every row in a group, every group with rows"
_SPLIT = "upper bound: every row in a group"
_IN_GROUPS = "rows in groups: as many as the recorder noted of another step"
_BOTH_GRADIENTS = "gradients of input and weights"
_PRIMUS = (
    "grouped_gemm",
    "ck_grouped_gemm",
    "hipblaslt_grouped_gemm",
    "turbo_grouped_gemm",
    "hk_grouped_gemm",
)
_PRIMUS_OPS = tuple(
    f"{prefix}{end}"
    for prefix in ("primus_turbo::grouped_gemm", *(f"primus_turbo_cpp_extension::{name}" for name in _PRIMUS))
    for end in ("", "_impl", "_csrc_impl", "_variable_k", "_variable_k_impl", "_variable_k_csrc_impl")
)
_PRIMUS_FP8 = tuple(
    f"{prefix}{end}"
    for prefix in ("primus_turbo::grouped_gemm", *(f"primus_turbo_cpp_extension::{name}" for name in _PRIMUS))
    for end in ("_fp8", "_fp8_impl", "_fp8_variable_k", "_fp8_variable_k_impl", "_variable_k_fp8")
)

_FP8_KERNEL = re.compile(r"nvjet_(?:sm\d+_)?qq|[eE]4[mM]3|[eE]5[mM]2|[fF][pP]8|[fF]loat8|_[FB]8(?=[FBSH\d])")
_AROUND = "GEMM only: normalization, activation and casts of the same function not counted"


def gemm_cost(
    call: OpCall, a: Tensor, b: Tensor, m: int, n: int, k: int, batch: int = 1, extra: int = 0, out: str = ""
) -> OpCost:
    """The cost of `batch` GEMMs of (m, k) and (k, n).

    The name of the call's kernel tells TF32 from FP32. `extra` are further bytes read (bias, addend, scales);
    the result is of type `out`, by default that of `a`.
    """
    written = size(batch * m * n, out or a.dtype)
    dims = (*((("B", batch),) if batch > 1 else ()), *sizes(m, n, k))
    flops = 2 * batch * m * n * k
    return OpCost(flops, a.bytes + b.bytes + extra, written, math_dtype(call, a, b), "matrix", dims=dims)


def math_dtype(call: OpCall, a: Tensor, b: Tensor) -> str:
    """The type that a GEMM of `a` and `b` runs in."""
    wider = min((a.dtype, b.dtype), key=lambda dtype: _WIDTH.index(dtype) if dtype in _WIDTH else -1)
    return "tf32" if wider == "fp32" and _TF32.search(call.kernel) else wider


@cost("aten::mm", "aten::mm.out", "aten::_int_mm")
def mm(call: OpCall) -> OpCost:
    """(M, K) x (K, N)."""
    a, b = call.tensor(0), call.tensor(1)
    (m, k), (k2, n) = shape_of(a, 2), shape_of(b, 2)
    agree(k, k2)
    return gemm_cost(call, a, b, m, n, k, out="i32" if a.dtype == "i8" else "")


@cost("aten::addmm", "aten::addmm_", "aten::_addmm_activation")
def addmm(call: OpCall) -> OpCost:
    """Bias + (M, K) x (K, N)."""
    bias, a, b = call.tensor(0), call.tensor(1), call.tensor(2)
    (m, k), (k2, n) = shape_of(a, 2), shape_of(b, 2)
    agree(k, k2)
    return gemm_cost(call, a, b, m, n, k, extra=_addend(call, bias, 3))


@cost("aten::bmm", "aten::bmm.out")
def bmm(call: OpCall) -> OpCost:
    """B GEMMs (M, K) x (K, N)."""
    a, b = call.tensor(0), call.tensor(1)
    (batch, m, k), (_, k2, n) = shape_of(a, 3), shape_of(b, 3)
    agree(k, k2)
    return gemm_cost(call, a, b, m, n, k, batch)


@cost("aten::baddbmm", "aten::baddbmm_")
def baddbmm(call: OpCall) -> OpCost:
    """B GEMMs (M, K) x (K, N), added to a tensor that is not read when beta is 0."""
    addend, a, b = call.tensor(0), call.tensor(1), call.tensor(2)
    (batch, m, k), (_, k2, n) = shape_of(a, 3), shape_of(b, 3)
    agree(k, k2)
    return gemm_cost(call, a, b, m, n, k, batch, extra=_addend(call, addend, 3))


@cost("aten::linear", "aten::_linear")
def linear(call: OpCall) -> OpCost:
    """(..., K) x (N, K) transposed, plus bias."""
    x, weight = call.tensor(0), call.tensor(1)
    n, k = shape_of(weight, 2)
    agree(x.shape[-1] if x.shape else 1, k)
    return gemm_cost(call, x, weight, prod(x.shape[:-1]), n, k, extra=call.bytes(2))


@cost("aten::matmul", "aten::mv", "aten::dot", "aten::addmv")
def matmul(call: OpCall) -> OpCost:
    """torch.matmul: vectors are widened to matrices, leading dimensions broadcast."""
    first = 1 if call.name == "aten::addmv" else 0
    a, b = call.tensor(first), call.tensor(first + 1)
    a_shape = a.shape if len(a.shape) > 1 else (1, *a.shape)
    b_shape = b.shape if len(b.shape) > 1 else (*b.shape, 1)
    if len(a_shape) < 2 or len(b_shape) < 2:
        raise Uncounted("an operand without dimensions")
    agree(a_shape[-1], b_shape[-2])
    leading = zip_longest(reversed(a_shape[:-2]), reversed(b_shape[:-2]), fillvalue=1)
    batch = prod(max(sides_of) for sides_of in leading)
    return gemm_cost(call, a, b, a_shape[-2], b_shape[-1], a_shape[-1], batch)


@cost("aten::_scaled_mm", "aten::_scaled_mm_v2")
def scaled_mm(call: OpCall) -> OpCost:
    """Scaled GEMM of 8-bit (or packed 4-bit) matrices; the result is bf16 unless recorded otherwise."""
    a, b = call.tensor(0), call.tensor(1)
    (m, k), (k2, n) = shape_of(a, 2), shape_of(b, 2)
    agree(k, k2)
    scales = call.bytes(*range(2, len(call.dtypes)))
    packed = 2 if a.dtype == "fp4x2" else 1
    return gemm_cost(call, a, b, m, n, k * packed, extra=scales, out="bf16")


def agree(k_a: int, k_b: int) -> None:
    """Raise Uncounted where the inner sizes of two operands differ."""
    if k_a != k_b:
        raise Uncounted(f"recorded shapes disagree on the inner dimension ({k_a} and {k_b})")


def other_side(shape: tuple[int, ...], k: int) -> int:
    """N of a weight stored as (N, K) or (K, N)."""
    first, second = shape
    if first != k:
        agree(k, second)
    return first if second == k else second


def sizes(m: int, n: int, k: int) -> tuple[tuple[str, int], ...]:
    """The named sizes of a GEMM."""
    return (("M", m), ("N", n), ("K", k))


def _addend(call: OpCall, addend: Tensor, beta: int) -> int:
    """Bytes read of what the result is added to: none when its factor is 0."""
    text = call.text(beta)
    try:
        unused = text != "" and float(text) == 0
    except ValueError:
        unused = False
    return 0 if unused else addend.bytes


# ====================
# Batched GEMMs of libraries, whose rows are quantized on the way: the absorbed projections of MLA.
#
# B GEMMs of (M, K) and (K, N), 2·B·M·N·K FLOPs in the type that the weights have. Rows may be stored as (B,
# M, K) or (M, B, K). Bytes: rows, weights, scales, bias once, the result once; the quantized rows exist in
# registers only.
#
# Sources: ROCm/aiter, aiter/ops/triton/gemm/batched, batched_gemm_a16wfp4.py and
# batched_gemm_a8w8_a_per_token_group_prequant_w_per_batched_tensor_quant.py. The op of the latter is a
# wrapper that records tensors only (AMD-AGI/TraceLens, kernel shape profiler).


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


# ====================
# GEMMs of libraries: aiter, Primus-Turbo, hipBLASLt, vLLM, SGLang, DeepGEMM, TensorRT-LLM, bitsandbytes.
#
# All are x · Wᵀ with 2·M·N·K FLOPs, M the rows of x, and differ in where the operands stand and whether the
# weight is stored as (N, K) or (K, N). Where a flag for that is not recorded, the side of the weight that is
# as long as K decides; a square weight costs the same either way. Bytes: operands, scales, bias and result
# once. 4-bit types are packed in pairs: a row of K elements is K/2 bytes long.
#
# Sources: ROCm/aiter, aiter/ops/gemm_op_a8w8.py and its neighbors (a4w4, a16w16) and
# aiter/ops/triton/gemm/basic/gemm_afp4wfp4.py; AMD-AGI/Primus-Turbo, primus_turbo/pytorch/kernels/gemm and
# csrc/pytorch/bindings_pytorch.cpp; vllm-project/vllm, csrc/torch_bindings.cpp, vllm/_aiter_ops.py and
# vllm/model_executor/layers/quantization/quark; sgl-project/sglang, sgl-kernel; NVIDIA/TensorRT-LLM,
# cpp/tensorrt_llm/thop/cublasScaledMM.cpp; bitsandbytes-foundation/bitsandbytes, bitsandbytes/_ops.py.


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
    a, b, rows, n, k = _rows_and_weight(call)
    others = [call.tensor(index) for index in range(4, len(call.dtypes)) if call.has(index)]
    bias = next((tensor.bytes for tensor in others if tensor.shape in ((n,), (1, n))), 0)
    return gemm_cost(call, a, b, rows, n, k, extra=bias, out=call.tensor(2).dtype)


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
    read = x.bytes + weight.bytes + call.bytes(first + 2, *range(first + 3, len(call.dtypes)))
    return _fp4_cost(read, rows, n, half, out)


@cost("trtllm::cublas_scaled_mm")
def tensorrt_scaled(call: OpCall) -> OpCost:
    """Operands (M, K) and (K, N), their scales, bias, the result's type, by default that of the first."""
    a, b = call.tensor(0), call.tensor(1)
    if len(a.shape) != 2 or len(b.shape) != 2:
        raise Uncounted(_NO_DIMENSIONS)
    (m, k), (k2, n) = a.shape, b.shape
    agree(k, k2)
    return gemm_cost(call, a, b, m, n, k, extra=call.bytes(2, 3, 4), out=dtype_argument(call, 5))


@cost("bitsandbytes::int8_linear_matmul", "bitsandbytes::int8_linear_matmul.out")
def int8_linear(call: OpCall) -> OpCost:
    """8-bit rows (..., K) and weight (N, K) to 32-bit sums."""
    a, b, rows, n, k = _rows_and_weight(call)
    return gemm_cost(call, a, b, rows, n, k, out="i32")


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


def _rows_and_weight(call: OpCall) -> tuple[Tensor, Tensor, int, int, int]:
    """Rows (..., K) and a weight (N, K); their number, N and K."""
    a, b = call.tensor(0), call.tensor(1)
    if not a.shape or len(b.shape) != 2:
        raise Uncounted(_NO_DIMENSIONS)
    n, k = b.shape
    agree(a.shape[-1], k)
    return a, b, prod(a.shape[:-1]), n, k


def _scaled(call: OpCall, x: int, w: int, result: int = -1, packed: bool = False) -> OpCost:
    """Rows (..., K) times a weight (N, K) or (K, N); all other tensors once, the result of bf16 or given."""
    a, b = call.tensor(x), call.tensor(w)
    if not a.shape or len(b.shape) != 2:
        raise Uncounted(_NO_DIMENSIONS)
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
    return _fp4_cost(a.bytes + b.bytes + extra, rows, n, k, out)


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
    return _fp4_cost(a.bytes + b.bytes + extra, m, n, k, out)


def _fp4_cost(read: int, m: int, n: int, pairs: int, out: str) -> OpCost:
    """A GEMM whose inner products are of so many pairs of 4-bit elements."""
    k = 2 * pairs
    return OpCost(2 * m * n * k, read, size(m * n, out), "fp4", "matrix", dims=sizes(m, n, k))


def _packs(x: Tensor, weight: Tensor) -> bool:
    """Whether a weight (N, K/2) of 4-bit pairs fits rows of K elements, or of as many pairs."""
    if weight.dtype not in PAIRS or len(weight.shape) != 2 or not x.shape:
        return False
    return x.shape[-1] == weight.shape[1] * (1 if x.dtype in PAIRS else 2)


def sides(tensor: Tensor, k_last: bool) -> tuple[int, int]:
    """The outer and the inner size of an operand, whose leading dimensions are rows."""
    if len(tensor.shape) < 2:
        raise Uncounted(_NO_DIMENSIONS)
    first, last = prod(tensor.shape[:-1]), tensor.shape[-1]
    return (first, last) if k_last else (last, first)


# ====================
# Grouped GEMMs: one GEMM per group (expert) in a single launch.
#
# The rows of all groups lie behind each other and offsets (or lengths) on the device cut them apart, so their
# values are not in the trace, but the sums are: with T rows in all groups together, 2·T·K·N FLOPs, however
# they are distributed. Two assumptions are upper bounds, and noted: that every row belongs to a group
# (padding behind the last one is not computed; the recorder notes how many do), and that every group has rows
# (the weights of an empty one are not read).
#
#     aten::_grouped_mm   2d x 3d   (T, K) x (G, K, N) -> (T, N)      rows cut into groups
#                         3d x 2d   (G, M, K) x (K, T) -> (M, T)      columns cut into groups
#                         3d x 3d   (G, M, K) x (G, K, N)             a batched GEMM
#                         2d x 2d   (M, T) x (T, N) -> (G, M, N)      inner dimension cut: weight gradients
#
# Sources: PyTorch, ATen/native/GroupedMMUtils.h and native_functions.yaml; Primus-Turbo, pytorch/kernels/
# grouped_gemm and bindings_pytorch.cpp; TransformerEngine, module/grouped_linear.py; vLLM,
# torch_bindings.cpp; grouped_gemm (MegaBlocks), ops.py.


@cost("aten::_grouped_mm", "aten::_grouped_mm.out", groups=True)
def grouped_mm(call: OpCall) -> OpCost:
    """Grouped GEMM: 2d or 3d operands, offsets behind them."""
    return _torch_grouped(call, offsets=2, extra=call.bytes(3), out=dtype_argument(call, 4))


@cost("aten::_scaled_grouped_mm", groups=True)
def scaled_grouped_mm(call: OpCall) -> OpCost:
    """Grouped GEMM of scaled 8-bit (or packed 4-bit) matrices; the result is bf16 unless given."""
    extra = call.bytes(2, 3, 5)
    return _torch_grouped(call, offsets=4, extra=extra, out=dtype_argument(call, 7) or "bf16")


@cost("aten::_scaled_grouped_mm_v2", groups=True)
def scaled_grouped_mm_v2(call: OpCall) -> OpCost:
    """The same with lists of scales, whose bytes are not known and not counted."""
    return _torch_grouped(call, offsets=8, extra=0, out=dtype_argument(call, 10) or "bf16")


@cost(*_PRIMUS_OPS, groups=True)
def primus_grouped(call: OpCall) -> OpCost:
    """Primus-Turbo, CK and hipBLASLt: a, b and the lengths of the groups."""
    return _segments(call, call.tensor(0), call.tensor(1), lengths=2)


@cost("primus_turbo::grouped_gemm_variable_k_accum_impl", groups=True)
def primus_grouped_accumulated(call: OpCall) -> OpCost:
    """Weight gradients added to a given result, which is read and written in its own type."""
    out = call.tensor(9)
    return _segments(call, call.tensor(0), call.tensor(1), lengths=2, extra=out.bytes, out=out.dtype)


@cost(*_PRIMUS_FP8, groups=True)
def primus_grouped_fp8(call: OpCall) -> OpCost:
    """The same with scales behind the operands; the result is bf16 unless given."""
    extra = call.bytes(2, 3)
    # The variable-k op has one more flag (trans_c) in front of the type.
    out = dtype_argument(call, 8) if call.text(8).isdigit() else dtype_argument(call, 9)
    return _segments(call, call.tensor(0), call.tensor(1), lengths=4, extra=extra, out=out or "bf16")


@cost("primus_turbo::grouped_gemm_combine_impl", "primus_turbo::dispatch_grouped_gemm*")
def fused_with_communication(call: OpCall) -> OpCost:
    """Grouped GEMMs fused with the all-to-all of tokens, whose sizes are not recorded."""
    raise Uncounted("fused with an all-to-all whose sizes are not recorded")


@cost("_C::cutlass_moe_mm", "vllm::cutlass_moe_mm")
def cutlass_moe(call: OpCall) -> OpCost:
    """CUTLASS grouped GEMM of 8-bit matrices: result, a (T, K), b (G, K, N), scales."""
    out, a, b = call.tensor(0), call.tensor(1), call.tensor(2)
    return _segments(call, a, b, lengths=5, extra=call.bytes(3, 4), out=out.dtype)


@cost("GroupedGemm", "grouped_gemm::gmm", "grouped_gemm::grouped_gemm", "_GroupedLinear")
def grouped_linear(call: OpCall) -> OpCost:
    """Autograd functions: rows, then one weight of three dimensions or one of two for each group."""
    return _grouped_linear(call, call)


@cost(
    "GroupedGemmBackward", "_GroupedLinearBackward",
    "autograd::engine::evaluate_function: GroupedGemmBackward",
    "autograd::engine::evaluate_function: _GroupedLinearBackward", forward=True,
)  # fmt: skip
def grouped_linear_backward(call: OpCall) -> OpCost:
    """Gradients of rows and weights: two GEMMs of the forward's size."""
    return _both_gradients(_grouped_linear(call.of_forward(), call))


def _torch_grouped(call: OpCall, offsets: int, extra: int, out: str) -> OpCost:
    """`aten::_grouped_mm` and its like: the numbers of dimensions say what is cut into groups."""
    a, b = recorded = call.tensor(0), call.tensor(1)
    ranks = (len(a.shape), len(b.shape))
    if ranks not in ((2, 3), (3, 2), (3, 3), (2, 2)):
        raise Uncounted(_NOT_GROUPED)
    if ranks[0] == 2:
        a = call.in_groups(a, 0 if ranks[1] == 3 else 1)
    if ranks[1] == 2:
        b = call.in_groups(b, 1 if ranks[0] == 3 else 0)
    packed = 2 if a.dtype == "fp4x2" else 1
    (m, k), (k2, n) = a.shape[-2:], b.shape[-2:]
    agree(k, k2)
    groups = _group_count(call, offsets) if ranks == (2, 2) else a.shape[0] if ranks[0] == 3 else b.shape[0]
    if ranks == (3, 3) and b.shape[0] != groups:
        raise Uncounted("recorded shapes disagree on the number of groups")
    batch = groups if ranks == (3, 3) else 1
    results = groups if ranks[0] == ranks[1] else 1
    return OpCost(
        2 * batch * m * n * k * packed,
        a.bytes + b.bytes + extra,
        size(results * m * n, out or a.dtype),
        math_dtype(call, a, b),
        "matrix",
        dims=_grouped_dims(groups, m, n, k * packed),
        note="" if ranks == (3, 3) else _noted(recorded, (a, b), _SPLIT if ranks == (2, 2) else _ROWS),
    )


def _segments(call: OpCall, a: Tensor, b: Tensor, lengths: int, extra: int = 0, out: str = "") -> OpCost:
    """(T, K) rows times (G, K, N) or (G, N, K), or (T, M) and (T, N) to (G, M, N)."""
    if len(a.shape) != 2 or len(b.shape) not in (2, 3):
        raise Uncounted(_NOT_GROUPED)
    recorded = a, b
    a = call.in_groups(a, 0)
    if len(b.shape) == 2:
        b = call.in_groups(b, 0)
        (rows, m), (rows2, n) = a.shape, b.shape
        if rows != rows2:
            raise Uncounted(f"recorded shapes disagree on the number of rows ({rows} and {rows2})")
        groups = _group_count(call, lengths)
        written, dims, note = groups * m * n, _grouped_dims(groups, m, n, rows), _SPLIT
        flops = 2 * rows * m * n
    else:
        rows, k = a.shape
        n = other_side(b.shape[1:], k)
        written, dims, note = rows * n, _grouped_dims(b.shape[0], rows, n, k), _ROWS
        flops = 2 * rows * k * n
    read = a.bytes + b.bytes + extra
    return OpCost(
        flops, read, size(written, out or a.dtype), math_dtype(call, a, b), "matrix", dims=dims,
        note=_noted(recorded, (a, b), note),
    )  # fmt: skip


def _noted(recorded: tuple[Tensor, Tensor], counted: tuple[Tensor, Tensor], bound: str) -> str:
    """What to say of the rows that were counted."""
    return bound if counted[0] is recorded[0] and counted[1] is recorded[1] else _IN_GROUPS


def _both_gradients(forward: OpCost) -> OpCost:
    """Two GEMMs for each of the forward: operands and gradient of the result read, both gradients written."""
    return forward._replace(
        flops=2 * forward.flops,
        read_bytes=forward.read_bytes + forward.write_bytes,
        write_bytes=forward.read_bytes,
        note=f"{_BOTH_GRADIENTS}; {forward.note}",
    )


def _grouped_linear(forward: OpCall, call: OpCall) -> OpCost:
    """The grouped GEMM of `forward`, in the type that the kernel of `call` shows."""
    # Rows, weights, K and N: the other arguments differ between versions.
    tensors = [tensor for tensor in forward.tensors() if len(tensor.shape) >= 2]
    if not tensors or len(tensors[0].shape) != 2:
        raise Uncounted("rows of a grouped GEMM without 2 dimensions")
    rows, *rest = tensors
    count, k = rows.shape
    stacked = [tensor for tensor in rest if len(tensor.shape) == 3 and k in tensor.shape[1:]]
    weights = stacked[:1] or [tensor for tensor in rest if len(tensor.shape) == 2 and tensor.shape[1] == k]
    if not weights:
        raise Uncounted("weights of the groups not recorded")
    n = other_side(weights[0].shape[-2:], k)
    read, written = rows.bytes + sum(weight.bytes for weight in weights), size(count * n, rows.dtype)
    groups = weights[0].shape[0] if len(weights[0].shape) == 3 else len(weights)
    dtype, dims = math_dtype(call, rows, weights[0]), _grouped_dims(groups, count, n, k)
    return OpCost(2 * count * k * n, read, written, dtype, "matrix", dims=dims, note=_ROWS)


def _group_count(call: OpCall, index: int) -> int:
    """Number of groups, by the tensor of their offsets or lengths."""
    shape = call.tensor(index).shape
    if len(shape) != 1:
        raise Uncounted("number of groups not recorded")
    return shape[0]


def _grouped_dims(groups: int, m: int, n: int, k: int) -> tuple[tuple[str, int], ...]:
    return (("G", groups), *sizes(m, n, k))


# ====================
# GEMMs of TransformerEngine.
#
# The GEMMs in `tex_ts` and `tex` have operands in cuBLAS's order: D = op(B) · op(A), 2·M·N·K FLOPs.
#
# The autograd functions (`_Linear`, `_LayerNormLinear`, `_LayerNormMLP`) call their kernels without an op of
# its own for the GEMM. Their arguments differ between versions; the weight is found by its shape. What
# surrounds the GEMM in the same function (normalization, activation, casts to fp8) is not counted, which
# their note says. fp8 is told by the name of the kernel. Backward is the GEMMs of both gradients.
#
# Sources: TransformerEngine, pytorch/csrc/ts_fp8_op.cpp, pytorch/cpp_extensions/gemm.py and pytorch/module.


@cost("tex_ts::te_gemm_ts")
def te_gemm(call: OpCall) -> OpCost:
    """TransformerEngine's GEMM in cuBLAS's order: D = op(B) · op(A); 8-bit storage is taken as fp8."""
    a, b, d = _as_fp8(call.tensor(0)), _as_fp8(call.tensor(5)), call.tensor(10)
    m, k = sides(a, call.flag(4) or call.text(4) == "1")
    n, k2 = sides(b, not (call.flag(9) or call.text(9) == "1"))
    agree(k, k2)
    extra = call.bytes(14)
    extra += d.bytes if call.text(20) in ("1", "True") else 0
    return gemm_cost(call, a, b, n, m, k, extra=extra, out=d.dtype)


@cost("tex::generic_gemm", "transformer_engine_torch::generic_gemm")
def generic_gemm(call: OpCall) -> OpCost:
    """TransformerEngine's newer GEMM, in the same order: A, transA, B, transB, D."""
    a, b = _as_fp8(call.tensor(0)), _as_fp8(call.tensor(2))
    m, k = sides(a, call.flag(1))
    n, k2 = sides(b, not call.flag(3))
    agree(k, k2)
    out = call.tensor(4).dtype if call.has(4) else "bf16"
    return gemm_cost(call, a, b, n, m, k, out=out)


@cost("_Linear")
def te_linear(call: OpCall) -> OpCost:
    """TransformerEngine Linear: weight (N, K), then x (..., K)."""
    return _te_linear(call, call)


@cost("_LayerNormLinear")
def te_layernorm_linear(call: OpCall) -> OpCost:
    """TransformerEngine LayerNormLinear: x (..., K), the norm's weights, weight (N, K)."""
    return _te_linear(call, call)


@cost("_LayerNormMLP")
def te_layernorm_mlp(call: OpCall) -> OpCost:
    """TransformerEngine LayerNormMLP: x (..., K), the norm's weights, weights (F, K) and (K, F or F/2)."""
    return _te_mlp(call, call)


@cost(
    "_LinearBackward", "_LayerNormLinearBackward", "autograd::engine::evaluate_function: _LinearBackward",
    "autograd::engine::evaluate_function: _LayerNormLinearBackward", forward=True,
)  # fmt: skip
def te_linear_backward(call: OpCall) -> OpCost:
    """Both gradients: two GEMMs of the forward's size."""
    return _both_gradients(_te_linear(call.of_forward(), call))


@cost("_LayerNormMLPBackward", "autograd::engine::evaluate_function: _LayerNormMLPBackward", forward=True)
def te_layernorm_mlp_backward(call: OpCall) -> OpCost:
    """Both gradients of both weights: four GEMMs."""
    return _both_gradients(_te_mlp(call.of_forward(), call))


def _te_linear(forward: OpCall, call: OpCall) -> OpCost:
    """The GEMM of `forward`, in the type that the kernel of `call` shows."""
    x, weight = _te_operands(forward)
    (n, k), rows = weight.shape, prod(x.shape[:-1])
    written = size(rows * n, x.dtype)
    return OpCost(2 * rows * n * k, x.bytes + weight.bytes, written, _te_dtype(call, x, weight), "matrix",
                  dims=sizes(rows, n, k), note=_AROUND)  # fmt: skip


def _te_mlp(forward: OpCall, call: OpCall) -> OpCost:
    """Both GEMMs of `forward`, in the type that the kernel of `call` shows."""
    x, first = _te_operands(forward)
    up, k = first.shape
    matrices = [tensor for tensor in _te_tensors(forward) if len(tensor.shape) == 2]
    down = next((t for t in matrices if t is not x and t.shape[0] == k and t.shape[1] in (up, up // 2)), None)
    if down is None:
        raise Uncounted("second weight not recorded")
    rows, inner = prod(x.shape[:-1]), down.shape[1]
    read = x.bytes + first.bytes + down.bytes
    return OpCost(2 * rows * k * (up + inner), read, x.bytes, _te_dtype(call, x, first), "matrix",
                  dims=(*sizes(rows, up, k), ("inner", inner)), note=_AROUND)  # fmt: skip


def _te_operands(call: OpCall) -> tuple[Tensor, Tensor]:
    """The rows and the weight (N, K) of a TransformerEngine function: `_Linear` has the weight first."""
    first, *rest = _te_tensors(call) or [Tensor((), "", 0)]
    if call.name == "_Linear":
        if len(first.shape) == 2:
            x = next((t for t in rest if len(t.shape) > 1 and t.shape[-1] == first.shape[1]), None)
            if x is not None:
                return x, first
    elif len(first.shape) > 1:
        weight = next((t for t in rest if len(t.shape) == 2 and t.shape[1] == first.shape[-1]), None)
        if weight is not None:
            return first, weight
    raise Uncounted("input and weight not found among the recorded arguments")


def _te_tensors(call: OpCall) -> list[Tensor]:
    """Tensor arguments without the 8-bit copies of weights that older versions pass along."""
    return [tensor for tensor in call.tensors() if tensor.dtype != "u8"]


def _te_dtype(call: OpCall, x: Tensor, weight: Tensor) -> str:
    return "fp8e4m3" if _FP8_KERNEL.search(call.kernel) else math_dtype(call, x, weight)


def _as_fp8(tensor: Tensor) -> Tensor:
    return tensor._replace(dtype="fp8e4m3") if tensor.dtype == "u8" else tensor
