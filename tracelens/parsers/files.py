"""Which files a command line means."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tracelens.errors import ParseError

TRACE_SUFFIXES = (".json", ".json.gz", ".json.zst", ".zip", ".trace", ".trace.gz")
"""What is taken from a directory; a file that is named is read whatever its suffix."""


def trace_files(paths: Iterable[str]) -> list[str]:
    """The files that the given files, directories and "-" stand for, in order of name.

    Raises:
        ParseError: a directory holds no trace.
    """
    files: list[str] = []
    for path in paths:
        if path != "-" and Path(path).is_dir():
            inside = sorted(str(p) for p in Path(path).iterdir() if p.name.lower().endswith(TRACE_SUFFIXES))
            if not inside:
                raise ParseError(path, f"no trace in this directory (looked for {', '.join(TRACE_SUFFIXES)})")
            files += inside
        else:
            files.append(path)
    return files
