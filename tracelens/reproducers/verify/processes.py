"""Processes that run scripts: what they print is kept in files, and none of them outlives its time."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO, NamedTuple

from tracelens.errors import TracelensError
from tracelens.reproducers.verify.isolation import environment

_TAIL = 1 << 18  # characters of the output that are looked at: the result is its last line


class Ran(NamedTuple):
    """What came of a script.

    Attributes:
        code: exit status, negative for a signal; None: it had not ended when its time was over.
        output: end of what it printed.
        errors: end of what it wrote to stderr.
        reason: the error that ended it in one line, "" where it is not known.
    """

    code: int | None
    output: str = ""
    errors: str = ""
    reason: str = ""


class Logs(NamedTuple):
    """Files that processes write to; they may be emptied while these run.

    Attributes:
        folder: a private directory that holds them and nothing else, where processes run.
        output, errors: the files.
    """

    folder: str
    output: BinaryIO
    errors: BinaryIO

    def clear(self) -> None:
        for file in (self.output, self.errors):
            os.ftruncate(file.fileno(), 0)

    def tails(self) -> tuple[str, str]:
        return _tail(self.output), _tail(self.errors)


@contextmanager
def logs() -> Iterator[Logs]:
    """Two empty files, removed afterwards."""
    # Appending: a process goes on at the new end after its file was emptied.
    with (
        TemporaryDirectory(prefix="tracelens-") as folder,
        open(Path(folder, "output"), "a+b") as output,
        open(Path(folder, "errors"), "a+b") as errors,
    ):
        yield Logs(folder, output, errors)


def _tail(file: BinaryIO) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(size - _TAIL, 0))
    return file.read().decode(errors="replace")


def start(command: Sequence[str], to: Logs, pass_fds: Sequence[int] = ()) -> subprocess.Popen[bytes]:
    """Start a process in a session and a directory of its own, with nothing to read.

    Raises:
        TracelensError: there is no such program.
    """
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=to.output,
            stderr=to.errors,
            cwd=to.folder,
            env=environment(),
            pass_fds=pass_fds,
            start_new_session=True,
        )
    except OSError as error:
        raise TracelensError(f"{command[0]} cannot be started: {error.strerror or error}") from None


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process and all that it started, at once."""
    # Processes may have sessions of their own, so ending one group is not enough. The parents go first: none
    # of them then starts another child or tells of a lost one.
    # One that has ended gave its number back; only what it left in its group still has it.
    running = process.poll() is None
    for number in (process.pid, *_descendants(process.pid)) if running else ():
        with suppress(ProcessLookupError, PermissionError):
            os.kill(number, signal.SIGKILL)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _descendants(number: int) -> list[int]:
    """Processes below a process that has not been waited for; none where the system has no /proc."""
    pids: list[int] = []
    for path in Path(f"/proc/{number}/task").glob("*/children"):
        with suppress(OSError):  # a thread that has ended
            for child in map(int, path.read_text().split()):
                pids += [child, *_descendants(child)]
    return pids


def run_together(command: Sequence[str], timeout_s: float) -> Ran:
    """Run a command that starts several processes."""
    with logs() as to:
        process = start(command, to)
        try:
            process.wait(timeout_s)
            code: int | None = process.returncode
        except subprocess.TimeoutExpired:
            code = None
        finally:
            stop(process)
        return Ran(code, *to.tails())
