"""Decoding one trace on several cores: chunks go to whoever is free.

With the native core these are threads; a chunk that it does not take is decoded in Python. Without it child
processes help: one reads chunks from stdin; the encoded columns of a trace go out when it ends.
"""

from __future__ import annotations

import gc
import pickle
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from struct import Struct
from typing import IO, TYPE_CHECKING, Protocol

from tracelens.errors import ParseError, TracelensError
from tracelens.native import core
from tracelens.read.json.scan import Scan
from tracelens.read.json.split import Chunk, Splitter

if TYPE_CHECKING:
    from concurrent.futures import Future

    from tracelens.read.json.columns import Encoded, Part


class Child(Protocol):
    """A process that takes its work from stdin and answers on stdout."""

    @property
    def stdin(self) -> IO[bytes] | None: ...
    @property
    def stdout(self) -> IO[bytes] | None: ...
    def kill(self) -> None: ...
    def wait(self) -> int: ...


FRAME = Struct("<qqq")
"""Header of a chunk: index, offset, length of the text that follows; index -1 ends a trace."""

_MIN_CHUNKS = 4
"""Traces of fewer chunks (2 MiB) are not worth the hand-over."""


def decode_all(
    splitter: Splitter,
    processes: Sequence[Child] = (),
    threads: int = 0,
    is_wanted: Callable[[], bool] = lambda: True,
) -> Encoded:
    """Decode every chunk of a trace.

    Args:
        splitter: the trace.
        processes: idle children (children.py); without any everything is decoded here.
        threads: of this process that help with the native core.
        is_wanted: asked before each chunk, by a thread that reads ahead.

    Raises:
        ParseError: a chunk could not be read (for instance an encrypted archive member).
        TracelensError: a decoding process died, or nobody wants the trace any more.
    """
    feed = _Feed(splitter, is_wanted)
    own = _Decoder()
    with ExitStack() as stack:
        stack.enter_context(_uncollected())
        enough = bool(processes or threads) and feed.peek(_MIN_CHUNKS) == _MIN_CHUNKS
        helpers = [_Helper(process, feed) for process in processes] if enough else []
        in_threads: list[Future[_Decoder]] = []
        if enough and threads:
            from concurrent.futures import ThreadPoolExecutor

            pool = stack.enter_context(ThreadPoolExecutor(threads))
            in_threads = [pool.submit(_Decoder().take_all, feed) for _ in range(threads)]
        stack.callback(feed.stop)
        own.take_all(feed)
        # Chunks are read while others import numpy.
        from tracelens.read.json.columns import merge

        decoders = [*reversed([thread.result() for thread in in_threads]), own]
        parts = [part for decoder in decoders for part in decoder.parts()]
        unsettled = [chunk for decoder in decoders for chunk in decoder.unsettled]
        part = parts[-1]
        for helper in helpers:
            helper_part, more = helper.result()
            parts.append(helper_part)
            unsettled += more
        feed.check()
        # Chunks that may have been cut inside an event: neighbors are joined again first.
        chunks = sorted(unsettled + feed.rest)
        indices = [chunk.index for chunk in chunks] + [index for one in parts for index in one.blocks]
        last = max(indices, default=0)
        if chunks:  # what the native core does not take
            from tracelens.read.json.salvage import decode
        while chunks:
            run = [chunks.pop(0)]
            while chunks and chunks[0].index == run[-1].index + 1:
                run.append(chunks.pop(0))
            # One array of the events of neighboring chunks; events keep their distance from the first one.
            joined = bytearray(run[0].text[:-1])
            for chunk in run[1:]:
                joined += b",".ljust(chunk.offset - run[0].offset - len(joined) + 1) + chunk.text[1:-1]
            text = bytes(joined + b"]")
            decoded = decode(text, run[0].offset, run[-1].index == last)
            part.add(run[0].index, decoded)
            if decoded.end >= 0:
                # What looked like events behind the end of the list: the keys there may hold lists as well.
                last, end = run[-1].index, run[0].offset + decoded.end
                for each in parts:
                    each.blocks = {index: block for index, block in each.blocks.items() if index <= last}
                    each.unused = {index: counts for index, counts in each.unused.items() if index <= last}
                    each.drops = [drop for drop in each.drops if drop.offset < end]
                splitter.close(text[decoded.end : -1])
                break
        part.drops += splitter.drops
        return merge(parts)


