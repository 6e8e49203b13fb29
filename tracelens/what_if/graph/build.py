"""From the traces of a run to its graph: the part of each rank, their meetings in collectives, the steps.

trace -> rank_part -> RankPart          where the trace is, perhaps in another process
RankParts, AlignedRun -> join -> Recorded
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from msgspec import Struct

import tracelens.devices
from tracelens.analysis.comm import AlignedRun, MatchedCollective, align_run
from tracelens.analysis.common import choose_device, own_device
from tracelens.analysis.serving import rank_steps as serving_steps
from tracelens.arrays import Bool, Int, isin, lookup, numbered
from tracelens.errors import TracelensError
from tracelens.table import Coded, Skip
from tracelens.trace import WORK_KINDS, Run, Trace, enclosing_op, mean_step_ns, rows_by_code, steps_of
from tracelens.what_if.graph.gpu import (
    LONG_AGO,
    BlockingWaits,
    GpuActivities,
    call_costs,
    device,
    join_waits,
    order,
    waits,
)
from tracelens.what_if.graph.graph import Draft, Edge, Node, Rank, RunGraph
from tracelens.what_if.graph.host import RankHost, host


class Recorded(Struct, frozen=True):
    """A run as a graph."""

    graph: RunGraph
    collectives: RunCollectives  # matched across its ranks
    windows: list[StepSpan]  # of each step, its borders on each rank in order of rank
    skips: list[Skip]  # what its graph may lack


class HostNodes(Struct, frozen=True):
    """The nodes of one rank on its host; see RunGraph."""

    kind: Int
    event: Int
    work: Int
    start: Int
    dur: Int


class WorkNodes(Struct, frozen=True):
    """The activities in the `work` of one rank's trace, and their nodes; see RankPart for the numbers."""

    begin: Int  # node that starts with each; that of the host where it runs there
    finish: Int  # node that ends with each
    event: Int  # row in the trace's events
    start: Int
    end: Int


class RankPart(Struct, frozen=True):
    """The nodes and edges of one rank; it can be pickled, and holds no trace.

    Times are ns by the rank's own clock. Nodes have numbers of their own: first those on the host, then one
    for the begin of each activity in the trace's `work`, then one for the end of each. Only where all ranks
    are known is clear which activities have two nodes.
    """

    rank: Rank  # names, and what else the graph knows of it
    host: HostNodes
    work: WorkNodes
    edges: list[Int]  # (src, dst, lag, kind)
    waits: BlockingWaits  # blocking calls, whose cost is the median of all ranks
    steps: StepBorders  # of the rank
    unseen: int  # pauses of threads that were compared with few others, see Handovers
    threads: int  # that launch work


class RunCollectives(Struct, frozen=True):
    """The communication of a run."""

    aligned: AlignedRun  # the collectives matched across its ranks, by one clock
    work: list[Int]  # position in its trace's `work` of each communication kernel of each rank
    kernels: dict[int, list[int]]  # rank to its kernels of these collectives, positions in `work`

    @property
    def matched(self) -> Sequence[MatchedCollective]:
        return self.aligned.collectives

    @property
    def shift(self) -> list[int]:
        """What is added to the times of each trace to get those by the common clock."""
        return [self.aligned.shift[rank.rank] for rank in self.aligned.ranks]


class Border(NamedTuple):
    """A point in time of one rank: the last end of its nodes, or their first start."""

    node: Int
    starts: bool = False  # whether their start counts, not their end
    mark: int = -1  # the node among them where the host begins or ends the step, -1 for none

    def time(self, start: Int, end: Int) -> int:
        return int(start[self.node].min() if self.starts else end[self.node].max())

    def renumbered(self, number_of: Int) -> Border:
        mark = int(number_of[self.mark]) if self.mark >= 0 else -1
        return Border(number_of[self.node], self.starts, mark)


