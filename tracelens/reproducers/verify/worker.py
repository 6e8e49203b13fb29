"""Processes that run scripts: isolated, one script after the other, and none outlives its time.

A script is read once, held against its hash and copied into a new directory of the user's that holds nothing
else. Its interpreter is isolated (-I): neither that directory nor the current one, PYTHONPATH or the user's
site-packages are on its path, nor on that of processes that it starts. What processes print is kept in files.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import Pipe
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, NamedTuple

import msgspec

from tracelens.errors import TracelensError
from tracelens.reproducers.folder import GENERATED, Entry

ISOLATED = "-I"
RUNNER = Path(__file__).with_name("runner.py")
LIBRARY = "torch"
START_S = 300
"""torch can take minutes to come from a slow disk."""
_LOOK_S = 0.2  # between looks whether a process that does not answer is still there
_END_S = 10  # for a process to end that has closed its end of the socket; one with much memory needs a while
_LARGEST_SCRIPT = 1 << 26  # bytes
_TAIL = 1 << 18  # characters of the output that are looked at: the result is its last line
_ERROR = re.compile(r"^(?:\[rank\d+\]:\s*)?(?:\w+\.)*\w*(?:Error|Exception|Interrupt)(?::|$).*")


class TorchMachine(NamedTuple):
    """What scripts run on."""

    torch: str  # version
    devices: tuple[str, ...]  # names of the GPUs; none where scripts run on the CPU
    hip: bool  # built for AMD's GPUs


class Ran(NamedTuple):
    """What came of a script."""

    code: int | None  # exit status, negative for a signal; None: it had not ended when its time was over
    output: str = ""  # end of what it printed
    errors: str = ""  # end of what it wrote to stderr
    reason: str = ""  # the error that ended it in one line, "" where it is not known

    @property
    def last_words(self) -> str:
        """The error among what it wrote to stderr: Python's last one, else the last line."""
        lines = [line for line in self.errors.splitlines() if line.strip()]
        errors = [line for line in lines if _ERROR.match(line)]
        return (errors or lines or [""])[-1]


class Logs(NamedTuple):
    """Files that processes write to; they may be emptied while these run."""

    folder: str  # a private directory that holds them and nothing else, where processes run
    output: BinaryIO  # the files
    errors: BinaryIO  # the files

    def clear(self) -> None:
        for file in (self.output, self.errors):
            os.ftruncate(file.fileno(), 0)

    def tails(self, size: int = _TAIL) -> tuple[str, str]:
        return _tail(self.output, size), _tail(self.errors, size)


class Refused(TracelensError):
    """A file is not the script that replay.json lists; the message says why and what to do."""


