"""Decoding a trace on several cores: chunks go to child processes and to this one, whoever is free."""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tracelens.errors import ParseError, TracelensError
from tracelens.parsers.columns import Part, Table, merge
from tracelens.parsers.decode import decode, salvage
from tracelens.parsers.split import Chunk, Splitter
from tracelens.parsers.worker import FRAME, encode

_MIN_CHUNKS = 8
"""Traces below this many chunks (4 MiB) are decoded sooner than a child process starts."""

_CHILD = "import sys; sys.path.insert(0, sys.argv[1]); from tracelens.parsers.worker import main; main()"


def jobs() -> int:
    """Number of decoding processes: TRACELENS_JOBS, else the cores this process may use, at most 8."""
    configured = os.environ.get("TRACELENS_JOBS", "")
    if configured:
        if not configured.isdigit() or int(configured) < 1:
            raise TracelensError(f"TRACELENS_JOBS={configured!r} is not a positive number")
        return int(configured)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, 8)


def decode_all(splitter: Splitter) -> Table:
    """Decode every chunk of a trace.

    Raises:
        ParseError: a chunk reader failed (for instance an unreadable archive member).
        TracelensError: a decoding process died.
    """
    feed = _Feed(splitter)
    part, unsettled = Part(), []
    with _no_gc():
        ahead = feed.peek(_MIN_CHUNKS)
        children = [_Child(feed) for _ in range(jobs() - 1)] if ahead == _MIN_CHUNKS else []
        if children:
            import pandas  # noqa: F401 - imported now, while the children already decode
        for chunk in feed:
            if (back := encode(part, chunk)) is not None:
                unsettled.append(back)
        parts = [part]
        for child in children:
            other, more = child.result()
            parts.append(other)
            unsettled += more
        feed.check()
        _settle(sorted(unsettled), part, splitter)
        return merge(parts)


class _Feed:
    """The chunks of a splitter, handed to whichever thread asks next."""

    def __init__(self, splitter: Splitter) -> None:
        self._chunks = splitter.chunks()
        self._ahead: list[Chunk] = []
        self._lock = threading.Lock()
        self._error: ParseError | None = None

    def peek(self, count: int) -> int:
        """Read up to `count` chunks ahead; returns how many there are."""
        while len(self._ahead) < count and (chunk := next(self._chunks, None)):
            self._ahead.append(chunk)
        return len(self._ahead)

    def __iter__(self) -> Iterator[Chunk]:
        while (chunk := self._next()) is not None:
            yield chunk

    def _next(self) -> Chunk | None:
        with self._lock:
            if self._ahead:
                return self._ahead.pop(0)
            try:
                return next(self._chunks, None)
            except ParseError as error:  # raised again by `check`, in the thread of the caller
                self._error = error
                return None

    def check(self) -> None:
        if self._error is not None:
            raise self._error


class _Child:
    """A decoding process and the thread that feeds it."""

    def __init__(self, feed: _Feed) -> None:
        root = str(Path(__file__).resolve().parents[2])
        self._process = subprocess.Popen(
            [sys.executable, "-c", _CHILD, root],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
        )
        self._feed = feed
        self._answer: tuple[Part, list[Chunk]] | None = None
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            with stdin:
                for chunk in self._feed:
                    _send(stdin, chunk)
                _send(stdin, Chunk(-1, 0, b""))
            with stdout:
                self._answer = pickle.load(stdout)
        except (OSError, EOFError, pickle.UnpicklingError):
            self._answer = None

    def result(self) -> tuple[Part, list[Chunk]]:
        """Wait for the child; raises TracelensError when it died, since its events would be missing."""
        self._thread.join()
        code = self._process.wait()
        if self._answer is None:
            raise TracelensError(f"a decoding process died (exit code {code}); try TRACELENS_JOBS=1")
        return self._answer


def _send(stream: IO[bytes], chunk: Chunk) -> None:
    stream.write(FRAME.pack(chunk.index, chunk.offset, len(chunk.text)))
    stream.write(chunk.text)


def _settle(chunks: list[Chunk], part: Part, splitter: Splitter) -> None:
    """Decode chunks that may have been cut inside an event: neighbours are joined again first."""
    while chunks:
        run = [chunks.pop(0)]
        while chunks and chunks[0].index == run[-1].index + 1:
            run.append(chunks.pop(0))
        text = b"[" + b",".join(chunk.text[1:-1] for chunk in run) + b"]"
        decoded = decode(text, run[0].offset) if len(run) > 1 else salvage(text, run[0].offset)
        part.add(run[0].index, decoded)
        if decoded.end >= 0:
            splitter.close(text[decoded.end : -1])
            return


@contextmanager
def _no_gc() -> Iterator[None]:
    """Pause the cyclic collector: it would walk every decoded event again and again for nothing."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
