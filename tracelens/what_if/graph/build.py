"""From the traces of a run, or the parts of its ranks, to its graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tracelens.analysis.comm import AlignedRun, align_run
from tracelens.analysis.common import choose_device, own_device
from tracelens.arrays import Bool, Int, lookup
from tracelens.table import Skip
from tracelens.trace import Run
from tracelens.what_if.graph.blocking import call_costs, join_waits
from tracelens.what_if.graph.collectives import RunCollectives, meet, run_collectives
from tracelens.what_if.graph.graph import Draft, Graph, Node
from tracelens.what_if.graph.rank_part import RankPart, rank_part
from tracelens.what_if.graph.windows import StepSpan, windows


class Recorded(NamedTuple):
    """A run as a graph."""

    graph: Graph
    collectives: RunCollectives  # matched across its ranks
    windows: list[StepSpan]  # of each step, its borders on each rank in order of rank
    skips: list[Skip]  # what its graph may lack


def build(run: Run, device: str | None = None, device_file: str | None = None) -> Recorded:
    """The graph of a run whose traces are in memory.

    Args:
        run: all its ranks, not narrowed to a step.
        device: that it ran on, if the traces do not name it.
        device_file: TOML file that describes it.

    Raises:
        TracelensError: a rank has no GPU work, or ranks recorded different steps; no such device.
    """
    chosen = choose_device(device, device_file)
    return join([rank_part(trace, chosen or own_device(trace)) for trace in run.traces], align_run(run))


def join(parts: Sequence[RankPart], aligned: AlignedRun) -> Recorded:
    """The graph of a run from the parts of its ranks.

    Args:
        parts: in order of rank.
        aligned: the communication of all ranks.

    Raises:
        TracelensError: ranks recorded different steps.
    """
    collectives = run_collectives(parts, aligned)
    draft, costs = Draft(), call_costs([part.waits for part in parts])
    number_of = []
    for index, (part, shift) in enumerate(zip(parts, collectives.shift, strict=True)):
        shared = collectives.shared(part.rank.number, index, len(part.begin))
        number_of.append(_add(part, index, shift, shared, draft))
    for part, numbers in zip(parts, number_of, strict=True):
        src, dst, lag, kind = part.edges
        draft.join(kind, numbers[src], numbers[dst], lag)
        join_waits(part.waits, costs, numbers, draft)
    meet(parts, collectives, number_of, draft)
    graph, place_of = draft.graph([part.rank for part in parts], collectives.shift)
    skips = [
        Skip(
            f"waits of host threads for each other on rank {part.rank.number}",
            f"{part.threads} threads launch work: at least {part.unseen:,} pauses of a thread were compared "
            "only with the threads of the nearest calls",
        )
        for part in parts
        if part.unseen
    ]
    in_graph = [lookup(place_of, numbers, -1) for numbers in number_of]
    return Recorded(graph, collectives, windows(graph, in_graph, [part.steps for part in parts]), skips)


def _add(part: RankPart, rank: int, shift: int, shared: Bool, draft: Draft) -> Int:
    """Add the nodes of one rank to the graph; returns their numbers in the draft.

    Args:
        part: of the rank.
        rank: its index in the run.
        shift: ns from its clock to that of the first rank.
        shared: which activities belong to a collective that other ranks recorded too.
        draft: of the graph.
    """
    hosted, count = len(part.kind), len(part.begin)
    numbers = np.full(hosted + 2 * count, -1, dtype=np.int64)
    begin, finish = numbers[hosted : hosted + count], numbers[hosted + count :]
    numbers[:hosted] = draft.add(
        part.kind,
        part.start + shift,
        rank=rank,
        dur=part.dur,
        event=part.event,
        work=part.work,
        slot=np.arange(hosted),
    )

    def add(kind: Node, rows: Int, start: Int, dur: Int | int = 0) -> Int:
        """Nodes of these activities."""
        times = start[rows] + shift
        return draft.add(
            kind, times, rank=rank, dur=dur, event=part.work_event[rows], work=rows, slot=hosted + rows
        )

    alone = np.flatnonzero((part.begin >= hosted) & ~shared)
    begin[alone] = finish[alone] = add(
        Node.WORK, alone, part.work_start, (part.work_end - part.work_start)[alone]
    )
    rows = np.flatnonzero(shared)
    begin[rows] = add(Node.ARRIVE, rows, part.work_start)
    finish[rows] = add(Node.LEAVE, rows, part.work_end)
    return numbers