class _Decoder:
    """The chunks of a trace that one thread decodes."""

    def __init__(self) -> None:
        native = core()
        self._scan = Scan(native) if native else None
        self._part: Part | None = None  # of the chunks that Python decodes
        self.unsettled: list[Chunk] = []  # may be cut inside an event

    def take(self, chunk: Chunk) -> None:
        if self._scan and self._scan.take(chunk.index, chunk.text):
            return
        if (back := encode(self._python_part(), chunk)) is not None:
            self.unsettled.append(back)

    def take_all(self, feed: _Feed) -> _Decoder:
        """Decode whatever chunks are left."""
        for chunk in feed:
            self.take(chunk)
        return self

    def parts(self) -> list[Part]:
        """All that was decoded, last what Python did."""
        from tracelens.read.json.columns import ScannedPart

        return [*([ScannedPart(self._scan)] if self._scan else []), self._python_part()]

    def _python_part(self) -> Part:
        from tracelens.read.json.columns import Part

        self._part = self._part or Part()
        return self._part


class _Feed:
    """The chunks of a splitter, handed to whichever thread asks next."""

    def __init__(self, splitter: Splitter, is_wanted: Callable[[], bool]) -> None:
        self._chunks, self._is_wanted = splitter.chunks(), is_wanted
        self._ahead: list[Chunk] = []
        # the one that may hold the end of the list, which is decoded when all others are; none or one
        self.rest: list[Chunk] = []
        self._lock = threading.Lock()
        self._error: ParseError | None = None
        self._is_stopped = False

    def peek(self, count: int) -> int:
        """Read up to `count` chunks ahead; returns how many there are."""
        while len(self._ahead) < count and (chunk := next(self._chunks, None)):
            self._ahead.append(chunk)
        return len(self._ahead)

    def __iter__(self) -> Iterator[Chunk]:
        while True:
            with self._lock:
                try:
                    chunk = None
                    if not self._is_stopped and self._is_wanted():
                        chunk = self._ahead.pop(0) if self._ahead else next(self._chunks, None)
                except ParseError as error:  # raised again by `check`, in the thread of the caller
                    self._error, chunk = error, None
            if chunk is None:
                return
            if chunk.is_rest:
                self.rest.append(chunk)
            else:
                yield chunk

    def stop(self) -> None:
        """Hand out no more chunks: there are none, or an error ends the reading."""
        self._is_stopped = True

    def check(self) -> None:
        """Raise what went wrong while reading."""
        if self._error is not None:
            raise self._error
        if not self._is_wanted():
            raise TracelensError("nobody waits for this trace any more")


class _Helper:
    """The thread that feeds one child and takes its answer."""

    def __init__(self, process: Child, feed: _Feed) -> None:
        self._process = process
        self._feed = feed
        self._answer: tuple[Part, list[Chunk]] | None = None
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            for chunk in self._feed:
                _send(stdin, chunk)
            _send(stdin, Chunk(-1, 0, b""))
            stdin.flush()
            self._answer = pickle.load(stdout)
        except (OSError, EOFError, pickle.UnpicklingError):
            self._answer = None

    def result(self) -> tuple[Part, list[Chunk]]:
        """Wait for the child; raises TracelensError when it died, since its events would be missing."""
        self._thread.join()
        if self._answer is None:
            code = self._process.wait()
            raise TracelensError(f"a decoding process died (exit code {code}); try TRACELENS_JOBS=1")
        return self._answer


def _send(stream: IO[bytes], chunk: Chunk) -> None:
    stream.write(FRAME.pack(chunk.index, chunk.offset, len(chunk.text)))
    stream.write(chunk.text)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without the cyclic collector, which would walk every decoded event for nothing."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def encode(part: Part, chunk: Chunk) -> Chunk | None:
    """Decode a chunk into `part`; one that may be cut inside an event, and so loses it, is handed back."""
    from tracelens.read.json.salvage import decode

    decoded = decode(chunk.text, chunk.offset)
    if decoded.uncertain or decoded.end >= 0:
        return chunk
    part.add(chunk.index, decoded)
    return None


def main(stdin: IO[bytes] | None = None, stdout: IO[bytes] | None = None) -> None:
    """Serve traces until stdin is closed: read frames up to an end frame, write (part, unsettled chunks)."""
    source, target = stdin or sys.stdin.buffer, stdout or sys.stdout.buffer
    gc.disable()  # Nothing here makes cycles; the collector would only walk the decoded events.
    from tracelens.read.json.columns import Part

    part = Part()
    unsettled: list[Chunk] = []
    while header := source.read(FRAME.size):
        index, offset, length = FRAME.unpack(header)
        if index < 0:
            pickle.dump((part, unsettled), target, protocol=5)
            target.flush()
            part, unsettled = Part(), []
        elif (chunk := encode(part, Chunk(index, offset, source.read(length)))) is not None:
            unsettled.append(chunk)
