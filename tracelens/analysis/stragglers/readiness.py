"""When a rank was ready for a collective: lateness that communication beside computation carries along.

Where gradients are reduced beside the backward pass, ranks that wait in one all-reduce compute on, and are
ready for the next ones before it is over. The late rank is last at each of them for as long as it takes to
compute what the others have done in the meantime. That is no delay of its own: in its computation it is as
far behind as before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from tracelens.analysis.comm import SEND_RECV, MatchedCollective, Participant
from tracelens.analysis.stragglers.medians import median_of_others
from tracelens.arrays import Bool, Float, Int, lookup, ranges
from tracelens.trace import Trace, Work

# Of so much work that was launched before a collective, the one that ended last may be what it waited for.
_BEFORE = 32


class Carried(NamedTuple):
    """How far the ranks of a collective are behind in their computation, where the others computed ahead.

    Attributes:
        kernel: communication kernel of the last rank's previous collective.
        before_ns: how late the last rank was ready for that, against the median of the others.
        more_ns: what each rank took longer from there to here than the median of the others.
        last: position of the last rank.
    """

    kernel: int
    before_ns: float
    more_ns: Float
    last: int


def ready_times(trace: Trace, work: Work, is_comm: Bool) -> Int:
    """When each communication kernel was launched and the computation before it had ended; -1 if unknown.

    What had not ended when the kernel began, it did not wait for.
    """
    called = lookup(trace.arrays.start, work.launch_call, -1)
    launched = np.flatnonzero(~is_comm & (called >= 0))
    launched = launched[np.argsort(called[launched], kind="stable")]
    comm = np.flatnonzero(is_comm)
    ready = np.full(len(comm), -1, dtype=np.int64)
    last = np.searchsorted(called[launched], called[comm])
    last[called[comm] < 0] = 0
    first = np.maximum(last - _BEFORE, 0)
    kernel, row = ranges(first, last - first)
    end = work.end[launched[row]]
    in_time = end <= work.start[comm[kernel]]
    np.maximum.at(ready, kernel[in_time], end[in_time])
    return np.where(ready >= 0, np.maximum(ready, called[comm]), -1)


def carried(
    collective: MatchedCollective,
    previous: Mapping[int, Participant],
    ready: Mapping[int, Int],
    beside_end: Mapping[int, Bool],
    shift: Mapping[int, int],
) -> Carried | None:
    """Lateness of the last rank from before, None where the others did not compute on meanwhile.

    Args:
        collective: with all its participants.
        previous: participants of the last collective that all of them were in, by rank.
        ready: by `ready_times`, by rank.
        beside_end: whether other work was running when each communication kernel ended, by rank.
        shift: from a rank's own clock to the common one, ns.
    """
    if not previous or collective.collective == SEND_RECV:
        return None
    members = collective.participants
    kernels = [(member.rank, member.record.kernel) for member in members]
    kernels_before = [(member.rank, previous[member.rank].record.kernel) for member in members]
    now, before = (
        np.array(
            [
                ready[rank][kernel] + shift[rank] if ready[rank][kernel] >= 0 else -1
                for rank, kernel in of_ranks
            ]
        )
        for of_ranks in (kernels, kernels_before)
    )
    if min(now.min(), before.min()) < 0:
        return None
    is_last = np.array([member.rank == collective.last.rank for member in members])
    # Work that waited for the previous collective begins when that has ended.
    end = np.array([previous[member.rank].end for member in members])
    computed_on = np.array([beside_end[rank][kernel] for rank, kernel in kernels_before]) | (now <= end)
    if computed_on[~is_last].mean() < 0.5:
        return None
    more = now - before
    more_ns = more - median_of_others(more[:, None].astype(float))[:, 0]
    before_ns = float(np.median((before[is_last] - before)[~is_last]))
    last = int(np.flatnonzero(is_last)[0])
    return Carried(previous[collective.last.rank].record.kernel, before_ns, more_ns, last)
