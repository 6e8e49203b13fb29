"""How `replay verify` runs a script: the very bytes that tracelens wrote, and no module but installed ones.

A script is read once, held against its hash and copied into a new directory of the user's that holds nothing
else. Its interpreter is isolated (-I): neither that directory nor the current one, PYTHONPATH or the user's
site-packages are on its path, nor on that of processes that it starts.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tracelens.errors import TracelensError
from tracelens.reproducers.folder import Entry

ISOLATED = "-I"
_LARGEST = 1 << 26
"""Bytes of a script at most."""


class Refused(TracelensError):
    """A file is not the script that replay.json lists; the message says why and what to do."""


@contextmanager
def private_copy(folder: Path, entry: Entry) -> Iterator[Path]:
    """A copy of a script in a directory of its own, removed afterwards.

    Raises:
        Refused: it is no regular file in the folder, or was changed since it was written.
    """
    script = _bytes(folder / entry.file)
    if hashlib.sha256(script).hexdigest() != entry.sha256:
        raise Refused(
            "modified since tracelens wrote it (SHA-256 differs from replay.json): run it directly "
            f"with python {entry.file}, or regenerate the scripts"
        )
    with TemporaryDirectory(prefix="tracelens-") as private:  # mode 0700, with a name nobody can predict
        copy = Path(private, entry.file)
        copy.write_bytes(script)
        yield copy


def _bytes(path: Path) -> bytes:
    """What a regular file holds, without following a link or waiting for a pipe."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        link = path.is_symlink()
        reason = "a symbolic link" if link else error.strerror or str(error)
        raise Refused(f"no such file in {path.parent}: {reason}") from None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise Refused(f"no such file in {path.parent}: not a regular file")
        with open(descriptor, "rb", closefd=False) as file:
            script = file.read(_LARGEST + 1)
    finally:
        os.close(descriptor)
    if len(script) > _LARGEST:
        raise Refused(f"larger than {_LARGEST:,} bytes: not written by tracelens")
    return script


def environment() -> dict[str, str]:
    """The environment of a script: without what tells Python where to find modules or what to run first."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return {**kept, "PYTHONSAFEPATH": "1", "PYTHONNOUSERSITE": "1"}


def absolute(interpreter: str) -> str:
    """The path of an interpreter, as it is found from here; unchanged where there is none."""
    path = shutil.which(interpreter)
    return os.path.abspath(path) if path else interpreter
