"""Grouped GEMMs: one GEMM per group (expert) in a single launch.

The rows of all groups lie behind each other and offsets (or lengths) on the device cut them apart, so their
values are not in the trace, but the sums are: with T rows in all groups together, 2·T·K·N FLOPs, however
they are distributed. Two assumptions are upper bounds, and noted: that every row belongs to a group
(padding behind the last one is not computed), and that every group has rows (the weights of an empty one
are not read).

    aten::_grouped_mm   2d x 3d   (T, K) x (G, K, N) -> (T, N)      rows cut into groups
                        3d x 2d   (G, M, K) x (K, T) -> (M, T)      columns cut into groups
                        3d x 3d   (G, M, K) x (G, K, N)             a batched GEMM
                        2d x 2d   (M, T) x (T, N) -> (G, M, N)      inner dimension cut: weight gradients

Sources: PyTorch, ATen/native/GroupedMMUtils.h and native_functions.yaml; Primus-Turbo, pytorch/kernels/
grouped_gemm and bindings_pytorch.cpp; TransformerEngine, module/grouped_linear.py; vLLM, torch_bindings.cpp;
grouped_gemm (MegaBlocks), ops.py.
"""

from __future__ import annotations

from tracelens.costs.call import OpCall, Tensor, Uncounted, size
from tracelens.costs.gemm.dense import agree, math_dtype, other_side, sizes
from tracelens.costs.model import OpCost, cost
from tracelens.costs.torch import dtype_argument

_ROWS = "upper bound: every row in a group, every group with rows"
_SPLIT = "upper bound: every row in a group"
_BOTH = "gradients of input and weights"
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


@cost("aten::_grouped_mm", "aten::_grouped_mm.out")
def grouped_mm(call: OpCall) -> OpCost:
    """Grouped GEMM: 2d or 3d operands, offsets behind them."""
    return _torch(call, offsets=2, extra=call.bytes(3), out=dtype_argument(call, 4))


@cost("aten::_scaled_grouped_mm")
def scaled_grouped_mm(call: OpCall) -> OpCost:
    """Grouped GEMM of scaled 8-bit (or packed 4-bit) matrices; the result is bf16 unless given."""
    extra = call.bytes(2, 3, 5)
    return _torch(call, offsets=4, extra=extra, out=dtype_argument(call, 7) or "bf16")


@cost("aten::_scaled_grouped_mm_v2")
def scaled_grouped_mm_v2(call: OpCall) -> OpCost:
    """The same with lists of scales, whose bytes are not known and not counted."""
    return _torch(call, offsets=8, extra=0, out=dtype_argument(call, 10) or "bf16")


@cost(*_PRIMUS_OPS)
def primus(call: OpCall) -> OpCost:
    """Primus-Turbo, CK and hipBLASLt: a, b and the lengths of the groups."""
    return _segments(call, call.tensor(0), call.tensor(1), lengths=2)


@cost("primus_turbo::grouped_gemm_variable_k_accum_impl")
def primus_accumulated(call: OpCall) -> OpCost:
    """Weight gradients added to a given result, which is read and written in its own type."""
    out = call.tensor(9)
    return _segments(call, call.tensor(0), call.tensor(1), lengths=2, extra=out.bytes, out=out.dtype)


@cost(*_PRIMUS_FP8)
def primus_fp8(call: OpCall) -> OpCost:
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
    extra = call.bytes(3, 4)
    return _segments(call, a, b, lengths=5, extra=extra, out=out.dtype)


@cost("GroupedGemm", "grouped_gemm::gmm", "grouped_gemm::grouped_gemm", "_GroupedLinear")
def grouped_linear(call: OpCall) -> OpCost:
    """Autograd functions: rows, then one weight of three dimensions or one of two for each group."""
    return _linear(call, call, 1)


@cost(
    "GroupedGemmBackward", "_GroupedLinearBackward",
    "autograd::engine::evaluate_function: GroupedGemmBackward",
    "autograd::engine::evaluate_function: _GroupedLinearBackward", forward=True,
)  # fmt: skip
def grouped_linear_backward(call: OpCall) -> OpCost:
    """Gradients of rows and weights: two GEMMs of the forward's size."""
    return _linear(call.of_forward(), call, 2)


