"""Reductions: sums, products, extremes, norms and variances over some or all dimensions.

Every element is read once and takes part in a fixed number of operations, every result in some more. Where
the trace has no argument values (older profilers), the dimensions are not known and neither is the size of
the result: it is then left out, and the note says so.
"""

from __future__ import annotations

from msgspec import Struct

from tracelens.costs.elementwise import ElementwiseRule, pointwise
from tracelens.costs.model import OpCall, OpCost, Tensor, Uncounted, cost, size
from tracelens.costs.tensors import (
    axis,
    dtype_argument,
    floating,
    kept,
    length,
    natural,
    outputs,
    promote,
    real_of,
    recorded,
    result_dtype,
    shape_of,
    summed,
)

_UNKNOWN = "dimensions not recorded: result not counted"


class ReductionRule(Struct, frozen=True):
    """How a reduction is counted."""

    each: int  # operations an element
    result: int = 0  # operations a result
    dim: int = 1  # place of the dimensions
    least: int = 2  # number of arguments that the op has at least when it is given dimensions
    # element type of each result; "" is that of x, "sum" that of sums (integers give i64)
    dtypes: tuple[str, ...] = ("",)
    dtype: int = -1  # index of the dtype argument in the variant with dimensions, -1 where there is none


_RULES = {
    "sum": ReductionRule(1, least=4, dtypes=("sum",), dtype=3),
    "nansum": ReductionRule(2, least=4, dtypes=("sum",), dtype=3),
    "prod": ReductionRule(1, least=4, dtypes=("sum",), dtype=3),
    "mean": ReductionRule(1, 1, least=4, dtype=3),
    "nanmean": ReductionRule(3, 1, least=4, dtype=3),
    "amax": ReductionRule(1),
    "amin": ReductionRule(1),
    "aminmax": ReductionRule(2, dtypes=("", "")),
    "_aminmax": ReductionRule(2, dtypes=("", "")),
    "argmax": ReductionRule(1, dtypes=("i64",)),
    "argmin": ReductionRule(1, dtypes=("i64",)),
    "all": ReductionRule(1, dtypes=("bool",)),
    "any": ReductionRule(1, dtypes=("bool",)),
    "_is_all_true": ReductionRule(1, least=99, dtypes=("bool",)),
    "_is_any_true": ReductionRule(1, least=99, dtypes=("bool",)),
    "count_nonzero": ReductionRule(2, dtypes=("i64",)),
    "norm": ReductionRule(2, 1, dim=2, least=4, dtype=4),
    "native_norm": ReductionRule(2, 1, dim=2, least=4, dtype=4),
    "linalg_vector_norm": ReductionRule(2, 1, dim=2, dtype=4),
    # The greatest, and of each element the difference to it, its exponential and their sum.
    "logsumexp": ReductionRule(4, 2),
    "special_logsumexp": ReductionRule(4, 2),
    # Sum and sum of squares.
    "var": ReductionRule(3, 4, least=4),
    "std": ReductionRule(3, 5, least=4),
    "var_mean": ReductionRule(3, 4, least=4, dtypes=("", "")),
    "std_mean": ReductionRule(3, 5, least=4, dtypes=("", "")),
}
_BY_NAME = {f"aten::{name}": rule for name, rule in _RULES.items()}
_WITH_DIM = ReductionRule(1, least=3, dtypes=("", "i64"))
_ALL_DIMS = ReductionRule(1, least=3)
_TWO_TENSORS = ElementwiseRule(1, (0, 1))

_SORTED_FLAGS = ("", "None", "True", "False")


class PointwiseLoss(Struct, frozen=True):
    """A loss of two tensors of one shape: FLOPs an element and where the reduction stands."""

    flops: int
    reduction: int = 2


@cost(*_BY_NAME)
def reduction(call: OpCall) -> OpCost:
    """Some operations an element and a result, see the table in costs/reduction.py."""
    return reduce(call, _BY_NAME[call.name])


