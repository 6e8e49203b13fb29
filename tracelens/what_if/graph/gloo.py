"""Collectives of a CPU-only run: which threads start them, and which wait for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from tracelens.arrays import Int
from tracelens.trace import WORK_KINDS, Trace, Union, union
from tracelens.what_if.graph.graph import Draft, Edge

_HALF = 0.5


class Chain(NamedTuple):
    """Nodes of one thread in order of time, ns by the trace's own clock."""

    node: Int
    start: Int
    end: Int


class Returns(NamedTuple):
    """Where a thread resumes when a collective is done."""

    work: Int  # the collective, index into the trace's `work`
    after: Int  # index in the thread's chain of the node after the wait
    lag: Int  # from the collective's end to that node, ns: host time


def returns(trace: Trace, chains: Mapping[int, Chain]) -> dict[int, Returns]:
    """Waits for collectives in each thread.

    A wait is a gap between two nodes in which a collective ended after running for most of it.
    """
    work = trace.work
    rows = np.flatnonzero(work.kind == WORK_KINDS.index("comm"))
    rows = rows[np.argsort(work.end[rows], kind="stable")] if work.cpu_only else rows[:0]
    running = union(work.start[rows], work.end[rows])
    return {number: _returns(chain, rows, work.end[rows], running) for number, chain in chains.items()}


def _returns(chain: Chain, rows: Int, ends: Int, running: Union) -> Returns:
    """Waits of one thread for the collectives in these rows, in order of their ends."""
    if not len(rows) or len(chain.node) < 2:
        return Returns(*(np.empty(0, dtype=np.int64) for _ in range(3)))
    low, high = chain.end[:-1], chain.start[1:]
    last = np.searchsorted(ends, high, side="right") - 1
    done = ends[last]
    busy = running.covered(low, np.maximum(high, low))
    gaps = np.flatnonzero((last >= 0) & (done > low) & (busy >= _HALF * (high - low)))
    return Returns(rows[last[gaps]], gaps + 1, (high - done)[gaps])


def starts(trace: Trace, chains: dict[int, Chain], thread: Int, begin: Int, draft: Draft) -> None:
    """Edges from a thread's last node before it started a collective to the collective."""
    work = trace.work
    rows = np.flatnonzero((work.kind == WORK_KINDS.index("comm")) & (work.op >= 0))
    rows = rows[np.argsort(thread[work.op[rows]], kind="stable")]
    numbers, first = np.unique(thread[work.op[rows]], return_index=True)
    parts = dict(zip(numbers.tolist(), np.split(rows, first[1:]), strict=False))
    for number, chain in chains.items():
        started = parts.get(number, rows[:0])
        before = np.searchsorted(chain.end, work.start[started], side="right") - 1
        started, before = started[before >= 0], before[before >= 0]
        draft.join(Edge.LAUNCH, chain.node[before], begin[started], work.start[started] - chain.end[before])


def waited(chains: dict[int, Chain], waits: dict[int, Returns], finish: Int, draft: Draft) -> None:
    """Edges from collectives to the nodes that waited for them."""
    for number, wait in waits.items():
        draft.join(Edge.SYNC, finish[wait.work], chains[number].node[wait.after], wait.lag)
