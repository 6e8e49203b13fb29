"""Recorded op arguments as short text: `bf16[2048,4096] bf16[4096,11008]`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any

import msgspec

from tracelens.dtypes import short_dtype
from tracelens.limits import MOST_DIMENSIONS, MOST_ELEMENTS

_NO_TENSOR = frozenset({"", "None", "Scalar", "ScalarList", "TensorList", "GenericList"})
_SHOWN = 8


@lru_cache(maxsize=1 << 14)
def describe(shapes: str, dtypes: str) -> str:
    """Tensor arguments of one call as text; scalars are left out, '' where nothing was recorded.

    >>> describe("[[2, 3], [], [[4], [4]]]", '["c10::BFloat16", "Scalar", "TensorList"]')
    'bf16[2,3] [4]x2'
    """
    words = []
    types = argument_dtypes(dtypes)
    for index, dim in enumerate(decoded(shapes)):
        dtype = types[index] if index < len(types) else ""
        if not isinstance(dim, list):
            continue
        if dim and isinstance(dim[0], list):
            words.append(_many(dim))
        elif dtype or dim:
            words.append(f"{dtype}{dim}")
    if len(words) > _SHOWN:
        words = [*words[:_SHOWN], f"+{len(words) - _SHOWN}"]
    return _plain(" ".join(words))


def _many(dims: list[Any]) -> str:
    """A list of tensors: the shape of the first, and how many there are."""
    same = dims.count(dims[0]) == len(dims)
    return f"{dims[0]}{'' if same else '..'}x{len(dims)}"


def _plain(text: str) -> str:
    """Lists as Python writes them without blanks, and without the quotes of sizes that are text."""
    return text.replace(", ", ",").replace("'", "")


@lru_cache(maxsize=4096)
def argument_dtypes(dtypes: str) -> tuple[str, ...]:
    """Short element types by argument, "" where the argument is no tensor (JSON text as in the ops table)."""
    return tuple("" if str(name) in _NO_TENSOR else short_dtype(str(name)) for name in decoded(dtypes))


def element_count(shape: Sequence[Any]) -> int:
    """Elements of a tensor of this shape; -1 for what is no shape, or larger than any tensor can be."""
    if len(shape) > MOST_DIMENSIONS or not all(type(size) is int and size >= 0 for size in shape):
        return -1
    count = prod(shape)
    return count if count <= MOST_ELEMENTS else -1


def argument_lists(text: str) -> list[list[Any]]:
    """Dimensions or strides by argument; [] for an argument whose entry is no list."""
    return [entry if isinstance(entry, list) else [] for entry in decoded(text)]


def argument_texts(text: str) -> list[str]:
    """Scalar arguments as recorded; "" for an argument whose entry is no text."""
    return [entry if isinstance(entry, str) else "" for entry in decoded(text)]


def decoded(text: str) -> list[Any]:
    """A list that the ops table holds as JSON text, [] for anything else."""
    try:
        value = msgspec.json.decode(text) if text else []
    except (msgspec.MsgspecError, RecursionError):
        return []
    return value if isinstance(value, list) else []
