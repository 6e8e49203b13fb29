"""Zip archives: one source a member."""

from __future__ import annotations

import os
import struct
import zipfile
from collections.abc import Iterator
from io import BytesIO
from typing import IO

from tracelens.errors import ParseError
from tracelens.filenames import TRACE_SUFFIXES
from tracelens.limits import limits
from tracelens.read.remote import is_url
from tracelens.read.source import HEAD, Damage, Meter, Source, unpacked

# Of these zipfile inflates a bounded amount at a time; 45 bytes of bzip2 would become 900 kB at once.
_READ = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_NAMES = {zipfile.ZIP_BZIP2: "bzip2", zipfile.ZIP_LZMA: "lzma"}

_IGNORED = ("__MACOSX/", ".DS_Store")


def members(stream: IO[bytes], path: str) -> list[Source]:
    """The traces in an archive.

    Args:
        stream: the archive, at its start or not; closed unless it is stdin, remote or in memory.
        path: as the user named it, "-" for stdin.

    Raises:
        ParseError: damaged, or without any file.
    """
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
    # Members may share their compressed bytes, so the whole archive has one meter.
    meter = Meter(path, archive_bytes=size)
    return [Source(f"{path}!{name}", "zip", _blocks(archive, name, path, meter)) for name in traces or names]


def _blocks(archive: zipfile.ZipFile, name: str, path: str, meter: Meter) -> Iterator[bytes]:
    """A member may itself be compressed: profilers write .json.gz and people zip directories of them."""
    method = archive.getinfo(name).compress_type
    if method not in _READ:
        compression = _NAMES.get(method, f"method {method}")
        raise ParseError(
            f"{path}!{name}", f"zip members compressed with {compression} are not read; unpack it first"
        )
    try:
        with archive.open(name) as member:
            yield from unpacked(member, member.read(HEAD), meter)
    except zipfile.BadZipFile as error:
        raise Damage(f"compressed data is damaged ({error})") from None
    except (RuntimeError, NotImplementedError) as error:  # encrypted, or an unknown method
        raise ParseError(f"{path}!{name}", f"cannot be unpacked ({error})") from None
