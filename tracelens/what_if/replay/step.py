"""One step, replayed: how long it takes on each rank."""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np

from tracelens.what_if.graph import Edit, Graph, StepSpan
from tracelens.what_if.replay.schedule import Delays, Segment, Times, schedule


class Extent(NamedTuple):
    """A replayed step on one rank."""

    begin: int  # ns
    end: int  # ns
    node: int  # that ends it
    times: Times  # of the replay

    @property
    def dur(self) -> int:
        return self.end - self.begin


class StepReplay:
    """Replays one step, again and again.

    What was done before the step stays as recorded, so that a change cannot make the step longer by making
    those before it shorter. But where the host had run ahead of the GPU, it would have lost its lead to
    faster GPUs, and a step would take as long as its host, from mark to mark. So that is replayed too, with a
    GPU that is idle at the begin, and the longer of both counts.
    """

    def __init__(self, graph: Graph, window: StepSpan) -> None:
        self.graph, self.window = graph, window
        self.segment = Segment(graph, window)

    @cached_property
    def from_idle(self) -> Segment:
        """The same nodes, behind a GPU that was done with earlier steps when the host began this one."""
        return Segment(self.graph, self.window, idle=True)

    def extents(self, edit: Edit, delays: Delays = "typical") -> list[Extent]:
        """The edited step on each rank."""
        times = schedule(self.graph, edit, delays, self.segment)
        whole, host = self.whole(times), self.host(times)
        # Behind an idle GPU the host is no later.
        if all(part.dur <= extent.dur for extent, part in zip(whole, host, strict=True)):
            return whole
        host = self.host(schedule(self.graph, edit, delays, self.from_idle))
        return [max(parts, key=lambda extent: extent.dur) for parts in zip(whole, host, strict=True)]

    def whole(self, times: Times) -> list[Extent]:
        """The step on each rank, from its recorded begin to its replayed end."""
        result = []
        for first, last in zip(self.window.begin, self.window.end, strict=True):
            node = int(last.node[np.argmax(times.end[last.node])])
            begin = first.time(self.graph.start, self.graph.end)
            result.append(Extent(begin, int(times.end[node]), node, times))
        return result

    def host(self, times: Times) -> list[Extent]:
        """The host's part of the step on each rank, from mark to mark; without marks nothing."""
        result = []
        for rank, border in enumerate(self.window.end):
            begin = end = 0
            if border.mark >= 0:
                begin = self.window.host_begin(rank, self.graph.start, self.graph.end)
                end = int(times.end[border.mark])
            result.append(Extent(begin, end, border.mark, times))
        return result
