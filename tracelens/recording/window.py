"""Which steps of a training loop are recorded, and the warning where they were not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tracelens.errors import TracelensError

Phase = Literal["wait", "warmup", "record", "done"]

WARMUP = 2
"""Steps with the profiler running and nothing kept: the first pays for the tracing library's start."""

PACE_STEPS = 20
"""Most steps that are timed without the profiler, before the window and after it."""

LEFT_OUT = 2
"""Steps before these that are not timed: kernels are loaded, buffers made and communicators set up."""


class RecordingWarning(UserWarning):
    """A recording is incomplete; the training goes on."""


@dataclass(frozen=True)
class RecordingWindow:
    """`wait` steps without the profiler, `warmup` with nothing kept, then `steps` that are recorded."""

    # Meanwhile kernels are loaded and tuned, communicators set up, the allocator gets its blocks, the
    # optimizer its state.
    wait: int = 5
    warmup: int = WARMUP
    steps: int = 3

    def __post_init__(self) -> None:
        for name, least in (("wait", 0), ("warmup", 0), ("steps", 1)):
            whole_number(name, getattr(self, name), least)

    @classmethod
    def between(cls, start: int, end: int, warmup: int = WARMUP) -> RecordingWindow:
        """The window that records steps `start` to `end - 1`, counted from 0.

        Args:
            start: first recorded step.
            end: the step after the last recorded one.
            warmup: steps before `start` with the profiler running, fewer where `start` is smaller.

        Raises:
            TracelensError: no step lies between them.
        """
        if isinstance(start, int) and isinstance(end, int) and not 0 <= start < end:
            raise TracelensError(
                f"no step to record from {start} to {end}: the end is the step after the last"
            )
        warmed = min(warmup, start)
        return cls(wait=start - warmed, warmup=warmed, steps=end - start)

    @property
    def first(self) -> int:
        """The first recorded step, counted from 0."""
        return self.wait + self.warmup

    @property
    def end(self) -> int:
        """The step after the last recorded one; the trace is written when it begins."""
        return self.first + self.steps

    def phase(self, step: int) -> Phase:
        """What happens with a step, counted from 0."""
        if step >= self.end:
            return "done"
        return "wait" if step < self.wait else "warmup" if step < self.first else "record"

    def recorded(self, finished: int) -> range:
        """The recorded steps among the first `finished` steps of the loop."""
        return range(self.first, max(self.first, min(finished, self.end)))

    def timed(self, most: int) -> dict[str, range]:
        """Steps that are timed without the profiler, counted from 0, by part: "before" and "after".

        Args:
            most: steps of a part: the last ones of `wait`, and the first ones after the window.
        """
        after = self.end + LEFT_OUT
        parts = {
            "before": range(max(LEFT_OUT, self.wait - most), self.wait),
            "after": range(after, after + most),
        }
        return {name: steps for name, steps in parts.items() if steps}

    def values_step(self, most: int) -> int:
        """The step whose values are noted.

        The first of several to warm up, which is like those that are recorded and which nobody looks at; else
        the last of `wait` that is not timed, else the one after `end`.
        """
        if self.warmup > 1:
            return self.wait
        step = self.timed(most).get("before", range(self.wait, self.wait)).start - 1
        return step if step >= 0 else self.end


def whole_number(name: str, value: object, least: int) -> None:
    """Raise TracelensError for what is no whole number of at least so much."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise TracelensError(f"{name} must be a whole number, {least} or more, not {value!r}")
