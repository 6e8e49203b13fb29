"""Which files a command line means."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from glob import escape, iglob

from tracelens.errors import ParseError
from tracelens.filenames import CAPTURES, LADDER, SIDE_FILES, TRACE_SUFFIXES, traces_among
from tracelens.limits import limits
from tracelens.read.remote import Listing, is_url, list_url

MAGIC = re.compile(r"[*?\[]")
"""What makes a path a pattern."""

_NUMBER = re.compile("([0-9]+)")
_LOOKED_FOR = f"looked for {', '.join(TRACE_SUFFIXES)}"
_DEPTH, _SHOWN = 2, 6


class TraceFiles:
    """The files that paths mean. Each path is expanded once, however often its files are asked for.

    Args:
        paths: files, directories, patterns (`traces/rank*.json.gz`, `traces/**/*.json`), "-" for stdin, and
            the same as URLs where fsspec is installed (`s3://bucket/traces/`).
    """

    def __init__(self, paths: Iterable[str | os.PathLike[str]] = ()) -> None:
        self.paths = tuple(map(str, paths))
        self._files: dict[str, list[str]] = {}

    def of(self, *paths: str) -> list[str]:
        """The files of these paths, each once, in the order given; a directory's with rank2 before rank10.

        Raises:
            ParseError: a directory holds no trace, nothing matches a pattern, or a URL cannot be listed.
            TracelensError: TRACELENS_LIMITS is wrong.
            MissingExtra: a URL, and fsspec is not installed.
        """
        limits()  # a mistake in TRACELENS_LIMITS is told before any work begins
        files: dict[str, str] = {}
        for path in map(local_path, paths):
            if path not in self._files:
                self._files[path] = _expand(path)
            for file in self._files[path]:
                files.setdefault(_identity(file), file)
        return list(files.values())

    def all(self) -> list[str]:
        """The files of all paths; raises as `of`."""
        return self.of(*self.paths)


def local_path(path: str) -> str:
    """Local files given as URLs are read as local files."""
    return path.removeprefix("file://").removeprefix("local://")


def _identity(file: str) -> str:
    if file == "-" or is_url(file):
        return file
    try:
        return os.path.realpath(file)
    except ValueError:  # no file name at all; opening it says so
        return file


def _expand(path: str) -> list[str]:
    listing = None if path == "-" else _list(path)
    if listing is None:
        return [path]
    traces = traces_among(listing.files)
    if not listing.pattern:
        # The index of a ladder, say, lies beside the runs.
        only_side_files = all(os.path.basename(file) in SIDE_FILES for file in traces)
        runs = _runs_below(listing.folders) if only_side_files else {}
        if runs or not traces:
            raise ParseError(path, _no_trace(path, listing, runs))
        return sorted(traces, key=_natural)
    # Captures belong to the traces beside them, unless they are named.
    is_named = CAPTURES in path
    traces = [file for file in traces if is_named or os.path.basename(os.path.dirname(file)) != CAPTURES]
    for folder in listing.folders:
        inside = _list(folder) if is_named or os.path.basename(folder) != CAPTURES else None
        traces += traces_among(inside.files) if inside else []
    # Where some are named like traces, the others are notes, logs and the like.
    if not traces and not listing.files:
        bare = f"matches folders without a trace ({_LOOKED_FOR})"
        raise ParseError(path, bare if listing.folders else "no file matches this pattern")
    return sorted(traces or listing.files, key=_natural)


def _no_trace(path: str, listing: Listing, runs: Mapping[str, list[str]]) -> str:
    """Why a directory is no run, and what to pass instead."""
    if not runs:
        inner = f"; for its folders, pass '{os.path.join(path, '*')}'" if listing.folders else ""
        kinds = Counter(os.path.splitext(file)[1] or "without suffix" for file in listing.files)
        held = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common(3))
        what = f"holds no trace, only files of other kinds ({held})" if held else "holds no trace"
        return f"{what}; {_LOOKED_FOR}{inner}"
    first, *others = runs
    if not others:
        return f"holds no trace itself; pass {first}"
    names = _few([os.path.relpath(run, path) for run in runs])
    advice = f"name one, or compare two: tracelens diff {first} {others[0]}"
    if any(os.path.basename(file) == LADDER for file in listing.files):
        advice = f"name one, or report on the ladder: tracelens workload ladder --from {path}"
    from tracelens.trace import named_ranks

    ranks = [rank for traces in runs.values() for rank in named_ranks(traces) if rank >= 0]
    if len({*ranks}) == len(ranks):  # perhaps hosts of one job
        advice += f"; if they are one job, pass '{os.path.join(path, '*')}'"
    return f"holds {len(runs)} runs: {names}; {advice}"


def _runs_below(folders: Iterable[str], depth: int = _DEPTH) -> dict[str, list[str]]:
    """Folders that hold traces, with these; one with traces is not entered."""
    runs: dict[str, list[str]] = {}
    for folder in sorted(folders, key=_natural):
        if is_url(folder) or os.path.basename(folder).startswith("."):
            continue
        with suppress(ParseError):  # one that may not be read
            listing = _list(folder)
            traces = traces_among(listing.files) if listing else []
            if traces and not all(os.path.basename(file) in SIDE_FILES for file in traces):
                runs[folder] = sorted(traces, key=_natural)
            elif listing and depth:
                runs |= _runs_below(listing.folders, depth - 1)
    return runs


def _few(names: list[str]) -> str:
    return ", ".join(names if len(names) <= _SHOWN else [*names[: _SHOWN - 1], f"... ({len(names)})"])


def _list(path: str) -> Listing | None:
    """What is in a directory, or matches a pattern; None for a file, be it there or not."""
    if is_url(path):
        return list_url(path, TRACE_SUFFIXES)
    pattern = False
    if os.path.isdir(path):
        try:
            paths = [os.path.join(path, name) for name in os.listdir(path)]
        except OSError as error:
            raise ParseError(path, f"cannot be listed ({error.strerror}); check its permissions") from None
    elif MAGIC.search(path) and not os.path.lexists(path):  # a name may hold such characters
        pattern, paths = True, list(_matches(path))
    else:
        return None
    folders = [name for name in paths if os.path.isdir(name)]
    # A pipe, a socket or a device is read where somebody names it, and never because it lies in a directory.
    return Listing(pattern, sorted(name for name in {*paths} if os.path.isfile(name)), folders)


def _matches(pattern: str) -> Iterator[str]:
    """What matches a pattern; `**` enters each directory once, so that links in a circle come to an end."""
    before, deep, behind = f"/{pattern}".partition("/**")
    before = before[1:]
    if not deep or (behind and not behind.startswith("/")):
        yield from iglob(pattern)
        return
    root = before or ("/" if pattern.startswith("/") else "")
    entered: set[tuple[int, int]] = set()
    for top in iglob(root) if root else ["."]:
        for folder, folders, files in os.walk(top, followlinks=True):
            status = os.stat(folder)
            if (status.st_dev, status.st_ino) in entered:
                folders.clear()
                continue
            entered.add((status.st_dev, status.st_ino))
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            shown_folder = folder if root else os.path.relpath(folder, ".")
            if rest := behind.lstrip("/"):
                yield from _matches(os.path.join(escape(shown_folder), rest) if shown_folder != "." else rest)
            else:
                yield from (
                    os.path.normpath(os.path.join(shown_folder, name))
                    for name in [*folders, *files]
                    if not name.startswith(".")
                )


def _natural(path: str) -> tuple[list[str | int], str]:
    parts = _NUMBER.split(path)
    return [int(part) if index % 2 else part for index, part in enumerate(parts)], path
