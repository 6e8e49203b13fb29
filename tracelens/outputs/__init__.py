"""Outputs: files and folders that appear whole or not at all, and are never an input of the same command.

The content of a file goes to a temporary one in the same folder, under a name that nobody can foresee, and
takes the target's place when it is complete. A full disk, an error or Ctrl-C leaves what was there before,
and nothing else.

- A link is followed: its target is replaced, the link stays.
- A file that is there keeps its permissions; one that may not be written is not replaced either.
- A device or pipe (/dev/stdout, /dev/null, a FIFO) is written to directly.

A folder has an index, a file of ours that lists the others. A new folder is written under a temporary name
beside its place and renamed. In a folder that is there everything is written into a temporary folder inside
of it first; then old files move out and new ones in, the index last, and all of them back if one cannot be
moved. So a mount point, the current directory or a folder in somebody else's directory can be written too,
and keeps its permissions.

After a command, the paths that it read still give the same run. Refused is an output that is an input (also
by a link, another spelling or as `file://`), that a later reading of an input directory or pattern would take
for a trace, or that would take in an input; and two outputs that are one. All of it is said before the work
begins.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO, NamedTuple

from msgspec import Struct

from tracelens.errors import TracelensError
from tracelens.filenames import named_like_a_trace
from tracelens.read import MAGIC, TraceFiles, is_url, local_path

StrPath = str | os.PathLike[str]
TEMPORARY = ".tracelens-{}.tmp"
_STANDARD = {"stdout": 1, "stderr": 2}
_DESCRIPTOR = re.compile(r"/dev/(stdout|stderr)|/(?:dev|proc/self)/fd/(\d{1,9})")

_LEFT_BEHIND = re.compile(r"\.tracelens-[0-9a-f]{16}\.tmp")
_PARTS = ("new", "old")
_STDIN = "/dev/stdin"


class FolderKind(Struct, frozen=True):
    """What makes a folder one of ours."""

    index: str  # name of the file that lists the others
    noun: str  # what the files are, for messages: "script of a replay"
    # names that the index of a folder lists; raises TracelensError if it is none of ours
    listed: Callable[[Path], Collection[str]]


def write_file(path: StrPath, content: bytes) -> None:
    """Write a file and the missing folders above it; raises TracelensError with the system's reason."""
    try:
        with whole_file(path, parents=True) as file:
            file.write(content)
    except OSError as error:
        raise cannot_write(path, error) from error


@contextmanager
def whole_file(path: StrPath, *, parents: bool = False) -> Iterator[IO[bytes]]:
    """A new file that takes the place of `path` at the end of the `with`, or vanishes if it ends in an error.

    Missing folders above it are made with `parents`. Raises OSError if it cannot be written.
    """
    if is_stream(path):
        match = _DESCRIPTOR.fullmatch(os.fspath(path))
        # Opened by name, a file that standard output was sent to would be written from its start again.
        number = (_STANDARD.get(match[1]) or int(match[2] or 0)) if match else None
        with open(os.open(path, os.O_WRONLY) if number is None else os.dup(number), "wb") as file:
            yield file
        return
    existing = status(path)
    target = os.path.realpath(path)
    if existing is not None:
        if stat.S_ISDIR(existing.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        # A rename asks for the folder's permissions only.
        if not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    temporary = temporary_beside(target)
    with ExitStack() as undo:
        if parents:
            undo.callback(remove_folders, make_folders(os.path.dirname(target)))
        undo.callback(remove_file, temporary)
        with create(temporary) as file:
            if existing is not None:
                with suppress(OSError):  # only root may give files away
                    os.fchown(file.fileno(), existing.st_uid, existing.st_gid)
                with suppress(OSError):  # some file systems have no permissions
                    os.fchmod(file.fileno(), stat.S_IMODE(existing.st_mode))
            yield file
        os.replace(temporary, target)
        undo.pop_all()


def create(path: str) -> IO[bytes]:
    """A new file, never one that is there, with the permissions that the user's umask gives."""
    return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666), "wb")


def temporary_beside(target: str) -> str:
    """A path beside `target` that nobody can foresee; whoever reads the folder takes it for no trace."""
    return os.path.join(os.path.dirname(target), TEMPORARY.format(os.urandom(8).hex()))


