"""Schedules played by hand, drawn as text: one line a stage, one column a unit of time.

    drawn("01.aA2bBcC", ".0a1bA2cBC")

`0`, `1`, ...: forward of that micro-batch; `a`, `b`, ...: backward of micro-batch 0, 1, ... or its half by
input; `A`, `B`, ...: its half by weight; `.`: nothing. A mark that goes on is one longer pass.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from tracelens.arrays import Int
from tracelens.planner.pipeline import BACKWARD, FORWARD, PHASES, WEIGHT, ChunkTimes, Played, Slot

_RUN = re.compile(r"([0-9a-zA-Z])\1*")
Bars = list[tuple[str, int, int, int]]


def drawn(*lines: str) -> list[Bars]:
    """Each stage's passes: mark's kind (F, B, W), micro-batch, start, end."""
    return [[_bar(match) for match in _RUN.finditer(line)] for line in lines]


def _bar(match: re.Match[str]) -> tuple[str, int, int, int]:
    mark = match[1]
    kind = "F" if mark.isdigit() else "B" if mark.islower() else "W"
    number = int(mark) if mark.isdigit() else ord(mark.lower()) - ord("a")
    return kind, number, *match.span()


def bars(played: Played) -> list[Bars]:
    """The same of a simulation."""
    kinds = dict(zip(PHASES, "FBBW", strict=True))
    drawn: list[Bars] = []
    for stage in range(played.schedule.stages):
        rows = played.of(stage)
        columns = (played.phase[rows], played.micro_batch[rows], played.start[rows], played.end[rows])
        drawn.append(
            [
                (kinds[PHASES[phase]], micro_batch, start, end)
                for phase, micro_batch, start, end in zip(
                    *(column.tolist() for column in columns), strict=True
                )
            ]
        )
    return drawn


def even(count: int, forward: int, backward: int, comm_share: float = 0.0) -> ChunkTimes:
    """Equal times for `count` chunks; `comm_share` of both is exposed communication."""
    ones = np.ones(count, dtype=np.int64)
    parts = (round(forward * comm_share), round(backward * comm_share))
    return ChunkTimes(*(ones * ns for ns in (forward, backward, *parts)))


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
