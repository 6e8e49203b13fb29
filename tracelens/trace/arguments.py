"""Recorded op arguments as short text: `bf16[2048,4096] bf16[4096,11008]`."""

from __future__ import annotations

import json
from typing import Any

DTYPES = {
    "float": "fp32",
    "double": "fp64",
    "half": "fp16",
    "bfloat16": "bf16",
    "float8_e4m3fn": "fp8e4m3",
    "float8_e4m3fnuz": "fp8e4m3",
    "float8_e5m2": "fp8e5m2",
    "float8_e5m2fnuz": "fp8e5m2",
    "long": "i64",
    "long int": "i64",
    "int": "i32",
    "short": "i16",
    "signed char": "i8",
    "unsigned char": "u8",
    "bool": "bool",
}
"""Names that the profiler uses for element types (without `c10::`), lower case, to the usual short ones."""

_MANY = 8


def describe(shapes: str, dtypes: str) -> str:
    """Tensor arguments of one call as text; scalars are left out, '' where nothing was recorded.

    >>> describe("[[2, 3], [], [[4], [4]]]", '["c10::BFloat16", "Scalar", "TensorList"]')
    'bf16[2,3] [4]x2'
    """
    dims, types = _list(shapes), _list(dtypes)
    words = [
        word
        for place, dim in enumerate(dims)
        if (word := _tensor(dim, str(types[place]) if place < len(types) else ""))
    ]
    if len(words) > _MANY:
        words = [*words[:_MANY], f"+{len(words) - _MANY}"]
    return " ".join(words)


def short_dtype(name: str) -> str:
    """The short name of an element type as the profiler writes it; unknown ones unchanged."""
    plain = name.removeprefix("c10::").lower()
    return DTYPES.get(plain, plain)


def _tensor(dim: Any, dtype: str) -> str:
    if not isinstance(dim, list):
        return ""
    if dim and isinstance(dim[0], list):
        distinct = {json.dumps(entry) for entry in dim}
        first = _dims(dim[0])
        return f"{first}x{len(dim)}" if len(distinct) == 1 else f"{first}..x{len(dim)}"
    known = dtype in ("Scalar", "ScalarList", "", "None", "TensorList", "GenericList")
    if known:
        return _dims(dim) if dim else ""
    return f"{short_dtype(dtype)}{_dims(dim)}"


def _dims(dim: list[Any]) -> str:
    return f"[{','.join(str(size) for size in dim)}]"


def _list(text: str) -> list[Any]:
    try:
        value = json.loads(text) if text else []
    except ValueError:
        return []
    return value if isinstance(value, list) else []
