"""Signatures of the compiled functions; arrays are contiguous, results are written into the last ones."""

import numpy as np
from numpy.typing import NDArray

SOURCES: str

def nest(
    thread: NDArray[np.int64],
    start: NDArray[np.int64],
    end: NDArray[np.int64],
    rank: NDArray[np.int64],
    tolerance: int,
    parent: NDArray[np.int64],
    depth: NDArray[np.int64],
    /,
) -> None: ...
def replay(
    first: NDArray[np.int64],
    first_lag: NDArray[np.int64],
    second: NDArray[np.int64],
    second_lag: NDArray[np.int64],
    more: NDArray[np.int64],
    ready: NDArray[np.int64],
    until: NDArray[np.int64],
    ends: NDArray[np.int64],
    /,
) -> None: ...
