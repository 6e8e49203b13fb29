"""Where the bytes come from: files, archives and stdin, decompressed block by block.

The kind of compression is read from the first bytes, never from the file name.
"""

from __future__ import annotations

import sys
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from tracelens.errors import ParseError

try:  # Inflates 2-3 times as fast as zlib, with the same interface.
    from isal import isal_zlib as inflate
except ImportError:  # pragma: no cover - platforms without a wheel
    inflate = zlib

BLOCK = 512 * 1024
"""Bytes handed on at a time: small enough for the decoded events of one block to stay in the L2 cache."""

_GZIP, _ZSTD, _ZIP = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PK\x03\x04"
_IGNORED_MEMBERS = ("__MACOSX/", ".DS_Store")


class _Inflater(Protocol):
    eof: bool
    unused_data: bytes

    def decompress(self, data: bytes, /) -> bytes: ...


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
    _started: bool = field(default=False, repr=False)

    def blocks(self) -> Iterator[bytes]:
        """The decompressed bytes in order; can be iterated once. A damaged end sets `damage`, never raises."""
        try:
            for block in self._blocks:
                if block:
                    yield block
        except (zlib.error, inflate.error, zipfile.BadZipFile, EOFError) as error:
            self.damage = f"compressed data is damaged ({error})"
        except _Truncated:
            self.damage = "compressed data ends too early"


class _Truncated(Exception):
    """The compressed stream ends before its end marker."""


def open_source(path: str) -> list[Source]:
    """Open a file, or stdin for "-". A zip archive gives one source a member.

    Raises:
        ParseError: missing, unreadable, empty or undecodable as a whole.
    """
    if path == "-":
        return _sources(BytesIO(sys.stdin.buffer.read()), "-")
    try:
        return _sources(Path(path).open("rb"), path)
    except FileNotFoundError:
        raise ParseError(path, "no such file or directory") from None
    except OSError as error:
        raise ParseError(path, f"cannot be read ({error.strerror})") from None


def _sources(stream: BinaryIO, path: str) -> list[Source]:
    head = stream.read(4)
    stream.seek(0)
    if not head:
        raise ParseError(path, "the file is empty")
    if head.startswith(_ZIP):
        return _members(stream, path)
    if head.startswith(_GZIP):
        return [Source(path, "gzip", _decompress(stream, lambda: inflate.decompressobj(31)))]
    if head == _ZSTD:
        return [Source(path, "zstd", _zstd(stream, path))]
    return [Source(path, "none", iter(lambda: stream.read(BLOCK), b""))]


def _members(stream: BinaryIO, path: str) -> list[Source]:
    try:
        archive = zipfile.ZipFile(stream)
    except zipfile.BadZipFile as error:
        raise ParseError(path, f"damaged zip archive ({error})") from None
    names = [
        info.filename
        for info in archive.infolist()
        if not info.is_dir() and not any(part in info.filename for part in _IGNORED_MEMBERS)
    ]
    if not names:
        raise ParseError(path, "the zip archive holds no file")
    return [Source(f"{path}!{name}", "zip", _member(archive, name, path)) for name in names]


def _member(archive: zipfile.ZipFile, name: str, path: str) -> Iterator[bytes]:
    try:
        with archive.open(name) as member:
            yield from _decompressed_member(member)
    except (RuntimeError, NotImplementedError) as error:  # encrypted, or an unknown method
        raise ParseError(f"{path}!{name}", f"cannot be unpacked ({error})") from None


def _decompressed_member(member: Any) -> Iterator[bytes]:
    """A member may itself be gzip: profilers write .json.gz and people zip directories of them."""
    first = member.read(BLOCK)
    blocks = _chain(first, member)
    if first.startswith(_GZIP):
        yield from _inflate(blocks, lambda: inflate.decompressobj(31))
    else:
        yield from blocks


def _chain(first: bytes, stream: Any) -> Iterator[bytes]:
    yield first
    yield from iter(lambda: stream.read(BLOCK), b"")


def _zstd(stream: BinaryIO, path: str) -> Iterator[bytes]:
    import zstandard

    try:
        yield from _decompress(stream, lambda: zstandard.ZstdDecompressor().decompressobj())
    except zstandard.ZstdError as error:
        raise zlib.error(str(error)) from None


def _decompress(stream: BinaryIO, new: Callable[[], _Inflater]) -> Iterator[bytes]:
    # Compressed reads are small so that one inflated block stays near BLOCK.
    with stream:
        yield from _inflate(iter(lambda: stream.read(BLOCK // 8), b""), new)


def _inflate(blocks: Iterable[bytes], new: Callable[[], _Inflater]) -> Iterator[bytes]:
    """Inflate one or more concatenated streams; bytes after the last one are ignored, as gzip does."""
    inflater = new()
    started = False
    for block in blocks:
        data = block
        while data:
            if inflater.eof:
                if not data.startswith((_GZIP, _ZSTD)):
                    return
                inflater = new()
            started = True
            yield inflater.decompress(data)
            data = inflater.unused_data if inflater.eof else b""
    if started and not inflater.eof:
        raise _Truncated
