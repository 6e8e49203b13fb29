"""What the keys beside the events say of a trace: rank and groups, devices, software, losses, pace.

Ranks, world sizes and the ranks of process groups count as far as they can be true.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Annotated, Any

import msgspec

from tracelens.errors import ParseError
from tracelens.filenames import SIDECAR
from tracelens.limits import limits
from tracelens.read.json import integer
from tracelens.read.source import open_source
from tracelens.trace import PacePart

THREADS_KEY = "gloo_threads"
"""Ids of all of gloo's worker threads in the process, as they were made, in the header's `tracelens`."""

_LOGS = ("ERROR", "WARNING", "INFO")
_STOPPED = re.compile(
    r"Exceeded max GPU buffer count|collection was stopped early|terminating tracing"
    r"|CUPTI stopped early\? = [1-9]",
    re.IGNORECASE,
)
_DROPPED = re.compile(
    r"\b[Dd]ropped (\d+)(?: \w+)? (?:records|events|activities)|(\d+) (?:\w+ )?records? dropped"
)
_UNEXPECTED = re.compile(r"(CPU GPU out-of-order|Unexpected CUDA events) = (\d+)")
_PREFIX = re.compile(r"^\w+:[\d\- :]+ \d+:\d+ [\w.]+:\d+\] ")
_LONGEST = 300  # characters of a line of the log
_SHOWN = 40  # characters of a value that is ignored

TRAINING, SERVING = "tracelens workload run", "tracelens workload serve"
"""The bundled programs, as TraceMeta.software names them."""
_CUDA, _HIP = "cuda_runtime_version", "hip_runtime_version"

_LAST = 2**62
_Number = Annotated[int, msgspec.Meta(ge=0, le=_LAST)]
_Positive = Annotated[int, msgspec.Meta(ge=1, le=_LAST)]


class _PacePart(msgspec.Struct):
    steps: tuple[_Number, _Number]
    dur_ns: _Positive
    tokens: _Number | None = None
    samples: _Number | None = None


class _Pace(msgspec.Struct):
    recording: str = ""
    before: _PacePart | None = None
    after: _PacePart | None = None


class _Sidecar(msgspec.Struct):
    pace: _Pace | None = None


# What ROCm calls a GPU that it has no name for.
_NAMELESS = ("", "AMD Radeon Graphics")


def distributed(keys: Mapping[str, Any]) -> dict[str, Any]:
    """The rank and its process groups, with what tracelens's recorder adds to them."""
    info, recorder = keys.get("distributedInfo"), keys.get("tracelens")
    threads = recorder.get(THREADS_KEY) if isinstance(recorder, dict) else None
    return {**(info if isinstance(info, dict) else {}), **({THREADS_KEY: threads} if threads else {})}


def device_names(keys: Mapping[str, Any]) -> dict[int, str]:
    """Names of the GPUs by device index, or what tells those without one."""
    properties = keys.get("deviceProperties")
    return {
        integer(entry.get("id", index)): _named(entry)
        for index, entry in enumerate(properties if isinstance(properties, list) else [])
        if isinstance(entry, dict)
    }


def _named(entry: Mapping[str, Any]) -> str:
    """The name of a GPU, such as "AMD Instinct MI300X"; "304 CUs, 9.4, 206 GB" where there is none."""
    name = str(entry.get("name", ""))
    units, memory = (integer(entry.get(key)) for key in ("numSms", "totalGlobalMem"))
    if name.strip() not in _NAMELESS or units <= 0 or memory <= 0:
        return name
    version = f"{integer(entry.get('computeMajor'))}.{integer(entry.get('computeMinor'))}"
    return ", ".join(filter(None, (name, f"{units} CUs", version, f"{memory / 1e9:.0f} GB")))


