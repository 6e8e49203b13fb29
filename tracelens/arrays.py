"""Numpy array types that the whole package uses. Times are int64 nanoseconds, absent integers are -1."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Int = NDArray[np.int64]
Float = NDArray[np.float64]
Bool = NDArray[np.bool_]
