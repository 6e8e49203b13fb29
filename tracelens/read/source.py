"""Where the bytes of a path come from: files, URLs, archives and stdin, decompressed block by block.

The kind of compression is read from the first bytes, never from the file name. A zip archive is one source a
member.
"""

from __future__ import annotations

import os
import stat
import struct
import sys
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from io import BytesIO
from typing import IO, TYPE_CHECKING, Any, Protocol

from msgspec import Struct

from tracelens.errors import Damage, DamageKind, ParseError, suggestion
from tracelens.filenames import TRACE_SUFFIXES, kinds_among
from tracelens.limits import limits, open_input

if TYPE_CHECKING:
    import zipfile

inflate: Any = zlib
with suppress(ImportError):  # Inflates 2-3 times as fast as zlib, with the same interface.
    from isal import isal_zlib as inflate
BLOCK = 512 * 1024
"""Bytes handed on at a time: small enough for the decoded events of one block to stay in the L2 cache."""
HEAD = 4
_SOME_BLOCKS = 4 * BLOCK
# Four bytes of zstd can stand for 128 KiB, and its decompressor returns all that its input stands for.
_ZSTD_INPUT = 512
_IGNORED = ("__MACOSX/", ".DS_Store")
_FREE_BYTES = 8 << 20
"""Any input may inflate to so much, whatever its ratio."""


class _Inflater(Protocol):
    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, /) -> bytes: ...


class EarlyEnd(Exception):
    """The bytes end here, though not as they should: of which kind of damage, and why."""

    def __init__(self, kind: DamageKind, reason: str) -> None:
        super().__init__(reason)
        self.kind, self.reason = kind, reason


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

    @property
    def read(self) -> int:
        """Compressed bytes so far, or those of the archive."""
        return self._packed

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
            unpacked, most = self._unpacked, self._limits
            if unpacked > most.decompressed_bytes:
                problem = f"is larger than {most.decompressed_bytes:,} bytes after decompression"
                raise ParseError(self._path, f"{problem}; {most.exceeded('decompressed_bytes')}", unpacked)
            if unpacked > max(_FREE_BYTES, most.decompression_ratio * self._packed):
                problem = (
                    f"{self._packed:,} compressed bytes inflate to over {unpacked:,}, which no recording does"
                )
                raise ParseError(self._path, f"{problem}; {most.exceeded('decompression_ratio')}", unpacked)
            yield block


class Source(Struct):
    """One trace as bytes."""

    path: str  # the input as the user named it; a member of an archive is `archive.zip!member`
    compression: str  # "none", "gzip", "zstd" or "zip"
    _blocks: Iterable[bytes]
    meter: Meter  # of what is read of it
    size: int = -1  # of the file, as announced; -1 where nobody does
    cut: EarlyEnd | None = None  # why the bytes end too early; final once `blocks` is exhausted

    def close(self) -> None:
        """Close the file behind the blocks, if they were not read to their end."""
        if isinstance(self._blocks, Generator):
            self._blocks.close()

    def blocks(self) -> Iterator[bytes]:
        """The decompressed bytes in order, once; where they end too early, `cut` is set."""
        try:
            for block in self._blocks:
                if block:
                    yield block
        except (zlib.error, inflate.error, EOFError) as error:
            self.cut = EarlyEnd(DamageKind.CORRUPT, f"compressed data is damaged ({error})")
        except EarlyEnd as error:
            self.cut = error
        except OSError as error:
            self.cut = EarlyEnd(DamageKind.READ_ERROR, f"reading failed ({error.strerror or error})")

    def damage(self, byte: int) -> Damage | None:
        """Why the bytes end at this one of the contents, if they should not."""
        if self.cut is None:
            return None
        share = self.meter.read / self.size if self.size > 0 else -1.0
        return Damage(self.cut.kind, self.cut.reason, byte, share)


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


