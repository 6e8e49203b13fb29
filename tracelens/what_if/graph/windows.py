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
    """A point in time of one rank: the last of the ends of these nodes, or the first of these starts.

    Attributes:
        node: what has to be over, or what begins.
        starts: whether it is the start that counts, not the end.
    """

    node: Int
    starts: bool = False

    def time(self, start: Int, end: Int) -> int:
        """The point in time, ns, when nodes start and end so."""
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

    def renumbered(self, place: Int) -> StepSpan:
        """The same with other node numbers."""
        sides = (tuple(one._replace(node=place[one.node]) for one in side) for side in self[1:])
        return StepSpan(self.label, *sides)

    def borders(self, start: Int, end: Int) -> Int:
        """Begin and end on each rank, ns, when nodes start and end so; one row a rank."""
        return np.array(
            [
                (low.time(start, end), high.time(start, end))
                for low, high in zip(self.begin, self.end, strict=True)
            ]
        )

    def spans(self, start: Int, end: Int) -> Int:
        """Duration of the step on each rank, ns, when nodes start and end so."""
        found: Int = np.diff(self.borders(start, end), axis=1)[:, 0]
        return found


def windows(run: Run, hosts: Sequence[Host], devices: Sequence[Device]) -> list[StepSpan]:
    """The whole steps that all ranks recorded, defined as the analyzer `steps` measures them.

    A step begins with its mark, or when the GPU is done with what its busiest stream was given before; the
    last one ends when its mark and all work that was launched before has ended.

    Raises:
        TracelensError: no step is on all ranks, or ranks ran their steps in another order.
    """
    of_rank = [_of_rank(*one) for one in zip(run.traces, hosts, devices, strict=True)]
    common = [label for label in of_rank[0] if all(label in one for one in of_rank)]
    if not common:
        raise TracelensError("the ranks recorded different steps; give traces of the same steps of one job")
    for trace, one in zip(run.traces, of_rank, strict=True):
        if [label for label in one if label in of_rank[0]] != [label for label in of_rank[0] if label in one]:
            raise TracelensError(
                f"rank {trace.meta.rank} ran its steps in another order than rank {run.ranks[0]}; "
                "give traces of the same steps of one job"
            )
    return [
        StepSpan(label, tuple(one[label][0] for one in of_rank), tuple(one[label][1] for one in of_rank))
        for label in common
    ]


def _of_rank(trace: Trace, host: Host, device: Device) -> dict[str, tuple[Border, Border]]:
    work = trace.work
    found = step_windows(trace, work)
    if not found.marked:
        return {found.labels[0]: (Border(device.begin, True), Border(device.finish))}
    row, opened, closed = host.marks
    events = trace.arrays
    names = [events.names[code] for code in events.name[row].tolist()]
    mark = {name: place for place, name in reversed([*enumerate(names)])}
    main = busiest(work)
    before = _last_before(found.called[main], work.end[main], found.marks[:-1])
    edges = [
        Border(np.append(device.finish[main[[place]]] if place >= 0 else main[:0], opened[mark[label]]))
        for label, place in zip(found.labels, before.tolist(), strict=True)
    ]
    last = mark[found.labels[-1]]
    asked = np.where(work.launch_call >= 0, events.start[np.maximum(work.launch_call, 0)], work.start)
    inside = np.flatnonzero(asked < events.end[row[last]])
    lanes = rows_by_code(work.lane[inside]).values()
    until = [device.finish[inside[rows[[np.argmax(work.end[inside[rows]])]]]] for rows in lanes]
    edges.append(Border(np.concatenate([*until, closed[last : last + 1]])))
    return dict(zip(found.labels, pairwise(edges), strict=True))


def _last_before(called: Int, end: Int, times: Int) -> Int:
    """Of the work called before each time, the place of what ends last, the first of several; -1 for none."""
    by_end = np.lexsort((-np.arange(len(end)), end))
    position = np.empty(len(end), dtype=np.int64)
    position[by_end] = np.arange(len(end))
    order = np.argsort(called, kind="stable")
    latest = np.append(-1, np.maximum.accumulate(position[order]))
    found: Int = np.append(by_end, -1)[latest[np.searchsorted(called[order], times, side="left")]]
    return found
