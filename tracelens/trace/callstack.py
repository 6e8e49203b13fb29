"""Who called whom on the CPU: nesting of events that have only a start, an end and a thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracelens.arrays import Int, lookup
from tracelens.table import depths, nearest

if TYPE_CHECKING:
    from tracelens.trace.trace import Trace


TOLERANCE_NS = 1000
"""A child may overrun its parent by this much: clocks are read in turn, and old traces round to us."""


def nest(thread: Int, start: Int, end: Int, rank: Int) -> tuple[Int, Int]:
    """Parent and depth of each event by containment within its thread.

    The parent is the last event to start before this one that lasts until its end. An event that overlaps
    another without lying inside it (a profiler step that begins in one frame and ends in the next) is no
    child of it.

    Args:
        thread: any integer that tells threads apart.
        start: ns.
        end: ns.
        rank: for events of identical extent, the lower rank is the outer one; then the earlier row.

    Returns:
        (parent, depth): row of the parent or -1; number of ancestors.
    """
    count = len(start)
    order = np.lexsort((np.arange(count), rank, -end, start, thread))
    thread, start, end = thread[order], start[order], end[order]
    # Every row asks the one before it, and on "no" whom that one has come to ask meanwhile: none of those
    # in between can contain it either. So a row of n siblings is passed in log2(n) rounds.
    above = np.arange(-1, count - 1)
    asking = np.arange(count)
    while len(asking):
        asking = asking[above[asking] >= 0]
        candidate = above[asking]
        same = thread[candidate] == thread[asking]
        # An event without extent at its parent's very end still belongs to it (us-resolution traces).
        begun, finish = start[asking], end[asking]
        open_ = (end[candidate] > begun) | ((end[candidate] == begun) & (begun == finish))
        refused = ~(same & open_ & (finish <= end[candidate] + TOLERANCE_NS))
        asking, candidate = asking[refused], candidate[refused]
        above[asking] = np.where(same[refused], above[candidate], -1)
    parent = np.full(count, -1, dtype=np.int64)
    parent[order] = lookup(order, above, -1)
    return parent, depths(parent)


def enclosing_op(trace: Trace) -> Int:
    """For each event, itself if it is an op, else the nearest op around it, else -1; with `trace.once`."""
    events = trace.arrays
    return nearest(events.parent, events.depth, events.where("op"))
