"""The stages of one pipeline in one step, and what each waits for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from tracelens.analysis.pipeline.microbatches import BACKWARD, FORWARD, Message, Span
from tracelens.arrays import Int
from tracelens.trace import Union, union

RAMP, P2P_WAIT, IMBALANCE, OTHER_IDLE = PARTS = ("ramp", "p2p_wait", "imbalance", "other_idle")


class Wait(NamedTuple):
    """A piece of a rank's bubble, and which of PARTS it is."""

    part: str
    start: int
    end: int


@dataclass(frozen=True)
class Lane:
    """One stage in one step, times by the common clock.

    Attributes:
        rank: of the trace.
        stage: position in the pipeline.
        spans: in order of launch.
        p2p: when its sends and receives ran.
        other: when GPU work ran that is in no span.
        messages: sent and received.
    """

    rank: int
    stage: int
    spans: Sequence[Span]
    p2p: Union
    other: Union
    messages: Sequence[Message]

    @cached_property
    def launches(self) -> list[int]:
        """When the host launched each span."""
        return [span.launched for span in self.spans]

    @property
    def sends(self) -> int:
        return sum(message.is_send for message in self.messages)

    def of(self, phase: str) -> list[Span]:
        return [span for span in self.spans if span.phase == phase]

    @cached_property
    def busy(self) -> Union:
        return extent(self.spans)


def extent(spans: Sequence[Span]) -> Union:
    """The time that spans cover, from the start to the end of each."""
    return union(
        np.array([span.start for span in spans], dtype=np.int64),
        np.array([span.end for span in spans], dtype=np.int64),
    )


class Pipeline:
    """The lanes of one pipeline in one step, spans numbered.

    Attributes:
        lanes: those of its stages that are in the run.
        start: of the first span of all.
        end: of the last span of all.
    """

    def __init__(self, lanes: Sequence[Lane]) -> None:
        self.lanes = lanes
        self.start = min(span.start for lane in lanes for span in lane.spans)
        self.end = max(span.end for lane in lanes for span in lane.spans)
        steady = [_steady(lane) for lane in lanes]
        self._full = max(begin for begin, _ in steady), min(end for _, end in steady)
        self._last = max(span.virtual for lane in lanes for span in lane.spans)
        self._done: dict[tuple[str, int, int], tuple[int, Span]] = {}
        for number, lane in enumerate(lanes):
            for span in lane.spans:
                self._done.setdefault((span.phase, span.virtual, span.microbatch), (number, span))
        bounds = [(lane.busy.start, lane.busy.end, lane.p2p.start, lane.p2p.end) for lane in lanes]
        ends = [np.array([span.end for span in lane.spans]) for lane in lanes]
        edges = np.unique(np.concatenate([*ends, *(part for lane_bounds in bounds for part in lane_bounds)]))
        inside = (edges >= self.start) & (edges <= self.end)
        self._edges: Int = edges[inside]
        low, high = self._edges[:-1], self._edges[1:]
        self._busy = [lane.busy.covered(low, high) > 0 for lane in lanes]
        self._ordered = [sorted(lane.spans, key=lambda span: span.start) for lane in lanes]
        starts = [np.array([span.start for span in spans]) for spans in self._ordered]
        self._next = [np.searchsorted(lane_starts, low) for lane_starts in starts]

    def waits(self, number: int) -> list[Wait]:
        """The bubble of a lane, in pieces that add up to it."""
        lane = self.lanes[number]
        full = self._full
        low, high = self._edges[:-1], self._edges[1:]
        talking = lane.p2p.covered(low, high) > 0
        waits: list[Wait] = []
        for interval in np.flatnonzero(~self._busy[number]).tolist():
            start, end = int(low[interval]), int(high[interval])
            if not full[0] <= start < full[1]:
                part = RAMP
            elif self._computed_late(number, interval):
                part = IMBALANCE
            else:
                part = P2P_WAIT if talking[interval] else OTHER_IDLE
            if waits and waits[-1].part == part and waits[-1].end == start:
                waits[-1] = waits[-1]._replace(end=end)
            else:
                waits.append(Wait(part, start, end))
        return waits

    def _computed_late(self, number: int, interval: int) -> bool:
        """Whether what a waiting lane needs at this time has still to be computed, and a stage computes."""
        now = int(self._edges[interval])
        seen = set()
        while number not in seen:
            seen.add(number)
            if self._busy[number][interval]:
                return True
            following = int(self._next[number][interval])
            spans = self._ordered[number]
            source = self._source(spans[following]) if following < len(spans) else None
            if source is None or now >= source[1].end:
                return False
            number = source[0]
        return False

    def _source(self, span: Span) -> tuple[int, Span] | None:
        """Lane and span that make what this one needs, None if there is none in the run."""
        if span.phase == FORWARD:
            return self._done.get((FORWARD, span.virtual - 1, span.microbatch))
        if span.virtual == self._last:
            return self._done.get((FORWARD, span.virtual, span.microbatch))
        return self._done.get((BACKWARD, span.virtual + 1, span.microbatch))


def _steady(lane: Lane) -> tuple[int, int]:
    """From the first backward to the last forward; without backwards, all forwards."""
    forwards, backwards = lane.of(FORWARD), lane.of(BACKWARD)
    begin = min(span.start for span in backwards or forwards)
    return begin, max(span.end for span in forwards or backwards)
