"""GEMMs of TransformerEngine.

The GEMMs in `tex_ts` and `tex` have operands in cuBLAS's order: D = op(B) · op(A), 2·M·N·K FLOPs.

The autograd functions (`_Linear`, `_LayerNormLinear`, `_LayerNormMLP`) call their kernels without an op of
its own for the GEMM. Their arguments differ between versions; the weight is found by its shape. What
surrounds the GEMM in the same function (normalization, activation, casts to fp8) is not counted, which
their note says. fp8 is told by the name of the kernel. Backward is the GEMMs of both gradients.

Sources: TransformerEngine, pytorch/csrc/ts_fp8_op.cpp, pytorch/cpp_extensions/gemm.py and pytorch/module.
"""

from __future__ import annotations

import re
from math import prod

from tracelens.costs.call import OpCall, Tensor, Uncounted, size
from tracelens.costs.gemm import agree, gemm_cost, math_dtype, sides, sizes
from tracelens.costs.model import OpCost, cost

_FP8_KERNEL = re.compile(r"nvjet_(?:sm\d+_)?qq|[eE]4[mM]3|[eE]5[mM]2|[fF][pP]8|[fF]loat8|_[FB]8(?=[FBSH\d])")
_AROUND = "GEMM only: normalization, activation and casts of the same function not counted"
_BOTH = "gradients of input and weights"


@cost("tex_ts::te_gemm_ts")
def te_gemm(call: OpCall) -> OpCost:
    """TransformerEngine's GEMM in cuBLAS's order: D = op(B) · op(A); 8-bit storage is taken as fp8."""
    a, b, d = _fp8(call.tensor(0)), _fp8(call.tensor(5)), call.tensor(10)
    m, k = sides(a, call.flag(4) or call.text(4) == "1")
    n, k2 = sides(b, not (call.flag(9) or call.text(9) == "1"))
    agree(k, k2)
    extra = call.bytes(14)
    extra += d.bytes if call.text(20) in ("1", "True") else 0
    return gemm_cost(call, a, b, n, m, k, extra=extra, out=d.dtype)


@cost("tex::generic_gemm", "transformer_engine_torch::generic_gemm")
def generic_gemm(call: OpCall) -> OpCost:
    """TransformerEngine's newer GEMM, in the same order: A, transA, B, transB, D."""
    a, b = _fp8(call.tensor(0)), _fp8(call.tensor(2))
    m, k = sides(a, call.flag(1))
    n, k2 = sides(b, not call.flag(3))
    agree(k, k2)
    out = call.tensor(4).dtype if call.has(4) else "bf16"
    return gemm_cost(call, a, b, n, m, k, out=out)


@cost("_Linear")
def te_linear(call: OpCall) -> OpCost:
    """TransformerEngine Linear: weight (N, K), then x (..., K)."""
    return _linear(call, call, 1)


@cost("_LayerNormLinear")
def te_layernorm_linear(call: OpCall) -> OpCost:
    """TransformerEngine LayerNormLinear: x (..., K), the norm's weights, weight (N, K)."""
    return _linear(call, call, 1)


@cost("_LayerNormMLP")
def te_layernorm_mlp(call: OpCall) -> OpCost:
    """TransformerEngine LayerNormMLP: x (..., K), the norm's weights, weights (F, K) and (K, F or F/2)."""
    return _mlp(call, call, 1)


@cost(
    "_LinearBackward", "_LayerNormLinearBackward", "autograd::engine::evaluate_function: _LinearBackward",
    "autograd::engine::evaluate_function: _LayerNormLinearBackward", forward=True,
)  # fmt: skip
def te_linear_backward(call: OpCall) -> OpCost:
    """Both gradients: two GEMMs of the forward's size."""
    return _linear(call.of_forward(), call, 2)


@cost("_LayerNormMLPBackward", "autograd::engine::evaluate_function: _LayerNormMLPBackward", forward=True)
def te_layernorm_mlp_backward(call: OpCall) -> OpCost:
    """Both gradients of both weights: four GEMMs."""
    return _mlp(call.of_forward(), call, 2)


def _linear(forward: OpCall, call: OpCall, gradients: int) -> OpCost:
    """One GEMM or, with `gradients` 2, both of its gradients."""
    x, weight = _operands(forward)
    n, k = weight.shape
    rows = prod(x.shape[:-1])
    y = size(rows * n, x.dtype)
    moved = x.bytes + weight.bytes
    read, written = (moved, y) if gradients == 1 else (moved + y, moved)
    return OpCost(
        2 * gradients * rows * n * k, read, written, _te_dtype(call, x, weight), "matrix",
        dims=sizes(rows, n, k), note=_AROUND if gradients == 1 else f"{_BOTH}; {_AROUND}",
    )  # fmt: skip


def _mlp(forward: OpCall, call: OpCall, gradients: int) -> OpCost:
    """Two GEMMs or, with `gradients` 2, the gradients of both."""
    x, first = _operands(forward)
    up, k = first.shape
    matrices = [tensor for tensor in _plain(forward) if len(tensor.shape) == 2]
    down = next((t for t in matrices if t is not x and t.shape[0] == k and t.shape[1] in (up, up // 2)), None)
    if down is None:
        raise Uncounted("second weight not recorded")
    rows, inner = prod(x.shape[:-1]), down.shape[1]
    flops = 2 * gradients * rows * k * (up + inner)
    moved = x.bytes + first.bytes + down.bytes
    read, written = (moved, x.bytes) if gradients == 1 else (moved + x.bytes, moved)
    return OpCost(
        flops, read, written, _te_dtype(call, x, first), "matrix",
        dims=(*sizes(rows, up, k), ("inner", inner)),
        note=_AROUND if gradients == 1 else f"{_BOTH}; {_AROUND}",
    )  # fmt: skip


def _operands(call: OpCall) -> tuple[Tensor, Tensor]:
    """The rows and the weight (N, K) of a TransformerEngine function: `_Linear` has the weight first."""
    first, *rest = _plain(call) or [Tensor((), "", 0)]
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


def _plain(call: OpCall) -> list[Tensor]:
    """Tensor arguments without the 8-bit copies of weights that older versions pass along."""
    return [tensor for tensor in call.tensors() if tensor.dtype != "u8"]


def _te_dtype(call: OpCall, x: Tensor, weight: Tensor) -> str:
    return "fp8e4m3" if _FP8_KERNEL.search(call.kernel) else math_dtype(call, x, weight)


def _fp8(tensor: Tensor) -> Tensor:
    return tensor._replace(dtype="fp8e4m3") if tensor.dtype == "u8" else tensor
