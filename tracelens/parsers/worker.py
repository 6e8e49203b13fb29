"""One decoding process: chunks come in on stdin, their encoded columns go out on stdout at the end.

A plain child process instead of multiprocessing: a script without a `__main__` guard, a notebook and an
embedding server can all load traces, and the child imports neither the caller's modules nor pandas.
"""

from __future__ import annotations

import gc
import pickle
import sys
from struct import Struct
from typing import IO

from tracelens.parsers.columns import Part
from tracelens.parsers.decode import decode
from tracelens.parsers.split import Chunk

FRAME = Struct("<qqq")
"""Header of a chunk: index, offset, length of the text that follows; index -1 ends the stream."""


def encode(part: Part, chunk: Chunk) -> Chunk | None:
    """Decode a chunk into `part`; a chunk that may be cut inside an event is handed back instead."""
    decoded = decode(chunk.text, chunk.offset)
    if decoded.open_edge or decoded.end >= 0:
        return chunk
    part.add(chunk.index, decoded)
    return None


def main(stdin: IO[bytes] | None = None, stdout: IO[bytes] | None = None) -> None:
    """Serve one trace: read frames until the end frame, then write (part, unsettled chunks)."""
    source, target = stdin or sys.stdin.buffer, stdout or sys.stdout.buffer
    gc.disable()  # Nothing here makes cycles; the collector would only walk the decoded events.
    part, unsettled = Part(), []
    while True:
        index, offset, length = FRAME.unpack(source.read(FRAME.size))
        if index < 0:
            break
        if (chunk := encode(part, Chunk(index, offset, source.read(length)))) is not None:
            unsettled.append(chunk)
    pickle.dump((part, unsettled), target, protocol=5)
    target.flush()
