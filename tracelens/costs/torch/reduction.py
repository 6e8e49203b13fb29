"""Reductions: sums, products, extremes, norms and variances over some or all dimensions.

Every element is read once and takes part in a fixed number of operations, every result in some more. Where
the trace has no argument values (older profilers), the dimensions are not known and neither is the size of
the result: it is then left out, and the note says so.
"""

from __future__ import annotations

from typing import NamedTuple

from tracelens.costs.call import OpCall, Tensor, Uncounted, size
from tracelens.costs.model import OpCost, cost
from tracelens.costs.torch.elementwise import pointwise
from tracelens.costs.torch.pointwise import Rule as Pointwise
from tracelens.costs.torch.tensors import dtype_argument, kept, outputs, promote, real_of, recorded, summed

_UNKNOWN = "dimensions not recorded: result not counted"


class Rule(NamedTuple):
    """How a reduction is counted.

    Attributes:
        each: operations an element.
        result: operations a result.
        dim: place of the dimensions.
        least: number of arguments that the op has at least when it is given dimensions.
        dtypes: element type of each result; "" is that of x, "sum" that of sums (integers give i64).
        dtype: index of the dtype argument in the variant with dimensions, -1 where there is none.
    """

    each: int
    result: int = 0
    dim: int = 1
    least: int = 2
    dtypes: tuple[str, ...] = ("",)
    dtype: int = -1


_RULES = {
    "sum": Rule(1, least=4, dtypes=("sum",), dtype=3),
    "nansum": Rule(2, least=4, dtypes=("sum",), dtype=3),
    "prod": Rule(1, least=4, dtypes=("sum",), dtype=3),
    "mean": Rule(1, 1, least=4, dtype=3),
    "nanmean": Rule(3, 1, least=4, dtype=3),
    "amax": Rule(1),
    "amin": Rule(1),
    "aminmax": Rule(2, dtypes=("", "")),
    "_aminmax": Rule(2, dtypes=("", "")),
    "argmax": Rule(1, dtypes=("i64",)),
    "argmin": Rule(1, dtypes=("i64",)),
    "all": Rule(1, dtypes=("bool",)),
    "any": Rule(1, dtypes=("bool",)),
    "_is_all_true": Rule(1, least=99, dtypes=("bool",)),
    "_is_any_true": Rule(1, least=99, dtypes=("bool",)),
    "count_nonzero": Rule(2, dtypes=("i64",)),
    "norm": Rule(2, 1, dim=2, least=4, dtype=4),
    "native_norm": Rule(2, 1, dim=2, least=4, dtype=4),
    "linalg_vector_norm": Rule(2, 1, dim=2, dtype=4),
    # The greatest, and of each element the difference to it, its exponential and their sum.
    "logsumexp": Rule(4, 2),
    "special_logsumexp": Rule(4, 2),
    # Sum and sum of squares.
    "var": Rule(3, 4, least=4),
    "std": Rule(3, 5, least=4),
    "var_mean": Rule(3, 4, least=4, dtypes=("", "")),
    "std_mean": Rule(3, 5, least=4, dtypes=("", "")),
}

_BY_NAME = {f"aten::{name}": rule for name, rule in _RULES.items()}

_WITH_DIM = Rule(1, least=3, dtypes=("", "i64"))
_ALL_DIMS = Rule(1, least=3)
_TWO_TENSORS = Pointwise(1, (0, 1))


@cost(*_BY_NAME, engine="vector")
def reduction(call: OpCall) -> OpCost:
    """Some operations an element and a result, see the table in costs/reduction.py."""
    return reduce(call, _BY_NAME[call.name])


@cost("aten::linalg_norm", engine="vector")
def norm(call: OpCall) -> OpCost:
    """A vector norm, or a matrix norm by sums; one by singular values is not counted."""
    dims = call.integers(2) or list(range(len(call.tensor(0).shape)))
    order = call.text(1).removeprefix("-").removesuffix(".").removesuffix(".0")
    if order == "nuc" or (order == "2" and len(dims) == 2):
        raise Uncounted("a matrix norm by singular values")
    return reduce(call, _BY_NAME["aten::linalg_vector_norm"])


@cost("aten::max", "aten::min", engine="vector")
def extreme(call: OpCall) -> OpCost:
    """One comparison an element: of the whole tensor, along a dimension with positions, or of two tensors."""
    if call.has(1):
        return pointwise(call, _TWO_TENSORS)
    return reduce(call, _WITH_DIM if len(call.shapes) >= _WITH_DIM.least else _ALL_DIMS)


@cost("aten::equal", engine="vector")
def equal(call: OpCall) -> OpCost:
    """One comparison an element of two tensors; the answer is one value."""
    a, b = call.tensor(0), call.tensor(1)
    return OpCost(min(a.numel, b.numel), a.bytes + b.bytes, 1, promote([a, b]))


@cost("aten::trace", engine="vector")
def trace(call: OpCall) -> OpCost:
    """The sum of a matrix's diagonal."""
    x = call.tensor(0)
    if len(x.shape) != 2:
        raise Uncounted(f"an operand with {len(x.shape)} dimensions instead of 2")
    count = min(x.shape)
    return OpCost(count, size(count, x.dtype), size(1, summed(x.dtype)), x.dtype)


@cost("aten::dist", engine="vector")
def distance(call: OpCall) -> OpCost:
    """The norm of a difference: 3 operations an element, a root in the end."""
    a, b = call.tensor(0), call.tensor(1)
    numel = max(a.numel, b.numel)
    return OpCost(3 * numel + 1, a.bytes + b.bytes, size(1, a.dtype), promote([a, b]))


def reduce(call: OpCall, rule: Rule) -> OpCost:
    """The cost of a reduction by its rule."""
    recorded(call)
    x = call.tensor(0)
    out = outputs(call, 1)
    results, note = _results(call, rule, x)
    requested = _dtype_argument(call, rule)
    dtypes = [tensor.dtype for tensor in out] or [_dtype(x, kind, requested) for kind in rule.dtypes]
    written = sum(size(results, dtype) for dtype in dtypes)
    return OpCost(rule.each * x.numel + rule.result * results, x.bytes, written, x.dtype, note=note)


def _results(call: OpCall, rule: Rule, x: Tensor) -> tuple[int, str]:
    """Number of results of a reduction, and a note where it could not be told."""
    if len(call.shapes) < rule.least:
        return 1, ""
    if not call.values and len(x.shape) > 1:
        return 0, _UNKNOWN
    text = call.text(rule.dim)
    dims = call.integers(rule.dim)
    if text not in ("", "None", "[]") and not dims:
        raise Uncounted(f"dimensions {text[:20]!r} cannot be read")
    return kept(x, dims), ""


def _dtype_argument(call: OpCall, rule: Rule) -> str:
    """The element type requested; without dimensions it is the op's second argument."""
    if rule.dtype < 0:
        return ""
    if len(call.shapes) >= rule.least:
        return dtype_argument(call, rule.dtype)
    return dtype_argument(call, 1) if rule.dim == 1 else ""


def _dtype(x: Tensor, kind: str, requested: str) -> str:
    if requested:
        return requested
    if kind == "sum":
        return summed(x.dtype)
    return kind or real_of(x.dtype)
