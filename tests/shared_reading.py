"""Samples that tests read once, however many commands and pages name them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen

from tracelens.limits import VARIABLE
from tracelens.native import core
from tracelens.read import parser
from tracelens.trace import Trace

_LARGEST_BYTES = 4_000_000
_MOST = 64
"""Files whose traces are kept; the one read first goes first."""

_kept: dict[tuple[str, str, str | None, bool], list[Trace]] = {}
_read = parser._read


@contextmanager
def reading_once() -> Iterator[None]:
    """In here, a file is read again only if its name, its content or the limits differ, or if that fails."""
    parser._read = _read_once
    try:
        yield
    finally:
        parser._read = _read


def _read_once(
    path: str, processes: Sequence[Popen[bytes]], threads: int, is_wanted: Callable[[], bool] = lambda: True
) -> list[Trace]:
    file = Path(path)
    if processes or threads or not file.is_file() or file.stat().st_size > _LARGEST_BYTES:
        return _read(path, processes, threads, is_wanted)
    content = hashlib.blake2b(file.read_bytes()).hexdigest()
    key = path, content, os.environ.get(VARIABLE), core() is None
    if key not in _kept:
        _kept[key] = _read(path, processes, threads)
        if len(_kept) > _MOST:
            del _kept[next(iter(_kept))]
    return list(_kept[key])
