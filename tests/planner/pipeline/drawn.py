"""Schedules played by hand, drawn as text: one line a stage, one column a unit of time.

    drawn("01.aA2bBcC", ".0a1bA2cBC")

`0`, `1`, ...: forward of that micro-batch; `a`, `b`, ...: backward of micro-batch 0, 1, ... or its half by
input; `A`, `B`, ...: its half by weight; `.`: nothing. A mark that goes on is one longer pass.
"""

from __future__ import annotations

import re

from tracelens.planner.pipeline.schedule import PHASES
from tracelens.planner.pipeline.simulate import Played

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
        columns = (played.phase[rows], played.microbatch[rows], played.start[rows], played.end[rows])
        drawn.append(
            [
                (kinds[PHASES[phase]], microbatch, start, end)
                for phase, microbatch, start, end in zip(
                    *(column.tolist() for column in columns), strict=True
                )
            ]
        )
    return drawn
