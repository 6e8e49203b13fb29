"""Rows by a code that each of them has."""

from __future__ import annotations

import numpy as np

from tracelens.arrays import Int


def rows_by_code(codes: Int) -> dict[int, Int]:
    """Code to its rows, both ascending: one sort, where a mask for each code takes rows times codes."""
    order = np.argsort(codes, kind="stable")
    values, first = np.unique(codes[order], return_index=True)
    return dict(zip(values.tolist(), np.split(order, first[1:]), strict=False))
