"""The pace of a recording: from the trace's header, and from the file beside it that has what came later."""

from __future__ import annotations

import os
from typing import Annotated, Any

import msgspec

from tracelens.errors import ParseError
from tracelens.filenames import SIDECAR
from tracelens.read.open import open_source
from tracelens.trace import PacePart

_LAST = 2**62
_Number = Annotated[int, msgspec.Meta(ge=0, le=_LAST)]
_Positive = Annotated[int, msgspec.Meta(ge=1, le=_LAST)]


class _Part(msgspec.Struct):
    steps: tuple[_Number, _Number]
    dur_ns: _Positive
    tokens: _Number | None = None
    samples: _Number | None = None


class _Pace(msgspec.Struct):
    recording: str = ""
    before: _Part | None = None
    after: _Part | None = None


class _Sidecar(msgspec.Struct):
    pace: _Pace | None = None


def pace_of(path: str, recorder: Any, rank: int) -> tuple[tuple[PacePart, ...], tuple[str, ...]]:
    """The parts of a rank's loop that were timed without the profiler, and what is wrong with the record.

    Args:
        path: of the trace, beside which there may be the file; "-" and members of archives have none.
        recorder: the trace's `tracelens` key.
        rank: of the trace.
    """
    header = recorder.get("pace") if isinstance(recorder, dict) else None
    if header is None:
        return (), ()
    try:
        pace = msgspec.convert(header, _Pace)
        if pace.recording and (beside := _beside(path, rank)) is not None:
            # Of another recording, whose trace this one has replaced.
            pace = beside if beside.recording == pace.recording else pace
    except msgspec.ValidationError as error:
        return (), (f"step times without the profiler are not readable ({error})",)
    return tuple(_parts(pace)), ()


def _beside(path: str, rank: int) -> _Pace | None:
    if path == "-" or "!" in path or rank < 0:
        return None
    file = os.path.join(os.path.dirname(path), SIDECAR if rank == 0 else f"rank{rank}.pace.json")
    try:
        (source, *_) = open_source(file)
        data = b"".join(source.blocks())
        if rank == 0:
            return msgspec.json.decode(data, type=_Sidecar).pace
        return msgspec.json.decode(data, type=_Pace)
    except (ParseError, msgspec.DecodeError):
        return None


def _parts(pace: _Pace) -> list[PacePart]:
    parts = []
    for name, part in (("before", pace.before), ("after", pace.after)):
        if part is not None and part.steps[0] < part.steps[1]:
            first, stop = part.steps
            counts = [-1 if count is None else count for count in (part.tokens, part.samples)]
            parts.append(PacePart(name, first, stop - first, part.dur_ns, *counts))
    return parts
