"""The recorded arguments of a call as they stand in a script: read strictly, never evaluated."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from tracelens.dtypes import torch_dtype
from tracelens.errors import TracelensError
from tracelens.trace import decoded

NUMBERS = ("float64", "int64", "bool", "complex128")
"""Element types of Python numbers, which the profiler shows as tensors without dimensions."""

OP = re.compile(r"[A-Za-z_]\w{0,63}::[A-Za-z_]\w{0,127}", re.ASCII)
"""Names that torch registers ops under."""

RECORDED = ("shapes", "dtypes", "strides", "values")
"""Columns of the ops table that say what an op was called with."""

NO_SHAPES = "argument shapes missing; record with record_shapes=True"
LONG_LIST = "a list of more than 30 tensors: the profiler records no shapes for it"
_LARGEST = 1 << 40
_INTEGER = re.compile(r"-?[0-9]{1,19}")
_FLOAT = re.compile(r"-?([0-9]{1,400}\.?[0-9]{0,400}|\.[0-9]{1,400})(e[+-]?[0-9]{1,3})?|-?inf|nan")
_TENSORS, _LISTS = ("TensorList",), ("ScalarList", "GenericList")


class Unreplayable(TracelensError):
    """No script can be made of this call; the message says why, without a name or a full stop."""


@dataclass(frozen=True)
class Tensor:
    """A tensor argument.

    Attributes:
        dtype: torch's name of the element type.
        shape, stride: in elements.
        maker: the function of a script that makes it, see templates/inputs.py.j2.
        maker_args: what that function is given beyond type, shape and strides.
    """

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    maker: str = "strided"
    maker_args: tuple[Any, ...] = ()

    @property
    def numel(self) -> int:
        return prod(self.shape)

    def made(self, maker: str, *maker_args: Any) -> Tensor:
        return replace(self, maker=maker, maker_args=maker_args)


Argument = Tensor | list[Any] | bool | int | float | str | None
"""One argument of a call. None is what was not recorded, or None; text is never the trace's."""


def read(shapes: str, dtypes: str, strides: str, values: str, of_lists: str) -> list[Argument]:
    """The arguments of a call, from the texts of the ops table.

    Raises:
        Unreplayable: something is missing, or is nothing that a call can take.
    """
    types, dims = decoded(dtypes), decoded(shapes)
    steps, texts = decoded(strides), decoded(values)
    if not types or not dims:
        raise Unreplayable(NO_SHAPES)
    arguments: list[Argument] = []
    for index, name in enumerate(types):
        dim, step = _element(dims, index), _element(steps, index)
        if name in _TENSORS:
            arguments.append(_tensors(dim, step, of_lists))
        elif name in ("Scalar", "", "None") or name in _LISTS:
            arguments.append(_value(_element(texts, index), index))
        else:
            arguments.append(_tensor(_dtype(name), dim, step))
    if any(name in _TENSORS for name in types) and not any(map(_has_tensor, arguments)):
        raise Unreplayable(LONG_LIST)
    if not any(map(_has_tensor, arguments)):
        raise Unreplayable("no tensor among its recorded arguments")
    return arguments


def tensors(arguments: Sequence[Argument]) -> list[Tensor]:
    """All tensors, also those in lists."""
    return [
        tensor
        for argument in arguments
        for tensor in (argument if isinstance(argument, list) else [argument])
        if isinstance(tensor, Tensor)
    ]


def _has_tensor(argument: Argument) -> bool:
    return bool(tensors([argument]))


def _dtype(name: Any) -> str:
    dtype = torch_dtype(str(name))
    if not dtype:
        raise Unreplayable(f"element type {str(name)[:40]!r} is not supported for tensors")
    return dtype


def _tensors(dims: Any, steps: Any, dtype: str) -> list[Any]:
    if not isinstance(dims, list) or not all(isinstance(dim, list) for dim in dims):
        raise Unreplayable("a tensor list without a list of shapes")
    return [_tensor(dtype, dim, _element(steps, index)) for index, dim in enumerate(dims)]


def _tensor(dtype: str, dim: Any, step: Any) -> Tensor:
    shape = _sizes(dim)
    stride = _sizes(step) if step else dense(shape)
    if len(stride) != len(shape):
        raise Unreplayable("a tensor with a different number of strides and dimensions")
    extent = 1 + sum((size - 1) * pitch for size, pitch in zip(shape, stride, strict=True))
    if max(prod(shape), extent) > _LARGEST:
        raise Unreplayable("a tensor larger than any memory: the recorded sizes are wrong")
    return Tensor(dtype, shape, stride)


def dense(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a contiguous tensor."""
    return tuple(prod(max(size, 1) for size in shape[dim + 1 :]) for dim in range(len(shape)))


def _sizes(value: Any) -> tuple[int, ...]:
    """A list of sizes; older profilers wrote them as text."""
    if isinstance(value, list) and all(_INTEGER.fullmatch(str(size)) for size in value):
        sizes = tuple(int(size) for size in value)
        if min(sizes, default=0) >= 0 and len(sizes) <= 32:
            return sizes
    raise Unreplayable(f"a recorded shape is not a list of sizes: {str(value)[:40]}")


def _value(text: Any, index: int) -> Argument:
    words = str(text).strip()
    if words in ("", "None"):
        return None
    if words.startswith("[") and words.endswith("]"):
        return [_number(word.strip(), index) for word in words[1:-1].split(",") if word.strip()]
    return _number(words, index)


def _number(word: str, index: int) -> bool | int | float:
    if word in ("True", "False"):
        return word == "True"
    if _INTEGER.fullmatch(word):
        return int(word)
    if _FLOAT.fullmatch(word):
        return float(word)
    raise Unreplayable(f"argument {index} has the value {word[:40]!r}, not a number")


def _element(values: Any, index: int) -> Any:
    return values[index] if isinstance(values, list) and index < len(values) else []
