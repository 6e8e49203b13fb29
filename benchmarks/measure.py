"""Wall time and peak memory of a command together with every process it starts.

Memory is sampled from outside through /proc, so Linux only. PSS counts a page shared by n processes as
1/n in each, so its sum over the tree is what the tree really holds; the sum of RSS counts it n times.
"""

from __future__ import annotations

import os
import select
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

PAUSE_S = 0.015
# The sampler sleeps at least this many times as long as its last sample took, so that it never takes more
# than a tenth of one core: reading smaps_rollup takes the longer the more memory there is.
REST = 9


class CommandFailed(RuntimeError):
    """A measured command did not exit with 0; the text carries the end of its output."""


@dataclass(frozen=True)
class Usage:
    """What one run of a command took.

    Attributes:
        wall_s: from start to exit of the first process.
        pss_bytes: highest sum of PSS over the process tree; 0 when memory was not sampled.
        rss_bytes: highest sum of RSS over the process tree; 0 when memory was not sampled.
        maxrss_bytes: ru_maxrss: the largest single process, as the kernel saw it.
        processes: most processes seen at once.
        samples: how often memory was looked at.
        output: what the command wrote to stdout.
    """

    wall_s: float
    pss_bytes: int
    rss_bytes: int
    maxrss_bytes: int
    processes: int
    samples: int
    output: bytes


class Peaks:
    """Running maxima over samples of one process tree."""

    def __init__(self) -> None:
        self.pss_bytes = self.rss_bytes = self.processes = self.samples = 0

    def sample(self, root: int) -> float:
        """Look at the tree below process `root` once; returns the seconds that took."""
        began = time.perf_counter()
        sizes = [memory_of(pid) for pid in tree(root)]
        self.pss_bytes = max(self.pss_bytes, sum(pss for pss, _ in sizes))
        self.rss_bytes = max(self.rss_bytes, sum(rss for _, rss in sizes))
        self.processes = max(self.processes, len(sizes))
        self.samples += 1
        return time.perf_counter() - began


def tree(root: int) -> list[int]:
    """The process `root` and all its living descendants."""
    found, waiting = [], [root]
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        for thread in _listing(f"/proc/{pid}/task"):
            waiting += map(int, _read(f"/proc/{pid}/task/{thread}/children").split())
    return found


def memory_of(pid: int) -> tuple[int, int]:
    """(PSS, RSS) of one process in bytes; zeros when it has gone."""
    pss = rss = 0
    for line in _read(f"/proc/{pid}/smaps_rollup").splitlines():
        if line.startswith(b"Pss:"):
            pss = int(line.split()[1]) * 1024
        elif line.startswith(b"Rss:"):
            rss = int(line.split()[1]) * 1024
    return pss, rss


def run(command: Sequence[str | Path], *, memory: bool = True) -> Usage:
    """Run `command` to its end and measure it.

    Args:
        command: program and arguments; its stdin is empty.
        memory: sample memory every 15 ms (see REST); without it the parent only waits.

    Returns:
        Usage: times in seconds, sizes in bytes.

    Raises:
        CommandFailed: the command exited with another code than 0.
    """
    peaks = Peaks()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        began = time.perf_counter()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        _wait(process.pid, peaks if memory else None)
        wall_s = time.perf_counter() - began
        # wait4 rather than Popen.wait: it is the one that returns ru_maxrss.
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            line = " ".join(map(str, command))
            raise CommandFailed(f"{line}: exit {process.returncode}: {_tail(err)}")
        out.seek(0)
        output = out.read()
    return Usage(
        wall_s=wall_s,
        pss_bytes=peaks.pss_bytes,
        rss_bytes=peaks.rss_bytes,
        maxrss_bytes=usage.ru_maxrss * 1024,
        processes=peaks.processes,
        samples=peaks.samples,
        output=output,
    )


def _wait(pid: int, peaks: Peaks | None) -> None:
    """Return as soon as the process ends, sampling it until then."""
    descriptor = os.pidfd_open(pid)
    try:
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        pause_s = PAUSE_S
        while not poller.poll(None if peaks is None else 1000 * pause_s):
            if peaks is not None:
                pause_s = max(PAUSE_S, REST * peaks.sample(pid))
    finally:
        os.close(descriptor)


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
