"""Write a trace n times as long: the same events again and again, later and with other ids.

The text is copied, not parsed: layout, number format and everything that is not a time or an id stay as
the profiler wrote them, so a parser is measured on the format it will meet. The same input gives the same
bytes. Run as `python -m benchmarks.repeat TRACE OUT [--times 4]`.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

BLOCK = 8 << 20
TAIL = 1 << 16

EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
# An unescaped quote before the key: inside a string it would be \". Zero and negative ids mean "none".
ID = re.compile(
    rb'("(?:correlation|External id|external id|Sequence number|Ev Idx|Python id|Python parent id|id)"'
    rb"\s*:\s*)([1-9]\d*)"
)
TIME = re.compile(rb'("ts"\s*:\s*)([1-9]\d*)')
END = re.compile(rb'"ts"\s*:\s*([1-9]\d*)(?:\.\d+)?(?:\s*,\s*"dur"\s*:\s*(\d+))?')
STEP = re.compile(rb"(ProfilerStep#)(\d+)")


@dataclass(frozen=True)
class Layout:
    """Where the events are in the text, and how far a copy must move to be clear of the one before.

    Attributes:
        start: byte offset of the first byte after the `[` of traceEvents.
        stop: byte offset of its `]`.
        span_us: shift of timestamps per copy, microseconds.
        ids: shift of all ids per copy.
        steps: shift of profiler step numbers per copy.
    """

    start: int
    stop: int
    span_us: int
    ids: int
    steps: int


def repeat(trace: Path, out: Path, times: int) -> None:
    """Write `trace` with its events `times` times to `out`; both may be .json or .json.gz.

    Raises:
        ValueError: the text has no list of traceEvents, or an empty one.
    """
    layout = scan(trace)
    with _writing(out) as sink:
        sink.writelines(_blocks(trace, 0, layout.start))
        for copy in range(times):
            if copy:
                sink.write(b",")
            for block in _blocks(trace, layout.start, layout.stop):
                sink.write(shifted(block, layout, copy) if copy else block)
        sink.writelines(_blocks(trace, layout.stop, None))


def shifted(block: bytes, layout: Layout, copy: int) -> bytes:
    """The block as it stands in copy number `copy`, counted from 0."""
    for pattern, shift in ((TIME, layout.span_us), (ID, layout.ids), (STEP, layout.steps)):
        block = _added(pattern, block, copy * shift)
    return block


def scan(trace: Path) -> Layout:
    """Read the text once to learn its layout."""
    size, head, tail = 0, b"", b""
    start, first_us, last_us, ids, steps = -1, -1, 0, 0, 0
    for block in _blocks(trace, 0, None):
        if start < 0:
            head += block
            found = EVENTS.search(head)
            start = found.end() if found else -1
        times = [(int(ts), int(dur or 0)) for ts, dur in END.findall(block)]
        if times:
            earliest = min(ts for ts, _ in times)
            first_us = earliest if first_us < 0 else min(first_us, earliest)
            last_us = max(last_us, *(ts + dur for ts, dur in times))
        ids = max([ids, *(int(number) for _, number in ID.findall(block))])
        steps = max([steps, *(int(number) + 1 for _, number in STEP.findall(block))])
        size += len(block)
        tail = (tail + block)[-TAIL:]
    if start < 0 or first_us < 0:
        raise ValueError(f"{trace}: no traceEvents with timestamps")
    skipped = size - len(tail)
    stop = skipped + _closing(tail, max(0, start - skipped), trace)
    return Layout(start, stop, last_us - first_us + 1, ids + 1, steps)


def _closing(tail: bytes, start: int, trace: Path) -> int:
    """Offset in `tail` of the `]` of traceEvents: the first from `start` on whose rest closes the file."""
    text = tail.decode("latin-1")
    for bracket in re.compile("]").finditer(text, start):
        try:
            json.loads('{"e":[' + text[bracket.start() :])
        except ValueError:
            continue
        return bracket.start()
    raise ValueError(f"{trace}: traceEvents does not end within the last {TAIL} bytes")


def _added(pattern: re.Pattern[bytes], block: bytes, shift: int) -> bytes:
    return pattern.sub(lambda found: b"%b%d" % (found[1], int(found[2]) + shift), block)


def _blocks(trace: Path, start: int, stop: int | None) -> Iterator[bytes]:
    """The decompressed text from `start` to `stop`, cut before a `{`, where no key and number are split."""
    with gzip.open(trace) if trace.suffix == ".gz" else trace.open("rb") as source:
        source.seek(start)
        left, rest = (stop - start if stop is not None else -1), b""
        while read := source.read(BLOCK if left < 0 else min(BLOCK, left)):
            left -= len(read) if left >= 0 else 0
            text = rest + read
            cut = text.rfind(b"{")
            cut = cut if cut > 0 else len(text)
            yield text[:cut]
            rest = text[cut:]
        yield rest


@contextmanager
def _writing(out: Path) -> Iterator[IO[bytes]]:
    with out.open("wb") as file:
        if out.suffix != ".gz":
            yield file
            return
        # No name and no time in the header: the same events give the same bytes.
        with gzip.GzipFile("", "wb", 1, file, mtime=0) as packed:
            yield packed  # type: ignore[misc]  # a GzipFile is an IO[bytes] in all that is used


def main() -> None:
    """Repeat a trace from the command line."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("trace", type=Path)
    arguments.add_argument("out", type=Path)
    arguments.add_argument("--times", type=int, default=4)
    options = arguments.parse_args()
    repeat(options.trace, options.out, options.times)


if __name__ == "__main__":
    main()
