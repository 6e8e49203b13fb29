"""Sorting, selecting the greatest, running sums, binary search and histograms.

Comparisons are counted by the best that can be done by comparing: n·⌈log₂ n⌉ for a sort of n (Knuth, The Art
of Computer Programming, volume 3), n for a selection of the k greatest (every element is looked at; more
depends on the method), ⌈log₂(n + 1)⌉ for a search among n. GPUs sort by digits instead, which takes several
passes over the data: that shows as lost efficiency.
"""

from __future__ import annotations

from tracelens.costs.call import OpCall, Tensor, Uncounted, size
from tracelens.costs.model import OpCost, cost
from tracelens.costs.torch.tensors import (
    axis,
    dtype_argument,
    floating,
    length,
    natural,
    result_dtype,
    summed,
)

_SORTED_FLAGS = ("", "None", "True", "False")


@cost("aten::sort", "aten::argsort", "aten::msort", engine="vector")
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


@cost("aten::topk", engine="vector")
def topk(call: OpCall) -> OpCost:
    """One comparison an element; the k greatest values and their positions (i64) written."""
    x, k = call.tensor(0), call.integer(1)
    along = _along(call, x, 2)
    if not 0 <= k <= along:
        raise Uncounted(f"the {k} largest of {along}")
    rows = x.numel // along if along else 0
    return OpCost(x.numel, x.bytes, _pairs(rows * k, x.dtype), x.dtype, dims=(("n", along), ("k", k)))


@cost("aten::kthvalue", "aten::median", "aten::nanmedian", "aten::mode", engine="vector")
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
engine="vector")  # fmt: skip
def scan(call: OpCall) -> OpCost:
    """One addition or multiplication an element; as many results (i64 for integers)."""
    x = call.tensor(0)
    dtype = result_dtype(call, 1) or dtype_argument(call, 2) or summed(x.dtype)
    if call.name.endswith("_"):
        dtype = x.dtype
    return OpCost(x.numel, x.bytes, size(x.numel, dtype), x.dtype)


@cost("aten::logcumsumexp", "aten::_logcumsumexp", engine="vector")
def log_scan(call: OpCall) -> OpCost:
    """Running sum of exponentials, by its logarithm: 5 operations an element (see logaddexp)."""
    x = call.tensor(0)
    return OpCost(5 * x.numel, x.bytes, x.dense_bytes, x.dtype)


@cost("aten::_cummax_helper", "aten::_cummin_helper", "aten::cummax", "aten::cummin", engine="vector")
def extreme_scan(call: OpCall) -> OpCost:
    """One comparison an element; running extremes and their positions (i64) written."""
    x = call.tensor(0)
    return OpCost(x.numel, x.bytes, _pairs(x.numel, x.dtype), x.dtype)


@cost("aten::searchsorted", "aten::bucketize", engine="vector")
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


@cost("aten::isin", engine="vector")
def isin(call: OpCall) -> OpCost:
    """⌈log₂(n + 1)⌉ comparisons of each element with n sorted ones."""
    if not (call.has(0) and call.has(1)):
        x = call.tensors()[0]
        return OpCost(x.numel, x.bytes, size(x.numel, "bool"), x.dtype)
    x, among = call.tensor(0), call.tensor(1)
    steps = _log2(among.numel + 1)
    return OpCost(x.numel * steps, x.bytes + among.bytes, size(x.numel, "bool"), x.dtype)


@cost("aten::bincount", "aten::_bincount", engine="vector")
def bincount(call: OpCall) -> OpCost:
    """One addition an element; counts are i64, weighted ones fractions."""
    x = call.tensor(0)
    weights = call.tensor(1) if call.has(1) else None
    kind = ("fp32" if weights.dtype == "fp32" else "fp64") if weights else "i64"
    written = size(natural(call, 2, 0), kind)
    read = x.bytes + (weights.bytes if weights else 0)
    return OpCost(x.numel, read, written, x.dtype, note="bins beyond minlength not recorded and not counted")


@cost("aten::histc", engine="vector")
def histc(call: OpCall) -> OpCost:
    """For each element its bin (a difference and a division) and an addition; the bins written."""
    x = call.tensor(0)
    return OpCost(3 * x.numel, x.bytes, size(natural(call, 1, 100), x.dtype), x.dtype)


@cost(
    "aten::unique_consecutive", "aten::_unique2", "aten::_unique", "aten::unique_dim",
    "aten::unique_dim_consecutive",
engine="vector")  # fmt: skip
def unique(call: OpCall) -> OpCost:
    """A sort, or one comparison an element where equal ones are neighbors; the result is in the data."""
    x = call.tensor(0)
    each = 1 if "consecutive" in call.name else _log2(x.numel)
    note = "distinct elements not counted as written: their number is not recorded"
    return OpCost(x.numel * each, x.bytes, 0, x.dtype, note=note)


@cost("aten::quantile", "aten::nanquantile", engine="vector")
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