def reduce(call: OpCall, rule: ReductionRule) -> OpCost:
    """The cost of a reduction by its rule."""
    recorded(call)
    x = call.tensor(0)
    out = outputs(call, 1)
    is_along = len(call.shapes) >= rule.least  # over some dimensions
    results, note, requested = 1, "", ""
    if is_along and not call.values and len(x.shape) > 1:
        results, note = 0, _UNKNOWN
    elif is_along:
        text, dims = call.text(rule.dim), call.integers(rule.dim)
        if text not in ("", "None", "[]") and not dims:
            raise Uncounted(f"dimensions {text[:20]!r} cannot be read")
        results = kept(x, dims)
    if rule.dtype >= 0:  # without dimensions it is the second argument
        index = rule.dtype if is_along else 1 if rule.dim == 1 else -1
        requested = dtype_argument(call, index)
    dtypes = [tensor.dtype for tensor in out] or [
        requested or (summed(x.dtype) if kind == "sum" else kind or real_of(x.dtype)) for kind in rule.dtypes
    ]
    written = sum(size(results, dtype) for dtype in dtypes)
    return OpCost(rule.each * x.numel + rule.result * results, x.bytes, written, x.dtype, note=note)


_LOSSES = {
    "aten::mse_loss": PointwiseLoss(3),
    "aten::l1_loss": PointwiseLoss(3),
    "aten::smooth_l1_loss": PointwiseLoss(5),
    "aten::huber_loss": PointwiseLoss(5),
    "aten::kl_div": PointwiseLoss(4),
    "aten::soft_margin_loss": PointwiseLoss(5),
    "aten::binary_cross_entropy": PointwiseLoss(7, 3),
    "aten::binary_cross_entropy_with_logits": PointwiseLoss(8, 4),
}
_LOSS_BACKWARD = {
    "aten::mse_loss_backward": 3,
    "aten::smooth_l1_loss_backward": 4,
    "aten::huber_loss_backward": 4,
    "aten::soft_margin_loss_backward": 5,
    "aten::binary_cross_entropy_backward": 5,
}


@cost("aten::linalg_norm")
def norm(call: OpCall) -> OpCost:
    """A vector norm, or a matrix norm by sums; one by singular values is not counted."""
    dims = call.integers(2) or list(range(len(call.tensor(0).shape)))
    order = call.text(1).removeprefix("-").removesuffix(".").removesuffix(".0")
    if order == "nuc" or (order == "2" and len(dims) == 2):
        raise Uncounted("a matrix norm by singular values")
    return reduce(call, _BY_NAME["aten::linalg_vector_norm"])


@cost("aten::max", "aten::min")
def extreme(call: OpCall) -> OpCost:
    """One comparison an element: of the whole tensor, along a dimension with positions, or of two tensors."""
    if call.has(1):
        return pointwise(call, _TWO_TENSORS)
    return reduce(call, _WITH_DIM if len(call.shapes) >= _WITH_DIM.least else _ALL_DIMS)


@cost("aten::equal")
def equal(call: OpCall) -> OpCost:
    """One comparison an element of two tensors; the answer is one value."""
    a, b = call.tensor(0), call.tensor(1)
    return OpCost(min(a.numel, b.numel), a.bytes + b.bytes, 1, promote([a, b]))


@cost("aten::trace")
def trace(call: OpCall) -> OpCost:
    """The sum of a matrix's diagonal."""
    x = call.tensor(0)
    count = min(shape_of(x, 2))
    return OpCost(count, size(count, x.dtype), size(1, summed(x.dtype)), x.dtype)


@cost("aten::dist")
def distance(call: OpCall) -> OpCost:
    """The norm of a difference: 3 operations an element, a root in the end."""
    a, b = call.tensor(0), call.tensor(1)
    return OpCost(3 * max(a.numel, b.numel) + 1, a.bytes + b.bytes, size(1, a.dtype), promote([a, b]))


# ====================
# Sorting, selecting the greatest, running sums, binary search and histograms.
#
# Comparisons are counted by the best that can be done by comparing: n·⌈log₂ n⌉ for a sort of n (Knuth, The
# Art of Computer Programming, volume 3), n for a selection of the k greatest (every element is looked at;
# more depends on the method), ⌈log₂(n + 1)⌉ for a search among n. GPUs sort by digits instead, which takes
# several passes over the data: that shows as lost efficiency.


