"""Collectives of a host that does the work itself: who starts them, and who waits for them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tracelens.projection.whatif.graph import LAUNCH, SYNC, Draft
from tracelens.trace.classify import KINDS
from tracelens.trace.intervals import union
from tracelens.trace.trace import Trace

Int = NDArray[np.int64]

_HALF = 0.5


class Chain(NamedTuple):
    """Nodes of one thread in order of time, ns by the trace's own clock."""

    node: Int
    start: Int
    end: Int


class Returns(NamedTuple):
    """Where a thread goes on when a collective is done.

    Attributes:
        work: position of the collective in the trace's `work`.
        after: place in the thread's chain of what comes behind the wait.
        lag: from the collective's end to that, ns: the host's own time.
    """

    work: Int
    after: Int
    lag: Int


def returns(trace: Trace, chain: Chain) -> Returns:
    """Waits for collectives in one thread.

    They are the times between two of its nodes for most of which a collective ran, and in which it ended.
    """
    work = trace.work
    rows = np.flatnonzero(work.kind == KINDS.index("comm"))
    if not work.on_host or not len(rows) or len(chain.node) < 2:
        return Returns(*(np.empty(0, dtype=np.int64) for _ in range(3)))
    rows = rows[np.argsort(work.end[rows], kind="stable")]
    low, high = chain.end[:-1], chain.start[1:]
    last = np.searchsorted(work.end[rows], high, side="right") - 1
    done = work.end[rows[np.maximum(last, 0)]]
    running = union(work.start[rows], work.end[rows]).covered(low, np.maximum(high, low))
    gaps = np.flatnonzero((last >= 0) & (done > low) & (running >= _HALF * (high - low)))
    return Returns(rows[last[gaps]], gaps + 1, (high - done)[gaps])


def starts(trace: Trace, chains: dict[int, Chain], thread: Int, begin: Int, draft: Draft) -> None:
    """Edges from what a thread did last before it started a collective to that."""
    work = trace.work
    rows = np.flatnonzero((work.kind == KINDS.index("comm")) & (work.op >= 0))
    for number, chain in chains.items():
        mine = rows[thread[work.op[rows]] == number]
        at = np.searchsorted(chain.end, work.start[mine], side="right") - 1
        mine, at = mine[at >= 0], at[at >= 0]
        draft.join(LAUNCH, chain.node[at], begin[mine], work.start[mine] - chain.end[at])


def waited(chains: dict[int, Chain], found: dict[int, Returns], finish: Int, draft: Draft) -> None:
    """Edges from collectives to what waited for them."""
    for number, one in found.items():
        draft.join(SYNC, finish[one.work], chains[number].node[one.after], one.lag)
