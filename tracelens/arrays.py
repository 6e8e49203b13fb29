"""Numpy array types that the whole package uses. Times are int64 nanoseconds, absent integers are -1."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Int = NDArray[np.int64]
Float = NDArray[np.float64]
Bool = NDArray[np.bool_]

Scalar = TypeVar("Scalar", bound=np.generic)


def lookup(values: NDArray[Scalar], index: Int, missing: float | NDArray[Any]) -> NDArray[Scalar]:
    """`values[index]`, and `missing` where the index is negative; keeps the dtype of `values`.

    Args:
        values: may be empty where no index is valid.
        index: into `values`, -1 for none.
        missing: one value, or one for each index.
    """
    result = np.empty(np.shape(index), dtype=values.dtype)
    result[...] = missing
    present = index >= 0
    result[present] = values[index[present]]
    return result
