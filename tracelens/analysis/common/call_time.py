"""GPU time of op calls."""

from __future__ import annotations

from tracelens.arrays import Int
from tracelens.table import codes, sums
from tracelens.trace import Work, exclusive


def call_time(work: Work, call: Int) -> tuple[Int, Int]:
    """GPU time of each call: the union of its work.

    Args:
        work: GPU work.
        call: which call each piece of it belongs to, any number.

    Returns:
        (call, ns), one entry a call, in order of the number.
    """
    group, (calls,) = codes(call)
    # Within one call the one that started first owns the time, so the shares add up to the union.
    exclusive_ns = work.end - exclusive(work.start, work.end, group)
    return calls, sums(group, exclusive_ns, len(calls))
