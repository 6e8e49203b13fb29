"""Where the steps of a run begin and end in its graph."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from tracelens.analysis.overview import busiest, step_windows
from tracelens.arrays import Int
from tracelens.errors import TracelensError
from tracelens.trace import Run, Trace, rows_by_code
from tracelens.what_if.graph.device import Device
from tracelens.what_if.graph.host import Host


class Border(NamedTuple):
    """A point in time of one rank: the last end of its nodes, or their first start.

    Attributes:
        node: its nodes.
        starts: whether their start counts, not their end.
    """

    node: Int
    starts: bool = False

    def time(self, start: Int, end: Int) -> int:
        """The point in time, ns, given the start and end of all nodes."""
        return int(start[self.node].min() if self.starts else end[self.node].max())


class StepSpan(NamedTuple):
    """One step: where it begins and ends on each rank, in order of rank.

    Attributes:
        label: name of the step.
        begin: border of each rank.
        end: border of each rank.
    """

    label: str
    begin: tuple[Border, ...]
    end: tuple[Border, ...]

    def renumbered(self, number_of: Int) -> StepSpan:
        """The same with other node numbers."""
        sides = (tuple(border._replace(node=number_of[border.node]) for border in side) for side in self[1:])
        return StepSpan(self.label, *sides)

    def borders(self, start: Int, end: Int) -> Int:
        """Begin and end on each rank, ns, given the start and end of all nodes; one row per rank."""
        return np.array(
            [
                (low.time(start, end), high.time(start, end))
                for low, high in zip(self.begin, self.end, strict=True)
            ]
        )

    def spans(self, start: Int, end: Int) -> Int:
        """Duration of the step on each rank, ns, given the start and end of all nodes."""
        durations: Int = np.diff(self.borders(start, end), axis=1)[:, 0]
        return durations


def windows(run: Run, hosts: Sequence[Host], devices: Sequence[Device]) -> list[StepSpan]:
    """The complete steps that all ranks recorded, as the analyzer `steps` measures them.

    A step begins with its mark, or later, when the activities launched before on the busiest stream are done;
    the last one ends when its mark and everything launched before it have ended.

    Raises:
        TracelensError: no step is on all ranks, or the order of steps differs between ranks.
    """
    of_rank = [_of_rank(*rank_parts) for rank_parts in zip(run.traces, hosts, devices, strict=True)]
    common = [label for label in of_rank[0] if all(label in steps for steps in of_rank)]
    if not common:
        raise TracelensError("the ranks recorded different steps; give traces of the same steps of one job")
    for trace, steps in zip(run.traces, of_rank, strict=True):
        if [label for label in steps if label in of_rank[0]] != [
            label for label in of_rank[0] if label in steps
        ]:
            raise TracelensError(
                f"rank {trace.meta.rank} ran its steps in a different order than rank {run.ranks[0]}; "
                "give traces of the same steps of one job"
            )
    return [
        StepSpan(
            label, tuple(steps[label][0] for steps in of_rank), tuple(steps[label][1] for steps in of_rank)
        )
        for label in common
    ]


def _of_rank(trace: Trace, host: Host, device: Device) -> dict[str, tuple[Border, Border]]:
    work = trace.work
    steps = step_windows(trace, work)
    if not steps.marked:
        return {steps.labels[0]: (Border(device.begin, True), Border(device.finish))}
    row, opened, closed = host.marks
    events = trace.arrays
    names = [events.names[code] for code in events.name[row].tolist()]
    mark = {name: index for index, name in reversed([*enumerate(names)])}
    main = busiest(work)
    before = _last_before(steps.called[main], work.end[main], steps.marks[:-1])
    edges = [
        Border(
            np.append(device.finish[main[[last_work]]] if last_work >= 0 else main[:0], opened[mark[label]])
        )
        for label, last_work in zip(steps.labels, before.tolist(), strict=True)
    ]
    last = mark[steps.labels[-1]]
    launch_start = np.where(work.launch_call >= 0, events.start[np.maximum(work.launch_call, 0)], work.start)
    inside = np.flatnonzero(launch_start < events.end[row[last]])
    lanes = rows_by_code(work.lane[inside]).values()
    until = [device.finish[inside[rows[[np.argmax(work.end[inside[rows]])]]]] for rows in lanes]
    edges.append(Border(np.concatenate([*until, closed[last : last + 1]])))
    return dict(zip(steps.labels, pairwise(edges), strict=True))


def _last_before(called: Int, end: Int, times: Int) -> Int:
    """The activity called before each time that ends last (the first of several); -1 for none."""
    by_end = np.lexsort((-np.arange(len(end)), end))
    position = np.empty(len(end), dtype=np.int64)
    position[by_end] = np.arange(len(end))
    order = np.argsort(called, kind="stable")
    latest = np.append(-1, np.maximum.accumulate(position[order]))
    last_called: Int = np.append(by_end, -1)[latest[np.searchsorted(called[order], times, side="left")]]
    return last_called
