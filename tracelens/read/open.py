"""Opening a path: a file, an address, stdin, or the members of a zip archive."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import IO

from tracelens.errors import ParseError
from tracelens.limits import limits
from tracelens.read.remote import is_url, open_url, shown_url
from tracelens.read.source import HEAD, Meter, Source, compression, unpacked


def open_source(path: str) -> list[Source]:
    """Open a file, a URL, or stdin for "-". A zip archive gives one source a member.

    Raises:
        ParseError: missing, unreadable, empty or undecodable as a whole.
        MissingExtra: a URL, and fsspec is not installed.
    """
    name = shown_url(path)
    try:
        stream = _open(path)
    except FileNotFoundError:
        raise ParseError(name, "no such file or directory") from None
    except IsADirectoryError:
        raise ParseError(name, "is a directory; name a file in it") from None
    except OSError as error:
        raise ParseError(name, f"cannot be read ({error.strerror}); check its permissions") from None
    except ValueError as error:
        raise ParseError(name, f"is not a file name ({error})") from None
    sources: list[Source] = []
    try:
        sources = _sources(stream, name)
    except OSError as error:
        raise ParseError(name, f"cannot be read ({error.strerror or error})") from None
    finally:
        if not sources and path != "-":
            stream.close()
    return sources


def _open(path: str) -> IO[bytes]:
    if path == "-":
        return sys.stdin.buffer
    return open_url(path) if is_url(path) else Path(path).open("rb")


def _sources(stream: IO[bytes], path: str) -> list[Source]:
    head = stream.read(HEAD)
    if not head:
        raise ParseError(path, "the file is empty; record or copy it again")
    if head[:2] == b"PK" and head[2:] in (b"\x03\x04", b"\x05\x06"):
        # The table of contents stands at the end; a pipe has to be read to the end for it.
        seekable = stream if stream.seekable() else BytesIO(head + _rest_of_archive(stream, path))
        from tracelens.read.archive import members  # few traces are archives

        return members(seekable, path)
    return [Source(path, compression(head), _closing(stream, unpacked(stream, head, Meter(path))))]


def _closing(stream: IO[bytes], blocks: Iterator[bytes]) -> Iterator[bytes]:
    with stream:
        yield from blocks


def _rest_of_archive(stream: IO[bytes], path: str) -> bytes:
    most = limits().piped_archive_bytes
    data = stream.read(most + 1)
    if len(data) > most:
        problem = f"a zip archive from a pipe is kept in memory, and this one has over {most:,} bytes"
        raise ParseError(path, f"{problem}; save it to a file, or {limits().exceeded('piped_archive_bytes')}")
    return data
