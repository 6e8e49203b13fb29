"""Shapes and element types of results: broadcasting, type promotion, reduced dimensions.

The rules are those of the PyTorch documentation ("Broadcasting semantics", "Tensor attributes: torch.dtype",
type promotion). They are stated here only as far as sizes depend on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tracelens.costs.model import NO_SHAPES, OpCall, Tensor, Uncounted
from tracelens.dtypes import SCALAR_TYPES

# Category and place within it: a higher category wins, within one the wider type.
_RANK = {
    "bool": (0, 0), "u8": (1, 0), "i8": (1, 1), "u16": (1, 2), "i16": (1, 3), "u32": (1, 4), "i32": (1, 5),
    "u64": (1, 6), "i64": (1, 7), "fp4": (2, 0), "fp4x2": (2, 0), "fp6": (2, 0), "fp8": (2, 1),
    "fp8e8m0": (2, 1), "fp8e5m2": (2, 2), "fp8e4m3": (2, 2), "fp16": (2, 3), "bf16": (2, 3), "tf32": (2, 4),
    "fp32": (2, 4), "fp64": (2, 5), "c32": (3, 0), "c64": (3, 1), "c128": (3, 2),
}  # fmt: skip
_CATEGORY_COMPLEX = 3
_COMPLEX = {"fp16": "c32", "bf16": "c64", "fp32": "c64", "fp64": "c128"}
REAL = {"c32": "fp16", "c64": "fp32", "c128": "fp64"}
# Pairs of which neither holds the other.
_WIDER = {("fp16", "bf16"): "fp32", ("u8", "i8"): "i16"}


def broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The shape that `shapes` broadcast to; raises Uncounted where they do not."""
    first = shapes[0]
    if all(shape == first for shape in shapes):
        return first
    length = max(map(len, shapes))
    result = [1] * length
    for shape in shapes:
        for axis_index, dim in enumerate(shape, length - len(shape)):
            if dim != 1 and result[axis_index] not in (1, dim):
                raise Uncounted("recorded shapes do not broadcast")
            if dim != 1:
                result[axis_index] = dim
    return tuple(result)


def promote(tensors: Sequence[Tensor]) -> str:
    """The element type that an op on these tensors works in.

    Tensors with dimensions decide; one without (Python numbers are recorded as such: "double", "long int")
    counts only when it is of a higher category (float against integer), and is then of the default type.
    """
    if len(tensors) == 1:
        return tensors[0].dtype
    large = [tensor.dtype for tensor in tensors if tensor.shape]
    small = [tensor.dtype for tensor in tensors if not tensor.shape]
    if not large:
        # Beside another 0-dim tensor a double or long is most likely a Python number.
        decisive = [dtype for dtype in small if dtype not in ("fp64", "i64")]
        return _widest(decisive or small)
    result = _widest(large)
    if not small:
        return result
    scalar = _widest(small)
    if _category(scalar) <= _category(result):
        return result
    if scalar == "fp64":
        return "fp32"
    return "c64" if scalar == "c128" and result != "fp64" else scalar


def floating(dtype: str) -> str:
    """What a function with fractional results makes of `dtype`: the default type for integers."""
    return "fp32" if _category(dtype) < 2 else dtype


def complex_of(dtype: str) -> str:
    """The complex type made of two of `dtype`."""
    return _COMPLEX.get(dtype, dtype)


def real_of(dtype: str) -> str:
    """The type of the parts of a complex type; others are their own."""
    return REAL.get(dtype, dtype)


def summed(dtype: str) -> str:
    """The type that sums and products are returned in: i64 for integers."""
    return "i64" if _category(dtype) < 2 else dtype


def shape_of(tensor: Tensor, rank: int) -> tuple[int, ...]:
    """Its shape; raises Uncounted where it has another number of dimensions."""
    if len(tensor.shape) != rank:
        raise Uncounted(f"an operand with {len(tensor.shape)} dimensions instead of {rank}")
    return tensor.shape


def dtype_argument(call: OpCall, index: int) -> str:
    """The element type that argument `index` (a dtype) asks for; "" where it asks for none.

    Raises:
        Uncounted: a type that is not known.
    """
    text = call.text(index)
    if not text or text == "None":
        return ""
    if text not in SCALAR_TYPES:
        raise Uncounted(f"unknown element type {text[:20]!r}")
    return SCALAR_TYPES[text]


def axis(call: OpCall, index: int, tensor: Tensor, default: int | None = None) -> int:
    """Argument `index` as one dimension of `tensor`, counted from the front; 0 for tensors without any."""
    dim = call.integer(index, default)
    rank = max(len(tensor.shape), 1)
    if not -rank <= dim < rank:
        raise Uncounted(f"dimension {dim} of a tensor with {len(tensor.shape)}")
    return dim % rank


def length(tensor: Tensor, dim: int) -> int:
    """Size of one dimension; 1 for tensors without any."""
    return tensor.shape[dim] if tensor.shape else 1


def kept(tensor: Tensor, dims: Sequence[int]) -> int:
    """Elements that a reduction over `dims` leaves; an empty list is all dimensions."""
    rank = len(tensor.shape)
    if not dims or not rank:
        return 1
    if not all(-rank <= dim < rank for dim in dims):
        raise Uncounted(f"dimensions {list(dims)} of a tensor with {rank}")
    gone = {dim % rank for dim in dims}
    return prod(size for axis_index, size in enumerate(tensor.shape) if axis_index not in gone)


def natural(call: OpCall, index: int, default: int | None = None) -> int:
    """Argument `index` as a number of things; raises Uncounted where it is not recorded or negative."""
    number = call.integer(index, default)
    if number < 0:
        raise Uncounted(f"argument {index} is negative: {number}")
    return number


def sizes(call: OpCall, index: int) -> list[int]:
    """Argument `index` as a list of sizes; raises Uncounted where it is not recorded or has negative ones."""
    numbers = call.integers(index)
    if not numbers or min(numbers) < 0:
        raise Uncounted(f"argument {index} has no sizes recorded")
    return numbers


def outputs(call: OpCall, first: int) -> list[Tensor]:
    """Tensor arguments from `first` on: where an op has no operands any more, they are given results."""
    return [call.tensor(index) for index in range(first, len(call.dtypes)) if call.dtypes[index]]


def result_dtype(call: OpCall, first: int) -> str:
    """The element type of the result that an op was given behind its operands, "" where it was given none."""
    out = outputs(call, first)
    return out[0].dtype if out else ""


def recorded(call: OpCall) -> None:
    """Raise Uncounted where no argument of this call was recorded."""
    if not call.shapes:
        raise Uncounted(NO_SHAPES)


def _category(dtype: str) -> int:
    return _RANK[dtype][0] if dtype in _RANK else 2


def _widest(dtypes: Sequence[str]) -> str:
    result = dtypes[0]
    for dtype in dtypes[1:]:
        if dtype != result:
            result = _wider(result, dtype)
    return result


def _wider(a: str, b: str) -> str:
    pair = _WIDER.get((a, b)) or _WIDER.get((b, a))
    if pair:
        return pair
    if a not in _RANK or b not in _RANK:
        return a if b in _RANK else b
    real, complex_ = (b, a) if _category(a) > _category(b) else (a, b)
    if _category(complex_) == _CATEGORY_COMPLEX and _category(real) == _CATEGORY_COMPLEX - 1:
        real = _COMPLEX.get(real, real)
        return max(real, complex_, key=lambda dtype: _RANK[dtype])
    return max(a, b, key=lambda dtype: _RANK[dtype])
