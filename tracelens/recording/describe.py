"""What a recording says of itself, in the trace and beside it."""

from __future__ import annotations

import datetime
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracelens.recording import software
from tracelens.recording.job_rank import JobRank, Ranks
from tracelens.recording.modules import Names
from tracelens.recording.sidecar import plain
from tracelens.recording.window import RecordingWindow
from tracelens.version import __version__


@dataclass(frozen=True)
class Options:
    """What is recorded and what is kept of it; see `tracelens.record`."""

    stack: bool = False
    memory: bool = False
    ranks: Ranks = "all"
    model: Any = None
    names: Names | None = None
    config: Any = None
    mesh: Any = None
    max_bytes: int | None = None
    scrub: bool = False
    pace_steps: int = 0

    @property
    def host(self) -> str | None:
        """Name of this host, unless it is left out."""
        return None if self.scrub else socket.gethostname()


# As the system keeps it, cut to 15 letters.
_GLOO_WORKER = "pt_gloo_runloop"


def gloo_threads(tasks: Path = Path("/proc/self/task")) -> list[int]:
    """Ids of all worker threads of gloo's groups in this process, in the order in which they were made.

    A group has two of its own and its work is recorded on them, but not which group that is: readers tell by
    the order in which threads and groups were made, for which they must know the idle ones as well. Ids alone
    do not tell: the system begins anew when it has used them up.

    Args:
        tasks: where Linux shows the threads of this process; where it is missing, none are found.
    """
    threads = []
    # Listed as they were made; times are whole ticks.
    for name in os.listdir(tasks) if tasks.is_dir() else []:
        try:
            text = (tasks / name / "stat").read_text()
        except OSError:
            continue  # the thread has ended
        # "7 (name) S ...", the time of its start the 20th word behind the name (man 5 proc).
        before, _, behind = text.rpartition(")")
        if before.partition("(")[2] == _GLOO_WORKER:
            threads.append((int(behind.split()[19]), int(name)))
    return [thread for _, thread in sorted(threads, key=lambda pair: pair[0])]


def metadata(
    job_rank: JobRank, window: RecordingWindow, options: Options, pace: dict[str, Any] | None = None
) -> dict[str, Any]:
    """What stands at the top of a trace: `tracelens`, and the rank where torch does not write it."""
    header: dict[str, Any] = {
        "version": __version__,
        "host": options.host,
        "steps": [window.first, window.end],
        "config": plain(options.config),
        "mesh": plain(options.mesh),
    }
    if pace is not None:
        header["pace"] = pace
    if threads := gloo_threads():
        header["gloo_threads"] = threads
    if job_rank.source == "torch.distributed":
        return {"tracelens": header}
    rank = {"backend": "none", "rank": job_rank.rank, "world_size": job_rank.world}
    return {"tracelens": header, "distributedInfo": rank}


def content(
    job_rank: JobRank, window: RecordingWindow, options: Options, pace: dict[str, Any] | None = None
) -> dict[str, Any]:
    """What stands in run.json besides what only the recorder knows; see `tracelens.recording.sidecar`."""
    recording = job_rank.recording(options.ranks)
    return {
        "tracelens": __version__,
        "recorded": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "software": software.software_versions(),
        "device": software.this_device(),
        "world_size": job_rank.world,
        "rank_source": job_rank.source,
        "ranks_per_host": job_rank.local_world,
        "host": options.host,
        "window": {"wait": window.wait, "warmup": window.warmup, "steps": window.steps},
        "options": {
            "shapes": True,
            "stack": options.stack,
            "memory": options.memory,
            "max_bytes": options.max_bytes,
            "scrub": options.scrub,
            "ranks": options.ranks,
            "pace_steps": options.pace_steps,
        },
        "pace": pace,
        "files": None if recording is None else {rank: f"rank{rank}.json.gz" for rank in recording},
        "config": options.config,
        "mesh": options.mesh,
    }
