"""Time of a kernel: the median over repetitions, with buffers that the cache does not hold from call to call.

On a GPU the calls are captured in one graph and timed by events, so that the host's launches are not in the
figure. Where a capture fails, or on a CPU, the calls run one by one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil
from statistics import median
from typing import NamedTuple

import torch

Call = Callable[[], object]

HOST_WARM_UP, HOST_REPETITIONS = 3, 9
"""Measurements by the host's clock: so many that do not count, then so many of which the median is taken."""

_MOST_BUFFERS = 64
_LEAST_CALLS = 12
_REPETITIONS = 5
_WARM_UP_CALLS, _CALLS_IN_A_ROW = 5, 20  # of a collective, as in nccl-tests
_LEAST_SECONDS = 4e-3  # of one repetition


class FailedMeasurement(NamedTuple):
    """A measurement that the device or this torch cannot do."""

    name: str
    reason: str


@dataclass
class Stopwatch:
    """Times calls on a device."""

    device: torch.device  # where they run
    cache_bytes: int  # of its last-level cache; buffers take turns until they exceed it twice
    is_quick: bool = False  # one repetition of few calls, for trials
    # names of measurements that could not be captured, with the reason
    eager: dict[str, str] = field(default_factory=dict)

    def buffers(self, size_bytes: int) -> int:
        """How many sets of buffers of this size take turns."""
        if self.is_quick:
            return 1
        return max(1, min(_MOST_BUFFERS, ceil(2 * self.cache_bytes / size_bytes)))

    def seconds(self, calls: Sequence[Call], name: str, capture: bool = True) -> float:
        """Median time of a call; the calls do the same on different buffers."""
        for call in calls[:3]:
            call()
        self.wait()
        if self.device.type != "cuda":
            seconds = []
            for _ in range(1 if self.is_quick else 3):
                begin = time.perf_counter()
                for call in calls:
                    call()
                seconds.append((time.perf_counter() - begin) / len(calls))
            return max(median(seconds), 1e-9)

        def one_round() -> None:
            for call in calls:
                call()

        enough = ceil(_LEAST_SECONDS / max(self._events(one_round, 1), 1e-6))
        rounds = min(enough, ceil(_LEAST_CALLS / len(calls)))

        def eager() -> None:
            for _ in range(rounds):
                one_round()

        run: Call = eager
        if capture:
            run = self._captured(eager, name)
        # Repeated until each measurement is long enough.
        first = self._events(run, 1)
        times = ceil(_LEAST_SECONDS / max(first, 1e-6)) if first < _LEAST_SECONDS else 1
        repetitions = 1 if self.is_quick else _REPETITIONS if first < 0.05 else 2
        return median(self._events(run, times) for _ in range(repetitions)) / (rounds * len(calls))

    def in_a_row(self, call: Call, name: str) -> float:
        """Median time of a call; ranks that call this together make as many calls."""

        def calls() -> None:
            for _ in range(_CALLS_IN_A_ROW):
                call()

        for _ in range(_WARM_UP_CALLS):
            call()
        self.wait()
        repetitions = 1 if self.is_quick else _REPETITIONS
        if self.device.type != "cuda":
            marks = [time.perf_counter()]
            for _ in range(repetitions):
                calls()
                marks.append(time.perf_counter())
            seconds = [end - begin for begin, end in pairwise(marks)]
        else:
            run = self._captured(calls, name)
            # The first repetition, which does not count, brings the ranks together; they stay so, as nothing
            # is between one repetition and the next.
            events = [torch.cuda.Event(enable_timing=True) for _ in range(repetitions + 1)]
            for event in events:
                run()
                event.record()
            self.wait()
            seconds = [begin.elapsed_time(end) / 1e3 for begin, end in pairwise(events)]
        return max(median(seconds) / _CALLS_IN_A_ROW, 1e-9)

    def _captured(self, calls: Call, name: str) -> Call:
        """The calls as a graph, or as they are where they cannot be captured."""
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                calls()
        except RuntimeError as error:
            self.wait()
            self.eager[name] = first_line(error)
            return calls
        return graph.replay

    def wait(self) -> None:
        """Until the device has done everything."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _events(self, run: Call, times: int) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(times):
            run()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3 / times


def first_line(error: Exception) -> str:
    """The reason that a message begins with: torch goes on with hints."""
    return str(error).strip().partition("\n")[0]
