"""`run.json`, the file beside the traces that says what was run and how it was recorded.

One JSON object, written by rank 0; `schema` grows with every change that a reader must know of.

    schema          "tracelens.run/1"
    tracelens       version that recorded
    recorded        when the traces were written, UTC, ISO 8601
    software        name to version: python, torch, cuda or hip
    device          type ("cuda" for NVIDIA and AMD alike, or "cpu"), name, count (seen by rank 0)
    world_size      processes of the job
    rank_source     who says the ranks: "torch.distributed", the name of a variable, or "one process"
    ranks_per_host  null where nobody says
    host            name of rank 0's host, null if scrubbed; every trace names its own under `tracelens`
    window          wait, warmup, steps as asked for; recorded: numbers of the steps in rank 0's trace, or in
                    that of the others if it does not record; empty if its trace could not be written
    options         shapes, stack, memory, max_bytes, scrub, ranks, pace_steps, values, scopes (names of
                    modules that got one)
    pace            steps of rank 0 that were timed without the profiler, null with pace_steps=0: recording (a
                    key that stands in the trace as well), and `before` and `after` the window, each left out
                    where no step was timed:
                        steps     number of the first one, and of the one after the last
                        dur_ns    of all of them together; the device was synchronized at both ends only
                        tokens    of all of them, null where a step did not tell
                        samples   likewise
    captures        graphs that rank 0 captured before the window, in capture_traces/rank0.json.gz
    files           rank to file name, of all ranks that record; null where only each host knows
    config, mesh    as the program passed them, null if it did not
    facts           what the program added while it ran
    notes           texts of the warnings of rank 0's recording

Every trace has its rank's `pace` under `tracelens` as well, as far as it is known when the window ends. What
comes later, or belongs to a rank without a trace, is in run.json for rank 0, and for any other rank in
`rank<N>.pace.json`: schema ("tracelens.pace/1"), rank, and the keys of `pace`.

What JSON cannot hold is written as text: `str(value)`, and "nan" and "inf" for numbers.
"""

from __future__ import annotations

import datetime
import json
import math
import os
import re
import socket
import sys
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tracelens.errors import TracelensError
from tracelens.filenames import SIDECAR
from tracelens.outputs import whole_file
from tracelens.version import __version__

if TYPE_CHECKING:
    from tracelens.recording.scopes import Names
    from tracelens.recording.window import RecordingWindow

SCHEMA = "tracelens.run/1"
PACE_SCHEMA = "tracelens.pace/1"
TRACE = re.compile(r"rank\d+\.json\.gz")
_SHOWN = ("stack", "memory", "max_bytes", "scrub", "ranks", "pace_steps", "values")
"""Of RecordOptions, what run.json tells."""


@dataclass(frozen=True)
class RecordOptions:
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
    values: bool = False

    @property
    def host(self) -> str | None:
        """Name of this host, unless it is left out."""
        return None if self.scrub else socket.gethostname()


# As the system keeps it, cut to 15 letters.
_GLOO_WORKER = "pt_gloo_runloop"

Ranks = Collection[int] | Literal["all", "hosts"]
# Launchers, the most telling first: rank, world size, rank on this host, ranks on this host. Slurm sets
# SLURM_NTASKS in a batch script's own single process too, SLURM_STEP_NUM_TASKS only in what srun starts.
_LAUNCHERS = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    tuple(f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
)


@dataclass(frozen=True)
class JobRank:
    """One process of a job."""

    rank: int = 0  # its number
    world: int = 1  # processes of the job
    local_rank: int | None = 0  # its number among those of its host, None if nobody says
    local_world: int | None = 1  # processes on its host, None if nobody says
    # who says the rank: "torch.distributed", the name of a variable, or "one process"
    source: str = "one process"

    def records(self, ranks: Ranks) -> bool:
        """Whether this rank is among `ranks`.

        Raises:
            TracelensError: a rank that the job does not have, or nothing says which is a host's first.
        """
        if isinstance(ranks, str):
            if ranks not in ("all", "hosts"):
                raise TracelensError(f"ranks must be 'all', 'hosts' or numbers, not {ranks!r}")
            if ranks == "hosts" and self.local_rank is None:
                raise TracelensError(
                    "ranks='hosts' needs LOCAL_RANK to know each host's first rank; start with torchrun, "
                    "or pass the numbers of the ranks"
                )
            return ranks == "all" or self.local_rank == 0
        strange = [rank for rank in ranks if rank not in range(self.world)]
        if strange:
            raise TracelensError(
                f"ranks contains {strange[0]!r}, but the job has ranks 0 to {self.world - 1}"
            )
        return self.rank in ranks

    def recording(self, ranks: Ranks) -> list[int] | None:
        """All ranks of the job that record; None where each host decides for itself."""
        if not isinstance(ranks, str):
            return sorted(set(ranks))
        if ranks == "all":
            return list(range(self.world))
        return list(range(0, self.world, self.local_world)) if self.local_world else None


