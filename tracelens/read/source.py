"""Where the bytes come from: files, URLs, archives and stdin, decompressed block by block.

The kind of compression is read from the first bytes, never from the file name.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any, Protocol

from tracelens.errors import ParseError
from tracelens.limits import limits

inflate: Any = zlib

with suppress(ImportError):  # Inflates 2-3 times as fast as zlib, with the same interface.
    from isal import isal_zlib as inflate

BLOCK = 512 * 1024
"""Bytes handed on at a time: small enough for the decoded events of one block to stay in the L2 cache."""

HEAD = 4
_SOME_BLOCKS = 4 * BLOCK
# Four bytes of zstd can stand for 128 KiB, and its decompressor returns all that its input stands for.
_ZSTD_INPUT = 512
_FREE_BYTES = 8 << 20
"""Any input may inflate to so much, whatever its ratio."""


class _Inflater(Protocol):
    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, /) -> bytes: ...


class Damage(Exception):
    """The bytes end here, though not as they should; the text says why."""


class Meter:
    """Bytes that go into a decompressor and come out of it, held to the limits.

    Args:
        path: of the input, for messages.
        archive_bytes: size of the archive that the bytes come from; without one what is read is counted.
    """

    def __init__(self, path: str, archive_bytes: int = 0) -> None:
        self._path, self._packed, self._unpacked = path, archive_bytes, 0
        self._counts_packed = not archive_bytes
        self._limits = limits()

    def packed(self, blocks: Iterable[bytes]) -> Iterator[bytes]:
        """The compressed blocks, counted."""
        for block in blocks:
            self._packed += len(block) if self._counts_packed else 0
            yield block

    def unpacked(self, blocks: Iterable[bytes]) -> Iterator[bytes]:
        """The decompressed blocks, counted.

        Raises:
            ParseError: there are more of them than the limits allow.
        """
        for block in blocks:
            self._unpacked += len(block)
            self._check()
            yield block

    def _check(self) -> None:
        unpacked, most = self._unpacked, self._limits
        if unpacked > most.decompressed_bytes:
            problem = f"is larger than {most.decompressed_bytes:,} bytes after decompression"
            raise ParseError(self._path, f"{problem}; {most.exceeded('decompressed_bytes')}", unpacked)
        if unpacked > max(_FREE_BYTES, most.decompression_ratio * self._packed):
            problem = (
                f"{self._packed:,} compressed bytes inflate to over {unpacked:,}, which no recording does"
            )
            raise ParseError(self._path, f"{problem}; {most.exceeded('decompression_ratio')}", unpacked)


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

    def close(self) -> None:
        """Close the file behind the blocks, if they were not read to their end."""
        if isinstance(self._blocks, Generator):
            self._blocks.close()

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


def unpacked(stream: IO[bytes], head: bytes, meter: Meter) -> Iterator[bytes]:
    """The decompressed content of a stream whose first bytes have been read already.

    Args:
        stream: behind its first bytes.
        head: these.
        meter: holds it to the limits.
    """
    kind = compression(head)
    if kind == "gzip":
        blocks = meter.packed(_read(stream, head, BLOCK // 8))
        return meter.unpacked(_inflate(blocks, _Gunzip, kind))
    if kind == "zstd":
        return meter.unpacked(_zstd(meter.packed(_read(stream, head, _SOME_BLOCKS))))
    return meter.unpacked(meter.packed(_read(stream, head, BLOCK)))


def _read(stream: IO[bytes], head: bytes, size: int) -> Iterator[bytes]:
    # Compressed reads are small so that one inflated block stays near BLOCK.
    size = max(size, HEAD + 1)
    yield head + stream.read(size - len(head))
    yield from iter(lambda: stream.read(size), b"")


def compression(head: bytes) -> str:
    """The compression that the first bytes show: "gzip", "zstd" or "none"."""
    if head.startswith(b"\x1f\x8b"):
        return "gzip"
    # A frame, or a skippable one, which parallel writers put in front.
    is_zstd = head == b"\x28\xb5\x2f\xfd" or (head[1:] == b"\x2a\x4d\x18" and head[0] & 0xF0 == 0x50)
    return "zstd" if is_zstd else "none"


class _Gunzip:
    """Inflates a bounded amount at a time: 64 KiB of gzip can stand for 64 MiB."""

    def __init__(self) -> None:
        self._inflater = inflate.decompressobj(31)

    @property
    def eof(self) -> bool:
        return bool(self._inflater.eof)

    @property
    def unused_data(self) -> bytes:
        """What is left of the last input: it follows the stream, or has yet to be inflated."""
        data: bytes = self._inflater.unused_data if self.eof else self._inflater.unconsumed_tail
        return data

    def decompress(self, data: bytes, /) -> bytes:
        inflated: bytes = self._inflater.decompress(data, _SOME_BLOCKS)
        return inflated


class _Unzstd:
    """The same for zstd, whose decompressor cannot be told how much to return."""

    def __init__(self, new: Callable[[], Any]) -> None:
        self._inflater = new()
        self._unread = b""

    @property
    def eof(self) -> bool:
        return bool(self._inflater.eof)

    @property
    def unused_data(self) -> bytes:
        return self._unread

    def decompress(self, data: bytes, /) -> bytes:
        inflated: list[bytes] = []
        size = pos = 0
        while pos < len(data) and size < BLOCK and not self.eof:
            inflated.append(self._inflater.decompress(data[pos : pos + _ZSTD_INPUT]))
            size += len(inflated[-1])
            pos = min(pos + _ZSTD_INPUT, len(data))
        behind = self._inflater.unused_data if self.eof else b""
        self._unread = data[pos - len(behind) :]
        return b"".join(inflated)


def _zstd(blocks: Iterator[bytes]) -> Iterator[bytes]:
    import zstandard

    window = limits().zstd_window_bytes

    def new() -> _Inflater:
        return _Unzstd(lambda: zstandard.ZstdDecompressor(max_window_size=window).decompressobj())

    try:
        yield from _inflate(blocks, new, "zstd")
    except zstandard.ZstdError as error:
        if "too much memory" in str(error):
            problem = "its zstd frames need a larger window than allowed"
            raise Damage(f"{problem}; {limits().exceeded('zstd_window_bytes')}") from None
        raise zlib.error(str(error)) from None


def _inflate(blocks: Iterable[bytes], new: Callable[[], _Inflater], kind: str) -> Iterator[bytes]:
    """Inflate one or more concatenated streams of one kind of compression."""
    inflater = new()
    data = b""
    for block in blocks:
        data += block
        while data:
            if inflater.eof:
                data = data.lstrip(b"\0")  # tapes and some file systems pad
                if len(data) < HEAD:
                    break
                if compression(data[:HEAD]) != kind:
                    raise Damage("left out uncompressed data after the compressed data")
                inflater = new()
            yield inflater.decompress(data)
            data = inflater.unused_data
    if not inflater.eof:
        raise Damage("compressed data is truncated")
    if data:
        raise Damage("left out uncompressed data after the compressed data")
