"""From the profiler's JSON to a compressed file of a bounded size.

Too large a trace loses, in this order, until it fits: Python frames and allocations, which are most of a file
that has them; then steps from the last on. What is left is whole steps with all their ops, kernels and
scopes, and the trace says under `tracelens_cut` what it lost. A single step that does not fit is not written.

Events are read one after the other, never all at once, as torch's profiler lays them out in text. An event is
the lines from `  {` to `  }`; nothing inside it is indented so little. What stands before the first one (the
header, which ends with `"traceEvents": [`) and behind the last (the tail) is passed on as is.

`scrub` takes out what names the recording machine; every other byte stays as the profiler wrote it. All this
works on text rather than on parsed JSON: timestamps have more digits than a float holds, and must survive.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import Any

from isal import igzip

from tracelens.errors import TracelensError
from tracelens.outputs import whole_file

MAX_BYTES = 256 * 2**20
"""Some 4 GB of JSON and 10 million events: a rank larger than that takes minutes to read anywhere."""
# 1.4 GB/s on one core at a ninth of the size; zlib's default writes a thirteenth, at 0.1 GB/s.
_LEVEL = 2
_CHUNK = 1 << 20
_FRAMES = frozenset({b"python_function", b"cpu_instant_event"})


@dataclass(frozen=True)
class Packed:
    """What was written."""

    steps: range  # recorded steps that are in the file
    frames: bool  # whether it has Python frames or allocations
    bytes: int = 0  # its size

    def left_out(self, steps: range, frames: bool) -> list[str]:
        """What was recorded and is not in the file, in words."""
        lost = ["Python frames and allocations"] if frames and not self.frames else []
        cut = range(self.steps.stop, steps.stop)
        if cut:
            lost.append(f"step {cut[0]}" if len(cut) == 1 else f"steps {cut[0]} to {cut[-1]}")
        return lost


class TooLarge(TracelensError):
    """Not even one step without Python frames fits."""


_CATEGORY = re.compile(rb'"cat": "([^"\n]*)"')
_START = re.compile(rb'"ts": (\d+(?:\.\d+)?)')
_STEP = re.compile(rb'"name": "(ProfilerStep#(\d+))"')
_CORRELATION = re.compile(rb'"correlation": (\d+)')
_CALLS = {b"cuda_runtime", b"cuda_driver", b"hip_runtime", b"hip_api"}
_WORK = {b"kernel", b"gpu_memcpy", b"gpu_memset", b"cuda_sync"}


@dataclass(frozen=True)
class TraceCut:
    """What is left out of a trace."""

    categories: frozenset[bytes] = frozenset()  # of events left out, such as Python frames
    names: frozenset[bytes] = frozenset()  # of scopes left out
    # Us; calls from here on and the work they launch are left out. None: nothing is.
    after: float | None = None
    # the first such call's number; GPU work with this or a larger one is left out
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


@dataclass
class Survey:
    """What is needed to cut a trace behind a step."""

    steps: dict[int, float] = field(default_factory=dict)  # start of each step mark in us, by number
    starts: array[float] = field(default_factory=lambda: array("d"))  # of launching calls, us
    # correlation of those calls, which grows from call to call on all threads together
    numbers: array[int] = field(default_factory=lambda: array("q"))

    def cut(self, first_left_out: int, categories: frozenset[bytes]) -> TraceCut:
        """What is left out to end before a step: its calls, and the work launched by them."""
        after = self.steps[first_left_out]
        later = (number for start, number in zip(self.starts, self.numbers, strict=True) if start >= after)
        return TraceCut(categories, after=after, correlation=min(later, default=None))


# A Python frame is named "/where/torch/nn/modules/module.py(1775): _call_impl".
FRAME = re.compile(r'("name": ")(/[^"\n]*?)(\(\d+\): )')
TRACE_NAME = re.compile(r'("traceName": )"[^"\n]*"')
HOST_NAME = re.compile(r'("host_name": )"[^"\n]*"')
# Longest first: a virtual environment's packages, the standard library, this package's own checkout.
IMPORT_ROOTS = (
    re.compile(r"^/.*/(?:site|dist)-packages/"),
    re.compile(r"^/.*/lib(?:64)?/python3\.\d+/"),
    re.compile(r"^/.*/(?=tracelens/)"),
)
ABSOLUTE = re.compile(r'"(/[^"\n/]+/[^"\n]*)"')


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
    # How many steps, and whether with frames: all of it first, then less and less.
    attempts = [(len(steps), frames), *([(len(steps), False)] if frames else [])]
    while count := attempts[-1][0] * 2 // 3:
        attempts.append((count, False))
    with whole_file(out) as file:
        for count, with_frames in attempts:
            kept, cut = steps[:count], TraceCut(_FRAMES if frames and not with_frames else frozenset(), marks)
            if kept != steps:
                seen = seen or survey(raw)
                cut = seen.cut(kept.stop, cut.categories)
            packed = Packed(steps=kept, frames=with_frames)
            keys = dict(metadata or {})
            if left_out := packed.left_out(steps, frames):
                keys["tracelens_cut"] = {
                    "left_out": left_out,
                    "because": "the file would be larger than max_bytes",
                }
            first_keys = "".join(f"\n  {json.dumps(key)}: {json.dumps(keys[key])}," for key in keys)
            text = _text(raw, cut, None if paths else out.name)
            header = next(text)
            brace = header.index(b"{") + 1
            file.seek(0)  # behind an earlier attempt
            file.truncate()
            zipped: Any = igzip.IGzipFile  # which has no types
            # No name and no time in the header: the same trace gives the same bytes.
            with zipped(filename="", fileobj=file, mode="wb", compresslevel=_LEVEL, mtime=0) as compressed:
                compressed.write(header[:brace] + first_keys.encode() + header[brace:])
                for chunk in text:
                    compressed.write(chunk)
                    if max_bytes is not None and file.tell() > max_bytes:
                        break
            if max_bytes is None or file.tell() <= max_bytes:
                return replace(packed, bytes=file.tell())
        raise TooLarge(
            f"{out.name} was not written: one step without Python frames is larger than "
            f"max_bytes={max_bytes:,}; allow more, or record a smaller step"
        )


def _text(raw: Path, cut: TraceCut, scrubbed: str | None) -> Iterator[bytes]:
    """Text of the trace without what is cut, its paths shortened if it gets a name for that."""
    if cut == TraceCut() and not scrubbed:
        with raw.open("rb") as file:
            while chunk := file.read(_CHUNK):
                yield chunk
        return

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


def scrub(text: str, name: str) -> str:
    """Text of a trace, or some of its lines, without paths of the machine that recorded it.

    - A Python frame keeps its path from the import root on, `torch/nn/modules/module.py(1775): _call_impl`; a
      file outside any import root keeps its name alone.
    - `traceName` becomes `name`, `host_name` becomes `host`.

    Args:
        text: Chrome JSON as torch's profiler writes it; no string in it goes over a line's end.
        name: the file's own name, without folders.

    Raises:
        TracelensError: a string is still an absolute path.
    """
    text = FRAME.sub(lambda match: match[1] + import_path(match[2]) + match[3], text)
    text = TRACE_NAME.sub(lambda match: f'{match[1]}"{name}"', text)
    text = HOST_NAME.sub(r'\1"host"', text)
    absolute_path = ABSOLUTE.search(text)
    if absolute_path is not None:
        raise TracelensError(f"{name}: still contains a path of this machine: {absolute_path[1][:200]!r}")
    return text


def import_path(path: str) -> str:
    """The part of a source file's path that follows its import root, or its file name."""
    for root in IMPORT_ROOTS:
        short, replaced = root.subn("", path)
        if replaced:
            return short
    return PurePath(path).name