@cost("aten::sort", "aten::argsort", "aten::msort")
def sort(call: OpCall) -> OpCost:
    """n·⌈log₂ n⌉ comparisons along one dimension; values and their positions (i64) written."""
    x = call.tensor(0)
    if call.name == "aten::msort":
        along = x.shape[0] if x.shape else 1
    else:
        # sort(x, stable, dim, ...) and sort(x, dim, ...)
        stable = call.text(1) in _SORTED_FLAGS and len(call.values) > 2
        along = _along(call, x, 2 if stable else 1)
    written = _pairs(x.numel, x.dtype)
    if call.name != "aten::sort":
        written = size(x.numel, "i64" if call.name == "aten::argsort" else x.dtype)
    return OpCost(x.numel * _log2(along), x.bytes, written, x.dtype, dims=(("n", along),))


@cost("aten::topk")
def topk(call: OpCall) -> OpCost:
    """One comparison an element; the k greatest values and their positions (i64) written."""
    x, k = call.tensor(0), call.integer(1)
    along = _along(call, x, 2)
    if not 0 <= k <= along:
        raise Uncounted(f"the {k} largest of {along}")
    rows = x.numel // along if along else 0
    return OpCost(x.numel, x.bytes, _pairs(rows * k, x.dtype), x.dtype, dims=(("n", along), ("k", k)))


@cost("aten::kthvalue", "aten::median", "aten::nanmedian", "aten::mode")
def selection(call: OpCall) -> OpCost:
    """One comparison an element; one value and its position (i64) written for each row."""
    x = call.tensor(0)
    dim_index = 2 if call.name == "aten::kthvalue" else 1
    if len(call.shapes) < 2:
        return OpCost(x.numel, x.bytes, size(1, x.dtype), x.dtype)
    along = _along(call, x, dim_index)
    rows = x.numel // along if along else 0
    return OpCost(x.numel, x.bytes, _pairs(rows, x.dtype), x.dtype, dims=(("n", along),))


@cost(
    "aten::cumsum", "aten::cumsum_", "aten::cumprod", "aten::cumprod_", "aten::_cumsum", "aten::_cumprod",
)  # fmt: skip
def scan(call: OpCall) -> OpCost:
    """One addition or multiplication an element; as many results (i64 for integers)."""
    x = call.tensor(0)
    dtype = result_dtype(call, 1) or dtype_argument(call, 2) or summed(x.dtype)
    if call.name.endswith("_"):
        dtype = x.dtype
    return OpCost(x.numel, x.bytes, size(x.numel, dtype), x.dtype)


@cost("aten::logcumsumexp", "aten::_logcumsumexp")
def log_scan(call: OpCall) -> OpCost:
    """Running sum of exponentials, by its logarithm: 5 operations an element (see logaddexp)."""
    x = call.tensor(0)
    return OpCost(5 * x.numel, x.bytes, x.dense_bytes, x.dtype)


@cost("aten::_cummax_helper", "aten::_cummin_helper", "aten::cummax", "aten::cummin")
def extreme_scan(call: OpCall) -> OpCost:
    """One comparison an element; running extremes and their positions (i64) written."""
    x = call.tensor(0)
    return OpCost(x.numel, x.bytes, _pairs(x.numel, x.dtype), x.dtype)


@cost("aten::searchsorted", "aten::bucketize")
def search(call: OpCall) -> OpCost:
    """⌈log₂(n + 1)⌉ comparisons for each value; its position (i64, i32 where asked for) written."""
    first, second = (0, 1) if call.name == "aten::searchsorted" else (1, 0)
    among = call.tensor(first)
    steps = _log2(length(among, -1) + 1)
    kind = "i32" if call.flag(2) else "i64"
    if not call.has(second):  # one number
        return OpCost(steps, among.bytes, size(1, kind), among.dtype)
    values = call.tensor(second)
    return OpCost(values.numel * steps, values.bytes + among.bytes, size(values.numel, kind), values.dtype)


@cost("aten::isin")
def isin(call: OpCall) -> OpCost:
    """⌈log₂(n + 1)⌉ comparisons of each element with n sorted ones."""
    if not (call.has(0) and call.has(1)):
        x = call.tensors()[0]
        return OpCost(x.numel, x.bytes, size(x.numel, "bool"), x.dtype)
    x, among = call.tensor(0), call.tensor(1)
    steps = _log2(among.numel + 1)
    return OpCost(x.numel * steps, x.bytes + among.bytes, size(x.numel, "bool"), x.dtype)


