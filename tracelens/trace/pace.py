"""Step times without the profiler, as the recorder measured them around the trace."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class PacePart:
    """Successive steps that one rank timed without the profiler.

    Attributes:
        name: "before" the recorded steps, or "after" them.
        first: number of its first step, from 0.
        steps: how many there are.
        dur_ns: of all of them together; of single steps nothing is known.
        tokens: of all of them, on all ranks; -1 where the program did not tell.
        samples: likewise.
    """

    name: str
    first: int
    steps: int
    dur_ns: int
    tokens: int = -1
    samples: int = -1

    @property
    def step_ns(self) -> float:
        """Mean duration of a step."""
        return self.dur_ns / self.steps

    def per_s(self, count: int) -> float:
        """Tokens or samples of the part per second, -1 where they are not told."""
        return count / self.dur_ns * 1e9 if count >= 0 else -1.0


_SETTLED = 5
"""Steps with which a part is long enough to stand for the run; the first ones of a loop are rarely alike."""


def settled(parts: Iterable[PacePart]) -> tuple[PacePart, ...]:
    """The parts that stand for a run: those of several steps, or the longest where all are short."""
    parts = tuple(parts)
    least = min(_SETTLED, max((part.steps for part in parts), default=0))
    return tuple(part for part in parts if part.steps >= least)


def mean_step_ns(parts: Iterable[PacePart]) -> float:
    """Mean duration of the steps of the settled ones of several parts, at least one."""
    parts = settled(parts)
    return sum(part.dur_ns for part in parts) / sum(part.steps for part in parts)
