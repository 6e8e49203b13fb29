"""Tables appended: columns of the same name, one below the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracelens.table.schema import Coded, Schema, Table


def stack(schema: Schema, parts: Sequence[Mapping[str, Any]]) -> Table:
    """One table from column mappings, one a rank, appended in order."""
    if not parts:
        return schema.table({column.name: _empty(column.dtype) for column in schema.columns})
    return schema.table({name: _join([part[name] for part in parts]) for name in schema.names})


def _join(columns: Sequence[Any]) -> Any:
    if len(columns) == 1:
        return columns[0]
    if all(isinstance(column, np.ndarray) for column in columns):
        return np.concatenate(columns)
    if any(isinstance(column, Coded) for column in columns):
        same = [column if isinstance(column, Coded) else _coded(column) for column in columns]
        return recode([column.values for column in same], [column.codes for column in same])
    return [value for column in columns for value in column]


def _coded(texts: Sequence[str]) -> Coded:
    return Coded(np.arange(len(texts)), texts)


def recode(values: Sequence[Sequence[str]], codes: Sequence[NDArray[Any]]) -> Coded:
    """One dictionary-encoded column from several, appended."""
    code_of: dict[str, int] = {}
    for texts in values:
        for text in texts:
            code_of.setdefault(text, len(code_of))
    parts = [
        np.array([code_of[text] for text in texts], dtype=np.int64)[code]
        for texts, code in zip(values, codes, strict=True)
    ]
    return Coded(np.concatenate(parts), list(code_of))


def _empty(dtype: str) -> Any:
    return [] if dtype in ("str", "category") else np.empty(0, dtype=dtype)


def used(values: Sequence[str], codes: NDArray[Any]) -> Coded:
    """A text column that picks from a long list of texts; only the picked ones travel with the table."""
    distinct, code = np.unique(codes, return_inverse=True)
    texts = [values[index] for index in distinct.tolist()]
    return recode([texts], [code]) if len(set(texts)) < len(texts) else Coded(code, texts)