@cost("aten::bincount", "aten::_bincount")
def bincount(call: OpCall) -> OpCost:
    """One addition an element; counts are i64, weighted ones fractions."""
    x = call.tensor(0)
    weights = call.tensor(1) if call.has(1) else None
    kind = ("fp32" if weights.dtype == "fp32" else "fp64") if weights else "i64"
    written = size(natural(call, 2, 0), kind)
    read = x.bytes + (weights.bytes if weights else 0)
    return OpCost(x.numel, read, written, x.dtype, note="bins beyond minlength not recorded and not counted")


@cost("aten::histc")
def histc(call: OpCall) -> OpCost:
    """For each element its bin (a difference and a division) and an addition; the bins written."""
    x = call.tensor(0)
    return OpCost(3 * x.numel, x.bytes, size(natural(call, 1, 100), x.dtype), x.dtype)


@cost(
    "aten::unique_consecutive", "aten::_unique2", "aten::_unique", "aten::unique_dim",
    "aten::unique_dim_consecutive",
)  # fmt: skip
def unique(call: OpCall) -> OpCost:
    """A sort, or one comparison an element where equal ones are neighbors; the result is in the data."""
    x = call.tensor(0)
    each = 1 if "consecutive" in call.name else _log2(x.numel)
    note = "distinct elements not counted as written: their number is not recorded"
    return OpCost(x.numel * each, x.bytes, 0, x.dtype, note=note)


@cost("aten::quantile", "aten::nanquantile")
def quantile(call: OpCall) -> OpCost:
    """A sort of everything; the quantiles asked for written."""
    x = call.tensor(0)
    q = call.tensor(1).numel if call.has(1) else 1
    return OpCost(x.numel * _log2(x.numel), x.bytes, size(q, floating(x.dtype)), x.dtype)


def _along(call: OpCall, x: Tensor, index: int) -> int:
    """Size of the dimension in argument `index`, the last by default."""
    if not call.values and len(x.shape) > 1:
        raise Uncounted(f"argument {index} (dim) has no recorded value")
    return length(x, axis(call, index, x, -1))


def _pairs(count: int, dtype: str) -> int:
    """Bytes of so many values with their positions."""
    return size(count, dtype) + size(count, "i64")


def _log2(count: int) -> int:
    return (count - 1).bit_length() if count > 0 else 0


# ====================
# Losses: negative log-likelihood and cross-entropy, squared and absolute errors, binary cross-entropy.
#
# FLOPs a few an element, told with each. Bytes: predictions and targets once. A mean or sum is one value;
# without reduction there is one value an element (reduction 0 none, 1 mean, 2 sum, as PyTorch records it).


@cost(
    "aten::nll_loss_forward", "aten::nll_loss2d_forward", "aten::nll_loss", "aten::nll_loss_nd",
)  # fmt: skip
def nll_loss(call: OpCall) -> OpCost:
    """Negative log-likelihood: one prediction a target is read, 2 FLOPs (weight, add)."""
    x, target = call.tensor(0), call.tensor(1)
    note = _reduction_note(call, 3)
    results = target.numel if call.text(3) == "0" else 1
    read = size(target.numel, x.dtype) + target.bytes + call.bytes(2)
    # The sum of the weights is a result too.
    written = size(results + 1, x.dtype)
    return OpCost(2 * target.numel, read, written, x.dtype, dims=_classes(call, 0), note=note)


@cost("aten::nll_loss_backward", "aten::nll_loss2d_backward")
def nll_loss_backward(call: OpCall) -> OpCost:
    """Negative log-likelihood, backward: one value a target is written, 2 FLOPs.

    The zeros around it are written by a memset of their own.
    """
    grad, x, target = call.tensor(0), call.tensor(1), call.tensor(2)
    read = grad.bytes + target.bytes + call.bytes(3)
    return OpCost(2 * target.numel, read, size(target.numel, x.dtype), x.dtype, dims=_classes(call, 1))


