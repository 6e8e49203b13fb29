"""The host's part of the graph: calls and step marks on its threads, and which thread waits for which."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tracelens.analyzers._host import threads
from tracelens.analyzers.idle import blocking_calls
from tracelens.projection.whatif.gloo import Chain, Returns, returns
from tracelens.projection.whatif.graph import HANDOVER, HOST, ORDER, POINT, WAITED, WORK, Draft
from tracelens.trace.callstack import nearest
from tracelens.trace.classify import KINDS
from tracelens.trace.intervals import Union, union
from tracelens.trace.names import matching
from tracelens.trace.steps import STEP_MARK
from tracelens.trace.trace import Trace
from tracelens.trace.work import Work

Int = NDArray[np.int64]
Bool = NDArray[np.bool_]

_HALF, _SLIGHT = 0.5, 0.1
# How long before and after a silence its own thread must have been the only one at work.
_AROUND_NS = 100_000


class Calls(NamedTuple):
    """The calls of one rank that are nodes.

    Attributes:
        event: row of each call, ascending in time.
        begin: node of its start.
        returned: node of its end where it waits for a GPU, else -1.
    """

    event: Int
    begin: Int
    returned: Int


class Host(NamedTuple):
    """The host of one rank.

    Attributes:
        calls: launches and calls that wait.
        marks: (row of the step mark, node of its start, node of its end), ascending.
        work: node of each piece of work that runs on a host thread itself, -1 for all other work.
        thread: number of the thread of each event.
        nodes: thread to its nodes in order, with the times at which they begin and end.
        returns: thread to its waits for collectives of the host.
    """

    calls: Calls
    marks: tuple[Int, Int, Int]
    work: Int
    thread: Int
    nodes: dict[int, Chain]
    returns: dict[int, Returns]


def host(trace: Trace, rank: int, shift: int, draft: Draft) -> Host:
    """Add the host of one rank to the graph.

    A call is a point where it starts; the time until the next point of its thread is the host's own. A call
    that waits for a GPU has a second point where it returns. Where one thread falls silent while another one
    works and then goes on (the backward pass has a thread of its own), it waited for that one, see
    `_handovers`.

    Args:
        trace: of the rank.
        rank: its place in the run.
        shift: from its clock to that of the first rank, ns.
        draft: what is added to.
    """
    events, work, thread = trace.arrays, trace.work, threads(trace.arrays)
    event, waits = _chosen(trace, work, thread)
    begin = draft.add(POINT, rank, events.start[event] + shift, event=event)
    returned = np.full(len(event), -1, dtype=np.int64)
    returned[waits] = draft.add(WAITED, rank, events.end[event[waits]] + shift, event=event[waits])
    mark = np.flatnonzero(matching(events.names, STEP_MARK)[events.name] & events.where("annotation"))
    mark = mark[np.argsort(events.start[mark], kind="stable")]
    opened = draft.add(POINT, rank, events.start[mark] + shift, event=mark)
    closed = draft.add(POINT, rank, events.end[mark] + shift, event=mark)
    own = np.full(len(work.event), -1, dtype=np.int64)
    rows = np.flatnonzero(work.kind != KINDS.index("comm")) if work.on_host else np.empty(0, dtype=np.int64)
    own[rows] = draft.add(
        WORK, rank, work.start[rows] + shift, dur=work.dur[rows], event=work.event[rows], work=rows
    )
    parts = (
        (begin, event, events.start[event], events.start[event]),
        (returned[waits], event[waits], events.end[event[waits]], events.end[event[waits]]),
        (opened, mark, events.start[mark], events.start[mark]),
        (closed, mark, events.end[mark], events.end[mark]),
        (own[rows], work.event[rows], work.start[rows], work.end[rows]),
    )
    chains = _chains(parts, events.start, thread)
    back = {number: returns(trace, chain) for number, chain in chains.items()}
    _join(trace, thread, chains, back, set(returned[waits].tolist()), draft)
    return Host(Calls(event, begin, returned), (mark, opened, closed), own, thread, chains, back)


def _chosen(trace: Trace, work: Work, thread: Int) -> tuple[Int, Bool]:
    """Rows of the calls that are nodes, and which of them wait for a GPU.

    Threads that launch nothing (the watchdog of a communication library asks for events all the time) make
    nobody wait.
    """
    events = trace.arrays
    if work.on_host:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=bool)
    launches = np.zeros(len(events.start), dtype=bool)
    launches[work.launch[work.launch >= 0]] = True
    called = events.where("launch")
    inner = (events.parent >= 0) & called[np.maximum(events.parent, 0)]
    waiting = blocking_calls(trace, work)
    busy = np.unique(thread[launches])
    rows = np.flatnonzero((launches | (waiting & ~inner)) & np.isin(thread, busy))
    rows = rows[np.argsort(events.start[rows], kind="stable")]
    return rows, waiting[rows]


def _chains(parts: Iterable[tuple[Int, Int, Int, Int]], begun: Int, thread: Int) -> dict[int, Chain]:
    """Nodes by thread, from (node, event row, start, end); `begun` and `thread` of each event."""
    node, row, start, end = (np.concatenate(column) for column in zip(*parts, strict=True))
    since, found = begun[row], {}
    for number in np.unique(thread[row]).tolist():
        mine = np.flatnonzero(thread[row] == number)
        # A call that returns when the next one starts comes first.
        mine = mine[np.lexsort((since[mine], end[mine], start[mine]))]
        found[number] = Chain(node[mine], start[mine], end[mine])
    return found


def _join(
    trace: Trace,
    thread: Int,
    chains: dict[int, Chain],
    back: dict[int, Returns],
    returned: set[int],
    draft: Draft,
) -> None:
    """Host time within threads, and what one thread waits for in another.

    What the host itself does in a call that waits is told with what the call waits for, see `device`.
    """
    ops, active = _activity(trace, thread, chains)
    links: list[tuple[int, int, int]] = []  # (before, after, ns between)
    for one in chains:
        for other in chains:
            if one != other:
                links += _handovers(chains[one], chains[other], ops[one], active[other])
    replaced = {after for _, after, _ in links}
    told = replaced | returned
    for number, chain in chains.items():
        src, dst, lag = chain.node[:-1], chain.node[1:], chain.start[1:] - chain.end[:-1]
        lag[back[number].after - 1] = back[number].lag
        keep = np.array([node not in told for node in dst.tolist()], dtype=bool)
        draft.join(HOST, src[keep], dst[keep], lag[keep])
    if links:
        src, dst, lag = (np.array(column, dtype=np.int64) for column in zip(*links, strict=True))
        draft.join(HANDOVER, src, dst, lag)
    _openings(chains, replaced, draft)


def _activity(
    trace: Trace, thread: Int, chains: dict[int, Chain]
) -> tuple[dict[int, Union], dict[int, Union]]:
    """By thread, when it is in an op, and when it is in an op or a call."""
    events = trace.arrays
    is_op = events.where("op")
    around = nearest(events.parent, events.depth, is_op)
    above = events.parent
    root = is_op & ((above < 0) | (around[np.maximum(above, 0)] < 0))
    called = events.where("launch")
    ops, active = {}, {}
    for number in chains:
        mine = thread == number
        ops[number] = union(events.start[mine & root], events.end[mine & root])
        busy = mine & (root | called)
        active[number] = union(events.start[busy], events.end[busy])
    return ops, active


def _handovers(one: Chain, other: Chain, ops: Union, active: Union) -> list[tuple[int, int, int]]:
    """Where a thread waits for another one: (node before, node after, ns between).

    A thread waits between two of its nodes when the other one has nodes there, is at work most of the time
    in which the first is in no op, is not at work right before and after, and the first is in no op while
    the other one works. Then the other's first node follows the first's last one, and the first's next node
    the other's last one.
    """
    low, high = one.end[:-1], one.start[1:]
    first, last = np.searchsorted(other.start, low), np.searchsorted(other.end, high, side="right") - 1
    rows = np.flatnonzero(last >= first)
    low, high, first, last = low[rows], high[rows], first[rows], last[rows]
    begun, done = other.start[first], other.end[last]
    around = np.minimum(high - low, _AROUND_NS)
    silent = (high - low) - ops.covered(low, high)
    outside = active.covered(low - around, low) + active.covered(high, high + around)
    beside = active.covered(low, low + 1) + active.covered(high, high + 1)
    waits = (
        (beside == 0)
        & (active.covered(low, high) >= _HALF * silent)
        & (ops.covered(begun, done + 1) <= _SLIGHT * (done + 1 - begun))
        & (outside <= _SLIGHT * 2 * around)
    )
    found = []
    for at in np.flatnonzero(waits).tolist():
        before, after = one.node[rows[at]], one.node[rows[at] + 1]
        found.append((int(before), int(other.node[first[at]]), int(begun[at] - low[at])))
        found.append((int(other.node[last[at]]), int(after), int(high[at] - done[at])))
    return found


def _openings(chains: dict[int, Chain], replaced: set[int], draft: Draft) -> None:
    """Threads that nobody handed over to keep their place behind what other threads did before."""
    for number, chain in chains.items():
        if int(chain.node[0]) in replaced:
            continue
        before = [
            (int(other.end[at]), int(other.node[at]))
            for key, other in chains.items()
            if key != number
            and (at := int(np.searchsorted(other.end, chain.start[0], side="right")) - 1) >= 0
        ]
        if before:
            draft.join(ORDER, np.array([max(before)[1]]), chain.node[:1])
