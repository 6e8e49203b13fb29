"""The events of a trace as torch's profiler lays them out in text, one after the other and never all at once.

An event is the lines from `  {` to `  }`; nothing inside it is indented so little. What stands before the
first one (the header, which ends with `"traceEvents": [`) and behind the last (the tail) is passed on as is.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tracelens.errors import TracelensError

_CATEGORY = re.compile(rb'"cat": "([^"\n]*)"')
_START = re.compile(rb'"ts": (\d+(?:\.\d+)?)')
_STEP = re.compile(rb'"name": "(ProfilerStep#(\d+))"')
_CORRELATION = re.compile(rb'"correlation": (\d+)')
_CALLS = {b"cuda_runtime", b"cuda_driver", b"hip_runtime", b"hip_api"}
_WORK = {b"kernel", b"gpu_memcpy", b"gpu_memset", b"cuda_sync"}


@dataclass(frozen=True)
class Cut:
    """What is left out of a trace.

    Attributes:
        categories: of events left out, such as Python frames.
        names: of scopes left out.
        after: us; calls from here on and the work they launch are left out. None: nothing is.
        correlation: the first such call's number; GPU work with this or a larger one is left out.
    """

    categories: frozenset[bytes] = frozenset()
    names: frozenset[bytes] = frozenset()
    after: float | None = None
    correlation: int | None = None

    def keeps(self, event: bytes) -> bool:
        match = _CATEGORY.search(event)
        category = match[1] if match else b""
        if category in self.categories:
            return False
        if self.names and (step := _STEP.search(event)) and step[1] in self.names:
            return False
        if self.after is None or not category:
            return True
        if category in _WORK and self.correlation is not None and (call := _CORRELATION.search(event)):
            return int(call[1]) < self.correlation
        start = _START.search(event)
        return start is None or float(start[1]) < self.after


def split(path: Path) -> Iterator[bytes]:
    """The header, each event without the comma behind it, the tail.

    Raises:
        TracelensError: the text is laid out in another way.
    """
    header: list[bytes] = []
    with path.open("rb") as lines:
        for line in lines:
            header.append(line)
            if line.rstrip().endswith(b'"traceEvents": ['):
                break
        yield b"".join(header)
        event: list[bytes] = []
        for line in lines:
            bare = line.rstrip()
            if bare in (b"  }", b"  },"):
                yield b"".join([*event, b"  }"])
                event = []
            elif bare.startswith(b"  ]") and not event:
                yield line + lines.read()
                return
            elif bare or event:
                event.append(line)
    raise TracelensError(f"{path.name}: this version of torch writes events in an unknown layout")


@dataclass
class Survey:
    """What is needed to cut a trace behind a step.

    Attributes:
        steps: start of each step mark in us, by number.
        starts: of launching calls, us.
        numbers: correlation of those calls, which grows from call to call on all threads together.
    """

    steps: dict[int, float] = field(default_factory=dict)
    starts: array[float] = field(default_factory=lambda: array("d"))
    numbers: array[int] = field(default_factory=lambda: array("q"))

    def cut(self, first_left_out: int, categories: frozenset[bytes]) -> Cut:
        """What is left out to end before a step: its calls, and the work launched by them."""
        after = self.steps[first_left_out]
        later = (number for start, number in zip(self.starts, self.numbers, strict=True) if start >= after)
        return Cut(categories, after=after, correlation=min(later, default=None))


def survey(path: Path) -> Survey:
    """Step marks and launching calls of a trace.

    Raises:
        TracelensError: the text is laid out in another way.
    """
    marks = Survey()
    for event in split(path):
        category, start = _CATEGORY.search(event), _START.search(event)
        if not category or not start:
            continue
        if category[1] == b"user_annotation" and (step := _STEP.search(event)):
            marks.steps[int(step[2])] = float(start[1])
        elif category[1] in _CALLS and (call := _CORRELATION.search(event)):
            marks.starts.append(float(start[1]))
            marks.numbers.append(int(call[1]))
    return marks
