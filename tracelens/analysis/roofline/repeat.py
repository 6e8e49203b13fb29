"""Work that was launched before the recording began, found again in the work that was recorded whole."""

from __future__ import annotations

import numpy as np

from tracelens.arrays import Int
from tracelens.trace import Work


def repeats(work: Work) -> Int:
    """For GPU work whose launch was not recorded, the same work one or more steps later.

    A recording begins and ends between steps, while the GPU still runs the end of the step before. That
    end runs again at the end of the recording: on each stream, the last kernel that was launched too early
    is the last one of the recording, the one before it the one before that, and so on for as long as the
    names agree.

    Returns:
        position in `work` of the repeat of each piece of work, -1 where there is none.
    """
    repeat_of = np.full(len(work.event), -1, dtype=np.int64)
    early = work.unlinked
    if not early.any():
        return repeat_of
    order = np.lexsort((work.start, work.stream, work.device))
    borders = np.flatnonzero(np.diff(work.stream[order]) | np.diff(work.device[order])) + 1
    for rows in np.split(order, borders):
        recorded = np.flatnonzero(~early[rows])
        ahead = int(recorded[0]) if len(recorded) else 0
        count = min(ahead, len(rows) - ahead)
        if not count:
            continue
        lost, repeated = rows[ahead - count : ahead], rows[len(rows) - count :]
        differs = np.flatnonzero((work.name[lost] != work.name[repeated]) | early[repeated])
        start = int(differs[-1]) + 1 if len(differs) else 0
        repeat_of[lost[start:]] = repeated[start:]
    return repeat_of
