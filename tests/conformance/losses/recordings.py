"""Real recordings as plain JSON events, to be damaged and judged without the package under test."""

from __future__ import annotations

import gzip
import os
import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import zstandard

from tests.reference.traces import FOLDERS, ROOT

Event = dict[str, Any]
Bool = npt.NDArray[np.bool_]
Int = npt.NDArray[np.int64]
Float = npt.NDArray[np.float64]

GPU = frozenset(("kernel", "gpu_memcpy", "gpu_memset"))
CALLS = frozenset(("cuda_runtime", "cuda_driver"))
HOST = CALLS | {"cpu_op", "user_annotation", "python_function"}
STEP = re.compile(r"ProfilerStep#\d+")
WAITS = re.compile(r"(cuda|hip)((Stream|Device|Event)Synchronize|Memcpy(WithStream|Async)?$)")
DEVICE_WAIT = re.compile(r"(cuda|hip)DeviceSynchronize")
US_A_MS = 1000.0
PACED = Path(os.environ.get("TRACELENS_RECORDINGS", ROOT.parent / "shared" / "recordings"))


def unpacked(path: Path) -> bytes:
    data = path.read_bytes()
    if path.suffix == ".gz":
        return gzip.decompress(data)
    if path.suffix == ".zst":
        return zstandard.ZstdDecompressor().decompressobj().decompress(data)
    return data


@dataclass(frozen=True)
class Replay:
    """The GPU work of one graph launch; replays of equal work are siblings."""

    correlation: int
    rows: Int
    work: frozenset[tuple[str, int]]


class RankRecording:
    """One rank's file: events in the order of the file, and the arrays that damages choose from (µs)."""

    def __init__(self, path: Path) -> None:
        document = orjson.loads(unpacked(path))
        self.path = path
        self.events: list[Event] = document.pop("traceEvents")
        self.head: dict[str, Any] = document
        self.ts = self._numbers("ts", np.nan)
        self.dur = self._numbers("dur", 0.0)
        self.end = self.ts + self.dur
        slices = np.array([event.get("ph") == "X" for event in self.events])
        categories = [event.get("cat") for event in self.events]
        self.gpu = slices & np.array([category in GPU for category in categories])
        self.call = slices & np.array([category in CALLS for category in categories])
        self.host = slices & np.array([category in HOST for category in categories])
        self.name = np.array([str(event.get("name")) for event in self.events], dtype=object)
        self.correlation = np.array([_correlation(event) for event in self.events], dtype=np.int64)
        self.lane = self._lanes()

    def _numbers(self, key: str, missing: float) -> Float:
        return np.array([float(event.get(key, missing)) for event in self.events])

    def _lanes(self) -> Int:
        """Of each event its (pid, tid) as a code: a thread of the host or a stream of the GPU."""
        codes: dict[tuple[str, str], int] = {}
        keys = [(str(event.get("pid")), str(event.get("tid"))) for event in self.events]
        return np.array([codes.setdefault(key, len(codes)) for key in keys], dtype=np.int64)

    def named(self, pattern: re.Pattern[str]) -> Bool:
        fits = {name: bool(pattern.match(name)) for name in set(self.name)}
        return np.array([fits[name] for name in self.name], dtype=bool)

    @cached_property
    def texts(self) -> list[bytes]:
        """The JSON of each event."""
        return [orjson.dumps(event) for event in self.events]

    @cached_property
    def gpu_lanes(self) -> Int:
        return np.unique(self.lane[self.gpu])

    @cached_property
    def on_gpu_lane(self) -> Bool:
        """GPU work and what lies on its streams: ends of arrows, annotations."""
        return np.isin(self.lane, self.gpu_lanes)

    @cached_property
    def launch(self) -> Bool:
        """Runtime and driver calls that launched GPU work of this recording."""
        return self.call & np.isin(self.correlation, self.correlation[self.gpu & (self.correlation >= 0)])

    @cached_property
    def launched(self) -> Bool:
        """GPU work whose launch is recorded."""
        return self.gpu & np.isin(self.correlation, self.correlation[self.launch])

    @cached_property
    def launch_row(self) -> Int:
        """Of each event of GPU work the row of its launch, else -1."""
        row_of = dict(zip(self.correlation[self.launch].tolist(), np.flatnonzero(self.launch), strict=True))
        rows = np.full(len(self.events), -1, dtype=np.int64)
        for row in np.flatnonzero(self.launched):
            rows[row] = row_of[int(self.correlation[row])]
        return rows

    @cached_property
    def gpu_span(self) -> tuple[float, float]:
        return float(self.ts[self.gpu].min()), float(self.end[self.gpu].max())

    @cached_property
    def steps(self) -> list[int]:
        """Rows of the host's step marks, in order of time, of steps that launched GPU work."""
        marks = np.flatnonzero(self.host & self.named(STEP) & ~self.on_gpu_lane)
        return [int(row) for row in marks[np.argsort(self.ts[marks])] if self.launched_in(int(row)).any()]

    def launched_in(self, step: int) -> Bool:
        """GPU work launched between the begin and the end of a step's mark."""
        launch = np.where(self.launch_row >= 0, self.ts[self.launch_row], np.nan)
        return (launch >= self.ts[step]) & (launch < self.end[step])

    @cached_property
    def kernels_by_step(self) -> list[int]:
        return [int(self.launched_in(step).sum()) for step in self.steps]

    @cached_property
    def replays(self) -> list[Replay]:
        """Graph launches with their work, in order of time."""
        calls = [row for row in np.flatnonzero(self.launch) if "GraphLaunch" in self.name[row]]
        return [
            self._replay(int(self.correlation[row])) for row in sorted(calls, key=lambda row: self.ts[row])
        ]

    def _replay(self, correlation: int) -> Replay:
        rows = np.flatnonzero(self.gpu & (self.correlation == correlation))
        return Replay(correlation, rows, frozenset(Counter(self.name[rows]).items()))

    @cached_property
    def siblings(self) -> list[list[Replay]]:
        """Replays of equal work, two at least, five kernels at least."""
        groups = defaultdict(list)
        for replay in self.replays:
            groups[replay.work].append(replay)
        return [group for group in groups.values() if len(group) > 1 and len(group[0].rows) >= 5]


def _correlation(event: Event) -> int:
    args = event.get("args")
    value = args.get("correlation", -1) if isinstance(args, dict) else -1
    return int(value) if isinstance(value, int | str) and str(value).isdecimal() else -1


@dataclass(frozen=True)
class Recording:
    """The ranks of one run."""

    name: str
    ranks: tuple[RankRecording, ...]

    @classmethod
    def read(cls, name: str) -> Recording:
        path = located(name)
        files = sorted(path.glob("rank*.json.*")) if path.is_dir() else [path]
        return cls(name, tuple(RankRecording(file) for file in files))


def located(name: str) -> Path:
    folder, _, rest = name.partition("/")
    return (FOLDERS | {"recordings": PACED})[folder] / rest
