"""One rank's trace as the profiler wrote it: plain JSON, times in whole ns."""

import gc
import gzip
import io
import json
import re
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import zstandard

WORK = ("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset")
CALLS = ("cuda_runtime", "cuda_driver", "runtime")
OPS = ("cpu_op", "operator")
STEP = re.compile(r"ProfilerStep#\d+")
SCOPE = re.compile(r"mb(?P<micro_batch>\d+)\.chunk(?P<chunk>\d+)\.(?P<phase>[FB])")
# What is kept of the arguments: a hundred thousand events would take a gigabyte with all of them.
_ARGS = (
    "Sequence number", "Collective name", "Process Group Name", "Process Group Description",
    "Process Group Ranks", "Src Rank", "Dst Rank", "In msg nelems", "Out msg nelems", "dtype",
)  # fmt: skip
_TRACE = re.compile(r"\.json(\.gz|\.zst)?$")


class Span(NamedTuple):
    """Something with a begin and an end on one host thread."""

    name: str
    start: int
    end: int
    thread: str
    args: dict[str, Any]


class Work(NamedTuple):
    """One kernel, copy or memset.

    Attributes:
        called: begin of the call that launched it, None where that is not recorded.
        thread: host thread of the call.
    """

    name: str
    start: int
    end: int
    device: str
    stream: str
    called: int | None
    thread: str
    args: dict[str, Any]

    @property
    def dur(self) -> int:
        return self.end - self.start


@dataclass
class Recording:
    """One rank.

    Attributes:
        work: by start.
        steps: the ProfilerStep marks of the host, by start.
        ops: CPU ops that autograd or a message knows of, by start.
        optimizer: annotations of the optimizer.
        scopes: annotations in which the bundled workload names its micro-batches.
        rank: from distributedInfo, -1 without.
        base: what is to be added to times for ns since 1970.
        begin: when the recording began, -1 where that is not written.
    """

    rank: int
    base: int
    begin: int = -1
    work: list[Work] = field(default_factory=list)
    steps: list[Span] = field(default_factory=list)
    ops: list[Span] = field(default_factory=list)
    optimizer: list[Span] = field(default_factory=list)
    scopes: list[Span] = field(default_factory=list)


def nanoseconds(text: str | int) -> int:
    """Microseconds as they are written to ns; the exporter writes three decimals."""
    return round(Decimal(text) * 1000)


def text_of(path: Path) -> bytes:
    packed = path.read_bytes()
    if packed[:4] == b"\x28\xb5\x2f\xfd":
        return zstandard.ZstdDecompressor().stream_reader(io.BytesIO(packed)).read()
    return gzip.decompress(packed) if packed[:2] == b"\x1f\x8b" else packed


def files(path: Path) -> list[Path]:
    """The traces of a run: the file itself, or all ranks in a folder."""
    if path.is_file():
        return [path]
    return sorted(file for file in path.iterdir() if _TRACE.search(file.name) and file.name != "run.json")


@cache
def read(path: Path) -> Recording:
    """One rank, parsed once a session."""
    gc.disable()  # a hundred thousand small objects, none of which is garbage
    try:
        # Floats stay text: a timestamp has more digits than a double.
        return _recording(json.loads(text_of(path), parse_float=str))
    finally:
        gc.enable()


def _recording(data: Any) -> Recording:
    events = data["traceEvents"] if isinstance(data, dict) else data
    about = data if isinstance(data, dict) else {}
    recording = Recording(
        int(about.get("distributedInfo", {}).get("rank", -1)), int(about.get("baseTimeNanoseconds", 0))
    )
    complete = [event for event in events if event.get("ph") == "X"]
    calls: dict[str, tuple[int, str]] = {}
    for event in complete:
        category, args = str(event.get("cat", "")).lower(), event.get("args") or {}
        if category in CALLS and "correlation" in args:
            call = nanoseconds(event["ts"]), str(event["tid"])
            # The runtime's call encloses the driver's of the same number.
            calls[str(args["correlation"])] = min(call, calls.get(str(args["correlation"]), call))
        elif category == "trace":
            recording.begin = nanoseconds(event["ts"])
        elif category in OPS and _is_known_to_autograd_or_messages(event["name"], args):
            recording.ops.append(_span(event))
        elif category == "user_annotation" or (category in OPS and STEP.fullmatch(event["name"])):
            if STEP.fullmatch(event["name"]):
                recording.steps.append(_span(event))
            elif event["name"].startswith("Optimizer.step"):
                recording.optimizer.append(_span(event))
            elif SCOPE.fullmatch(event["name"]):
                recording.scopes.append(_span(event))
            elif event["name"] == "nccl:coalesced":
                recording.ops.append(_span(event))
    for event in complete:
        if str(event.get("cat", "")).lower() in WORK:
            recording.work.append(_work(event, calls))
    for spans in (recording.steps, recording.ops, recording.optimizer, recording.scopes, recording.work):
        spans.sort(key=lambda span: (span.start, -span.end))
    return recording


def _is_known_to_autograd_or_messages(name: str, args: dict[str, Any]) -> bool:
    return "Sequence number" in args or name.startswith("autograd::engine::") or name == "record_param_comms"


def _span(event: dict[str, Any]) -> Span:
    start = nanoseconds(event["ts"])
    end = start + nanoseconds(event.get("dur", 0))
    return Span(event["name"], start, end, str(event["tid"]), _kept(event.get("args") or {}))


def _work(event: dict[str, Any], calls: dict[str, tuple[int, str]]) -> Work:
    args = event.get("args") or {}
    start = nanoseconds(event["ts"])
    called, thread = calls.get(str(args.get("correlation")), (None, ""))
    return Work(
        event["name"],
        start,
        start + nanoseconds(event["dur"]),
        str(args.get("device", event.get("pid"))),
        str(args.get("stream", event.get("tid"))),
        called,
        thread,
        _kept(args),
    )


def _kept(args: dict[str, Any]) -> dict[str, Any]:
    return {name: args[name] for name in _ARGS if name in args}


def union(intervals: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Disjoint intervals that cover the same time, ascending."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        elif end > start:
            merged.append((start, end))
    return merged


def length(intervals: list[tuple[int, int]]) -> int:
    return sum(end - start for start, end in union(intervals))


def clipped(intervals: list[tuple[int, int]], low: int, high: int) -> list[tuple[int, int]]:
    return [(max(start, low), min(end, high)) for start, end in intervals if min(end, high) > max(start, low)]