def _torch(call: OpCall, offsets: int, extra: int, out: str) -> OpCost:
    """`aten::_grouped_mm` and its like: the numbers of dimensions say what is cut into groups."""
    a, b = call.tensor(0), call.tensor(1)
    ranks = (len(a.shape), len(b.shape))
    if ranks not in ((2, 3), (3, 2), (3, 3), (2, 2)):
        raise Uncounted("operands of a grouped GEMM without 2 or 3 dimensions")
    packed = 2 if a.dtype == "fp4x2" else 1
    (m, k), (k2, n) = a.shape[-2:], b.shape[-2:]
    agree(k, k2)
    groups = _length(call, offsets) if ranks == (2, 2) else a.shape[0] if ranks[0] == 3 else b.shape[0]
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
        dims=_dims(groups, m, n, k * packed),
        note="" if ranks == (3, 3) else _SPLIT if ranks == (2, 2) else _ROWS,
    )


def _segments(call: OpCall, a: Tensor, b: Tensor, lengths: int, extra: int = 0, out: str = "") -> OpCost:
    """(T, K) rows times (G, K, N) or (G, N, K), or (T, M) and (T, N) to (G, M, N)."""
    if len(a.shape) != 2 or len(b.shape) not in (2, 3):
        raise Uncounted("operands of a grouped GEMM without 2 or 3 dimensions")
    if len(b.shape) == 2:
        (rows, m), (rows2, n) = a.shape, b.shape
        if rows != rows2:
            raise Uncounted(f"recorded shapes disagree on the number of rows ({rows} and {rows2})")
        groups = _length(call, lengths)
        written, dims, note = groups * m * n, _dims(groups, m, n, rows), _SPLIT
        flops = 2 * rows * m * n
    else:
        rows, k = a.shape
        n = other_side(b.shape[1:], k)
        written, dims, note = rows * n, _dims(b.shape[0], rows, n, k), _ROWS
        flops = 2 * rows * k * n
    read = a.bytes + b.bytes + extra
    return OpCost(
        flops, read, size(written, out or a.dtype), math_dtype(call, a, b), "matrix", dims=dims, note=note
    )


def _linear(forward: OpCall, call: OpCall, gradients: int) -> OpCost:
    """A grouped GEMM or, with `gradients` 2, both of its gradients."""
    rows, weights, k, n = _operands(forward)
    count = rows.shape[0]
    moved, y = rows.bytes + sum(weight.bytes for weight in weights), size(count * n, rows.dtype)
    read, written = (moved, y) if gradients == 1 else (moved + y, moved)
    groups = weights[0].shape[0] if len(weights[0].shape) == 3 else len(weights)
    return OpCost(
        2 * gradients * count * k * n, read, written, math_dtype(call, rows, weights[0]), "matrix",
        dims=_dims(groups, count, n, k), note=_ROWS if gradients == 1 else f"{_BOTH}; {_ROWS}",
    )  # fmt: skip


def _operands(call: OpCall) -> tuple[Tensor, list[Tensor], int, int]:
    """Rows, weights, K and N of an autograd function, whose other arguments differ between versions."""
    tensors = [tensor for tensor in call.tensors() if len(tensor.shape) >= 2]
    if not tensors or len(tensors[0].shape) != 2:
        raise Uncounted("rows of a grouped GEMM without 2 dimensions")
    rows, *rest = tensors
    k = rows.shape[1]
    stacked = [tensor for tensor in rest if len(tensor.shape) == 3 and k in tensor.shape[1:]]
    weights = stacked[:1] or [tensor for tensor in rest if len(tensor.shape) == 2 and tensor.shape[1] == k]
    if not weights:
        raise Uncounted("weights of the groups not recorded")
    n = other_side(weights[0].shape[-2:], k)
    return rows, weights, k, n


def _length(call: OpCall, index: int) -> int:
    """Number of groups, by the tensor of their offsets or lengths."""
    shape = call.tensor(index).shape
    if len(shape) != 1:
        raise Uncounted("number of groups not recorded")
    return shape[0]


def _dims(groups: int, m: int, n: int, k: int) -> tuple[tuple[str, int], ...]:
    return (("G", groups), *sizes(m, n, k))
