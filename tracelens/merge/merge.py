"""All ranks of a run in one Perfetto file: clocks aligned, ranks named, steps and waits as extra rows.

The file is for viewing. tracelens reads it back as the trace of a single rank with many GPUs, and what only
analyses need (argument lists, the profiler's records of collectives) is shortened to readable text; analyses
need the ranks' own files.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from tracelens.errors import TracelensError
from tracelens.merge.events import Writer
from tracelens.merge.layout import drawn_events, lay_out
from tracelens.merge.tracks import Track, Wait, rows, steps_track, wait_tracks
from tracelens.merge.write import check_suffix, write_events
from tracelens.outputs import Output, check_outputs
from tracelens.trace import Run, Trace

_FARTHEST_NS = 1 << 61
"""Clocks that are 73 years apart have not been set."""
_YEAR_2001_NS = 10**18


class _Plan(NamedTuple):
    """One rank: its extra rows, what is added to its clock, and its first moment then."""

    trace: Trace
    tracks: Sequence[Track]
    clock_ns: int
    earliest_ns: int


def _quiet(_: str) -> None:
    """Report no progress."""


def fuse(
    run: Run,
    path: str | os.PathLike[str],
    *,
    offsets: Mapping[int, int] | None = None,
    waits: Iterable[Wait] | None = None,
    tracks: Mapping[int, Sequence[Track]] | None = None,
    cpu: bool = True,
    progress: Callable[[str], None] = _quiet,
) -> None:
    """Write one Perfetto / Chrome JSON file of all ranks.

    Times are relative to the earliest moment drawn, which the file gives as baseTimeNanoseconds. No
    nanosecond is lost.

    Args:
        run: the ranks.
        path: .json or .json.gz.
        offsets: rank to ns added to its `ts_ns` to get times by the first rank's clock; by default clocks
            agree once each trace's base (`epoch_ns`) is added.
        waits: (rank, label, start_ns, dur_ns) on the rank's own clock, drawn as a row of that rank.
        tracks: rank to further rows.
        cpu: whether to draw host threads.
        progress: called with a line of text before each rank.

    Offsets, waits and tracks of ranks outside the run are ignored.

    Raises:
        TracelensError: nothing to draw, clocks that have nothing in common, or the path cannot be written.
    """
    check_suffix(path)
    check_outputs([Output(os.fspath(path))], [trace.meta.path for trace in run.traces])
    waiting, more = wait_tracks(waits or ()), tracks or {}
    plans = []
    for trace in run.traces:
        rank = trace.meta.rank
        rank_tracks = [steps_track(trace), *([waiting[rank]] if rank in waiting else []), *more.get(rank, ())]
        clock = _epoch(trace) if offsets is None else _epoch(run.traces[0]) + int(offsets.get(rank, 0))
        plans += _plan(trace, [row for track in rank_tracks for row in rows(track)], clock, cpu)
    base = _base(plans)
    writer = Writer()

    def batches() -> Iterator[list[str]]:
        for plan in plans:
            progress(f"fusing rank {plan.trace.meta.rank}")
            yield from writer.rank(plan.trace, lay_out(plan.trace, cpu), plan.tracks, plan.clock_ns - base)

    header = {
        "schemaVersion": 1,
        "displayTimeUnit": "ns",
        "baseTimeNanoseconds": base,
        "fusedRanks": [plan.trace.meta.rank for plan in plans],
    }
    write_events(path, header, batches(), lambda: _devices(writer))


def _epoch(trace: Trace) -> int:
    """The base of a trace's times; some traces give one though their times count from 1970 already."""
    first = int(trace.arrays.start.min(initial=_YEAR_2001_NS))
    return 0 if first >= _YEAR_2001_NS else trace.meta.epoch_ns


def _plan(trace: Trace, tracks: Sequence[Track], clock_ns: int, cpu: bool) -> list[_Plan]:
    """The plan of a rank, none where there is nothing to draw."""
    starts = [piece.start_ns for track in tracks for piece in track.slices]
    drawn = trace.arrays.start[drawn_events(trace.arrays, cpu)]
    if len(drawn):
        starts.append(int(drawn.min()))
    if not starts:
        return []
    return [_Plan(trace, tracks, clock_ns, min(starts) + clock_ns)]


def _base(plans: Sequence[_Plan]) -> int:
    """The earliest moment of all ranks."""
    if not plans:
        raise TracelensError(
            "nothing to draw: no rank of the run has events of this kind; leave out --no-cpu"
        )
    first = min(plans, key=lambda plan: plan.earliest_ns)
    last = max(plans, key=lambda plan: plan.earliest_ns)
    if last.earliest_ns - first.earliest_ns > _FARTHEST_NS:
        raise TracelensError(
            f"{last.trace.meta.path}: begins over 70 years after {first.trace.meta.path}: these clocks have "
            "nothing in common; pass the ranks of one run"
        )
    return first.earliest_ns


def _devices(writer: Writer) -> dict[str, object]:
    """GPU names by the numbers that GPUs have in the fused file."""
    return {"deviceProperties": [{"id": pid, "name": name} for pid, name in writer.devices.items()]}
