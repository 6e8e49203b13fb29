"""Folders that are written whole or not at all, and replaced only where all that they hold is ours.

A folder has an index, a file of ours that lists the others. A new folder is written under a temporary name
beside its place and renamed. In a folder that is there everything is written into a temporary folder inside
of it first; then old files move out and new ones in, the index last, and all of them back if one cannot be
moved. So a mount point, the current directory or a folder in somebody else's directory can be written too,
and keeps its permissions.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from tracelens.errors import TracelensError
from tracelens.outputs.files import (
    StrPath,
    cannot_write,
    create,
    make_folders,
    remove_folders,
    temporary_beside,
)

_TEMPORARY = re.compile(r"\.tracelens-[0-9a-f]{16}\.tmp")
_PARTS = ("new", "old")


@dataclass(frozen=True)
class FolderKind:
    """What makes a folder one of ours.

    Attributes:
        index: name of the file that lists the others.
        noun: what the files are, for messages: "script of a replay".
        listed: names that the index of a folder lists; raises TracelensError if it is none of ours.
    """

    index: str
    noun: str
    listed: Callable[[Path], Collection[str]]


def write_folder(path: StrPath, contents: Mapping[str, bytes], kind: FolderKind) -> None:
    """Write a folder of files by name, the index among them; what an earlier command wrote there is replaced.

    Raises:
        TracelensError: it holds something else, or cannot be written; the system's reason is given.
    """
    for name in contents:
        if name != os.path.basename(name) or name in ("", ".", "..") or "\0" in name:
            raise TracelensError(f"{os.fspath(path)}: {name!r} is not a file name")
    target = os.path.realpath(path)
    try:
        if os.path.isdir(target):
            _refill(target, contents, kind, path)
        else:
            _make(target, contents, kind)
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


def _make(target: str, contents: Mapping[str, bytes], kind: FolderKind) -> None:
    if os.path.lexists(target):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
    temporary = temporary_beside(target)
    with ExitStack() as undo:
        undo.callback(remove_folders, make_folders(os.path.dirname(target)))
        undo.callback(shutil.rmtree, temporary, ignore_errors=True)
        os.mkdir(temporary)
        _fill(temporary, contents, kind)
        os.rename(temporary, target)
        undo.pop_all()


def _refill(target: str, contents: Mapping[str, bytes], kind: FolderKind, path: StrPath) -> None:
    files, leftovers = _ours(target, kind, path)
    temporary = temporary_beside(os.path.join(target, kind.index))
    new, old = (os.path.join(temporary, part) for part in _PARTS)
    with ExitStack() as last:
        last.callback(shutil.rmtree, temporary, ignore_errors=True)
        for folder in (temporary, new, old):
            os.mkdir(folder)
        _fill(new, contents, kind)
        # The index goes first and comes last: without it, the folder is not taken for a whole one.
        outgoing = [(name, target, old) for name in reversed(_index_last(files, kind))]
        _move([*outgoing, *((name, new, target) for name in _index_last(contents, kind))])
        for name in leftovers:
            shutil.rmtree(os.path.join(target, name), ignore_errors=True)


def _move(moves: list[tuple[str, str, str]]) -> None:
    """Move all files, each (name, from folder, to folder), or none."""
    with ExitStack() as undo:
        for name, source, target in moves:
            paths = os.path.join(source, name), os.path.join(target, name)
            undo.callback(_move_back, *paths)
            os.rename(*paths)
        undo.pop_all()


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
    leftovers = [name for name, is_folder in folders.items() if is_folder and _TEMPORARY.fullmatch(name)]
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