def make_folders(folder: str) -> list[str]:
    """Make a folder and those above it, or none; returns those made, the innermost first."""
    missing = []
    while not os.path.lexists(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    if not os.path.isdir(folder):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    made: list[str] = []
    with ExitStack() as undo:
        undo.callback(remove_folders, made)
        for path in reversed(missing):
            os.makedirs(path, exist_ok=True)  # somebody else may be as fast
            made.insert(0, path)
        undo.pop_all()
    return made


def remove_folders(made: list[str]) -> None:
    """Remove folders that `make_folders` made, as far as they are empty."""
    for folder in made:
        with suppress(OSError):
            os.rmdir(folder)


def remove_file(path: str) -> None:
    """Remove a file, if it is there and can be removed."""
    with suppress(OSError):
        os.unlink(path)


def status(path: StrPath) -> os.stat_result | None:
    """Status of what a path leads to; None where nothing is there yet."""
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None


def is_stream(path: StrPath) -> bool:
    """Whether it is a device, pipe or socket, or an open file by its number, which take bytes as they come.

    Raises:
        OSError: the system does not let us follow the path.
    """
    if _DESCRIPTOR.fullmatch(os.fspath(path)):
        return True
    info = status(path)
    return info is not None and not (stat.S_ISREG(info.st_mode) or stat.S_ISDIR(info.st_mode))


def cannot_write(path: StrPath, error: OSError) -> TracelensError:
    """The error for a user."""
    return TracelensError(f"cannot write {os.fspath(path)}: {error.strerror or error}")


def write_folder(path: StrPath, contents: Mapping[str, bytes], kind: FolderKind) -> None:
    """Write a folder of files by name, the index among them; what an earlier command wrote there is replaced.

    Raises:
        TracelensError: it holds something else, or cannot be written; the system's reason is given.
    """
    for name in contents:
        if name != os.path.basename(name) or name in ("", ".", "..") or "\0" in name:
            raise TracelensError(f"{os.fspath(path)}: {name!r} is not a file name")
    from shutil import rmtree  # most outputs are files

    target = os.path.realpath(path)
    try:
        if os.path.isdir(target):
            files, leftovers = _ours(target, kind, path)
            temporary = temporary_beside(os.path.join(target, kind.index))
            new, old = (os.path.join(temporary, part) for part in _PARTS)
            with ExitStack() as last:
                last.callback(rmtree, temporary, ignore_errors=True)
                for folder in (temporary, new, old):
                    os.mkdir(folder)
                _fill(new, contents, kind)
                # The index goes first and comes last: without it, the folder is not taken for a whole one.
                moves = [(name, target, old) for name in reversed(_index_last(files, kind))]
                moves += [(name, new, target) for name in _index_last(contents, kind)]
                with ExitStack() as undo:  # all of them, or none
                    for name, before, behind in moves:
                        paths = os.path.join(before, name), os.path.join(behind, name)
                        undo.callback(_move_back, *paths)
                        os.rename(*paths)
                    undo.pop_all()
                for name in leftovers:
                    rmtree(os.path.join(target, name), ignore_errors=True)
            return
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        temporary = temporary_beside(target)
        with ExitStack() as undo:
            undo.callback(remove_folders, make_folders(os.path.dirname(target)))
            undo.callback(rmtree, temporary, ignore_errors=True)
            os.mkdir(temporary)
            _fill(temporary, contents, kind)
            os.rename(temporary, target)
            undo.pop_all()
    except OSError as error:
        raise cannot_write(path, error) from error


def check_folder(path: StrPath, kind: FolderKind) -> None:
    """Refuse a folder that `write_folder` would refuse for what it holds.

    Raises:
        TracelensError: it holds a file that is not ours, which is named.
    """
    target = os.path.realpath(path)
    try:
        if os.path.isdir(target):
            _ours(target, kind, path)
    except OSError as error:
        raise cannot_write(path, error) from error


def _move_back(source: str, target: str) -> None:
    with suppress(OSError):  # it may not have moved
        os.rename(target, source)


def _fill(folder: str, contents: Mapping[str, bytes], kind: FolderKind) -> None:
    for name in _index_last(contents, kind):
        with create(os.path.join(folder, name)) as file:
            file.write(contents[name])


def _index_last(names: Collection[str], kind: FolderKind) -> list[str]:
    return sorted(names, key=lambda name: name == kind.index)


def _ours(target: str, kind: FolderKind, path: StrPath) -> tuple[list[str], list[str]]:
    """(Files of ours in a folder, temporary folders that a killed command left there).

    Raises:
        TracelensError: it holds something else, or an index that is none of ours.
        OSError: it cannot be listed.
    """
    with os.scandir(target) as entries:
        folders = {entry.name: entry.is_dir(follow_symlinks=False) for entry in entries}
    leftovers = [name for name, is_folder in folders.items() if is_folder and _LEFT_BEHIND.fullmatch(name)]
    listed: set[str] = set()
    if kind.index in folders:
        listed |= {kind.index, *kind.listed(Path(target))}
    for name in leftovers:
        for part in _PARTS:
            # Killed between two moves: some files have moved, and their index tells which they were.
            with suppress(TracelensError):
                listed |= {kind.index, *kind.listed(Path(target, name, part))}
    files = sorted(name for name, is_folder in folders.items() if not is_folder and name in listed)
    foreign = sorted(folders.keys() - set(files) - set(leftovers))
    if foreign:
        raise TracelensError(
            f"{os.fspath(path)}: holds {foreign[0]}, which is not a {kind.noun}; choose another -o"
        )
    return files, leftovers


# ====================
# Outputs are never inputs.


class Output(Struct, frozen=True):
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
            if output.is_same(earlier.path) and not _has_no_content(output.path):
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
            if output.is_same(file) and not _has_no_content(file):
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


def _has_no_content(path: str) -> bool:
    """Whether it holds nothing that could be written over: a terminal, a pipe, /dev/null."""
    with suppress(OSError):
        return path != _STDIN and is_stream(path)
    return False


def _named(file: str, path: str) -> str:
    """An input as the user knows it."""
    return path if file == path or path in ("-", f"file://{file}") else f"{file} (of {path})"
