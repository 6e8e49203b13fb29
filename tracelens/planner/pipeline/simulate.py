"""Plays a schedule: when each pass runs, or why it deadlocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tracelens.arrays import Bool, Int
from tracelens.errors import TracelensError
from tracelens.planner.pipeline.schedule import BACKWARD, FORWARD, INPUT, PHASES, WEIGHT, Pass, Schedule, Slot
from tracelens.planner.pipeline.times import Times

# The input half of a backward sends the same gradient to the previous stage as a full one.
_KIND = {FORWARD: 0, BACKWARD: 1, INPUT: 1, WEIGHT: 2}


@dataclass(frozen=True)
class Played:
    """When each pass of a schedule runs; one element per pass, by stage and then by time.

    Attributes:
        schedule: that was played.
        stage, chunk, position, microbatch: of each pass; `position` is that of the chunk in the model.
        phase: code into PHASES.
        start, end: ns since the first pass.
    """

    schedule: Schedule
    stage: Int
    chunk: Int
    position: Int
    microbatch: Int
    phase: Int
    start: Int
    end: Int

    @property
    def makespan(self) -> int:
        """From the first to the last pass, ns."""
        return int(self.end.max())

    def of(self, stage: int) -> Bool:
        mask: Bool = self.stage == stage
        return mask

    def busy(self, stage: int) -> int:
        """Busy time of a stage, ns; overlapped pairs count once."""
        rows = self.of(stage)
        start, first = np.unique(self.start[rows], return_index=True)
        return int((self.end[rows][first] - start).sum())


def simulate(schedule: Schedule, times: Times) -> Played:
    """Run every pass as soon as its stage is free and its inputs have arrived.

    A forward needs the forward of the previous chunk, a backward the backward of the next chunk (in the last
    chunk its own forward), weight gradients the input gradients of their chunk. Messages between stages take
    time but keep no stage busy.

    Raises:
        TracelensError: stages wait for each other, or for a pass that none of them runs.
    """
    return _Player(schedule, times).play()


class _Player:
    def __init__(self, schedule: Schedule, times: Times) -> None:
        self.schedule, self.times = schedule, times
        self.count, self.size = schedule.count, schedule.microbatches
        self.next_slot = [0] * schedule.stages
        self.free = [0] * schedule.stages
        self.gap = times.gap
        self.ends = [-1] * (3 * self.count * self.size)
        self.stage_of = [0] * self.count
        for stage, positions in enumerate(schedule.positions):
            for position in positions:
                self.stage_of[position] = stage
        self.waiting: dict[int, list[int]] = {}
        self.spans: list[list[tuple[int, ...]]] = [[] for _ in range(schedule.stages)]
        self.duration: Callable[[Slot, tuple[int, ...]], int] = times.reader()

    def play(self) -> Played:
        ready = list(range(self.schedule.stages))
        while ready:
            self._advance(ready.pop(), ready)
        if any(done < len(order) for done, order in zip(self.next_slot, self.schedule.orders, strict=True)):
            raise TracelensError(f"schedule {self.schedule.name} deadlocks: {self._why()}")
        rows = np.array([row for stage_spans in self.spans for row in stage_spans], dtype=np.int64).reshape(
            -1, 7
        )
        return Played(self.schedule, *(np.ascontiguousarray(column) for column in rows.T))

    def _advance(self, stage: int, ready: list[int]) -> None:
        """Run what a stage can run; stages that this unblocks go to `ready`."""
        order, positions = self.schedule.orders[stage], self.schedule.positions[stage]
        while self.next_slot[stage] < len(order):
            slot = order[self.next_slot[stage]]
            slot_positions = tuple(positions[pass_.chunk] for pass_ in slot)
            start = self.free[stage]
            for pass_, position in zip(slot, slot_positions, strict=True):
                need = self._need(pass_, position)
                if need is None:
                    continue
                if self.ends[need[0]] < 0:
                    self.waiting.setdefault(need[0], []).append(stage)
                    return
                start = max(start, self.ends[need[0]] + need[1])
            end = start + self.duration(slot, slot_positions)
            self.free[stage] = end + self.gap[stage]
            self.next_slot[stage] += 1
            for pass_, position in zip(slot, slot_positions, strict=True):
                code = self._code(_KIND[pass_.phase], position, pass_.microbatch)
                self.ends[code] = end
                ready += self.waiting.pop(code, ())
                self.spans[stage].append(
                    (stage, pass_.chunk, position, pass_.microbatch, PHASES.index(pass_.phase), start, end)
                )

    def _code(self, kind: int, position: int, microbatch: int) -> int:
        return (kind * self.count + position) * self.size + microbatch

    def _need(self, pass_: Pass, position: int) -> tuple[int, int] | None:
        """Code of the pass that this one needs, and ns until its result arrives."""
        kind, source, transit = _KIND[pass_.phase], position, 0
        if kind == 0:
            if position == 0:
                return None
            source, transit = position - 1, self.times.forward_transit
        elif kind == 2:
            kind = 1
        elif position == self.count - 1:
            kind = 0
        else:
            source, transit = position + 1, self.times.backward_transit
        if self.stage_of[source] == self.stage_of[position]:
            transit = 0
        return self._code(kind, source, pass_.microbatch), transit

    def _why(self) -> str:
        """The cycle of stages that wait for each other."""
        stuck = next(s for s, order in enumerate(self.schedule.orders) if self.next_slot[s] < len(order))
        reasons: dict[int, str] = {}
        while stuck not in reasons:
            slot = self.schedule.orders[stuck][self.next_slot[stuck]]
            needs = [
                (pass_, self._need(pass_, self.schedule.positions[stuck][pass_.chunk])) for pass_ in slot
            ]
            pass_, code = next((pass_, need[0]) for pass_, need in needs if need and self.ends[need[0]] < 0)
            kind, position = divmod(code // self.size, self.count)
            source = self.stage_of[position]
            chunk = self.schedule.positions[source].index(position)
            sources = [Pass(phase, chunk, code % self.size) for phase in PHASES if _KIND[phase] == kind]
            slot_index = next(
                (
                    index
                    for index, slot in enumerate(self.schedule.orders[source])
                    if any(pass_ in slot for pass_ in sources)
                ),
                -1,
            )
            reasons[stuck] = f"stage {stuck} waits before its pass {self.next_slot[stuck]} ({pass_}) for " + (
                f"pass {slot_index} of stage {source} ({sources[0]})"
                if slot_index >= 0
                else f"{sources[0]} of stage {source}, which never runs it"
            )
            if slot_index < 0:
                break
            stuck = source
        return "; ".join(reasons.values())
