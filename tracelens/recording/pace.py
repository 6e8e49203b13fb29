"""Step times without the profiler, which slows the host down.

Two parts of a loop are timed, before the window and after it. A part begins and ends with the device
synchronized and lets it run freely in between, so that its mean is what a step takes when nobody looks;
single steps have no time of their own. The first steps of the loop are left out, and those after the window:
there the ranks, each of which has written a file of its own size, meet again.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from typing import Any

import torch

from tracelens.recording.window import RecordingWindow


class PaceTimer:
    """Times the parts of a loop as it runs."""

    def __init__(self, window: RecordingWindow, most: int) -> None:
        # Of each part that is done, by name: `steps` (its first one and the one after its last), `dur_ns` of
        # all of them, `tokens` and `samples` of all of them (None unless each step told).
        self.parts: dict[str, dict[str, Any]] = {}
        self._ahead = window.timed(most)
        self._open: _TimedPart | None = None

    def step(self, finished: int, **counts: Any) -> bool:
        """Note that so many steps of the loop are done; whether that completes a part.

        Args:
            finished: steps.
            counts: tokens and samples of the last one, None where they are unknown. A tensor is read when the
                part is done, since that may wait for the device.
        """
        if self._open is not None:
            self._open.add(counts)
        for name, steps in self._ahead.items():
            if finished == steps.start:
                self._open = _TimedPart(name, steps.start)
            elif finished == steps.stop:
                return self._close(complete=True)
        return False

    def close(self) -> bool:
        """End the part that is being timed with the last step of the loop; whether there is one."""
        return self._close(complete=False)

    def _close(self, complete: bool) -> bool:
        part, self._open = self._open, None
        result = part.result(complete) if part is not None else None
        if part is None or result is None:
            return False
        self.parts[part.name] = result
        return True

    def abandon(self) -> None:
        """Forget the part that is being timed: the loop has failed, and so may the device."""
        self._open = None


class _TimedPart:
    """A part that is being timed."""

    def __init__(self, name: str, first: int) -> None:
        self.name, self.first = name, first
        self._counts: list[dict[str, Any]] = []
        self._gpus = _gpus_in_use()
        _synchronize(self._gpus)
        self._begin_ns = self._last_ns = time.perf_counter_ns()
        self._begin, self._last = (
            [torch.cuda.Event(enable_timing=True) for _ in self._gpus] for _ in range(2)
        )
        self._mark(self._begin)

    def add(self, counts: dict[str, Any]) -> None:
        """Note a step."""
        self._counts.append(counts)
        self._last_ns = time.perf_counter_ns()
        self._mark(self._last)

    def result(self, complete: bool) -> dict[str, Any] | None:
        """The part's entry in `Pace.parts`, None without any step or where the device has failed.

        Args:
            complete: the last step has just ended. Otherwise the loop may have done something else since, and
                the part ends where the queue of each GPU came to the end of that step.
        """
        if not self._counts:
            return None
        try:
            _synchronize(self._gpus)
            end_ns = time.perf_counter_ns() if complete else self._last_ns
            events = zip(self._begin, self._last, strict=True)
            elapsed_ms = [begin.elapsed_time(last) for begin, last in events]
        except RuntimeError:
            return None
        totals: dict[str, int | None] = {}
        for name in ("tokens", "samples"):
            try:
                totals[name] = sum(int(counts[name]) for counts in self._counts)
            except (KeyError, TypeError, ValueError, RuntimeError):  # unknown, or no number
                totals[name] = None
        return {
            "steps": [self.first, self.first + len(self._counts)],
            "dur_ns": max([end_ns - self._begin_ns, *(round(ms * 1e6) for ms in elapsed_ms)]),
            **totals,
        }

    def _mark(self, events: list[Any]) -> None:
        for gpu, event in zip(self._gpus, events, strict=True):
            event.record(torch.cuda.current_stream(gpu))


def wait_for_gpus() -> None:
    """Wait until the GPUs have done all that this process has launched; one that has failed is left alone."""
    with contextlib.suppress(RuntimeError):
        _synchronize(_gpus_in_use())


def _gpus_in_use() -> list[int]:
    """The GPUs on which this process has work; asking starts none."""
    if not torch.cuda.is_initialized():
        return []
    has_context = getattr(torch._C, "_cuda_hasPrimaryContext", None)
    if has_context is None:
        return [torch.cuda.current_device()]
    return [gpu for gpu in range(torch.cuda.device_count()) if has_context(gpu)]


def _synchronize(gpus: Iterable[int]) -> None:
    for gpu in gpus:
        torch.cuda.synchronize(gpu)