class Workers:
    """A worker, or another one in its place: scripts never notice each other. A context manager.

    Raises:
        TracelensError: the first one does not start, or has no torch.
    """

    def __init__(self, python: str, gpu: bool) -> None:
        self._python, self._gpu = python, gpu
        self._worker: Worker | None = Worker(python, gpu)
        self.machine = self._worker.machine

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def run(self, script: Path, arguments: Sequence[str], timeout_s: float) -> Ran:
        """Run one script.

        One that broke its process is run again in a new one: what others left behind may be to blame.
        """
        try:
            fresh = not self._ready().used
            ran = self._once(script, arguments, timeout_s)
            if self._worker is None and not fresh and ran.code not in (0, None):
                ran = self._once(script, arguments, timeout_s)
        except TracelensError as error:
            return Ran(1, reason=str(error))
        return ran

    def _once(self, script: Path, arguments: Sequence[str], timeout_s: float) -> Ran:
        worker = self._ready()
        ran = worker.run(script, arguments, timeout_s)
        if worker.spent:
            self._end()
        return ran

    def _ready(self) -> Worker:
        if self._worker is None:
            self._worker = Worker(self._python, self._gpu)
        return self._worker

    def _end(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()


class Worker:
    """One process that has imported torch; raises TracelensError where it does not start, or has no torch."""

    machine: TorchMachine  # what it found
    used: bool  # it has run a script
    spent: bool  # it must not run another one

    def __init__(self, python: str, gpu: bool) -> None:
        self.used = self.spent = False
        with ExitStack() as stack:
            self._logs = stack.enter_context(logs())
            ours, theirs = Pipe()
            self._pipe = stack.enter_context(ours)
            with theirs:
                arguments = [str(theirs.fileno()), LIBRARY, "gpu" if gpu else "cpu"]
                command = [python, ISOLATED, str(RUNNER), *arguments]
                self._process = start(command, self._logs, pass_fds=[theirs.fileno()])
            stack.callback(stop, self._process)
            try:
                reply = self._answer(START_S)
            except TimeoutError:
                reply = None
            if reply is None:
                words = self._logs.tails()[1].split("\n")
                last = next((line for line in reversed(words) if line.strip()), "it did not answer")
                raise TracelensError(f"{python} cannot run scripts: {last}")
            if reply.get("absent"):
                raise TracelensError(
                    f"{python} has no torch (PYTHONPATH and user site-packages are ignored): "
                    "pip install torch, or pass another interpreter with --python"
                )
            if "torch" not in reply:
                raise TracelensError(f"{python} cannot import torch: {reply.get('reason')}")
            self.machine = TorchMachine(reply["torch"], tuple(reply["devices"]), reply["hip"])
            self._stack = stack.pop_all()

    def run(self, script: Path, arguments: Sequence[str], timeout_s: float) -> Ran:
        self.used = True
        self._logs.clear()
        try:
            self._pipe.send_bytes(msgspec.json.encode({"path": str(script), "arguments": list(arguments)}))
            reply = self._answer(timeout_s)
        except TimeoutError:
            self.spent = True
            return Ran(None, *self._logs.tails())
        except OSError:  # it ended on its own since the last script
            reply = None
        if reply is not None:
            self.spent = reply["spent"]
            return Ran(reply["code"], *self._logs.tails(), reply["reason"])
        self.spent = True
        with suppress(subprocess.TimeoutExpired):  # it is about to end
            self._process.wait(_END_S)
        stop(self._process)
        return Ran(self._process.returncode, *self._logs.tails())

    def _answer(self, seconds: float) -> dict[str, Any] | None:
        """The next message; None where the process ended without one.

        Raises:
            TimeoutError: it does neither.
        """
        end = time.monotonic() + seconds
        while not self._pipe.poll(min(_LOOK_S, max(end - time.monotonic(), 0))):
            # What a process has started may keep its end of the socket open, so this is not always an EOF.
            gone = self._process.poll() is not None
            if gone and not self._pipe.poll():
                return None
            if time.monotonic() > end:
                raise TimeoutError
        try:
            reply: dict[str, Any] = msgspec.json.decode(self._pipe.recv_bytes())
        except (EOFError, ConnectionError):
            return None
        return reply

    def close(self) -> None:
        self._stack.close()


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


def _tail(file: BinaryIO, size: int) -> str:
    file.seek(max(file.seek(0, os.SEEK_END) - size, 0))
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


def run_together(command: Sequence[str], timeout_s: float, tail: int = _TAIL) -> Ran:
    """Run a command that starts several processes; of what they print the last `tail` bytes are kept."""
    with logs() as to:
        process = start(command, to)
        try:
            process.wait(timeout_s)
            code: int | None = process.returncode
        except subprocess.TimeoutExpired:
            code = None
        finally:
            stop(process)
        return Ran(code, *to.tails(tail))


@contextmanager
def private_copy(folder: Path, entry: Entry) -> Iterator[Path]:
    """A copy of a script in a directory of its own, removed afterwards.

    Raises:
        Refused: it is no regular file in the folder, or was changed since it was written.
    """
    files = {entry.file: entry.sha256}
    if entry.source:
        files[GENERATED.format(entry.source)] = entry.source
    contents = {name: _unmodified(folder, name, sha256) for name, sha256 in files.items()}
    with TemporaryDirectory(prefix="tracelens-") as private:  # mode 0700, with a name nobody can predict
        for name, content in contents.items():
            Path(private, name).write_bytes(content)
        yield Path(private, entry.file)


def _unmodified(folder: Path, name: str, sha256: str) -> bytes:
    """The content of a file, whose SHA-256 begins so; raises as `private_copy`."""
    # A regular file only, without following a link or waiting for a pipe.
    try:
        descriptor = os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        link = (folder / name).is_symlink()
        reason = "a symbolic link" if link else error.strerror or str(error)
        raise Refused(f"no such file in {folder}: {reason}") from None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise Refused(f"no such file in {folder}: not a regular file")
        with open(descriptor, "rb", closefd=False) as file:
            content = file.read(_LARGEST_SCRIPT + 1)
    finally:
        os.close(descriptor)
    if len(content) > _LARGEST_SCRIPT:
        raise Refused(f"larger than {_LARGEST_SCRIPT:,} bytes: not written by tracelens")
    if not hashlib.sha256(content).hexdigest().startswith(sha256):
        raise Refused(
            "modified since tracelens wrote it (SHA-256 differs from replay.json): run it directly "
            f"with python {name}, or regenerate the scripts"
        )
    return content


def environment() -> dict[str, str]:
    """The environment of a script: without what tells Python where to find modules or what to run first."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return {**kept, "PYTHONSAFEPATH": "1", "PYTHONNOUSERSITE": "1"}


def absolute(interpreter: str) -> str:
    """The path of an interpreter, as it is found from here; unchanged where there is none."""
    path = shutil.which(interpreter)
    return os.path.abspath(path) if path else interpreter
