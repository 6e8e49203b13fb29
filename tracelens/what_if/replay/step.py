"""One step, replayed: how long it takes on each rank."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tracelens.what_if.graph import Edit, Graph, StepSpan
from tracelens.what_if.replay.schedule import Delays, EditedSegment, Schedule, Segment, Times


class Extent(NamedTuple):
    """A replayed step on one rank."""

    begin: int  # ns
    end: int  # ns
    node: int  # that ends it
    schedule: Schedule | Times  # of the replay

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
        self._begins = [border.time(graph.start, graph.end) for border in window.begin]

    def extents(self, edit: Edit, delays: Delays = "typical") -> list[Extent]:
        """The edited step on each rank."""
        return self.replayed(EditedSegment(self.segment, edit), delays)

    def replayed(self, edited: EditedSegment, delays: Delays = "typical") -> list[Extent]:
        """The same of the step's segment with its edit, prepared once for several replays."""
        behind = edited.schedule(delays)
        whole, host = self.whole(behind), self.host(behind)
        # Behind an idle GPU the host is no later.
        if all(part.dur <= extent.dur for extent, part in zip(whole, host, strict=True)):
            return whole
        if not self.segment.starts_idle:
            host = self.host(edited.schedule(delays, idle=True))
        return [max(parts, key=lambda extent: extent.dur) for parts in zip(whole, host, strict=True)]

    def whole(self, schedule: Schedule | Times) -> list[Extent]:
        """The step on each rank, from its recorded begin to its replayed end."""
        result = []
        for begin, last in zip(self._begins, self.window.end, strict=True):
            ends = schedule.ends(last.node)
            latest = int(np.argmax(ends))
            result.append(Extent(begin, int(ends[latest]), int(last.node[latest]), schedule))
        return result

    def host(self, schedule: Schedule | Times) -> list[Extent]:
        """The host's part of the step on each rank, from mark to mark; without marks nothing."""
        result = []
        for rank, border in enumerate(self.window.end):
            begin = end = 0
            if border.mark >= 0:
                begin = self.window.host_begin(rank, self.graph.start, self.graph.end)
                end = int(schedule.ends(np.array([border.mark]))[0])
            result.append(Extent(begin, end, border.mark, schedule))
        return result