@cost("aten::cross_entropy_loss")
def cross_entropy(call: OpCall) -> OpCost:
    """Cross-entropy of logits: log-softmax and selection, 5 FLOPs a logit."""
    x, target = call.tensor(0), call.tensor(1)
    note = _reduction_note(call, 3)
    written = size(target.numel if call.text(3) == "0" else 1, x.dtype)
    return OpCost(5 * x.numel, x.bytes + target.bytes, written, x.dtype, dims=_classes(call, 0), note=note)


@cost("CrossEntropyFunction", "LigerCrossEntropyFunction")
def fused_cross_entropy(call: OpCall) -> OpCost:
    """Fused cross-entropy that puts the gradient in the place of the logits: 7 FLOPs a logit.

    Transformer Engine's and Liger's kernels: softmax 5, subtract the target 1, scale 1; one FP32 loss a row.
    """
    x, target = call.tensor(0), call.tensor(1)
    written = x.dense_bytes + 4 * target.numel
    return OpCost(7 * x.numel, x.bytes + target.bytes, written, x.dtype, dims=_classes(call, 0))


@cost("CrossEntropyFunctionBackward", "LigerCrossEntropyFunctionBackward", forward=True)
def fused_cross_entropy_backward(call: OpCall) -> OpCost:
    """Fused cross-entropy, backward: the gradient, made in forward, is scaled in place, 1 FLOP a logit."""
    forward = call.of_forward()
    x = forward.tensor(0)
    return OpCost(x.numel, x.dense_bytes, x.dense_bytes, x.dtype, dims=_classes(forward, 0))


@cost(*_LOSSES)
def pointwise_loss(call: OpCall) -> OpCost:
    """Error of every element, and its mean: 3 (squared) to 8 (binary cross-entropy) FLOPs an element."""
    model = _LOSSES[call.name]
    x, target = call.tensor(0), call.tensor(1)
    elements = max(x.numel, target.numel)
    weights = call.bytes(*range(2, model.reduction))
    results = elements if call.text(model.reduction) == "0" else 1
    read = x.bytes + target.bytes + weights
    note = _reduction_note(call, model.reduction)
    return OpCost(model.flops * elements, read, size(results, x.dtype), x.dtype, note=note)


@cost(*_LOSS_BACKWARD)
def pointwise_loss_backward(call: OpCall) -> OpCost:
    """Gradient of an error of every element: 3 to 5 FLOPs an element."""
    grad, x, target = call.tensor(0), call.tensor(1), call.tensor(2)
    read = grad.bytes + x.bytes + target.bytes + call.bytes(3)
    return OpCost(_LOSS_BACKWARD[call.name] * x.numel, read, x.dense_bytes, x.dtype)


def _reduction_note(call: OpCall, index: int) -> str:
    return "" if call.text(index) else "one result assumed: the reduction is not recorded"


def _classes(call: OpCall, index: int) -> tuple[tuple[str, int], ...]:
    x = call.tensor(index)
    if not x.shape:
        return ()
    # (N, C), (N, C, …) or (C): the classes are second, or all there is.
    classes = x.shape[1] if len(x.shape) > 1 else x.shape[0]
    return (("rows", x.numel // classes), ("classes", classes)) if classes else ()


# ====================
# Sampling of the next token: argmax of probabilities over exponential noise, which is a draw by them.
#
# Of each logit: its division by the temperature, its exponential, its division by the noise and a comparison,
# 4 FLOPs; that all are divided by one sum does not change the largest and is not counted. Greedy: a
# comparison. Bytes: logits, noise and temperatures once, one index a row written. Source: ROCm/aiter,
# aiter/ops/sample.py.


@cost("aiter::mixed_sample_outer_exponential", "aiter::random_sample_outer_exponential")
def sample(call: OpCall) -> OpCost:
    """Indices, logits (T, V), noise (T, V) or the same row for all, temperatures: 4 FLOPs a logit."""
    logits = call.tensor(1)
    read = logits.bytes + call.tensor(2).bytes + call.tensor(3).bytes
    return OpCost(4 * logits.numel, read, call.tensor(0).bytes, logits.dtype)


@cost("aiter::greedy_sample")
def greedy(call: OpCall) -> OpCost:
    """Indices of the largest of the logits (T, V)."""
    logits = call.tensor(1)
    return OpCost(logits.numel, logits.bytes, call.tensor(0).bytes, logits.dtype)
