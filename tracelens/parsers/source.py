"""Where the bytes come from: files, URLs, archives and stdin, decompressed block by block.

The kind of compression is read from the first bytes, never from the file name.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import IO, Any, Protocol

from tracelens.errors import ParseError
from tracelens.parsers.remote import is_url, open_url, shown_url

inflate: Any = zlib

with suppress(ImportError):  # Inflates 2-3 times as fast as zlib, with the same interface.
    from isal import isal_zlib as inflate

BLOCK = 512 * 1024
"""Bytes handed on at a time: small enough for the decoded events of one block to stay in the L2 cache."""

HEAD = 4
_LARGEST_WINDOW = 1 << 31


class _Inflater(Protocol):
    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, /) -> bytes: ...


class Damage(Exception):
    """The bytes end here, though not as they should; the text says why."""


@dataclass
class Source:
    """One trace as bytes.

    Attributes:
        path: the input as the user named it; a member of an archive is `archive.zip!member`.
        compression: "none", "gzip", "zstd" or "zip".
        damage: why the bytes end too early, "" when they do not; final once `blocks` is exhausted.
    """

    path: str
    compression: str
    _blocks: Iterable[bytes]
    damage: str = ""

    def blocks(self) -> Iterator[bytes]:
        """The decompressed bytes in order, once; where they end too early, `damage` is set."""
        try:
            for block in self._blocks:
                if block:
                    yield block
        except (zlib.error, inflate.error, EOFError) as error:
            self.damage = f"compressed data is damaged ({error})"
        except Damage as error:
            self.damage = str(error)
        except OSError as error:
            self.damage = f"reading failed ({error.strerror or error})"


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
        raise ParseError(name, f"is no file name ({error})") from None
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
        seekable = stream if stream.seekable() else BytesIO(head + stream.read())
        from tracelens.parsers.archive import members  # few traces are archives

        return members(seekable, path)
    kind = "gzip" if _is_gzip(head) else "zstd" if _is_zstd(head) else "none"
    return [Source(path, kind, _closing(stream, unpacked(stream, head)))]


def _closing(stream: IO[bytes], blocks: Iterator[bytes]) -> Iterator[bytes]:
    with stream:
        yield from blocks


def unpacked(stream: IO[bytes], head: bytes) -> Iterator[bytes]:
    """The decompressed content of a stream whose first bytes have been read already."""
    if _is_gzip(head):
        return _inflate(_read(stream, head, BLOCK // 8), lambda: inflate.decompressobj(31), _is_gzip)
    if _is_zstd(head):
        return _zstd(_read(stream, head, BLOCK // 8))
    return _read(stream, head, BLOCK)


def _read(stream: IO[bytes], head: bytes, size: int) -> Iterator[bytes]:
    # Compressed reads are small so that one inflated block stays near BLOCK.
    size = max(size, HEAD + 1)
    yield head + stream.read(size - len(head))
    yield from iter(lambda: stream.read(size), b"")


def _is_gzip(head: bytes) -> bool:
    return head.startswith(b"\x1f\x8b")


def _is_zstd(head: bytes) -> bool:
    """A zstd frame, or a skippable one, which parallel writers put in front."""
    return head == b"\x28\xb5\x2f\xfd" or (head[1:] == b"\x2a\x4d\x18" and head[0] & 0xF0 == 0x50)


def _zstd(blocks: Iterator[bytes]) -> Iterator[bytes]:
    import zstandard

    def new() -> _Inflater:
        return zstandard.ZstdDecompressor(max_window_size=_LARGEST_WINDOW).decompressobj()

    try:
        yield from _inflate(blocks, new, _is_zstd)
    except zstandard.ZstdError as error:
        raise zlib.error(str(error)) from None


def _inflate(
    blocks: Iterable[bytes], new: Callable[[], _Inflater], starts: Callable[[bytes], bool]
) -> Iterator[bytes]:
    """Inflate one or more concatenated streams, each of which `starts` recognises by its first bytes."""
    inflater = new()
    data = b""
    for block in blocks:
        data += block
        while data:
            if inflater.eof:
                data = data.lstrip(b"\0")  # tapes and some file systems pad
                if len(data) < HEAD:
                    break
                if not starts(data[:HEAD]):
                    raise Damage("what follows the compressed data is not compressed and was left out")
                inflater = new()
            yield inflater.decompress(data)
            data = inflater.unused_data if inflater.eof else b""
    if not inflater.eof:
        raise Damage("compressed data ends too early")
    if data:
        raise Damage("what follows the compressed data is not compressed and was left out")
