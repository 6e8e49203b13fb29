"""Collectives of a host that does the work itself: who starts them, and who waits for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from tracelens.arrays import Int
from tracelens.trace import WORK_KINDS, Trace, Union, union
from tracelens.what_if.graph.graph import LAUNCH, SYNC, Draft

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


def returns(trace: Trace, chains: Mapping[int, Chain]) -> dict[int, Returns]:
    """Waits for collectives in each thread.

    They are the times between two of its nodes for most of which a collective ran, and in which it ended.
    """
    work = trace.work
    rows = np.flatnonzero(work.kind == WORK_KINDS.index("comm"))
    rows = rows[np.argsort(work.end[rows], kind="stable")] if work.cpu_only else rows[:0]
    running = union(work.start[rows], work.end[rows])
    return {number: _returns(chain, rows, work.end[rows], running) for number, chain in chains.items()}


def _returns(chain: Chain, rows: Int, ends: Int, running: Union) -> Returns:
    """Waits of one thread for the collectives in these rows of the work, in order of their ends."""
    if not len(rows) or len(chain.node) < 2:
        return Returns(*(np.empty(0, dtype=np.int64) for _ in range(3)))
    low, high = chain.end[:-1], chain.start[1:]
    last = np.searchsorted(ends, high, side="right") - 1
    done = ends[np.maximum(last, 0)]
    busy = running.covered(low, np.maximum(high, low))
    gaps = np.flatnonzero((last >= 0) & (done > low) & (busy >= _HALF * (high - low)))
    return Returns(rows[last[gaps]], gaps + 1, (high - done)[gaps])


def starts(trace: Trace, chains: dict[int, Chain], thread: Int, begin: Int, draft: Draft) -> None:
    """Edges from what a thread did last before it started a collective to that."""
    work = trace.work
    rows = np.flatnonzero((work.kind == WORK_KINDS.index("comm")) & (work.op >= 0))
    rows = rows[np.argsort(thread[work.op[rows]], kind="stable")]
    numbers, first = np.unique(thread[work.op[rows]], return_index=True)
    parts = dict(zip(numbers.tolist(), np.split(rows, first[1:]), strict=False))
    for number, chain in chains.items():
        mine = parts.get(number, rows[:0])
        at = np.searchsorted(chain.end, work.start[mine], side="right") - 1
        mine, at = mine[at >= 0], at[at >= 0]
        draft.join(LAUNCH, chain.node[at], begin[mine], work.start[mine] - chain.end[at])


def waited(chains: dict[int, Chain], found: dict[int, Returns], finish: Int, draft: Draft) -> None:
    """Edges from collectives to what waited for them."""
    for number, one in found.items():
        draft.join(SYNC, finish[one.work], chains[number].node[one.after], one.lag)
