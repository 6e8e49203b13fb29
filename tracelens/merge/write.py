"""Writing a long list of JSON events, compressed or not; the file appears whole or not at all."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import orjson

from tracelens.errors import TracelensError
from tracelens.outputs import cannot_write, whole_file

deflate: Any = zlib

with suppress(ImportError):  # Several times as fast as zlib, with the same interface.
    from isal import isal_zlib as deflate

SUFFIXES = (".json", ".json.gz")
_LEVEL = 1
_GZIP = 31


def check_suffix(path: str | os.PathLike[str]) -> None:
    """Refuse a path that does not say how to write it.

    Raises:
        TracelensError: it ends in neither of SUFFIXES.
    """
    if not os.fspath(path).lower().endswith(SUFFIXES):
        raise TracelensError(f"{os.fspath(path)}: a fused trace is written as {' or '.join(SUFFIXES)}")


def write_events(
    path: str | os.PathLike[str],
    header: Mapping[str, Any],
    batches: Iterable[list[str]],
    tail: Callable[[], Mapping[str, Any]],
) -> None:
    """Write a trace; missing parent directories are made.

    Args:
        path: ends in one of SUFFIXES; .gz is compressed.
        header: keys before the events, at least one.
        batches: the events as JSON texts; only one batch is in memory at a time.
        tail: keys behind the events, asked for when all batches are written.

    Raises:
        TracelensError: it cannot be written; the system's reason is given.
    """
    blocks = _blocks(header, batches, tail)
    try:
        with whole_file(path, parents=True) as file:
            for block in _packed(blocks) if os.fspath(path).lower().endswith(".gz") else blocks:
                file.write(block)
    except OSError as error:
        raise cannot_write(path, error) from error


def _blocks(
    header: Mapping[str, Any], batches: Iterable[list[str]], tail: Callable[[], Mapping[str, Any]]
) -> Iterator[bytes]:
    yield orjson.dumps(header).removesuffix(b"}") + b',"traceEvents":[\n'
    separator = ""
    for batch in batches:
        if batch:
            yield (separator + ",\n".join(batch)).encode()
            separator = ",\n"
    keys = orjson.dumps(tail())
    yield b"\n]" + (b"," + keys.removeprefix(b"{") if len(keys) > len("{}") else b"}") + b"\n"


def _packed(blocks: Iterable[bytes]) -> Iterator[bytes]:
    packer = deflate.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
    for block in blocks:
        yield packer.compress(block)
    yield packer.flush()
