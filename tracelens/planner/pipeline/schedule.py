"""A pipeline schedule as data: the passes of each stage, in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tracelens.errors import TracelensError

FORWARD, BACKWARD, INPUT, WEIGHT = PHASES = ("forward", "backward", "input", "weight")
"""Phases of a pass; `input` and `weight` are the two halves of a backward, for either gradient."""


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
"""Passes that a stage runs at once: one, or an overlapped pair of a forward and a backward."""


@dataclass(frozen=True)
class Schedule:
    """The passes of each stage of a pipeline.

    Attributes:
        name: of its kind.
        positions: position in the model, from 0, of each chunk of each stage.
        microbatches: per step.
        orders: slots of each stage, in execution order.
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
        """Chunks per stage."""
        return len(self.positions[0])

    @property
    def count(self) -> int:
        """Chunks of the whole model."""
        return sum(map(len, self.positions))

    @property
    def splits(self) -> bool:
        """Whether backwards are split into two halves."""
        return any(pass_.phase == WEIGHT for slot in self.orders[0] for pass_ in slot)


def round_robin(stages: int, chunks: int) -> tuple[tuple[int, ...], ...]:
    """Positions where chunk c of the model lies on stage c % stages."""
    return tuple(tuple(range(stage, stages * chunks, stages)) for stage in range(stages))


def singles(passes: Sequence[Pass]) -> tuple[Slot, ...]:
    """Slots of one pass each."""
    return tuple((pass_,) for pass_ in passes)


def check(schedule: Schedule) -> None:
    """Raise TracelensError unless each chunk lies on one stage and sees each micro-batch once each way."""
    positions = sorted(position for stage_positions in schedule.positions for position in stage_positions)
    if (
        positions != list(range(len(positions)))
        or len({len(stage_positions) for stage_positions in schedule.positions}) != 1
    ):
        raise TracelensError(
            f"schedule {schedule.name}: each chunk of the model must lie on one stage, equally many on each"
        )
    for stage, slots in enumerate(schedule.orders):
        passes = [pass_ for slot in slots for pass_ in slot]
        split = {(pass_.chunk, pass_.microbatch) for pass_ in passes if pass_.phase in (INPUT, WEIGHT)}
        chunk_batches = [
            (chunk, number) for chunk in range(schedule.chunks) for number in range(schedule.microbatches)
        ]
        required = {Pass(FORWARD, *chunk_batch) for chunk_batch in chunk_batches}
        for chunk_batch in chunk_batches:
            halves = (INPUT, WEIGHT) if chunk_batch in split else (BACKWARD,)
            required |= {Pass(half, *chunk_batch) for half in halves}
        seen: set[Pass] = set()
        for pass_ in passes:
            if pass_ not in required or pass_ in seen:
                problem = "twice" if pass_ in seen else "which is not one of its passes"
                raise TracelensError(f"schedule {schedule.name}: stage {stage} runs {pass_} {problem}")
            seen.add(pass_)
        if missing := sorted(required - seen):
            raise TracelensError(f"schedule {schedule.name}: stage {stage} never runs {missing[0]}")
