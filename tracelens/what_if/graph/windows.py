"""Where the steps of a run begin and end in its graph."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from tracelens.arrays import Bool, Int
from tracelens.errors import TracelensError
from tracelens.trace import Run, Trace, Work, rows_by_code, steps_of
from tracelens.what_if.graph.device import Device
from tracelens.what_if.graph.host import Host


class Border(NamedTuple):
    """A point in time of one rank: the last end of its nodes, or their first start."""

    node: Int
    starts: bool = False  # whether their start counts, not their end

    def time(self, start: Int, end: Int) -> int:
        """The point in time, ns, given the start and end of all nodes."""
        return int(start[self.node].min() if self.starts else end[self.node].max())


class StepSpan(NamedTuple):
    """One step: where it begins and ends on each rank, in order of rank."""

    label: str
    begin: tuple[Border, ...]  # of each rank
    end: tuple[Border, ...]

    def renumbered(self, number_of: Int) -> StepSpan:
        """The same with other node numbers."""
        sides = (tuple(border._replace(node=number_of[border.node]) for border in side) for side in self[1:])
        return StepSpan(self.label, *sides)

    def borders(self, start: Int, end: Int) -> Int:
        """Begin and end on each rank, ns, given the start and end of all nodes; one row per rank."""
        return np.array([[border.time(start, end) for border in side] for side in (self.begin, self.end)]).T

    def spans(self, start: Int, end: Int) -> Int:
        """Duration of the step on each rank, ns, given the start and end of all nodes."""
        durations: Int = np.diff(self.borders(start, end), axis=1)[:, 0]
        return durations


def windows(run: Run, hosts: Sequence[Host], devices: Sequence[Device]) -> list[StepSpan]:
    """The complete steps that all ranks recorded, as the analyzer `steps` measures them.

    See `trace.steps_of`: a step begins with its mark, or later, when the activities launched before are done;
    the last one ends when its mark and everything launched before it have ended.

    Raises:
        TracelensError: no step is on all ranks, or the order of steps differs between ranks.
    """
    of_rank = [_of_rank(*parts) for parts in zip(run.traces, hosts, devices, strict=True)]
    common = [label for label in of_rank[0] if all(label in steps for steps in of_rank)]
    if not common:
        raise TracelensError("the ranks recorded different steps; give traces of the same steps of one job")
    for trace, steps in zip(run.traces, of_rank, strict=True):
        shared = steps.keys() & of_rank[0].keys()
        if [label for label in steps if label in shared] != [
            label for label in of_rank[0] if label in shared
        ]:
            raise TracelensError(
                f"rank {trace.meta.rank} ran its steps in a different order than rank {run.ranks[0]}; "
                "give traces of the same steps of one job"
            )
    return [StepSpan(label, *zip(*(steps[label] for steps in of_rank), strict=True)) for label in common]


def _of_rank(trace: Trace, host: Host, device: Device) -> dict[str, tuple[Border, Border]]:
    steps = steps_of(trace)
    whole = steps.only_whole()
    if not steps.marked:
        return {whole.labels[0]: (Border(device.begin, True), Border(device.finish))}
    row, opened, closed = host.marks
    names = [trace.arrays.names[code] for code in trace.arrays.name[row].tolist()]
    mark = {name: index for index, name in reversed([*enumerate(names)])}
    points = [*(opened[mark[label]] for label in whole.labels), closed[mark[whole.labels[-1]]]]
    edges = [
        Border(np.append(device.finish[_last_of_each_stream(trace.work, steps.closes < window)], point))
        for window, point in enumerate(points, start=steps.whole.start)
    ]
    return dict(zip(whole.labels, pairwise(edges), strict=True))


def _last_of_each_stream(work: Work, counted: Bool) -> Int:
    """Positions of the work that ends last on its stream, of that which counts; the first of several."""
    rows = np.flatnonzero(counted)
    last = [lane[[np.argmax(work.end[rows[lane]])]] for lane in rows_by_code(work.lane[rows]).values()]
    return rows[np.concatenate(last)] if last else rows
