"""Which files a command line means, on this machine and elsewhere.

Elsewhere is s3://, gs://, hf://, https:// and whatever else fsspec has a driver for. fsspec is optional and
imported for URLs only; local files never pass through it.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from glob import escape, iglob
from io import BufferedReader, RawIOBase
from typing import IO, Any, cast

from msgspec import Struct

from tracelens.errors import MissingExtra, ParseError
from tracelens.filenames import (
    CAPTURES,
    LADDER,
    PACE_FILE,
    SIDE_FILES,
    TRACE_SUFFIXES,
    kinds_among,
    traces_among,
)
from tracelens.limits import limits

MAGIC = re.compile(r"[*?\[]")
"""What makes a path a pattern."""
_NUMBER = re.compile("([0-9]+)")
_LOOKED_FOR = f"looked for {', '.join(TRACE_SUFFIXES)}"
_DEPTH = 2  # folders below a directory that are searched for runs
_PROFILE_DEPTH = 3  # and for what they hold instead: DIR/plugins/profile/DATE/HOST.xplane.pb
_SHOWN = 6  # runs that a message names
_SNIFFED_BYTES = 65536  # of a file, which tell what it is
# Two letters at least: one letter before the colon is a drive. `simplecache::s3://...` chains drivers.
_URL = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.-]+::)*[A-Za-z][A-Za-z0-9+.-]+://")
_HTTP = re.compile(r"https?://", re.IGNORECASE)
_BUFFER = 1 << 18
_SILENCE_S = 60
_PAUSES_S = (0.1, 1.0, 3.0)  # before a lost connection is taken up again
_PARTIAL_CONTENT = 206  # HTTP's answer to a request for a range
# Drivers raise errors of their own libraries besides OSError and ValueError. A library that is not loaded
# cannot have raised anything.
_DRIVER_ERRORS = (
    ("aiohttp", "ClientError"),
    ("azure.core.exceptions", "AzureError"),
    ("botocore.exceptions", "BotoCoreError"),
    ("botocore.exceptions", "ClientError"),
    ("gcsfs.retry", "HttpError"),
    ("google.auth.exceptions", "GoogleAuthError"),
    ("httpx", "HTTPError"),
    ("httpx2", "HTTPError"),
    ("paramiko", "SSHException"),
)


class Listing(Struct, frozen=True):
    """What a directory holds or a pattern matches."""

    pattern: bool  # whether it was a pattern
    files: list[str]  # each as it can be opened
    folders: list[str]


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
                identity = file
                if file != "-" and not is_url(file):
                    with suppress(ValueError):  # no file name at all; opening it says so
                        identity = os.path.realpath(file)
                files.setdefault(identity, file)
        return list(files.values())

    def all(self) -> list[str]:
        """The files of all paths; raises as `of`."""
        return self.of(*self.paths)

    def only(self, path: str) -> TraceFiles:
        """The files of one path, which is not expanded again."""
        part = TraceFiles([path])
        part._files = self._files
        return part


def same_bytes(first: Sequence[Sequence[str]], second: Sequence[Sequence[str]]) -> bool:
    """Whether two sides have the same bytes run by run: their files, and what is read from beside these.

    A file is the same as itself without being read; others are hashed, where their sizes agree.
    """
    if [len(run) for run in first] != [len(run) for run in second]:
        return False
    for files in zip(
        (file for run in first for file in run), (file for run in second for file in run), strict=True
    ):
        if any(file == "-" or is_url(file) or not os.path.isfile(file) for file in files):
            return False
        if os.path.realpath(files[0]) == os.path.realpath(files[1]):
            continue
        beside = [_beside(file) for file in files]
        if os.path.basename(files[0]) != os.path.basename(files[1]) or beside[0].keys() != beside[1].keys():
            return False
        pairs = [files, *((beside[0][name], beside[1][name]) for name in beside[0])]
        if any(os.path.getsize(one) != os.path.getsize(other) for one, other in pairs):
            return False
        if any(_digest(one) != _digest(other) for one, other in pairs):
            return False
    return True


def _beside(file: str) -> dict[str, str]:
    """Files of a run that are no traces of its ranks, by name: run.json, paces, captures."""
    folder = os.path.dirname(file)
    captures = os.path.join(folder, CAPTURES)
    names = [name for name in os.listdir(folder or ".") if name in SIDE_FILES or PACE_FILE.fullmatch(name)]
    if os.path.isdir(captures):
        names += [os.path.join(CAPTURES, name) for name in os.listdir(captures)]
    paths = {name: os.path.join(folder, name) for name in names}
    return {name: path for name, path in paths.items() if os.path.isfile(path)}


def _digest(file: str) -> bytes:
    from hashlib import file_digest  # only comparisons need it

    with open(file, "rb") as stream:
        return file_digest(stream, "blake2b").digest()


def local_path(path: str) -> str:
    """Local files given as URLs are read as local files."""
    return path.removeprefix("file://").removeprefix("local://")


def _expand(path: str) -> list[str]:
    listing = None if path == "-" else _list(path)
    if listing is None:
        return [path]
    traces = traces_among(listing.files)
    if not listing.pattern:
        # The index of a ladder, say, lies beside the runs.
        only_side_files = all(os.path.basename(file) in SIDE_FILES for file in traces)
        runs = _runs_below(listing.folders) if only_side_files else {}
        if traces and not runs:
            return sorted(traces, key=_natural)
        if not runs:
            inner = f"; for its folders, pass '{os.path.join(path, '*')}'" if listing.folders else ""
            held = kinds_among(listing.files)
            what = f"holds no trace, only files of other kinds ({held})" if held else "holds no trace"
            if not listing.files and (missing := _broken_links(path)):
                raise ParseError(path, f"{what}, only links to what is not there: {missing}")
            if first := _known_kind(next(_files_below(path, listing), "")):
                raise ParseError(path, f"{what}: {first}")
            raise ParseError(path, f"{what}; {_LOOKED_FOR}{inner}")
        first, *others = runs
        if not others:
            raise ParseError(path, f"holds no trace itself; pass {first}")
        names = [os.path.relpath(run, path) for run in runs]
        if len(names) > _SHOWN:
            names = [*names[: _SHOWN - 1], f"... ({len(runs)})"]
        advice = f"name one, or compare two: tracelens diff {first} {others[0]}"
        if any(os.path.basename(file) == LADDER for file in listing.files):
            advice = f"name one, or report on the ladder: tracelens workload ladder --from {path}"
        from tracelens.trace import named_ranks

        ranks = [rank for in_run in runs.values() for rank in named_ranks(in_run) if rank >= 0]
        if len({*ranks}) == len(ranks):  # perhaps hosts of one job
            advice += f"; if they are one job, pass '{os.path.join(path, '*')}'"
        raise ParseError(path, f"holds {len(runs)} runs: {', '.join(names)}; {advice}")
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


def _files_below(folder: str, listing: Listing) -> Iterator[str]:
    """The files in a folder, then those below a local one, as far down as profilers write theirs."""
    yield from listing.files
    for depth in range(1, _PROFILE_DEPTH + 1) if not is_url(folder) else ():
        yield from filter(os.path.isfile, iglob(os.path.join(escape(folder), *"*" * depth, "*")))


def _broken_links(folder: str) -> str:
    """Names of links in a local folder that lead nowhere, "" without any."""
    if is_url(folder):
        return ""
    names = [name for name in sorted(os.listdir(folder)) if not os.path.exists(os.path.join(folder, name))]
    return ", ".join(names[:_SHOWN])


def _known_kind(file: str) -> str:
    """What a file that is no trace is, and what to do with it; "" where that is not known."""
    from tracelens.read.foreign import not_json_but  # a slip needs it, not a run

    if not file or is_url(file):
        return ""
    try:
        with open(file, "rb") as stream:
            told = not_json_but(stream.read(_SNIFFED_BYTES), file)
    except OSError:
        return ""
    return f"{os.path.basename(file)} is {told}" if told else ""


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


def is_url(path: str) -> bool:
    """Whether a path names a protocol; `C:/traces` does not."""
    return bool(_URL.match(path))


def shown_url(url: str) -> str:
    """A web address as reports may show it: without the password or the signature it may carry."""
    if not _HTTP.match(url):
        return url
    scheme, _, rest = url.partition("://")
    host, slash, path = rest.partition("?")[0].partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"


def list_url(url: str, suffixes: tuple[str, ...]) -> Listing | None:
    """What is in a remote directory, or matches a pattern; None for a file.

    Args:
        url: what ends with `/` is a directory.
        suffixes: what ends with one of these is a file, without a request to find out.

    Raises:
        ParseError: the driver is missing, or fails.
    """
    web = bool(_HTTP.match(url))  # there a ? begins the query, and [ an IPv6 address
    name = url.partition("?")[0] if web else url
    pattern = bool("*" in name if web else MAGIC.search(name))
    # A web server has no directories; to ask whether it lists a page would download the file.
    if not pattern and not name.endswith("/") and (web or name.lower().endswith(suffixes)):
        return None
    if not web and not name.endswith("://"):
        url = url.rstrip("/")
    system, path = _connect(url)
    try:
        if pattern:
            entries = list(system.glob(path, detail=True).values())
        elif system.isdir(path):
            entries = system.ls(path, detail=True)
        else:
            return None
    except _failures() as error:
        raise ParseError(shown_url(url), f"cannot be listed ({_reason(error)})") from None
    # Names are given in the form in which the user gave that of `path`.
    links = url.split("::")
    own = next((index for index, link in enumerate(links) if path and link.endswith(path)), -1)
    urls: dict[str, list[str]] = {"file": [], "directory": []}
    for entry in entries:
        name = entry["name"]
        if not is_url(name) and own >= 0:
            name = "::".join([*links[:own], links[own].removesuffix(path) + name, *links[own + 1 :]])
        elif not is_url(name):
            name = str(system.unstrip_protocol(name))
        urls.setdefault(entry["type"], []).append(name)
    return Listing(pattern, urls["file"], urls["directory"])


def open_url(url: str) -> IO[bytes]:
    """A stream of a remote file; it holds a few blocks of it at a time, never all of it.

    Raises:
        ParseError: the driver is missing, or fails.
        FileNotFoundError: no such file.
        IsADirectoryError: it is a directory.
    """
    system, path = _connect(url)
    remote = _Raw(system, path, is_stream=bool(_HTTP.match(url)))
    try:
        remote.connect()
    except (FileNotFoundError, IsADirectoryError):
        raise
    except _failures() as error:
        raise ParseError(shown_url(url), f"cannot be opened ({_reason(error)})") from None
    return cast(IO[bytes], BufferedReader(remote, _BUFFER))


class _Raw(RawIOBase):
    """A file of fsspec as the standard library knows files; all of its errors are OSErrors.

    A connection that is lost is taken up again where it was, a few times, if the file is still the same.
    """

    def __init__(self, system: Any, path: str, *, is_stream: bool) -> None:
        self._system, self._path, self._is_stream = system, path, is_stream
        self._file: Any = None
        self._at = 0  # bytes read
        self._version = ""  # of the file, as the server tells it
        self.size = -1  # bytes of the file, as announced; -1 where nobody does

    def connect(self) -> None:
        """Open the file, at the place up to which it was read."""
        options: dict[str, Any] = {}
        if self._is_stream:
            # One request from start to end. With a size fsspec does not send another one ahead to ask for it,
            # which servers of signed addresses refuse.
            options = {"block_size": 0, "size": 1}
            if self._at:
                options["headers"] = {"Range": f"bytes={self._at}-", "Accept-Encoding": "identity"}
        file = self._system.open(self._path, "rb", **options)
        response = getattr(file, "r", None)
        headers = getattr(response, "headers", {})
        version = headers.get("ETag", "") or headers.get("Last-Modified", "")
        if self._at and self._is_stream:
            if getattr(response, "status", 0) != _PARTIAL_CONTENT or version != self._version:
                file.close()
                raise OSError("the server cannot go on where the connection was lost")
        elif self._at:
            file.seek(self._at)
        if not self._at:
            self._version = version
            announced = headers.get("Content-Length") if self._is_stream else getattr(file, "size", None)
            is_plain = "Content-Encoding" not in headers and str(announced or "").isdigit()
            self.size = int(announced or "") if is_plain else -1
        self._file = file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return not self._is_stream

    def readinto(self, buffer: Any) -> int:
        for pause_s in (*_PAUSES_S, None):
            try:
                if self._file is None:
                    self.connect()
                data = self._file.read(len(buffer))
                if not data and len(buffer) and self._at < self.size:
                    raise OSError(f"it ended after {self._at:,} of {self.size:,} bytes")
                break
            except _failures() as error:
                if pause_s is None or isinstance(error, FileNotFoundError):
                    raise OSError(_reason(error)) from None
                time.sleep(pause_s)
                self._disconnect()
        self._at += len(data)
        buffer[: len(data)] = data
        return len(data)

    def _disconnect(self) -> None:
        if self._file is not None:
            with suppress(*_failures()):
                self._file.close()
        self._file = None

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = int(self._file.seek(offset, whence))
        return self._at

    def tell(self) -> int:
        return self._at

    def close(self) -> None:
        if not self.closed:
            self._disconnect()
        super().close()


def _connect(url: str) -> tuple[Any, str]:
    """The file system that a URL names, and the path there."""
    protocol = url.partition(":")[0]
    try:
        from fsspec.core import url_to_fs
    except ModuleNotFoundError as error:
        raise MissingExtra(f"{shown_url(url)}: reading {protocol}:// addresses", "remote") from error
    try:
        options: dict[str, Any] = {}
        if _HTTP.match(url):
            import aiohttp

            # By default a request must end after five minutes, however fast its bytes come.
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=_SILENCE_S, sock_read=_SILENCE_S)
            options = {"client_kwargs": {"timeout": timeout}, "encoded": "%" in url}
        system, path = url_to_fs(url, **options)
    except ImportError as error:
        problem = f"reading {protocol}:// addresses needs a library that is not installed"
        raise ParseError(shown_url(url), f"{problem} ({_reason(error)})") from None
    except _failures() as error:
        raise ParseError(shown_url(url), f"cannot be opened ({_reason(error)})") from None
    return system, path


def _failures() -> tuple[type[BaseException], ...]:
    known = (getattr(sys.modules.get(module), name, None) for module, name in _DRIVER_ERRORS)
    return (OSError, ValueError, *(error for error in known if error is not None))


def _reason(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
