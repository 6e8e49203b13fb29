"""Outputs are never inputs: after a command, the paths that it read still give the same run.

Refused is an output that is an input (also by a link, another spelling or as `file://`), that a later reading
of an input directory or pattern would take for a trace, or that would take in an input; and two outputs that
are one. All of it is said before the work begins.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from typing import NamedTuple

from tracelens.errors import TracelensError
from tracelens.filenames import named_like_a_trace
from tracelens.outputs.files import cannot_write, is_stream, status
from tracelens.read import MAGIC, TraceFiles, is_url, local_path

_STDIN = "/dev/stdin"


class Output(NamedTuple):
    """What a command is going to write."""

    path: str  # as the user named it
    file: str = ""  # of a folder, the name of one in it that a reader may take for a trace; "" for a file

    @property
    def written(self) -> str:
        """A file that will be there."""
        return os.path.join(self.path, self.file) if self.file else self.path

    def is_same(self, path: str) -> bool:
        """Whether `path` leads to the same file or folder."""
        return same(self.path, path)

    def holds(self, path: str) -> bool:
        """Whether it is a folder that `path` lies in."""
        return bool(self.file) and _is_inside(path, self.path)


def check_outputs(outputs: Sequence[Output], inputs: Iterable[str], traces: TraceFiles | None = None) -> None:
    """Refuse outputs that would change what the inputs give, collide, or cannot be written.

    Args:
        outputs: all of one command.
        inputs: what it reads: files, directories, patterns, "-", URLs.
        traces: the expansion of those that it reads traces from, so that none is expanded twice.

    Raises:
        TracelensError: what is wrong with which output, and what to do.
    """
    paths = list(inputs) if outputs else []
    expanded = TraceFiles() if traces is None else traces
    for output in outputs:
        if output.path in ("", "-"):
            raise TracelensError(
                f"{output.path!r} is not an output; name a file (/dev/stdout writes to standard output)"
            )
        if is_url(output.path):
            raise TracelensError(f"{output.path}: outputs are local files; write here and copy it there")
        for path in paths:
            _check_input(output, path, expanded)
        _check_writable(output)
    for index, output in enumerate(outputs):
        for earlier in outputs[:index]:
            if output.is_same(earlier.path) and not _is_stream(output.path):
                raise TracelensError(f"{output.path} and {earlier.path} are the same output; choose two")
            for outer, inner in ((output, earlier), (earlier, output)):
                if outer.holds(inner.path):
                    raise TracelensError(
                        f"{inner.path}: is inside the output {outer.path}, which is replaced entirely; "
                        "write it somewhere else"
                    )


def same(first: str, second: str) -> bool:
    """Whether two paths lead to the same file or folder, be it there or not."""
    if os.path.realpath(first) == os.path.realpath(second):
        return True
    try:
        return os.path.samefile(first, second)
    except OSError:
        return False


def _check_writable(output: Output) -> None:
    """Say now what the system would say after the work."""
    path = output.path
    try:
        if is_stream(path):
            return
        if status(path) is None:
            folder = os.path.dirname(os.path.realpath(path))
            while not os.path.lexists(folder):
                folder = os.path.dirname(folder)
            code = errno.EACCES if os.path.isdir(folder) else errno.ENOTDIR
            if code == errno.ENOTDIR or not os.access(folder, os.W_OK | os.X_OK):
                raise OSError(code, os.strerror(code))
        elif os.path.isdir(path) != bool(output.file):
            code = errno.ENOTDIR if output.file else errno.EISDIR
            raise OSError(code, os.strerror(code))
        elif not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise cannot_write(path, error) from None


def _check_input(output: Output, path: str, expanded: TraceFiles) -> None:
    """Refuse an output that is one of the files that an input means, holds one, or would become one."""
    if path == "-":
        local_paths = [_STDIN] if os.path.isfile(_STDIN) else []
    else:
        # simplecache::file:///traces/rank0.json, zip://rank0.json::traces.zip
        links = [local_path(link) for link in (path.split("::") if is_url(path) else [path])]
        local_paths = [link for link in links if link and not is_url(link)]
    for local in local_paths:
        files: list[str] = []
        archive, bang, _ = local.partition("!")
        if bang and not os.path.lexists(local) and os.path.isfile(archive):
            files = [archive]  # the input is a member of it
        else:
            with suppress(TracelensError):  # reading it will say so
                files = [file for file in expanded.of(local) if os.path.exists(file)]
        for file in filter(os.path.lexists, (*files, local)):
            if output.is_same(file) and not _is_stream(file):
                raise TracelensError(f"{output.path}: is the input {_named(file, path)}; write another file")
            if output.holds(file):
                raise TracelensError(
                    f"{output.path}: holds the input {_named(file, path)}; write to another directory"
                )
        if takes(local, output.written, files):
            raise TracelensError(
                f"{output.path}: the next command would read it as a trace of the input {path}; write it "
                "somewhere else"
            )


def takes(path: str, output: str, files: Iterable[str] = ()) -> bool:
    """Whether reading `path` (a local file, directory or pattern) would read `output` too, once it is there.

    `files` are those that reading `path` reads now.
    """
    # A link in the directory is read as what it is named.
    parent = os.path.realpath(os.path.dirname(output) or ".")
    for target in {os.path.join(parent, os.path.basename(output)), os.path.realpath(output)}:
        folder, name = os.path.split(target)
        if os.path.isdir(path):
            if same(folder, path) and named_like_a_trace(name):
                return True
        elif MAGIC.search(path) and not os.path.lexists(path):
            # Beside files that are named like traces, a pattern means no others.
            if named_like_a_trace(name) or not any(map(named_like_a_trace, files)):
                # The pattern may lead through links: then it matches files beside this one.
                fits_beside = _part_matches(os.path.basename(path), name) and any(
                    same(os.path.dirname(file) or ".", folder) for file in files
                )
                if fits_beside or _matches(path, target):
                    return True
            if named_like_a_trace(name) and _matches(path, folder):  # the files of folders count too
                return True
    return False


def _matches(pattern: str, path: str) -> bool:
    """Whether a glob pattern matches a path, which need not exist."""
    parts = pattern.split(os.sep)
    fixed = next(index for index, part in enumerate(parts) if MAGIC.search(part))
    base = os.path.realpath(os.sep.join([*parts[:fixed], ""]) or ".")
    parts_below = [part for part in parts[fixed:] if part not in ("", ".")]
    return _is_inside(path, base) and _parts_match(parts_below, os.path.relpath(path, base).split(os.sep))


def _parts_match(pattern: list[str], names: list[str]) -> bool:
    if not pattern:
        return not names
    if pattern[0] == "**":
        deeper = bool(names) and not names[0].startswith(".") and _parts_match(pattern, names[1:])
        return deeper or _parts_match(pattern[1:], names)
    return bool(names) and _part_matches(pattern[0], names[0]) and _parts_match(pattern[1:], names[1:])


def _part_matches(pattern: str, name: str) -> bool:
    return fnmatchcase(name, pattern) and (pattern.startswith(".") or not name.startswith("."))


def _is_inside(path: str, folder: str) -> bool:
    path, folder = os.path.realpath(path), os.path.realpath(folder)
    return path != folder and os.path.commonpath([path, folder]) == folder


def _is_stream(path: str) -> bool:
    """Whether it holds nothing that could be written over: a terminal, a pipe, /dev/null."""
    with suppress(OSError):
        return path != _STDIN and is_stream(path)
    return False


def _named(file: str, path: str) -> str:
    """An input as the user knows it."""
    return path if file == path or path in ("-", f"file://{file}") else f"{file} (of {path})"
