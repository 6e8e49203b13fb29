"""An excerpt of a trace: several stretches of it, one behind the other, as if only they were recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from tracelens.arrays import Bool, Int, lookup
from tracelens.table import Schema, Table
from tracelens.trace.intervals import interval_of
from tracelens.trace.tables import GPU_SIGNS
from tracelens.trace.trace import Trace, TraceWindow


class Stretch(NamedTuple):
    """A part of a trace, ns by its own clock.

    Attributes:
        start, end: on the GPU.
        host_start, host_end: when the host launched its work; the same as start and end where the host is
            not recorded.
        earlier_ns: by how much it begins earlier in the excerpt, on the GPU.
        host_earlier_ns: the same on the host; less where stretches would overlap there otherwise.
    """

    start: int
    end: int
    host_start: int
    host_end: int
    earlier_ns: int
    host_earlier_ns: int


def excerpt(trace: Trace, label: str, stretches: Sequence[Stretch]) -> Trace:
    """The trace of these stretches alone, a single window of this name.

    GPU work belongs to the stretch that launched it, and is cut at the stretch's borders on the GPU; without
    a recorded launch call, to the stretch in which it begins. Everything else belongs to the stretches whose
    host time it overlaps, and is cut there. Durations within a stretch stay as they are.

    Args:
        trace: of one rank.
        label: name of the window.
        stretches: at least one, in order of time, without overlap on the host.
    """
    start, end, host_start, host_end, earlier, host_earlier = np.array(stretches, dtype=np.int64).T
    tables, events = trace.tables, trace.arrays
    links = tables["links"]
    gpu = events.where(*GPU_SIGNS) | (events.where("sync") & (events.stream >= 0))
    stretch = np.full(len(events.start), -1, dtype=np.int64)
    stretch[gpu] = interval_of(start, end, events.start[gpu])
    launched = links.array("launch_id") >= 0
    work, calls = (links.array(name)[launched] for name in ("kernel_id", "launch_id"))
    stretch[work] = interval_of(host_start, np.maximum(host_end, host_start + 1), events.start[calls])
    first, last = stretch.copy(), stretch.copy()
    host = ~gpu
    first[host], last[host] = _overlapped(events.start[host], events.end[host], host_start, host_end)
    low = np.where(gpu, lookup(start, first, 0), lookup(host_start, first, 0))
    high = np.where(gpu, lookup(end, last, 0), lookup(host_end, last, 0))
    begin, finish = np.clip(events.start, low, high), np.clip(events.end, low, high)
    kept = (first >= 0) & (first <= last) & (~gpu | (finish > begin) | (events.end == events.start))
    begin -= np.where(gpu, lookup(earlier, first, 0), lookup(host_earlier, first, 0))
    finish -= np.where(gpu, lookup(earlier, last, 0), lookup(host_earlier, last, 0))
    window = TraceWindow(
        label,
        int((start - earlier).min()),
        int((end - earlier).max()),
        int((host_start - host_earlier).min()),
        int((host_end - host_earlier).max()),
    )
    # Steps timed without the profiler are whole ones.
    meta = replace(trace.meta, pace=())
    return Trace(meta, _kept(trace, kept, begin, np.maximum(finish - begin, 0)), window, trace)


def _overlapped(start: Int, end: Int, low: Int, high: Int) -> tuple[Int, Int]:
    """(first, last) of the disjoint, sorted intervals that each event overlaps; none where last < first."""
    first = np.searchsorted(high, start, side="left")
    last = np.searchsorted(low, end, side="right") - 1
    missing = first >= len(low)
    return np.where(missing, -1, first), np.where(missing, -1, last)


def _kept(trace: Trace, kept: Bool, start: Int, dur: Int) -> dict[str, Table]:
    """The tables with these events only, at these times; references to others become -1."""
    number = np.where(kept, np.cumsum(kept) - 1, -1)
    tables = {}
    for name, table in trace.tables.items():
        times = {"ts_ns": start, "dur_ns": dur} if name == "events" else {}
        keys = references(table.schema)
        rows = Table(table.schema, {**table.columns, **times}).take(kept[table.array(keys[0])])
        renumbered = {key: lookup(number, rows.array(key), -1) for key in keys}
        tables[name] = Table(table.schema, {**rows.columns, **renumbered})
    return tables


def references(schema: Schema) -> list[str]:
    """Columns that hold rows of `events`; the first is the event that a row of the table describes."""
    return [name for name in schema.names if name.endswith("_id") and name != "correlation_id"]