def program(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Config and mesh of the program as tracelens's recorder wrote them."""
    recorder = keys.get("tracelens")
    written = recorder if isinstance(recorder, dict) else {}
    return {key: written[key] for key in ("config", "mesh") if isinstance(written.get(key), dict)}


def reported_losses(keys: Mapping[str, object]) -> tuple[str, ...]:
    """The lines of the profiler's log, which Kineto writes there, that tell of lost records; each once."""
    losses: dict[str, None] = {}
    for name in _LOGS:
        log = keys.get(name)
        for line in log if isinstance(log, list) else [log]:
            if not isinstance(line, str):
                continue
            dropped = _DROPPED.search(line)
            counts = [int(dropped[1] or dropped[2])] if dropped else []
            counts += [int(count) for _, count in _UNEXPECTED.findall(line)]
            if _STOPPED.search(line) or any(counts):
                losses[_PREFIX.sub("", line)[:_LONGEST]] = None
    return tuple(losses)


def software_of(header: Mapping[str, Any]) -> dict[str, str]:
    """Program or library to version: runtime, NCCL, and the recorder and workload of tracelens.

    CUDA writes 13000 for 13.0, HIP 60443483 for 6.4 (and a build number).
    """
    versions: dict[str, str] = {}
    if (cuda := integer(header.get(_CUDA))) > 0:
        versions["cuda"] = f"{cuda // 1000}.{cuda % 1000 // 10}"
    if (hip := integer(header.get(_HIP))) > 0:
        versions["hip"] = f"{hip // 10_000_000}.{hip // 100_000 % 100}"
    info, recorder = header.get("distributedInfo"), header.get("tracelens")
    if isinstance(info, dict) and isinstance(nccl := info.get("nccl_version"), str):
        versions["nccl"] = nccl
    if isinstance(recorder, dict):
        version = recorder.get("version")
        versions["tracelens"] = version if isinstance(version, str) else ""
        if isinstance(config := recorder.get("config"), dict) and {"model", "toggles"} <= set(config):
            versions[SERVING if "serving" in config else TRAINING] = versions["tracelens"]
    return versions


def pace_of(path: str, recorder: Any, rank: int) -> tuple[tuple[PacePart, ...], tuple[str, ...]]:
    """The parts of a rank's loop that were timed without the profiler, and what is wrong with the record.

    Args:
        path: of the trace, beside which there may be the file; "-" and members of archives have none.
        recorder: the trace's `tracelens` key.
        rank: of the trace.
    """
    header = recorder.get("pace") if isinstance(recorder, dict) else None
    if header is None:
        return (), ()
    try:
        pace = msgspec.convert(header, _Pace)
    except msgspec.ValidationError as error:
        return (), (f"step times without the profiler are not readable ({error})",)
    if pace.recording and path != "-" and "!" not in path and rank >= 0:
        # What the file beside the trace adds is written when the loop has ended.
        file = os.path.join(os.path.dirname(path), SIDECAR if rank == 0 else f"rank{rank}.pace.json")
        with suppress(ParseError, msgspec.DecodeError):
            data = b"".join(open_source(file)[0].blocks())
            beside = (
                msgspec.json.decode(data, type=_Sidecar).pace
                if rank == 0
                else msgspec.json.decode(data, type=_Pace)
            )
            # Not of a recording that this trace has replaced.
            if beside is not None and beside.recording == pace.recording:
                pace = beside
    parts = []
    for name, part in (("before", pace.before), ("after", pace.after)):
        if part is not None and part.steps[0] < part.steps[1]:
            first, stop = part.steps
            tokens, samples = (-1 if count is None else count for count in (part.tokens, part.samples))
            parts.append(
                PacePart(name, first, stop - first, dur_ns=part.dur_ns, tokens=tokens, samples=samples)
            )
    return tuple(parts), ()


def ranks_of_header(info: Mapping[str, Any]) -> tuple[int, int, list[str]]:
    """Rank and world size that `distributedInfo` gives, -1 where it gives none that can be true.

    Returns:
        (rank, world size, what had to be ignored, for people).
    """
    notes: list[str] = []
    most = limits().ranks
    numbers = {"rank": -1, "world_size": -1}
    for key, lowest in (("rank", 0), ("world_size", 1)):
        value = info.get(key)
        number = integer(value)
        if lowest <= number < lowest + most:
            numbers[key] = number
        elif value is not None and value != -1:
            text = str(value) if len(str(value)) <= _SHOWN else f"{str(value)[:_SHOWN]}..."
            notes.append(f"distributedInfo.{key} {text} was ignored: {limits().exceeded('ranks')}")
    rank, world_size = numbers["rank"], numbers["world_size"]
    if 0 <= world_size <= rank:
        notes.append(f"distributedInfo.world_size {world_size} was ignored: the trace is of rank {rank}")
        world_size = -1
    return rank, world_size, notes


@lru_cache(maxsize=1 << 12)
def group_of(ranks: str, size: int) -> tuple[str, int, str]:
    """The ranks of a process group as recorded, and its size, as far as they can be true.

    Returns:
        (ranks, size, what is wrong with them); "" and -1 for what must be ignored. A list that the profiler
        has cut ("[0, 1, ...") is kept, and says nothing of the size.
    """
    size = size if 0 < size <= limits().ranks else -1
    try:
        listed = json.loads(ranks) if ranks else []
    except (ValueError, RecursionError):
        return ranks, size, ""
    if not listed:
        return ranks, size, ""
    count = len(valid_ranks(listed))
    if not count:
        return "", size, "impossible group ranks, left out"
    is_other = size not in (-1, count)
    return ranks, count, "group size different from the number of its ranks, corrected" if is_other else ""


def listed_ranks(ranks: str) -> tuple[int, ...]:
    """The ranks of a process group from their text; () where it is cut, or wrong."""
    try:
        return valid_ranks(json.loads(ranks))
    except (ValueError, RecursionError):
        return ()


def valid_ranks(listed: object) -> tuple[int, ...]:
    """A list as the ranks of a group: distinct, none below 0 or beyond the limit; () for anything else."""
    most = limits().ranks
    if not isinstance(listed, list) or not 0 < len(listed) <= most:
        return ()
    is_rank = all(type(rank) is int and 0 <= rank < most for rank in listed)
    return tuple(listed) if is_rank and len({*listed}) == len(listed) else ()