class StepSpan(NamedTuple):
    """One step: where it begins and ends on each rank, in order of rank."""

    label: str
    begin: tuple[Border, ...]  # of each rank
    end: tuple[Border, ...]
    number: int  # of the step, from 1
    step_of: Int  # of each node, the number of the step whose host window launched it

    @property
    def held(self) -> Bool:
        """Which nodes a replay of the step leaves as recorded: those of earlier steps."""
        held: Bool = self.step_of < self.number
        return held

    def borders(self, start: Int, end: Int) -> Int:
        """Begin and end on each rank, ns, given the start and end of all nodes; one row per rank."""
        return np.array([[border.time(start, end) for border in side] for side in (self.begin, self.end)]).T

    def spans(self, start: Int, end: Int) -> Int:
        """Duration of the step on each rank, ns, given the start and end of all nodes."""
        durations: Int = np.diff(self.borders(start, end), axis=1)[:, 0]
        return durations


class StepBorders(Struct, frozen=True):
    """The steps of one rank, times by its own clock."""

    # label of each whole step to its begin and end; nodes as in RankPart
    borders: dict[str, tuple[Border, Border]]
    labels: list[str]  # of all windows, see `steps_of`; empty where steps are not marked
    marks: Int  # where the host began each window, ns; without marks where it launched its first work
    of_work: Int  # window of each activity


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
    """The graph of a run from the parts of its ranks, in order, and the communication of all of them.

    Raises:
        TracelensError: ranks recorded different steps.
    """
    kernels: dict[int, list[int]] = {}
    for collective in aligned.collectives:
        for participant in collective.participants:
            kernels.setdefault(participant.rank, []).append(participant.record.kernel)
    collectives = RunCollectives(aligned, [np.flatnonzero(part.rank.is_comm) for part in parts], kernels)
    draft, costs = Draft(), call_costs([part.waits for part in parts])
    number_of = [_add_nodes(part, index, collectives, draft) for index, part in enumerate(parts)]
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


def _add_nodes(part: RankPart, rank: int, collectives: RunCollectives, draft: Draft) -> Int:
    """Add the nodes of one rank, given by its index in the run; returns their numbers in the draft.

    A collective's kernel that other ranks recorded too has one node for its start and one for its end.
    """
    host, work, shift = part.host, part.work, collectives.shift[rank]
    hosted, count = len(host.kind), len(work.begin)
    numbers = np.full(hosted + 2 * count, -1, dtype=np.int64)
    begin, finish = numbers[hosted : hosted + count], numbers[hosted + count :]
    numbers[:hosted] = draft.add(
        host.kind,
        host.start + shift,
        rank=rank,
        dur=host.dur,
        event=host.event,
        work=host.work,
        slot=np.arange(hosted),
    )

    def add(kind: Node, rows: Int, start: Int, dur: Int | int = 0) -> Int:
        """Nodes of these activities."""
        times = start[rows] + shift
        return draft.add(
            kind, times, rank=rank, dur=dur, event=work.event[rows], work=rows, slot=hosted + rows
        )

    shared = np.zeros(count, dtype=bool)
    shared[collectives.work[rank][collectives.kernels.get(part.rank.number, [])]] = True
    alone = np.flatnonzero((work.begin >= hosted) & ~shared)
    begin[alone] = finish[alone] = add(Node.WORK, alone, work.start, (work.end - work.start)[alone])
    rows = np.flatnonzero(shared)
    begin[rows] = add(Node.ARRIVE, rows, work.start)
    finish[rows] = add(Node.LEAVE, rows, work.end)
    return numbers


