"""Files that are written whole or not at all.

The content goes to a temporary file in the same folder, under a name that nobody can foresee, and takes the
target's place when it is complete. A full disk, an error or Ctrl-C leaves what was there before, and nothing
else.

- A link is followed: its target is replaced, the link stays.
- A file that is there keeps its permissions; one that may not be written is not replaced either.
- A device or pipe (/dev/stdout, /dev/null, a FIFO) is written to directly.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import IO

from tracelens.errors import TracelensError

StrPath = str | os.PathLike[str]
TEMPORARY = ".tracelens-{}.tmp"
_STANDARD = {"stdout": 1, "stderr": 2}
_DESCRIPTOR = re.compile(r"/dev/(stdout|stderr)|/(?:dev|proc/self)/fd/(\d{1,9})")


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
        with open(_stream(path), "wb") as file:
            yield file
        return
    existing = status(path)
    target = os.path.realpath(path)
    if existing is not None:
        _may_be_replaced(path, existing)
    temporary = temporary_beside(target)
    with ExitStack() as undo:
        if parents:
            undo.callback(remove_folders, make_folders(os.path.dirname(target)))
        undo.callback(remove_file, temporary)
        with create(temporary) as file:
            if existing is not None:
                _keep_permissions(file, existing)
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


def _stream(path: StrPath) -> int:
    match = _DESCRIPTOR.fullmatch(os.fspath(path))
    if match is None:
        return os.open(path, os.O_WRONLY)
    # Opened by name, a file that standard output was sent to would be written from its start again.
    return os.dup(_STANDARD.get(match[1]) or int(match[2] or 0))


def cannot_write(path: StrPath, error: OSError) -> TracelensError:
    """The error for a user."""
    return TracelensError(f"cannot write {os.fspath(path)}: {error.strerror or error}")


def _may_be_replaced(path: StrPath, existing: os.stat_result) -> None:
    if stat.S_ISDIR(existing.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    # A rename asks for the folder's permissions only.
    if not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def _keep_permissions(file: IO[bytes], existing: os.stat_result) -> None:
    with suppress(OSError):  # only root may give files away
        os.fchown(file.fileno(), existing.st_uid, existing.st_gid)
    with suppress(OSError):  # some file systems have no permissions
        os.fchmod(file.fileno(), stat.S_IMODE(existing.st_mode))
