"""The host's part of the graph: calls and step marks on its threads, and which thread waits for which."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from tracelens.analysis.host import blocking_calls, threads
from tracelens.arrays import Bool, Int, lookup
from tracelens.trace import STEP_MARK, WORK_KINDS, Trace, Work, matching
from tracelens.what_if.graph.gloo import Chain, Returns, returns
from tracelens.what_if.graph.graph import Draft, Edge, Node
from tracelens.what_if.graph.handovers import handovers
from tracelens.what_if.graph.queue import full_queue


class Calls(NamedTuple):
    """The calls of one rank that are nodes."""

    event: Int  # row of each call, ascending in time
    begin: Int  # node of its start
    returned: Int  # node of its end where it waits for a GPU, else -1


class Host(NamedTuple):
    """The host of one rank."""

    calls: Calls  # launches and calls that wait
    marks: tuple[Int, Int, Int]  # (row of the step mark, node of its start, node of its end), ascending
    work: Int  # node of each activity that runs on a host thread itself, -1 for all others
    thread: Int  # number of the thread of each event
    nodes: dict[int, Chain]  # thread to its nodes in order, with the times at which they begin and end
    returns: dict[int, Returns]  # thread to its waits for collectives of the host
    unseen: int  # as in Handovers


def host(trace: Trace, draft: Draft) -> Host:
    """Add the host of one rank to its part of the graph.

    A call is a point where it starts; the time until the next point of its thread is the host's own. A call
    that waits for a GPU has a second point where it returns. A thread that is silent while another works and
    then resumes (the backward pass has its own thread) waited for it, see `handovers`.
    """
    events, work, thread = trace.arrays, trace.work, threads(trace)
    event, waits = _calls(trace, work, thread)
    begin = draft.add(Node.POINT, events.start[event], event=event)
    returned = np.full(len(event), -1, dtype=np.int64)
    returned[waits] = draft.add(Node.WAITED, events.end[event[waits]], event=event[waits])
    mark = np.flatnonzero(matching(events.names, STEP_MARK)[events.name] & events.where("annotation"))
    mark = mark[np.argsort(events.start[mark], kind="stable")]
    opened = draft.add(Node.POINT, events.start[mark], event=mark)
    closed = draft.add(Node.POINT, events.end[mark], event=mark)
    own = np.full(len(work.event), -1, dtype=np.int64)
    rows = np.flatnonzero(work.cpu_only & (work.kind != WORK_KINDS.index("comm")))
    own[rows] = draft.add(Node.WORK, work.start[rows], dur=work.dur[rows], event=work.event[rows], work=rows)
    parts = (
        (begin, event, events.start[event], events.start[event]),
        (returned[waits], event[waits], events.end[event[waits]], events.end[event[waits]]),
        (opened, mark, events.start[mark], events.start[mark]),
        (closed, mark, events.end[mark], events.end[mark]),
        (own[rows], work.event[rows], work.start[rows], work.end[rows]),
    )
    chains = _chains(parts, events.start, thread)
    back = returns(trace, chains)
    unseen = _join(trace, thread, chains, back, returned[waits], draft)
    return Host(Calls(event, begin, returned), (mark, opened, closed), own, thread, chains, back, unseen)


def _calls(trace: Trace, work: Work, thread: Int) -> tuple[Int, Bool]:
    """Rows of the calls that are nodes, and which of them wait for a GPU or for room in its queue.

    Threads that launch nothing, such as a communication library's watchdog that polls events, do not count.
    """
    events = trace.arrays
    if work.cpu_only:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=bool)
    launches = np.zeros(len(events.start), dtype=bool)
    launches[work.launch[work.launch >= 0]] = True
    called = events.where("launch")
    inner = lookup(called, events.parent, False)
    waiting = blocking_calls(trace, work)
    busy = np.unique(thread[launches])
    rows = np.flatnonzero((launches | (waiting & ~inner)) & np.isin(thread, busy))
    rows = rows[np.argsort(events.start[rows], kind="stable")]
    return rows, (waiting | trace.once(full_queue))[rows]


def _chains(parts: Iterable[tuple[Int, Int, Int, Int]], begun: Int, thread: Int) -> dict[int, Chain]:
    """Nodes by thread, from (node, event row, start, end); `begun` and `thread` of each event."""
    node, row, start, end = (np.concatenate(column) for column in zip(*parts, strict=True))
    # A call that returns when the next one starts comes first.
    order = np.lexsort((begun[row], end, start, thread[row]))
    numbers, first = np.unique(thread[row[order]], return_index=True)
    parts_of = (np.split(column[order], first[1:]) for column in (node, start, end))
    return {number: Chain(*part) for number, *part in zip(numbers.tolist(), *parts_of, strict=False)}


def _join(
    trace: Trace,
    thread: Int,
    chains: dict[int, Chain],
    back: dict[int, Returns],
    returned: Int,
    draft: Draft,
) -> int:
    """Host time within threads, and what one thread waits for in another.

    `device` adds the host time of blocking calls. Returns `unseen` of Handovers.
    """
    links = handovers(trace, thread, chains)
    explained = np.zeros(draft.count, dtype=bool)
    explained[links.after] = explained[returned] = True
    for number, chain in chains.items():
        src, dst, lag = chain.node[:-1], chain.node[1:], chain.start[1:] - chain.end[:-1]
        lag[back[number].after - 1] = back[number].lag
        keep = ~explained[dst]
        draft.join(Edge.HOST, src[keep], dst[keep], lag[keep])
    draft.join(Edge.HANDOVER, links.before, links.after, links.lag)
    _openings(chains, links.after, draft)
    return links.unseen


def _openings(chains: dict[int, Chain], replaced: Int, draft: Draft) -> None:
    """Threads without a handover start keep their position behind what other threads did before."""
    if not chains:
        return
    node = np.concatenate([chain.node for chain in chains.values()])
    end = np.concatenate([chain.end for chain in chains.values()])
    lane = np.repeat(np.arange(len(chains)), [len(chain.node) for chain in chains.values()])
    first = np.array([int(chain.node[0]) for chain in chains.values()])
    opened = np.array([int(chain.start[0]) for chain in chains.values()])
    order = np.lexsort((node, end))
    # What ended last before each thread began, on another thread: the thread itself had not begun then, but
    # for nodes without extent at that very time.
    before = np.searchsorted(end[order], opened, side="right") - 1
    own = np.arange(len(chains))
    while (same := lookup(lane[order], before, -1) == own).any():
        before[same] -= 1
    rows = np.flatnonzero((before >= 0) & ~np.isin(first, replaced))
    draft.join(Edge.ORDER, node[order[before[rows]]], first[rows])