def open_source(path: str) -> list[Source]:
    """Open a file, a URL, or stdin for "-". A zip archive gives one source a member.

    Raises:
        ParseError: missing, unreadable, empty or undecodable as a whole.
        MissingExtra: a URL, and fsspec is not installed.
    """
    from tracelens.read.files import is_url, open_url, shown_url

    name = shown_url(path)
    try:
        opened = open_url if is_url(path) else open_input
        stream: IO[bytes] = sys.stdin.buffer if path == "-" else opened(path)
    except FileNotFoundError:
        if os.path.islink(path):
            problem = f"is a link to {os.readlink(path)}, which is not there; copy what it stands for"
            raise ParseError(name, problem) from None
        folder, base = os.path.split(path)
        near = ""
        with suppress(OSError):  # no such folder either, or a URL
            near = suggestion(base, os.listdir(folder or os.curdir))
        raise ParseError(name, f"no such file or directory{near and f'; {near}'}") from None
    except IsADirectoryError:
        raise ParseError(name, "is a directory; name a file in it") from None
    except OSError as error:
        raise ParseError(name, f"cannot be read ({error.strerror}); check its permissions") from None
    except ValueError as error:
        raise ParseError(name, f"is not a file name ({error})") from None
    sources: list[Source] = []
    try:
        head = stream.read(HEAD)
        if not head:
            raise ParseError(name, "the file is empty; record or copy it again")
        if head[:2] == b"PK" and head[2:] in (b"\x03\x04", b"\x05\x06"):
            archive = stream
            if not stream.seekable():
                # Its table of contents stands at its end; a pipe has to be read to the end for it.
                most = limits().piped_archive_bytes
                data = stream.read(most + 1)
                if len(data) > most:
                    problem = (
                        f"a zip archive from a pipe is kept in memory, and this one has over {most:,} bytes"
                    )
                    advice = f"save it to a file, or {limits().exceeded('piped_archive_bytes')}"
                    raise ParseError(name, f"{problem}; {advice}")
                archive = BytesIO(head + data)
            sources = _members(archive, name)
        else:
            meter = Meter(name)
            blocks = _closing(stream, unpacked(stream, head, meter))
            sources = [Source(name, compression(head), blocks, meter, _size(stream))]
    except OSError as error:
        raise ParseError(name, f"cannot be read ({error.strerror or error})") from None
    finally:
        if not sources and path != "-":
            stream.close()
    return sources


def _size(stream: IO[bytes]) -> int:
    """Bytes in a file on a disk, or that a server announced; -1 for a pipe."""
    if (announced := getattr(getattr(stream, "raw", None), "size", None)) is not None:
        return int(announced)
    with suppress(OSError, ValueError):
        status = os.fstat(stream.fileno())
        return status.st_size if stat.S_ISREG(status.st_mode) else -1
    return -1


def _closing(stream: IO[bytes], blocks: Iterator[bytes]) -> Iterator[bytes]:
    with stream:
        yield from blocks


