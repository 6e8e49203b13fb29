"""CPU seconds, peak memory and imported modules of a command together with every process it starts.

Memory is sampled from outside through /proc, so Linux only. PSS counts a page shared by n processes as
1/n in each, so its sum over the tree is what the tree really holds; the sum of RSS counts it n times.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple

PAUSE_S = 0.015
# The sampler sleeps at least this many times as long as its last sample took, so that it never takes more
# than a tenth of one core: reading smaps_rollup takes the longer the more memory there is.
REST = 9

# Modules are compiled once, by the run that does not count, and not by each.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


class CommandFailed(RuntimeError):
    """A measured command failed; the text carries the end of its output."""


@dataclass(frozen=True)
class Usage:
    """What one run of a command took.

    Attributes:
        wall_s: from start to exit of the first process.
        cpu_s: user and system time of the first process and of all that it waited for.
        pss_bytes: highest sum of PSS over the process tree; 0 when memory was not sampled.
        output: what the command wrote to stdout.
    """

    wall_s: float
    cpu_s: float
    pss_bytes: int
    output: bytes


class Modules(NamedTuple):
    """How many modules the first process of a command imports."""

    all: int
    own: int  # of tracelens


def peak(root: int, so_far: int) -> tuple[int, float]:
    """The larger one of `so_far` and the sum of PSS of a process tree, and the seconds that this took."""
    began = time.perf_counter()
    size = sum(map(memory_of, tree(root)))
    return max(so_far, size), time.perf_counter() - began


def tree(root: int) -> list[int]:
    """The process `root` and all its living descendants."""
    found, waiting = [], [root]
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        for thread in _listing(f"/proc/{pid}/task"):
            waiting += map(int, _read(f"/proc/{pid}/task/{thread}/children").split())
    return found


def memory_of(pid: int) -> int:
    """PSS of one process in bytes; 0 when it has gone."""
    for line in _read(f"/proc/{pid}/smaps_rollup").splitlines():
        if line.startswith(b"Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def run(command: Sequence[str | Path], *, memory: bool = True) -> Usage:
    """Run `command` to its end and measure it.

    Args:
        command: program and arguments; its stdin is empty.
        memory: sample memory every 15 ms (see REST); without it the parent only waits.

    Raises:
        CommandFailed: the command exited with another code than 0, or 1 or 3 of a gate.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        began = time.perf_counter()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=ENVIRONMENT)
        pss_bytes = _wait(process.pid) if memory else 0
        # wait4 rather than Popen.wait: it is the one that returns the times, also of the process's children.
        _, status, usage = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        _check(command, process.returncode, err)
        out.seek(0)
        return Usage(
            wall_s=wall_s,
            cpu_s=usage.ru_utime + usage.ru_stime,
            pss_bytes=pss_bytes,
            output=out.read(),
        )


def modules(command: Sequence[str | Path]) -> Modules:
    """What the script of a Python environment imports; raises CommandFailed as `run`."""
    with tempfile.TemporaryFile() as err:
        timed = [sys.executable, "-X", "importtime", *command]
        code = subprocess.run(
            timed,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=err,
            env=ENVIRONMENT,
            check=False,
        ).returncode
        _check(command, code, err)
        err.seek(0)
        names = {line.rpartition(b"|")[2].strip() for line in err if line.startswith(b"import time:")}
    own = [name for name in names if name.partition(b".")[0] == b"tracelens"]
    return Modules(len(names), len(own))


def _check(command: Sequence[str | Path], code: int, err: IO[bytes]) -> None:
    if code not in (0, *((1, 3) if "gate" in command else ())):
        line = " ".join(map(str, command))
        raise CommandFailed(f"{line}: exit {code}: {_tail(err)}")


def _wait(pid: int) -> int:
    """The peak of memory until the process ends, bytes."""
    descriptor, pss_bytes = os.pidfd_open(pid), 0
    try:
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        pause_s = PAUSE_S
        while not poller.poll(1000 * pause_s):
            pss_bytes, took_s = peak(pid, pss_bytes)
            pause_s = max(PAUSE_S, REST * took_s)
    finally:
        os.close(descriptor)
    return pss_bytes


def _tail(stream: IO[bytes]) -> str:
    stream.seek(0)
    return stream.read().decode(errors="replace").strip()[-500:]


def _listing(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except (FileNotFoundError, ProcessLookupError):
        return []


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""