def rank_part(trace: Trace, recorded_on: tracelens.devices.Device | None) -> RankPart:
    """The part of one rank, from its trace, not narrowed to a step, and its device, None if unknown.

    Raises:
        TracelensError: no GPU work.
    """
    work = trace.work
    if not len(work.event):
        raise TracelensError(trace.meta.without_work("no GPU work to replay"))
    draft = Draft()
    own_host = host(trace, draft)
    gpu = device(trace, own_host, draft)
    order(trace, gpu, own_host, draft)

    kind, _, event, work_row, _, _, start, dur = draft.node_columns()
    # Names of the nodes on the host, then of the activities.
    meta, events = trace.meta, trace.arrays
    around = trace.once(enclosing_op)[event]
    label = np.where((work_row < 0) & (around >= 0), around, event)
    category = lookup(work.category, work_row, len(work.categories))
    threads = int(own_host.thread.max(initial=-1)) + 1
    _, stream = numbered(work.lane)
    name, label = (events.name[np.concatenate((rows, work.event))] for rows in (event, label))
    rank = Rank(
        number=meta.rank,
        path=meta.path,
        world_size=meta.world_size,
        cpu_only=meta.cpu_only,
        serves=bool(trace.once(serving_steps).steps),
        timed_ns=mean_step_ns(meta.pace) if meta.pace else -1.0,
        device=recorded_on,
        is_comm=work.kind == WORK_KINDS.index("comm"),
        name=Coded.used(name, events.names),
        label=Coded.used(label, events.names),
        category=Coded.used(np.concatenate((category, work.category)), [*work.categories, ""]),
        lane=np.concatenate((own_host.thread[event], threads + stream)),
    )
    return RankPart(
        rank=rank,
        host=HostNodes(kind, event, work_row, start, dur),
        work=WorkNodes(gpu.begin, gpu.finish, work.event, work.start, work.end),
        edges=draft.edge_columns(),
        waits=waits(trace, gpu, own_host),
        steps=steps_of_rank(trace, own_host, gpu),
        unseen=own_host.unseen,
        threads=len(own_host.nodes),
    )


def meet(
    parts: Sequence[RankPart], collectives: RunCollectives, number_of: Sequence[Int], draft: Draft
) -> None:
    """Add the meetings to the graph; `number_of` is the number in it of each node of each part.

    The ranks have met when the last of their kernels has started. The transfer lasts from then to the first
    end of a kernel. A rank whose kernel ends before all have arrived needs not all of them (the root of a
    broadcast, a small message that is sent without waiting): it takes its own time.
    """
    index_of = {part.rank.number: index for index, part in enumerate(parts)}
    participants = [
        (number, index_of[member.rank], int(collectives.work[index_of[member.rank]][member.record.kernel]))
        for number, collective in enumerate(collectives.matched)
        for member in collective.participants
    ]
    if not participants:
        return
    number, rank, work = (np.array(column, dtype=np.int64) for column in zip(*participants, strict=True))
    begin, finish, start, end = (np.empty(len(number), dtype=np.int64) for _ in range(4))
    for index, rows in rows_by_code(rank).items():
        own = parts[index].work
        begin[rows] = number_of[index][own.begin[work[rows]]]
        finish[rows] = number_of[index][own.finish[work[rows]]]
        for column, times in ((start, own.start), (end, own.end)):
            column[rows] = times[work[rows]] + collectives.shift[index]
    count = len(collectives.matched)
    met = np.full(count, np.iinfo(np.int64).min)
    np.maximum.at(met, number, start)
    done = np.full(count, np.iinfo(np.int64).max)
    waited = end >= met[number]
    np.minimum.at(done, number[waited], end[waited])
    lowest = np.full(count, len(parts))
    np.minimum.at(lowest, number, rank)
    node = np.empty(count, dtype=np.int64)
    for index, rows in rows_by_code(lowest).items():
        node[rows] = draft.add(Node.MEET, met[rows], rank=index, dur=done[rows] - met[rows], collective=rows)
    draft.join(Edge.ARRIVAL, begin, node[number])
    draft.join(Edge.TRANSFER, node[number[waited]], finish[waited], end[waited] - done[number[waited]])
    # A kernel may serve several meetings; where one of them holds it up, its own time is part of that.
    held = isin(finish, finish[waited])
    draft.join(Edge.OWN, begin, finish, np.where(held, 0, end - start))