def unpacked(stream: IO[bytes], head: bytes, meter: Meter) -> Iterator[bytes]:
    """The decompressed content of a stream whose first bytes, `head`, have been read already."""
    kind = compression(head)
    # Compressed reads are small so that one inflated block stays near BLOCK.
    size = max({"gzip": BLOCK // 8, "zstd": _SOME_BLOCKS}.get(kind, BLOCK), HEAD + 1)

    def read() -> Iterator[bytes]:
        yield head + stream.read(size - len(head))
        yield from iter(lambda: stream.read(size), b"")

    blocks = meter.packed(read())
    if kind == "gzip":
        blocks = _inflate(blocks, _Gunzip, kind)
    elif kind == "zstd":
        blocks = _zstd(blocks)
    return meter.unpacked(blocks)


def compression(head: bytes) -> str:
    """The compression that the first bytes show: "gzip", "zstd" or "none"."""
    if head.startswith(b"\x1f\x8b"):
        return "gzip"
    # A frame, or a skippable one, which parallel writers put in front.
    is_zstd = head == b"\x28\xb5\x2f\xfd" or (head[1:] == b"\x2a\x4d\x18" and head[0] & 0xF0 == 0x50)
    return "zstd" if is_zstd else "none"


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
            raise EarlyEnd(
                DamageKind.CORRUPT, f"{problem}; {limits().exceeded('zstd_window_bytes')}"
            ) from None
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
                    raise EarlyEnd(DamageKind.CORRUPT, "left out uncompressed data after the compressed data")
                inflater = new()
            yield inflater.decompress(data)
            data = inflater.unused_data
    if not inflater.eof:
        raise EarlyEnd(DamageKind.TRUNCATED, "compressed data is truncated")
    if data:
        raise EarlyEnd(DamageKind.CORRUPT, "left out uncompressed data after the compressed data")


def _members(stream: IO[bytes], path: str) -> list[Source]:
    """The traces in an archive; the stream is closed unless it is stdin, remote or in memory.

    Raises:
        ParseError: damaged, or without any file.
    """
    import zipfile  # few traces are archives

    from tracelens.read.files import is_url

    kept = path == "-" or is_url(path) or isinstance(stream, BytesIO)
    try:
        size = stream.seek(0, os.SEEK_END)
        archive = zipfile.ZipFile(stream if kept else path)
    except (zipfile.BadZipFile, ValueError, NotImplementedError, struct.error) as error:
        raise ParseError(path, f"damaged zip archive ({error}); copy it again") from None
    finally:
        if not kept:
            stream.close()
    listed = archive.infolist()
    if len(listed) > limits().archive_members:
        raise ParseError(path, f"holds {len(listed):,} files; {limits().exceeded('archive_members')}")
    names = [
        info.filename
        for info in listed
        if not info.is_dir() and not any(part in info.filename for part in _IGNORED)
    ]
    if not names:
        raise ParseError(path, "the zip archive is empty")
    if "[Content_Types].xml" in names:
        archive.close()
        raise ParseError(
            path,
            "not a trace but an Office document, such as an Excel report; pass the traces it is made from",
        )
    # As with directories: where some members are named like traces, the others are notes, logs and the like.
    traces = [name for name in names if name.lower().endswith(TRACE_SUFFIXES)]
    if not traces and len(names) > 1 and all(os.path.splitext(name)[1] for name in names):
        archive.close()
        held = kinds_among(names)
        raise ParseError(
            path, f"holds no trace, only files of other kinds ({held}); pass the traces themselves"
        )
    # Members may share their compressed bytes, so the whole archive has one meter.
    meter = Meter(path, archive_bytes=size)
    return [
        Source(f"{path}!{name}", "zip", _blocks(archive, name, path, meter), meter)
        for name in traces or names
    ]


def _blocks(archive: zipfile.ZipFile, name: str, path: str, meter: Meter) -> Iterator[bytes]:
    """A member may itself be compressed: profilers write .json.gz and people zip directories of them."""
    import zipfile

    method = archive.getinfo(name).compress_type
    # Of these zipfile inflates a bounded amount at a time; 45 bytes of bzip2 would become 900 kB at once.
    if method not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        names = {zipfile.ZIP_BZIP2: "bzip2", zipfile.ZIP_LZMA: "lzma"}
        compression = names.get(method, f"method {method}")
        raise ParseError(
            f"{path}!{name}", f"zip members compressed with {compression} are not read; unpack it first"
        )
    try:
        with archive.open(name) as member:
            yield from unpacked(member, member.read(HEAD), meter)
    except zipfile.BadZipFile as error:
        raise EarlyEnd(DamageKind.CORRUPT, f"compressed data is damaged ({error})") from None
    except (RuntimeError, NotImplementedError) as error:  # encrypted, or an unknown method
        raise ParseError(f"{path}!{name}", f"cannot be unpacked ({error})") from None