def plain(value: Any) -> Any:
    """A value as JSON can hold it: dataclasses and mappings as objects, collections as arrays, else text."""
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset | range):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def write(folder: Path, content: Mapping[str, Any]) -> Path:
    """Write the sidecar, so that a reader sees the old one or the new one and nothing between.

    Traces that an older one tells of and this one does not go: they would be taken for ranks of this job.

    Raises:
        OSError: it cannot be written.
    """
    path = folder / SIDECAR
    try:
        older = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        older = None
    if isinstance(older, dict) and isinstance(older.get("files"), dict):
        names = {name for name in older["files"].values() if isinstance(name, str) and TRACE.fullmatch(name)}
        for name in names - set((content.get("files") or {}).values()):
            (folder / name).unlink(missing_ok=True)
    with whole_file(path) as file:
        file.write(json.dumps(plain({"schema": SCHEMA, **content}), indent=2).encode() + b"\n")
    return path


def pace_name(rank: int) -> str:
    """Name of the file with the pace of a rank other than 0."""
    return f"rank{rank}.pace.json"


def write_pace(folder: Path, rank: int, pace: Mapping[str, Any] | None) -> Path:
    """Write the pace of a rank other than 0; raises as `write`."""
    path = folder / pace_name(rank)
    with whole_file(path) as file:
        file.write(json.dumps({"schema": PACE_SCHEMA, "rank": rank, **(pace or {})}).encode() + b"\n")
    return path


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
    job_rank: JobRank, window: RecordingWindow, options: RecordOptions, pace: dict[str, Any] | None = None
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
    job_rank: JobRank, window: RecordingWindow, options: RecordOptions, pace: dict[str, Any] | None = None
) -> dict[str, Any]:
    """What stands in run.json besides what only the recorder knows; see `tracelens.recording.sidecar`."""
    from tracelens.recording import software  # needs torch, which reading a sidecar does not

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
        "options": {"shapes": True, **{name: getattr(options, name) for name in _SHOWN}},
        "pace": pace,
        "files": None if recording is None else {rank: f"rank{rank}.json.gz" for rank in recording},
        "config": options.config,
        "mesh": options.mesh,
    }


def find_job_rank(environ: Mapping[str, str] = os.environ) -> JobRank:
    """The rank of this process: from torch.distributed, else the launcher's variables, else it is alone.

    Raises:
        TracelensError: a variable holds no number, or a rank outside of the job.
    """
    local = [(_number(environ, names[2]), _number(environ, names[3])) for names in _LAUNCHERS]
    local_rank, local_world = next((pair for pair in local if pair[0] is not None), (None, None))
    # Only what runs already counts; importing it here would tell nothing.
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        rank, world = int(distributed.get_rank()), int(distributed.get_world_size())
        return JobRank(rank, world, local_rank, local_world, "torch.distributed")
    for rank_name, world_name, *_ in _LAUNCHERS:
        launched, size = _number(environ, rank_name), _number(environ, world_name)
        if launched is None or size is None:
            continue
        if launched >= size:
            raise TracelensError(f"{rank_name} is {launched}, but {world_name} is {size}: ranks count from 0")
        return JobRank(launched, size, local_rank, local_world, rank_name)
    return JobRank()


def _number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name)
    if text is None or (name == "SLURM_STEP_TASKS_PER_NODE" and not text.isdecimal()):
        return None  # Slurm writes "4(x2),3" where there are several hosts
    if not text.isdecimal():
        raise TracelensError(f"the environment variable {name} must be a number, not {text!r}")
    return int(text)
