"""Which row of the viewer each event of a rank is drawn on, and what the rows are called."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tracelens.arrays import Bool, Int
from tracelens.merge.lanes import cut_overruns, has_crossings, lanes
from tracelens.trace import GPU_KINDS, Events, Trace

_ON_GPU = (*GPU_KINDS, "gpu_annotation", "sync")
"""What is drawn on GPU rows, GPU work or not."""


class Row(NamedTuple):
    """A thread, or a stream of a GPU; one `lane` more for what overlaps there without nesting."""

    on_gpu: bool  # whether it is a stream
    device: int  # GPU index, 0 on the host; negative where the profiler gave no number
    order: tuple[int, ...]  # sorts the rows of one process
    name: str  # as shown
    lane: int = 0


@dataclass(frozen=True)
class Layout:
    """The drawn events of one rank."""

    event: Int  # rows of the events table, in order of start, enclosing events first
    row: Int  # of each of them, its place in `rows`
    start: Int  # ns, on the rank's own clock; children end with their parents at the latest
    end: Int
    rows: list[Row]  # in the order in which they are shown


def drawn_events(events: Events, cpu: bool) -> Int:
    """Rows of the events that are drawn; `cpu` False leaves out everything that is not on a GPU row.

    What was copied under graph launches did not happen then.
    """
    return np.flatnonzero(~events.copied if cpu else events.where(*_ON_GPU))


def lay_out(trace: Trace, cpu: bool = True) -> Layout:
    """Lay out a rank, with or without its host threads."""
    events = trace.arrays
    on_gpu = events.where(*_ON_GPU)
    event = drawn_events(events, cpu)
    end = cut_overruns(events.start, events.end, events.parent)
    order = np.lexsort((event, events.depth[event], -end[event], events.start[event]))
    event = event[order]
    start, end = events.start[event], end[event]
    row, rows = _rows(trace, events, event, on_gpu[event])
    row, rows = _spread(row, rows, start, end)
    shown = sorted(range(len(rows)), key=lambda index: rows[index])
    return Layout(event, np.argsort(shown)[row], start, end, [rows[index] for index in shown])


def _rows(trace: Trace, events: Events, event: Int, on_gpu: Bool) -> tuple[Int, list[Row]]:
    """The row of each event, and the rows that there are."""
    pid, tid = events.pid[event], events.tid[event]
    work = events.where(*GPU_KINDS)[event]
    device_of = dict(zip(pid[work].tolist(), events.device[event][work].tolist(), strict=True))
    processes, process = np.unique(pid, return_inverse=True)
    drawn_on = np.array([device_of.get(value, value) for value in processes.tolist()], dtype=np.int64)
    first = np.where(work, events.device[event], np.where(on_gpu, drawn_on[process], pid))
    second = np.where(work, events.stream[event], tid)
    waits = events.where("sync")[event] & on_gpu
    first_code = np.unique(first, return_inverse=True)[1]
    seconds, second_code = np.unique(second, return_inverse=True)
    code = ((first_code * len(seconds) + second_code) * 2 + on_gpu) * 2 + waits
    _, where, row = np.unique(code, return_index=True, return_inverse=True)
    several_hosts = len(np.unique(pid[~on_gpu & (pid >= 0)])) > 1
    row_list = []
    for index in where.tolist():
        if on_gpu[index]:
            device, stream, waiting = int(first[index]), int(second[index]), bool(waits[index])
            name = f"stream {stream}" if stream >= 0 else "no stream"
            row_list.append(Row(True, device, (stream, int(waiting)), f"{name} waits" if waiting else name))
        else:
            host, thread = int(first[index]), int(second[index])
            default = f"thread {thread}" if thread >= 0 else "other"
            name = trace.meta.threads.get((host, thread), default).strip()
            name = f"{name}, process {host}" if several_hosts and host >= 0 else name
            row_list.append(Row(False, 0, (int(host < 0), host, int(host != thread), thread), name))
    return row, row_list


def _spread(row: Int, rows: list[Row], start: Int, end: Int) -> tuple[Int, list[Row]]:
    """Give rows on which slices cross each other as many lanes as it takes."""
    order = np.lexsort((np.arange(len(row)), row))
    for crossed in has_crossings(row[order], start[order], end[order]).tolist():
        on_row = np.flatnonzero(row == crossed)
        lane = lanes(start[on_row], end[on_row], nested=True)
        row[on_row[lane > 0]] = len(rows) + lane[lane > 0] - 1
        rows += [rows[crossed]._replace(lane=number) for number in range(1, int(lane.max()) + 1)]
    return row, rows
