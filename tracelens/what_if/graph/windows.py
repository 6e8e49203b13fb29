"""Where the steps of a run begin and end in its graph."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from tracelens.arrays import Bool, Int
from tracelens.errors import TracelensError
from tracelens.trace import Trace, Work, rows_by_code, steps_of
from tracelens.what_if.graph.device import LONG_AGO, Device
from tracelens.what_if.graph.graph import Edge, Graph, Rank
from tracelens.what_if.graph.host import Host


class Border(NamedTuple):
    """A point in time of one rank: the last end of its nodes, or their first start."""

    node: Int
    starts: bool = False  # whether their start counts, not their end
    mark: int = -1  # the node among them where the host begins or ends the step, -1 for none

    def time(self, start: Int, end: Int) -> int:
        """The point in time, ns, given the start and end of all nodes."""
        return int(start[self.node].min() if self.starts else end[self.node].max())

    def renumbered(self, number_of: Int) -> Border:
        """The same with other node numbers."""
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

    @property
    def last_node(self) -> int:
        """The last node that the step's end depends on."""
        return max(int(border.node.max()) for border in self.end)

    def borders(self, start: Int, end: Int) -> Int:
        """Begin and end on each rank, ns, given the start and end of all nodes; one row per rank."""
        return np.array([[border.time(start, end) for border in side] for side in (self.begin, self.end)]).T

    def spans(self, start: Int, end: Int) -> Int:
        """Duration of the step on each rank, ns, given the start and end of all nodes."""
        durations: Int = np.diff(self.borders(start, end), axis=1)[:, 0]
        return durations

    def host_begin(self, rank: int, start: Int, end: Int) -> int:
        """When the host's part of the step begins on a rank, ns, given the measured times of all nodes.

        It lasts until the next mark, and as recorded no longer than the step: where it takes longer, the
        host had run ahead of the GPU before the step, and did so less after it.
        """
        first, last = self.begin[rank].mark, self.end[rank].mark
        span = self.end[rank].time(start, end) - self.begin[rank].time(start, end)
        return max(int(start[first]), int(start[last]) - span)


class RankSteps(NamedTuple):
    """The steps of one rank, times by its own clock.

    Attributes:
        borders: label of each whole step to its begin and end; nodes as in RankPart.
        labels: of all windows, see `steps_of`; empty where steps are not marked.
        marks: where the host began each window, ns; without marks where it launched its first work.
        of_work: window of each activity.
    """

    borders: dict[str, tuple[Border, Border]]
    labels: list[str]
    marks: Int
    of_work: Int


def steps_of_rank(trace: Trace, host: Host, device: Device) -> RankSteps:
    """The steps of one rank."""
    steps = steps_of(trace)
    if steps.marked:
        return RankSteps(_borders(trace, host, device), steps.labels, steps.marks, steps.of_work)
    # Without marks the step begins with the launch of its first work.
    first = int(np.argmin(trace.work.start))
    called = int(device.called[first])
    opened = called if called > LONG_AGO else int(trace.work.start[first])
    whole = (Border(device.begin, True), Border(device.finish))
    return RankSteps({steps.labels[0]: whole}, [], np.array([opened]), steps.of_work)


def windows(graph: Graph, number_of: Sequence[Int], of_rank: Sequence[RankSteps]) -> list[StepSpan]:
    """The complete steps that all ranks recorded, as the analyzer `steps` measures them.

    See `trace.steps_of`: a step begins with its mark, or later, when the activities launched before are done;
    the last one ends when its mark and everything launched before it have ended.

    Args:
        graph: of the run.
        number_of: of each rank, the number in the graph of each node that its steps name.
        of_rank: of each rank.

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
    common = _common(graph.ranks, borders)
    step_of = _step_of_node(graph, common, of_rank)
    spans = []
    for number, label in enumerate(common, start=1):
        begin, end = zip(*(steps[label] for steps in borders), strict=True)
        spans.append(StepSpan(label, begin, end, number, step_of))
    return spans


def _common(ranks: Sequence[Rank], of_rank: Sequence[dict[str, tuple[Border, Border]]]) -> list[str]:
    """Labels of the steps that all ranks recorded, in order."""
    common = [label for label in of_rank[0] if all(label in steps for steps in of_rank)]
    if not common:
        raise TracelensError("the ranks recorded different steps; pass traces of the same steps of one job")
    for rank, steps in zip(ranks, of_rank, strict=True):
        shared = steps.keys() & of_rank[0].keys()
        if [label for label in steps if label in shared] != [
            label for label in of_rank[0] if label in shared
        ]:
            raise TracelensError(
                f"rank {rank.number} ran its steps in a different order than rank {ranks[0].number}; pass "
                "traces of the same steps of one job"
            )
    return common


def _borders(trace: Trace, host: Host, device: Device) -> dict[str, tuple[Border, Border]]:
    """Begin and end of each whole step by its marks."""
    steps = steps_of(trace)
    whole = steps.only_whole()
    row, opened, closed = host.marks
    names = [trace.arrays.names[code] for code in trace.arrays.name[row].tolist()]
    mark = {name: index for index, name in reversed([*enumerate(names)])}
    points = [*(opened[mark[label]] for label in whole.labels), closed[mark[whole.labels[-1]]]]
    edges = [
        Border(
            np.append(device.finish[_last_of_each_stream(trace.work, steps.closes < window)], point),
            mark=int(point),
        )
        for window, point in enumerate(points, start=steps.whole.start)
    ]
    return dict(zip(whole.labels, pairwise(edges), strict=True))


def _last_of_each_stream(work: Work, counted: Bool) -> Int:
    """Positions of the work that ends last on its stream, of that which counts; the first of several."""
    rows = np.flatnonzero(counted)
    last = [lane[[np.argmax(work.end[rows[lane]])]] for lane in rows_by_code(work.lane[rows]).values()]
    return rows[np.concatenate(last)] if last else rows


def _step_of_node(graph: Graph, common: Sequence[str], of_rank: Sequence[RankSteps]) -> Int:
    """How many of these steps had begun when each node was launched; the least of a meeting's ranks."""
    step_of = np.full(len(graph), len(common), dtype=np.int64)
    for rank, steps in enumerate(of_rank):
        nodes = graph.of_rank[rank]
        work, start = graph.work[nodes], graph.start[nodes] - graph.shift[rank]
        if steps.labels:
            windows = np.array([steps.labels.index(label) for label in common])
            marks, of_work = steps.marks[windows], np.searchsorted(windows, steps.of_work, side="right")
        else:
            marks, of_work = steps.marks, np.ones_like(steps.of_work)
        on_host = np.searchsorted(marks, start, side="left")
        step_of[nodes] = np.where(work >= 0, of_work[work], on_host)
    arrivals = graph.edge == Edge.ARRIVAL
    met = graph.dst[arrivals]
    step_of[met] = len(common)
    np.minimum.at(step_of, met, step_of[graph.src[arrivals]])
    return step_of
