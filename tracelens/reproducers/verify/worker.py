"""The process that runs one script after the other, and its successors where a script broke it."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from multiprocessing.connection import Pipe
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tracelens.errors import TracelensError
from tracelens.reproducers.verify.isolation import ISOLATED
from tracelens.reproducers.verify.processes import Ran, logs, start, stop

RUNNER = Path(__file__).with_name("runner.py")
LIBRARY = "torch"
START_S = 300
"""torch can take minutes to come from a slow disk."""

_LOOK_S = 0.2  # between looks whether a process that does not answer is still there
_END_S = 10  # for a process to end that has closed its end of the socket; one with much memory needs a while


class Machine(NamedTuple):
    """What scripts run on.

    Attributes:
        torch: version.
        devices: names of the GPUs; none where scripts run on the CPU.
    """

    torch: str
    devices: tuple[str, ...]


class Worker:
    """One process that has imported torch.

    Attributes:
        machine: what it found.
        used: whether it has run a script.
        spent: it must not run another one.

    Raises:
        TracelensError: it does not start, or has no torch.
    """

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
            self.machine = self._hello(python)
            self._stack = stack.pop_all()

    def _hello(self, python: str) -> Machine:
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
        return Machine(reply["torch"], tuple(reply["devices"]))

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
        return Ran(self._end(), *self._logs.tails())

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

    def _end(self) -> int:
        """Exit status of a process that is about to end."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        stop(self._process)
        return self._process.returncode

    def close(self) -> None:
        self._stack.close()


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
