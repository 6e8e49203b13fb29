"""From the profiler's JSON to a compressed file of a bounded size.

Too large a trace loses, in this order, until it fits: Python frames and allocations, which are most of a file
that has them; then steps from the last on. What is left is whole steps with all their ops, kernels and
scopes, and the trace says under `tracelens_cut` what it lost. A single step that does not fit is not written.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from isal import igzip

from tracelens.errors import TracelensError
from tracelens.outputs import whole_file
from tracelens.recording.events import Cut, Survey, split, survey
from tracelens.recording.scrub import scrub

MAX_BYTES = 256 * 2**20
"""Some 4 GB of JSON and 10 million events: a rank larger than that takes minutes to read anywhere."""

# 1.4 GB/s on one core at a ninth of the size; zlib's default writes a thirteenth, at 0.1 GB/s.
_LEVEL = 2
_CHUNK = 1 << 20
_FRAMES = frozenset({b"python_function", b"cpu_instant_event"})


@dataclass(frozen=True)
class Packed:
    """What was written.

    Attributes:
        steps: recorded steps that are in the file.
        frames: whether it has Python frames or allocations.
        bytes: its size.
    """

    steps: range
    frames: bool
    bytes: int = 0

    def left_out(self, steps: range, frames: bool) -> list[str]:
        """What was recorded and is not in the file, in words."""
        lost = ["Python frames and allocations"] if frames and not self.frames else []
        cut = range(self.steps.stop, steps.stop)
        if cut:
            lost.append(f"step {cut[0]}" if len(cut) == 1 else f"steps {cut[0]} to {cut[-1]}")
        return lost


class TooLarge(TracelensError):
    """Not even one step without Python frames fits."""


def pack(
    raw: Path,
    out: Path,
    steps: range,
    *,
    frames: bool = False,
    unfinished: int | None = None,
    max_bytes: int | None = MAX_BYTES,
    paths: bool = True,
    metadata: Mapping[str, Any] | None = None,
) -> Packed:
    r"""Compress a trace; memory does not grow with it, and `out` appears only when it is whole.

    Args:
        raw: what the profiler wrote.
        out: file to write, `.json.gz`.
        steps: the steps that were recorded whole.
        frames: whether Python frames or allocations were recorded.
        unfinished: number of a step that the loop did not finish; its events stay, its step mark does not.
        max_bytes: most bytes of `out`; None for no bound.
        paths: keep paths and the host's name; otherwise they are shortened as `scrub` does.
        metadata: keys to add at the top. The profiler's own way to do so turns each \ into a /.

    Raises:
        TooLarge: one step alone is larger.
        TracelensError: a path cannot be shortened, or the profiler's layout is unknown and a cut is needed.
        OSError: a file cannot be read or written.
    """
    marks = frozenset() if unfinished is None else frozenset({b"ProfilerStep#%d" % unfinished})
    seen: Survey | None = None
    with whole_file(out) as file:
        for count, with_frames in _attempts(len(steps), frames):
            kept, cut = steps[:count], Cut(_FRAMES if frames and not with_frames else frozenset(), marks)
            if kept != steps:
                seen = seen or survey(raw)
                cut = seen.cut(kept.stop, cut.categories)
            unchanged = paths and cut == Cut()
            text = _chunks(raw) if unchanged else _rewritten(raw, cut, None if paths else out.name)
            packed = Packed(steps=kept, frames=with_frames)
            keys = _keys(metadata or {}, packed.left_out(steps, frames))
            size = _compress(text, file, max_bytes, keys)
            if size is not None:
                return replace(packed, bytes=size)
        raise TooLarge(
            f"{out.name} was not written: one step without Python frames is larger than "
            f"max_bytes={max_bytes:,}; allow more, or record a smaller step"
        )


def _attempts(steps: int, frames: bool) -> Iterator[tuple[int, bool]]:
    """How many steps, and whether with frames: all of it first, then less and less."""
    yield steps, frames
    if frames:
        yield steps, False
    while steps := steps * 2 // 3:
        yield steps, False


def _chunks(raw: Path) -> Iterator[bytes]:
    with raw.open("rb") as file:
        while chunk := file.read(_CHUNK):
            yield chunk


def _rewritten(raw: Path, cut: Cut, scrubbed: str | None) -> Iterator[bytes]:
    """Text of the trace without what is cut, its paths shortened if it gets a name for that."""

    def shown(text: bytes) -> bytes:
        return scrub(text.decode(), scrubbed).encode() if scrubbed else text

    parts = split(raw)
    batch, size, comma = [next(parts).rstrip()], 0, b"\n"
    last = next(parts)
    for part in parts:  # one behind: the last part is the tail, no event
        if cut.keeps(last):
            batch.append(comma + last)
            size, comma = size + len(last), b",\n"
        if size > _CHUNK:
            yield shown(b"".join(batch))
            batch, size = [], 0
        last = part
    yield shown(b"".join([*batch, b"\n", last]))


def _compress(text: Iterator[bytes], file: IO[bytes], most: int | None, keys: bytes) -> int | None:
    """Size of what is written to an open file, or None where it would be larger than `most` bytes."""
    header = next(text)
    brace = header.index(b"{") + 1
    zipped: Any = igzip.IGzipFile  # which has no types
    file.seek(0)  # behind an earlier attempt
    file.truncate()
    # No name and no time in the header: the same trace gives the same bytes.
    with zipped(filename="", fileobj=file, mode="wb", compresslevel=_LEVEL, mtime=0) as packed:
        packed.write(header[:brace] + keys + header[brace:])
        for chunk in text:
            packed.write(chunk)
            if most is not None and file.tell() > most:
                return None
    size = file.tell()
    return None if most is not None and size > most else size


def _keys(metadata: Mapping[str, Any], left_out: list[str]) -> bytes:
    """The first keys of the trace's JSON object; what was left out, if anything was, among them."""
    note = {"left_out": left_out, "because": "the file would be larger than max_bytes"}
    keys = {**metadata, **({"tracelens_cut": note} if left_out else {})}
    return b"".join(f"\n  {json.dumps(key)}: {json.dumps(value)},".encode() for key, value in keys.items())