def steps_of_rank(trace: Trace, host: RankHost, device: GpuActivities) -> StepBorders:
    """The steps of one rank."""
    steps, work = steps_of(trace), trace.work
    whole = steps.only_whole()
    if not steps.marked:
        # Without marks the step begins with its first work: behind what was in flight, recorded or not.
        edge = whole.edges[0]
        inside, before = np.flatnonzero(work.start >= edge), np.flatnonzero(work.end == edge)
        first = int(inside[np.argmin(work.start[inside])])
        called = int(device.called[first])
        opened = called if called > LONG_AGO else int(work.start[first])
        begin = Border(device.finish[before]) if len(before) else Border(device.begin[inside], True)
        only = begin, Border(device.finish)
        return StepBorders({whole.labels[0]: only}, [], np.array([opened]), steps.of_work)
    row, opens, closes = host.marks
    names = [trace.arrays.names[code] for code in trace.arrays.name[row].tolist()]
    mark = {name: index for index, name in reversed([*enumerate(names)])}
    points = [*(opens[mark[label]] for label in whole.labels), closes[mark[whole.labels[-1]]]]
    borders, lane = [], work.lane
    for window, point in enumerate(points, start=steps.whole.start):
        # The work that ends last on its stream, of that launched before; the first of several.
        rows = np.flatnonzero(steps.closes < window)
        of_lane = rows_by_code(lane[rows]).values()
        last = [own[[np.argmax(work.end[rows[own]])]] for own in of_lane]
        rows = rows[np.concatenate(last)] if last else rows
        borders.append(Border(np.append(device.finish[rows], point), mark=int(point)))
    of_label = dict(zip(whole.labels, pairwise(borders), strict=True))
    return StepBorders(of_label, steps.labels, steps.marks, steps.of_work)


def windows(graph: RunGraph, number_of: Sequence[Int], of_rank: Sequence[StepBorders]) -> list[StepSpan]:
    """The complete steps that all ranks recorded, as the analyzer `steps` measures them.

    See `trace.steps_of`: a step begins with its mark, or later, when the activities launched before are done;
    the last one ends when its mark and everything launched before it have ended. `number_of` is, of each
    rank, the number in the graph of each node that its steps name.

    Raises:
        TracelensError: no step is on all ranks, or the order of steps differs between ranks.
    """
    borders = [
        {
            label: (begin.renumbered(numbers), end.renumbered(numbers))
            for label, (begin, end) in steps.borders.items()
        }
        for steps, numbers in zip(of_rank, number_of, strict=True)
    ]

    common = [label for label in borders[0] if all(label in steps for steps in borders)]
    if not common:
        raise TracelensError("the ranks recorded different steps; pass traces of the same steps of one job")
    for rank, steps in zip(graph.ranks, borders, strict=True):
        shared = steps.keys() & borders[0].keys()
        if [label for label in steps if label in shared] != [
            label for label in borders[0] if label in shared
        ]:
            raise TracelensError(
                f"rank {rank.number} ran its steps in a different order than rank {graph.ranks[0].number}; "
                "pass traces of the same steps of one job"
            )

    # How many of these steps had begun when each node was launched; the least of a meeting's ranks.
    step_of = np.full(len(graph), len(common), dtype=np.int64)
    for index, own in enumerate(of_rank):
        nodes = graph.of_rank[index]
        work, start = graph.work[nodes], graph.start[nodes] - graph.shift[index]
        if own.labels:
            rows = np.array([own.labels.index(label) for label in common])
            marks, of_work = own.marks[rows], np.searchsorted(rows, own.of_work, side="right")
        else:
            marks, of_work = own.marks, np.ones_like(own.of_work)
        on_host = np.searchsorted(marks, start, side="left")
        step_of[nodes] = np.where(work >= 0, of_work[work], on_host)
    arrivals = graph.edge == Edge.ARRIVAL
    met = graph.dst[arrivals]
    step_of[met] = len(common)
    np.minimum.at(step_of, met, step_of[graph.src[arrivals]])

    spans = []
    for number, label in enumerate(common, start=1):
        begin, end = zip(*(steps[label] for steps in borders), strict=True)
        spans.append(StepSpan(label, begin, end, number, step_of))
    return spans
