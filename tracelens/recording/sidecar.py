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
    options         shapes, stack, memory, max_bytes, scrub, ranks, pace_steps, scopes (names of modules that
                    got one)
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

import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

from tracelens.outputs import whole_file

NAME = "run.json"
SCHEMA = "tracelens.run/1"
PACE_SCHEMA = "tracelens.pace/1"
TRACE = re.compile(r"rank\d+\.json\.gz")


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
    path = folder / NAME
    for name in _files(path) - set((content.get("files") or {}).values()):
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


def _files(path: Path) -> set[str]:
    """Names of the traces that a sidecar tells of; none where there is no sidecar, or no readable one."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return set()
    if not isinstance(document, dict) or not isinstance(document.get("files"), dict):
        return set()
    return {name for name in document["files"].values() if isinstance(name, str) and TRACE.fullmatch(name)}
