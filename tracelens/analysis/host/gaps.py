"""When the GPU has nothing to do."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tracelens.arrays import Bool, Int
from tracelens.trace import Work

GAP_NS = 1000
"""Gaps up to this separate back-to-back kernels on any GPU; they are summed, not explained."""


class Gaps(NamedTuple):
    """Gaps of one rank: [start, end), and the position in Work of what ran before and comes after (-1)."""

    start: Int
    end: Int
    before: Int
    after: Int

    @property
    def dur(self) -> Int:
        return self.end - self.start

    def take(self, rows: Int | Bool) -> Gaps:
        """The gaps at these positions or under this mask."""
        return Gaps(*(values[rows] for values in self))


def find_gaps(work: Work, edges: Int) -> Gaps:
    """All times in the step windows in which no GPU work runs."""
    reached = np.maximum.accumulate(work.end)
    cut = np.flatnonzero(work.start[1:] > reached[:-1])
    # Who reached furthest so far: the work that ended last before the gap.
    holder = np.maximum.accumulate(np.where(work.end >= reached, np.arange(len(reached)), 0))
    start, end = reached[cut], work.start[cut + 1]
    before, after = holder[cut], cut + 1
    first, last = int(work.start[0]), int(reached[-1])
    if edges[0] < first:
        start, end = np.append(edges[0], start), np.append(first, end)
        before, after = np.append(-1, before), np.append(0, after)
    if edges[-1] > last:
        start, end = np.append(start, last), np.append(end, edges[-1])
        before, after = np.append(before, holder[-1]), np.append(after, -1)
    return Gaps(start, end, before, after)
