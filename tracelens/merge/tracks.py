"""Extra rows of a rank, above its threads and streams: its steps, its waits, whatever else is to be shown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from tracelens.merge.lanes import lanes
from tracelens.trace import Trace, gpu_work, steps_of


class Slice(NamedTuple):
    """A labeled piece of a rank's time, on the rank's own clock; `args` are shown when it is clicked."""

    label: str
    start_ns: int
    dur_ns: int
    args: Mapping[str, str | int | float] = {}


@dataclass(frozen=True)
class Track:
    """A row of slices; where they overlap, as many rows as it takes."""

    name: str
    slices: Sequence[Slice] = field(default_factory=tuple)


Wait = tuple[int, str, int, int]
"""(rank, label, start_ns, dur_ns), on the rank's own clock."""


def steps_track(trace: Trace) -> Track:
    """The step windows as the analyzers see them; empty where the trace has no step marks or no GPU work."""
    work = gpu_work(trace)
    if not len(work.event):
        return Track("steps")
    steps = steps_of(trace)
    if not steps.marked:
        return Track("steps")
    starts, lengths = steps.edges[:-1].tolist(), np.diff(steps.edges).tolist()
    return Track("steps", [Slice(*row) for row in zip(steps.labels, starts, lengths, strict=True)])


def wait_tracks(waits: Iterable[Wait]) -> dict[int, Track]:
    """The waits of each rank that has any."""
    slices_of: dict[int, list[Slice]] = {}
    for rank, label, start_ns, dur_ns in waits:
        slices_of.setdefault(int(rank), []).append(Slice(label, int(start_ns), int(dur_ns)))
    return {rank: Track("waits", slices) for rank, slices in slices_of.items()}


def rows(track: Track) -> list[Track]:
    """The track as one row, or as several named `waits`, `waits (2)`, ... where its slices overlap."""
    ordered = sorted(track.slices, key=lambda piece: (piece.start_ns, -piece.dur_ns))
    start = np.array([piece.start_ns for piece in ordered], dtype=np.int64)
    end = start + np.array([max(piece.dur_ns, 0) for piece in ordered], dtype=np.int64)
    lane = lanes(start, end, nested=False).tolist()
    parts: list[list[Slice]] = [[] for _ in range(max(lane, default=-1) + 1)]
    for lane_index, piece in zip(lane, ordered, strict=True):
        parts[lane_index].append(piece)
    return [Track(numbered(track.name, lane_index), part) for lane_index, part in enumerate(parts)]


def numbered(name: str, lane: int) -> str:
    """The name of the first row, and of those that hold what overlaps there."""
    return f"{name} ({lane + 1})" if lane else name
