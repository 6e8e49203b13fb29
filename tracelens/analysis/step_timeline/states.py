"""What a rank does at each moment: its time divided among computation, communication, waiting and idle."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tracelens.analysis.comm import NOT_RECORDED, communication_labels
from tracelens.analysis.host import CAUSES, idle_time
from tracelens.analysis.step_timeline.schemas import COMMUNICATION, IDLE, WAITING
from tracelens.arrays import Bool, Int, lookup
from tracelens.table import Coded, Table, codes
from tracelens.trace import WORK_KINDS, Scope, Trace, Union, Work, cut, exclusive_pieces, gpu_work, steps_of

State = tuple[str, str]
"""State and detail, see STATES."""


class States(NamedTuple):
    """A rank's time, divided: pieces in order, without overlap or hole.

    Attributes:
        start: ns.
        end: ns.
        code: into `states`.
        states: the different ones.
    """

    start: Int
    end: Int
    code: Int
    states: list[State]

    @property
    def state(self) -> Coded:
        return Coded.merged(self.code, [state for state, _ in self.states])

    @property
    def detail(self) -> Coded:
        return Coded.merged(self.code, [detail for _, detail in self.states])

    def of(self, state: str) -> Bool:
        """The pieces in this state."""
        mask: Bool = np.array([name == state for name, _ in self.states], dtype=bool)[self.code]
        return mask


def rank_states(trace: Trace, scope: Scope = "all") -> States:
    """The states of a rank with GPU work, without its waiting, which needs all ranks.

    Busy time is divided as in the breakdown, idle time by cause as in `idle`; pieces end with their step.
    """
    work = gpu_work(trace, scope)
    row, start, end = exclusive_pieces(work.start, work.end, work.kind)
    state_of_work, states = _busy(trace, work)
    _, idle = idle_time(trace, scope)
    start, end = np.concatenate((start, idle.start)), np.concatenate((end, idle.end))
    code = np.concatenate((state_of_work[row], idle.cause + len(states)))
    edges = steps_of(trace).edges
    piece, start, end = cut(start, end, Union(edges[:-1], edges[1:]))
    everything = States(start, end, code[piece], [*states, *((IDLE, cause) for cause in CAUSES)])
    return merged(in_order(everything), edges)


def _busy(trace: Trace, work: Work) -> tuple[Int, list[State]]:
    """State of each piece of work, and the different ones."""
    events = trace.arrays
    names, unnamed = [*events.names, ""], len(events.names)
    is_comm = work.kind == WORK_KINDS.index("comm")
    computes = work.kind == WORK_KINDS.index("computation")
    detail = np.where(computes, lookup(events.name, work.op, unnamed), work.name)
    group, (category, text) = codes(work.category.astype(np.int64), detail.astype(np.int64))
    states = [
        (work.categories[class_code], names[name])
        for class_code, name in zip(category.tolist(), text.tolist(), strict=True)
    ]
    comm = work.take(is_comm)
    if len(comm.event):
        labels = communication_labels(trace, comm)
        pair, (collective, process_group) = codes(
            labels.collective.codes.astype(np.int64), labels.group.codes.astype(np.int64)
        )
        group[is_comm] = len(states) + pair
        states += [
            (COMMUNICATION, _label(labels.collective.values[name], labels.group.values[of_group]))
            for name, of_group in zip(collective.tolist(), process_group.tolist(), strict=True)
        ]
    return group, states


def _label(collective: str, group: str) -> str:
    known = [text for text in (collective, group) if text != NOT_RECORDED]
    return " ".join(known)


def in_order(states: States) -> States:
    """The pieces in order of time, without those that have no extent."""
    order = np.argsort(states.start, kind="stable")
    order = order[states.end[order] > states.start[order]]
    return states._replace(start=states.start[order], end=states.end[order], code=states.code[order])


def merged(states: States, edges: Int) -> States:
    """The same with neighbors of one step that are in one state as one piece.

    Args:
        states: in order.
        edges: of the steps.
    """
    code, texts = _distinct(states)
    begins = np.ones(len(code), dtype=bool)
    begins[1:] = (code[1:] != code[:-1]) | np.isin(states.start[1:], edges)
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(code))[: len(first)] - 1
    return States(states.start[first], states.end[last], code[first], texts)


def _distinct(states: States) -> tuple[Int, list[State]]:
    """Codes and states, of which only those that occur, once each."""
    used, code = np.unique(states.code, return_inverse=True)
    number: dict[State, int] = {}
    for value in used.tolist():
        number.setdefault(states.states[value], len(number))
    of_used = np.array([number[states.states[value]] for value in used.tolist()], dtype=np.int64)
    return of_used[code], list(number)


def with_waiting(states: States, lost: Table) -> States:
    """The states with the part of the communication that waits for other ranks.

    Args:
        states: of a rank, by its own clock.
        lost: its rows of the table `lost` of `stragglers`, which lie in its communication.
    """
    # A kernel that waits while another does has no time of its own there.
    lost = lost.take(lost.array("dur_ns") > 0)
    if not len(lost):
        return states
    lost = lost.take(np.argsort(lost.array("local_ts_ns"), kind="stable"))
    begin = lost.array("local_ts_ns")
    waits = Union(begin, begin + lost.array("dur_ns"))
    cause = lost.coded("cause")
    late, (late_ranks, causes) = codes(lost.array("late_rank"), cause.codes.astype(np.int64))
    late += len(states.states)
    details = [
        waiting_for(rank, cause.values[code])
        for rank, code in zip(late_ranks.tolist(), causes.tolist(), strict=True)
    ]
    comm = np.flatnonzero(states.of(COMMUNICATION))
    others = np.flatnonzero(~states.of(COMMUNICATION))
    moves = Union(states.start[comm], states.end[comm])
    waited, wait_start, wait_end = cut(*waits, moves)
    moving, start, end = cut(*moves, waits.complement(int(states.start[0]), int(states.end[-1])))
    return in_order(
        States(
            np.concatenate((states.start[others], start, wait_start)),
            np.concatenate((states.end[others], end, wait_end)),
            np.concatenate((states.code[others], states.code[comm[moving]], late[waited])),
            [*states.states, *((WAITING, detail) for detail in details)],
        )
    )


def waiting_for(rank: int, cause: str) -> str:
    """Whom a rank waits for, and why that one is late."""
    return f"for rank {rank}" if cause == "unknown" else f"for rank {rank}: {cause.replace('_', ' ')}"


def coarser(states: States, edges: Int, bin_ns: int, kept: int = -1) -> States:
    """Fewer pieces with the same totals in each bin of this length: there each state is one piece.

    Args:
        states: in order.
        edges: of the steps.
        bin_ns: within it the order of short pieces is lost; longer ones stay where they are.
        kept: number of the step that stays as it is, -1 for none.
    """
    step = np.searchsorted(edges, states.start, side="right") - 1
    first, last = ((time - edges[step]) // bin_ns for time in (states.start, states.end - 1))
    short = (first == last) & (step != kept)
    begins = np.ones(len(short), dtype=bool)
    begins[1:] = ~short[1:] | ~short[:-1] | (first[1:] != first[:-1]) | (step[1:] != step[:-1])
    group, (_, code) = codes(np.cumsum(begins), states.code)
    dur = np.zeros(len(code), dtype=np.int64)
    np.add.at(dur, group, states.end - states.start)
    end = states.start[0] + np.cumsum(dur)
    return States(end - dur, end, code, states.states)
