"""Signatures of the compiled functions; arrays are contiguous, results are written into the last ones."""

import numpy as np
from numpy.typing import NDArray

SOURCES: str

class Scanner:
    """Reads chunks of one trace into columns; one thread at a time."""

    def __init__(self, seed: int, /) -> None: ...
    def scan(self, text: bytes, /) -> tuple[bytes, bytes, bytes, bytes, bytes, int, int] | None:
        """Columns of a JSON array of events, one behind the other; None where Python has to decode it.

        Codes, int32: phase, category, name, pid, tid, grid, kernel. Numbers, int64: ts_ns, dur_ns,
        correlation, external_id, stream, device, bytes. Of ops numbers: row, sequence, forward_thread; and
        codes: dims, types, strides, values. Then, int64 and event by event, row, begin and end of what
        Python decodes as well; number of events without a phase, and of a phase that is not analyzed.
        """

    def dictionaries(self) -> tuple[list[bytes], ...]:
        """What codes stand for.

        JSON texts of phases, categories, names, pids, tids, kernels, grids, and of dims, types, strides and
        values of ops.
        """

def ancestor_sums(parent: NDArray[np.int64], total: NDArray[np.int64], /) -> bool:
    """Add to each value those of its ancestors, in place; False where a parent stands behind its row."""

def subtree_sums(parent: NDArray[np.int64], total: NDArray[np.int64], /) -> bool:
    """Add to each value those of its descendants, likewise."""

def nearest(parent: NDArray[np.int64], selected: NDArray[np.bool_], result: NDArray[np.int64], /) -> None: ...
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
    recorded: NDArray[np.int64],
    ends: NDArray[np.int64],
    /,
) -> None: ...
def renumber(codes: NDArray[np.int32], numbers: NDArray[np.int32], /) -> None:
    """Number codes in the order in which they appear, in place; `numbers`, -1 before, gets the new ones."""

def running(
    start: NDArray[np.int64],
    end: NDArray[np.int64],
    time: NDArray[np.int64],
    result: NDArray[np.int64],
    /,
) -> None: ...
