"""A pipeline schedule as data: what each stage does, in which order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tracelens.arrays import Int
from tracelens.errors import TracelensError

FORWARD, BACKWARD, INPUT, WEIGHT = PHASES = ("forward", "backward", "input", "weight")
"""Phases of a pass; `input` and `weight` are the two halves of a backward, by what the gradient is of."""


class Pass(NamedTuple):
    """One micro-batch through one chunk of the model.

    Attributes:
        phase: one of PHASES.
        chunk: of the stage's chunks, from 0.
        microbatch: from 0.
    """

    phase: str
    chunk: int
    microbatch: int

    def __str__(self) -> str:
        name = {INPUT: "input gradients", WEIGHT: "weight gradients"}.get(self.phase, self.phase)
        return f"{name} of micro-batch {self.microbatch} in chunk {self.chunk}"


Slot = tuple[Pass, ...]
"""Passes that a stage runs beside each other: one, or the forward and the backward of an overlapped pair."""


@dataclass(frozen=True)
class Schedule:
    """What each stage of a pipeline does.

    Attributes:
        name: of its kind.
        positions: of each stage, the place in the model of each of its chunks; places count from 0.
        microbatches: in a step.
        orders: of each stage, what it runs one after the other.
    """

    name: str
    positions: tuple[tuple[int, ...], ...]
    microbatches: int
    orders: tuple[tuple[Slot, ...], ...]

    @property
    def stages(self) -> int:
        return len(self.positions)

    @property
    def chunks(self) -> int:
        """Chunks of the model on each stage."""
        return len(self.positions[0])

    @property
    def count(self) -> int:
        """Chunks of the whole model."""
        return sum(map(len, self.positions))

    @property
    def splits(self) -> bool:
        """Whether backwards are in two halves."""
        return any(pass_.phase == WEIGHT for slot in self.orders[0] for pass_ in slot)


def round_robin(stages: int, chunks: int) -> tuple[tuple[int, ...], ...]:
    """Places where chunk c of the model lies on stage c % stages."""
    return tuple(tuple(range(stage, stages * chunks, stages)) for stage in range(stages))


def singles(passes: Sequence[Pass]) -> tuple[Slot, ...]:
    """One pass after the other."""
    return tuple((pass_,) for pass_ in passes)


def in_flight(slots: Sequence[Slot]) -> Int:
    """Chunks whose activations a stage holds, after each of its slots has begun.

    A chunk of a micro-batch is held from the begin of its forward to the end of its backward, or of its
    weight gradients where the backward is in two halves.
    """
    split = any(pass_.phase == WEIGHT for slot in slots for pass_ in slot)
    last = WEIGHT if split else BACKWARD
    begun = np.array([sum(pass_.phase == FORWARD for pass_ in slot) for slot in slots], dtype=np.int64)
    ended = np.array([sum(pass_.phase == last for pass_ in slot) for slot in slots], dtype=np.int64)
    return np.cumsum(begun) - np.cumsum(ended) + ended


def check(schedule: Schedule) -> None:
    """Raise TracelensError unless each chunk lies once, and each micro-batch passes it once each way."""
    positions = sorted(position for stage_positions in schedule.positions for position in stage_positions)
    if (
        positions != list(range(len(positions)))
        or len({len(stage_positions) for stage_positions in schedule.positions}) != 1
    ):
        raise TracelensError(f"schedule {schedule.name}: the chunks of the model must lie on one stage each")
    for stage, slots in enumerate(schedule.orders):
        passes = [pass_ for slot in slots for pass_ in slot]
        split = {(pass_.chunk, pass_.microbatch) for pass_ in passes if pass_.phase in (INPUT, WEIGHT)}
        chunk_batches = [
            (chunk, number) for chunk in range(schedule.chunks) for number in range(schedule.microbatches)
        ]
        wanted = {Pass(FORWARD, *position) for position in chunk_batches}
        for position in chunk_batches:
            wanted |= {
                Pass(half, *position) for half in ((INPUT, WEIGHT) if position in split else (BACKWARD,))
            }
        seen: set[Pass] = set()
        for pass_ in passes:
            if pass_ not in wanted or pass_ in seen:
                problem = "twice" if pass_ in seen else "besides what it has to do"
                raise TracelensError(f"schedule {schedule.name}: stage {stage} runs {pass_} {problem}")
            seen.add(pass_)
        if missing := sorted(wanted - seen):
            raise TracelensError(f"schedule {schedule.name}: stage {stage} never runs {missing[0]}")
