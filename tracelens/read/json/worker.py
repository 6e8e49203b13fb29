"""One decoding process: chunks come in on stdin, the encoded columns of a trace go out when it ends."""

from __future__ import annotations

import gc
import pickle
import sys
from struct import Struct
from typing import IO

from tracelens.read.json.columns import Part
from tracelens.read.json.decode import decode
from tracelens.read.json.split import Chunk

FRAME = Struct("<qqq")
"""Header of a chunk: index, offset, length of the text that follows; index -1 ends a trace."""


def encode(part: Part, chunk: Chunk) -> Chunk | None:
    """Decode a chunk into `part`; one that may be cut inside an event, and so loses it, is handed back."""
    decoded = decode(chunk.text, chunk.offset)
    if decoded.uncertain or decoded.end >= 0:
        return chunk
    part.add(chunk.index, decoded)
    return None


def main(stdin: IO[bytes] | None = None, stdout: IO[bytes] | None = None) -> None:
    """Serve traces until stdin is closed: read frames up to an end frame, write (part, unsettled chunks)."""
    source, target = stdin or sys.stdin.buffer, stdout or sys.stdout.buffer
    gc.disable()  # Nothing here makes cycles; the collector would only walk the decoded events.
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
