"""How many processes share the work, and copies of this one."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Callable

from tracelens.errors import TracelensError

_JOBS = re.compile(r"0*[1-9][0-9]{0,2}", re.ASCII)


def jobs() -> int:
    """Number of processes that decode: TRACELENS_JOBS, else the cores this process may use, at most 8."""
    configured = os.environ.get("TRACELENS_JOBS", "")
    if configured:
        if not _JOBS.fullmatch(configured):
            raise TracelensError(f"TRACELENS_JOBS={configured!r}: give a number of processes, 1 to 999")
        return int(configured)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, 8)


def can_copy() -> bool:
    """Whether this process can be copied, and there is a core for the copy."""
    return jobs() > 1 and hasattr(os, "fork")


class Copy:
    """A copy of this process that does some work and ends; only for processes without threads."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._ended = threading.Lock()  # one thread waits, others learn of it
        self._code: int | None = None
        self._pid = os.fork()
        if self._pid == 0:
            code = 1
            try:  # whatever goes wrong ends the copy without a word
                work()
                code = 0
            finally:
                os._exit(code)

    def kill(self) -> None:
        with self._ended:
            if self._code is None:
                os.kill(self._pid, signal.SIGKILL)

    def wait(self) -> int:
        """Exit code, once it has ended."""
        with self._ended:
            if self._code is None:
                self._code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
            return self._code
