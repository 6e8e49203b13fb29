"""Text columns by dictionary: each text once, and a code a row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tracelens.arrays import Bool

Rows = slice | Sequence[int] | NDArray[Any]
"""Rows of a table: a slice, row numbers, or a mask over all of them."""


class Coded(NamedTuple):
    """A text column by dictionary: `values[codes[i]]` is the text of row i. `values` are distinct."""

    codes: NDArray[np.integer[Any]]
    values: Sequence[str]

    def __len__(self) -> int:
        return len(self.codes)

    @classmethod
    def of(cls, texts: Sequence[str]) -> Coded:
        """The dictionary of a list of texts, in order of their first rows."""
        return cls.merged(np.arange(len(texts)), texts)

    @classmethod
    def merged(cls, codes: NDArray[Any], values: Sequence[str]) -> Coded:
        """A column whose dictionary may hold a text twice: equal texts get one code."""
        code_of = {text: code for code, text in enumerate(dict.fromkeys(values))}
        if len(code_of) < len(values):
            codes = np.fromiter(map(code_of.__getitem__, values), np.int32, len(values))[codes]
        return cls(codes, list(code_of))

    @classmethod
    def used(cls, codes: NDArray[Any], values: Sequence[str]) -> Coded:
        """A column that picks from a long list of texts; only the picked ones travel with the table."""
        distinct, picked = np.unique(codes, return_inverse=True)
        return cls.merged(picked, [values[code] for code in distinct.tolist()])

    @classmethod
    def concat(cls, columns: Sequence[Coded]) -> Coded:
        """Columns one below the other under one dictionary."""
        sizes = [len(column.values) for column in columns]
        offsets = np.cumsum(sizes) - sizes
        codes = [
            column.codes.astype(np.int64) + offset for column, offset in zip(columns, offsets, strict=True)
        ]
        return cls.merged(np.concatenate(codes), [text for column in columns for text in column.values])

    def take(self, rows: Rows) -> Coded:
        return Coded(self.codes[rows], self.values)

    def texts(self, rows: Rows = slice(None)) -> list[str]:
        return [self.values[code] for code in self.codes[rows].tolist()]

    def mask(self, holds: Callable[[str], object]) -> Bool:
        """The rows whose text `holds` is true of; each text is looked at once."""
        rows: Bool = np.array([bool(holds(value)) for value in self.values], dtype=bool)[self.codes]
        return rows

    def equals(self, text: str) -> Bool:
        return self.mask(lambda value: value == text)
