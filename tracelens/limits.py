"""How much of an input is read: bounds that no genuine recording reaches, and the one way to raise them.

A file beyond a limit is refused in one line, a single event or text beyond one is left out and counted. The
environment variable TRACELENS_LIMITS raises limits: child processes inherit it, and tasks carry it to Dask
workers. The command line's `--limit NAME=VALUE` sets it.

Memory is at most 200 MB and 40 bytes for each byte of JSON text, not of the compressed file: how far a text
can be compressed (up to 21 times in the recordings at hand) says little about the events in it.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from io import BufferedReader, FileIO
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tracelens.errors import ParseError, TracelensError, UnknownName

if TYPE_CHECKING:
    from typing_extensions import Buffer

VARIABLE = "TRACELENS_LIMITS"

LARGEST_COUNT = 1 << 53
"""Ids and counts in a trace lie below this, which a double holds exactly and which may be added in int64."""

MOST_DIMENSIONS, MOST_ELEMENTS = 64, 1 << 48
"""Of a tensor: torch has no more dimensions, and no machine has memory for more elements."""

MAX_CACHE_AGE = 29
"""Bits of bytes touched since: a cache that keeps what was touched 512 MB before is on no GPU."""

_VALUE = re.compile(r"(\d{1,18}(?:\.\d{1,6})?)\s*([kMGTP]?)(i?)B?", re.ASCII)
_EXPONENTS = {"": 0, "k": 1, "M": 2, "G": 3, "T": 4, "P": 5}
_LARGEST_VALUE = 1 << 62
# A pipe is waited for: whoever writes to it may be started after the command.
_WRITER_S, _PAUSE_S = 5, 0.02


class Limits(NamedTuple):
    """Bounds of what is read.

    Attributes:
        decompressed_bytes: of one trace after decompression.
        decompression_ratio: decompressed bytes for each compressed byte; the first 8 MiB may exceed it.
        zstd_window_bytes: memory that a zstd frame may ask for.
        archive_members: files in a zip archive.
        piped_archive_bytes: of a zip archive that comes from a pipe, which is kept in memory.
        header_bytes: what stands before the first event, and behind the last one.
        event_bytes: JSON text of one event.
        text_bytes: one name, or the recorded arguments of one op.
        ranks: rank numbers, world size, ranks of a process group.
        config_bytes: a model, device or rules file.
        config_values: values in a YAML file after its aliases are expanded.
    """

    decompressed_bytes: int = 64 << 30
    decompression_ratio: int = 250
    zstd_window_bytes: int = 128 << 20
    archive_members: int = 20_000
    piped_archive_bytes: int = 1 << 30
    header_bytes: int = 64 << 20
    event_bytes: int = 64 << 20
    text_bytes: int = 4 << 20
    ranks: int = 1 << 17
    config_bytes: int = 4 << 20
    config_values: int = 100_000

    def exceeded(self, name: str) -> str:
        """The limit of this name and how to raise it, as the end of a message."""
        value = getattr(self, name)
        return f"the limit is {value:,}; raise it with --limit {name}=VALUE or {VARIABLE}={name}=VALUE"


def limits() -> Limits:
    """The limits in force; raises TracelensError where TRACELENS_LIMITS is wrong."""
    return parse_limits(os.environ.get(VARIABLE, ""))


@lru_cache(maxsize=64)
def parse_limits(text: str) -> Limits:
    """Limits from `name=value,name=value`; values may end with k, M, G, T (1000) or ki, Mi, Gi, Ti (1024).

    Raises:
        TracelensError: no such limit, or not a positive number.
    """
    known = Limits._fields
    values: dict[str, int] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = (part.strip() for part in entry.partition("="))
        if name not in known:
            raise TracelensError(f"--limit or {VARIABLE}: {UnknownName('limit', name[:80], known)}")
        values[name] = _number(name, value)
    return Limits(**values)


def set_limits(entries: list[str]) -> None:
    """Add limits (`name=value`) to those in force, for this process and those that it starts.

    Raises:
        TracelensError: as `parse_limits`.
    """
    text = ",".join(filter(None, [os.environ.get(VARIABLE, ""), *entries]))
    parse_limits(text)
    os.environ[VARIABLE] = text


@contextmanager
def applied(text: str) -> Iterator[None]:
    """Limits as another process has them, for the length of a block; "" changes nothing."""
    before = os.environ.get(VARIABLE)
    if text:
        os.environ[VARIABLE] = text
    try:
        yield
    finally:
        if text and before is None:
            del os.environ[VARIABLE]
        elif before is not None:
            os.environ[VARIABLE] = before


class _Pipe(FileIO):
    """A pipe of which the first byte may have been read already."""

    first: bytes | None = b""

    def readinto(self, buffer: Buffer) -> int | None:
        if not self.first:
            return super().readinto(buffer)
        memoryview(buffer)[:1], self.first = self.first, b""
        return 1


def open_input(path: str | os.PathLike[str]) -> BufferedReader:
    """A file to read; a named pipe is waited for until somebody writes to it, but not for ever.

    Raises:
        ParseError: nobody writes to the pipe.
        OSError: as when opening it.
    """
    if not stat.S_ISFIFO(os.stat(path).st_mode):
        return Path(path).open("rb")
    # Opened in the usual way, a pipe that nobody writes to would block this call.
    pipe = _Pipe(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
    deadline = time.monotonic() + _WRITER_S
    # Without a writer nothing comes, from one that has yet to write None.
    while (first := pipe.read(1)) == b"":
        if time.monotonic() > deadline:
            pipe.close()
            problem = "a pipe that nobody writes to; start its writer, or name a file"
            raise ParseError(os.fspath(path), problem)
        time.sleep(_PAUSE_S)
    os.set_blocking(pipe.fileno(), True)
    pipe.first = first
    return BufferedReader(pipe)


def _number(name: str, text: str) -> int:
    match = _VALUE.fullmatch(text)
    number = 0
    if match:
        digits, prefix, binary = match.groups()
        number = int(float(digits) * (1024 if binary else 1000) ** _EXPONENTS[prefix])
        number = int(digits) if digits.isdigit() and not prefix else number
    if not 0 < number <= _LARGEST_VALUE:
        problem = f"--limit or {VARIABLE}: {name}={text[:80]!r} is not a positive number"
        raise TracelensError(f"{problem}; write it as 500000, 20G or 512Mi")
    return number
