"""All ranks of a run in one Perfetto file: clocks aligned, ranks named, steps and waits as extra rows.

The file is for viewing. tracelens reads it back as the trace of a single rank with many GPUs, and what only
analyses need (argument lists, the profiler's records of collectives) is shortened to readable text; analyses
need the ranks' own files.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from heapq import heappush, heapreplace
from typing import Any, NamedTuple

import numpy as np
import orjson
from msgspec import Struct, field

from tracelens.arrays import Bool, Int, lookup, unique
from tracelens.errors import TracelensError
from tracelens.outputs import Output, cannot_write, check_outputs, whole_file
from tracelens.trace import GPU_KINDS, YEAR_2001_NS, Events, Run, Trace, describe, gpu_work, steps_of

_FARTHEST_NS = 1 << 61
"""Clocks that are 73 years apart have not been set."""

deflate: Any = zlib
with suppress(ImportError):  # Several times as fast as zlib, with the same interface.
    from isal import isal_zlib as deflate

SUFFIXES = (".json", ".json.gz")
_RANKS = re.compile(r"\s*(\d{1,9})\s*(?:-\s*(\d{1,9})\s*)?")
_LEVEL = 1
_GZIP = 31
_AT_ONCE = 1 << 14
"""Events whose text is made in one go."""
_ID_BLOCK = 1000
_BLOCKS = (1 << 30) // _ID_BLOCK
_THOUSANDTHS = [f".{number:03d}" for number in range(1000)]


class _Plan(NamedTuple):
    """One rank: its extra rows, what is added to its clock, and its first moment then."""

    trace: Trace
    tracks: Sequence[Track]
    clock_ns: int
    earliest_ns: int
    window: Window | None  # all that is drawn of it


class Slice(NamedTuple):
    """A labeled piece of a rank's time, on the rank's own clock; `args` are shown when it is clicked."""

    label: str
    start_ns: int
    dur_ns: int
    args: Mapping[str, str | int | float] = {}


class Track(Struct, frozen=True):
    """A row of slices; where they overlap, as many rows as it takes."""

    name: str
    slices: Sequence[Slice] = field(default_factory=tuple)


Wait = tuple[int, str, int, int]
"""(rank, label, start_ns, dur_ns), on the rank's own clock."""
Window = tuple[int, int]
"""[begin, end) in ns, on the rank's own clock."""
_ON_GPU = (*GPU_KINDS, "gpu_annotation", "sync")
"""What is drawn on GPU rows, GPU work or not."""


class ViewerRow(NamedTuple):
    """A thread, or a stream of a GPU; one `lane` more for what overlaps there without nesting."""

    on_gpu: bool  # whether it is a stream
    device: int  # GPU index, 0 on the host; negative where the profiler gave no number
    order: tuple[int, ...]  # sorts the rows of one process
    name: str  # as shown
    lane: int = 0


class RowLayout(Struct, frozen=True):
    """The drawn events of one rank."""

    event: Int  # rows of the events table, in order of start, enclosing events first
    row: Int  # of each of them, its place in `rows`
    start: Int  # ns, on the rank's own clock; children end with their parents at the latest
    end: Int
    rows: list[ViewerRow]  # in the order in which they are shown


class Arrows(NamedTuple):
    """Launch calls and what they launched, under numbers that no other rank uses."""

    correlation: Int  # by event; 0 where there is nothing to join
    launch: Int  # events at the two ends of each arrow
    kernel: Int
    # number of each arrow. The first of a launch call has the call's correlation; an arrow has one end
    # only, so each piece of work of a graph launch gets an arrow of its own
    flow: Int
    free: int  # the first number that is not used


def _quiet(_: str) -> None:
    """Report no progress."""


def fuse(
    run: Run,
    path: str | os.PathLike[str],
    *,
    offsets: Mapping[int, int] | None = None,
    waits: Iterable[Wait] | None = None,
    tracks: Mapping[int, Sequence[Track]] | None = None,
    windows: Mapping[int, Window] | None = None,
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
        windows: rank to the only piece of its time that is drawn; what crosses its borders is cut there.
        cpu: whether to draw host threads.
        progress: called with a line of text before each rank.

    Offsets, waits, tracks and windows of ranks outside the run are ignored.

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
        window = (windows or {}).get(rank)
        drawn_tracks = [row for track in rank_tracks for row in rows(within(track, window))]
        starts = [piece.start_ns for track in drawn_tracks for piece in track.slices]
        drawn = trace.arrays.start[drawn_events(trace.arrays, cpu, window)]
        drawn = drawn if window is None else np.maximum(drawn, window[0])
        starts += [int(drawn.min())] if len(drawn) else []
        if starts:
            plans.append(_Plan(trace, drawn_tracks, clock, min(starts) + clock, window))
    if not plans:
        raise TracelensError(
            "nothing to draw: no rank of the run has events of this kind"
            + (" at this time" if windows else "")
            + ("" if cpu else "; leave out --no-cpu")
        )
    first = min(plans, key=lambda plan: plan.earliest_ns)
    last = max(plans, key=lambda plan: plan.earliest_ns)
    if last.earliest_ns - first.earliest_ns > _FARTHEST_NS:
        raise TracelensError(
            f"{last.trace.meta.path}: begins over 70 years after {first.trace.meta.path}: these clocks have "
            "nothing in common; pass the ranks of one run"
        )
    base = first.earliest_ns
    writer = Writer()

    def batches() -> Iterator[list[str]]:
        for plan in plans:
            progress(f"fusing rank {plan.trace.meta.rank}")
            layout = lay_out(plan.trace, cpu, plan.window)
            yield from writer.rank(plan.trace, layout, plan.tracks, plan.clock_ns - base)

    header = {
        "schemaVersion": 1,
        "displayTimeUnit": "ns",
        "baseTimeNanoseconds": base,
        "fusedRanks": [plan.trace.meta.rank for plan in plans],
    }

    def devices() -> dict[str, object]:
        """GPU names by the numbers that GPUs have in the fused file."""
        return {"deviceProperties": [{"id": pid, "name": name} for pid, name in writer.devices.items()]}

    write_events(path, header, batches(), devices)


def _epoch(trace: Trace) -> int:
    """The base of a trace's times; some traces give one though their times count from 1970 already."""
    first = int(trace.arrays.start.min(initial=YEAR_2001_NS))
    return 0 if first >= YEAR_2001_NS else trace.meta.epoch_ns


def read_ranks(ranks: str | Iterable[int]) -> list[tuple[int, int]]:
    """The first and last rank of each part of a list like 0-3,7; raises TracelensError if malformed."""
    if not isinstance(ranks, str):
        return [(rank, rank) for rank in ranks]
    spans = []
    for part in ranks.split(","):
        match = _RANKS.fullmatch(part)
        low, high = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if high < low:
            raise TracelensError(f"--ranks {ranks!r}: not a list of ranks; write it like 0-3,7")
        spans.append((low, high))
    return spans


def with_ranks(run: Run, spans: Sequence[tuple[int, int]] | None) -> Run:
    """The run with the ranks of these parts of a list, None for all; TracelensError if it lacks one."""
    if spans is None:
        return run
    for low, high in spans:
        missing = next((rank for rank in range(low, high + 1) if rank not in run.ranks), None)
        if missing is not None:
            has = ", ".join(map(str, run.ranks))
            raise TracelensError(f"--ranks: the run has no rank {missing} (it has {has})")
    return Run(
        tuple(trace for trace in run.traces if any(low <= trace.meta.rank <= high for low, high in spans))
    )


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


def within(track: Track, window: Window | None) -> Track:
    """What of the track lies in the window; all of it without one."""
    if window is None:
        return track
    pieces = []
    for piece in track.slices:
        begin, end = max(piece.start_ns, window[0]), min(piece.start_ns + max(piece.dur_ns, 0), window[1])
        if begin < end:
            pieces.append(piece._replace(start_ns=begin, dur_ns=end - begin))
    return Track(track.name, pieces)


def numbered(name: str, lane: int) -> str:
    """The name of the first row, and of those that hold what overlaps there."""
    return f"{name} ({lane + 1})" if lane else name


def drawn_events(events: Events, cpu: bool, window: Window | None = None) -> Int:
    """Rows of the events that are drawn; `cpu` False leaves out everything that is not on a GPU row.

    What was copied under graph launches did not happen then.
    """
    drawn = ~events.copied if cpu else events.where(*_ON_GPU)
    if window is not None:
        drawn = drawn & (events.end > window[0]) & (events.start < window[1])
    return np.flatnonzero(drawn)


def lay_out(trace: Trace, cpu: bool = True, window: Window | None = None) -> RowLayout:
    """Lay out a rank, with or without its host threads, as a whole or what runs in a window."""
    events = trace.arrays
    on_gpu = events.where(*_ON_GPU)
    event = drawn_events(events, cpu, window)
    end = cut_overruns(events.start, events.end, events.parent)
    order = np.lexsort((event, events.depth[event], -end[event], events.start[event]))
    event = event[order]
    start, end = events.start[event], end[event]
    if window is not None:
        start, end = np.maximum(start, window[0]), np.minimum(end, window[1])
    row, rows = _rows(trace, events, event, on_gpu[event])
    # Rows on which slices cross each other get as many lanes as it takes.
    order = np.lexsort((np.arange(len(row)), row))
    for crossed in has_crossings(row[order], start[order], end[order]).tolist():
        on_row = np.flatnonzero(row == crossed)
        lane = lanes(start[on_row], end[on_row], nested=True)
        row[on_row[lane > 0]] = len(rows) + lane[lane > 0] - 1
        rows += [rows[crossed]._replace(lane=number) for number in range(1, int(lane.max()) + 1)]
    shown = sorted(range(len(rows)), key=lambda index: rows[index])
    return RowLayout(event, np.argsort(shown)[row], start, end, [rows[index] for index in shown])


def _rows(trace: Trace, events: Events, event: Int, on_gpu: Bool) -> tuple[Int, list[ViewerRow]]:
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
    several_hosts = len(unique(pid[~on_gpu & (pid >= 0)])) > 1
    row_list = []
    for index in where.tolist():
        if on_gpu[index]:
            device, stream, waiting = int(first[index]), int(second[index]), bool(waits[index])
            name = f"stream {stream}" if stream >= 0 else "no stream"
            row_list.append(
                ViewerRow(True, device, (stream, int(waiting)), f"{name} waits" if waiting else name)
            )
        else:
            host, thread = int(first[index]), int(second[index])
            default = f"thread {thread}" if thread >= 0 else "other"
            name = trace.meta.threads.get((host, thread), default).strip()
            name = f"{name}, process {host}" if several_hosts and host >= 0 else name
            row_list.append(ViewerRow(False, 0, (int(host < 0), host, int(host != thread), thread), name))
    return row, row_list


def cut_overruns(start: Int, end: Int, parent: Int) -> Int:
    """Ends of nested events, none behind the end of a parent that is still open when the event begins.

    The call stack lets a child overrun its parent by callstack.TOLERANCE_NS, which a viewer does not.
    """
    child = np.flatnonzero(parent >= 0)
    while True:
        limit = end[parent[child]]
        over = (end[child] > limit) & (start[child] < limit)
        if not over.any():
            return end
        end = end.copy()
        end[child[over]] = limit[over]


def has_crossings(track: Int, start: Int, end: Int) -> Int:
    """Tracks on which a slice begins inside another one and ends behind it.

    The slices are sorted by track, then by start, the longest first.
    """
    count = len(start)
    crosses = np.zeros(count, dtype=bool)
    # Pointer jumping as in callstack.nest: a slice that ends outside its predecessor moves on to the next.
    above = np.arange(-1, count - 1)
    asking = np.arange(count)
    while len(asking):
        asking = asking[above[asking] >= 0]
        previous = above[asking]
        same_track = track[previous] == track[asking]
        open_ = same_track & (end[previous] > start[asking])
        inside = open_ & (end[asking] <= end[previous])
        crosses[asking[open_ & ~inside]] = True
        asking, previous, same_track = asking[~inside], previous[~inside], same_track[~inside]
        above[asking] = np.where(same_track, above[previous], -1)
    return unique(track[crosses])


def lanes(start: Int, end: Int, *, nested: bool, scanned: int = 64) -> Int:
    """A lane for each slice so that none crosses another on its lane, the first one that is free.

    What lies inside a slice that had to move stays where it can: a step's mark that begins in one frame and
    ends in the next moves alone.

    Args:
        start: ns, sorted, of equal ones the longest first.
        end: ns.
        nested: whether slices may lie inside others; otherwise each has its time to itself.
        scanned: lanes tried one by one; beyond them each slice has its time to itself, or thousands of
            concurrent requests would take quadratic time.
    """
    ends: list[list[int]] = []
    further: list[tuple[int, int]] = []
    lane_of: list[int] = []

    def fits(stack: list[int], begin: int, finish: int) -> bool:
        while stack and stack[-1] <= begin:
            stack.pop()
        return not stack or (nested and finish <= stack[-1])

    for begin, finish in zip(start.tolist(), end.tolist(), strict=True):
        lane = next((index for index, stack in enumerate(ends) if fits(stack, begin, finish)), len(ends))
        if lane < scanned:
            if lane == len(ends):
                ends.append([])
            ends[lane].append(finish)
        elif further and further[0][0] <= begin:
            lane = further[0][1]
            heapreplace(further, (finish, lane))
        else:
            lane += len(further)
            heappush(further, (finish, lane))
        lane_of.append(lane)
    return np.array(lane_of, dtype=np.int64)


class Writer:
    """Turns one rank after the other into events; process, thread and arrow numbers are unique over all."""

    def __init__(self) -> None:
        self.devices: dict[int, str] = {}  # process number to name, of the GPUs that have one
        self._next_id = _ID_BLOCK
        self._next_flow = 1

    def rank(
        self, trace: Trace, layout: RowLayout, tracks: Sequence[Track], shift_ns: int
    ) -> Iterator[list[str]]:
        """The events of a rank, batch by batch; `shift_ns` leads from its clock to that of the fused file."""
        rank = trace.meta.rank
        if rank < _BLOCKS:  # of higher ranks the ids only follow on, for viewers keep 31 bits of them
            self._next_id = max((rank + 1) * _ID_BLOCK, self._next_id)
        events: list[str] = []
        if tracks:  # the rank's first process: a row for each
            pid = self._new_id()
            events += process(pid, f"rank {rank}: overview")
        for track in tracks:
            tid = self._new_id()
            events += thread(pid, tid, track.name)
            start = np.array([piece.start_ns for piece in track.slices], dtype=np.int64) + shift_ns
            length = np.array([max(piece.dur_ns, 0) for piece in track.slices], dtype=np.int64)
            for piece, ts, dur in zip(track.slices, microseconds(start), microseconds(length), strict=True):
                args_text = f',"args":{orjson.dumps(dict(piece.args)).decode()}' if piece.args else ""
                events.append(
                    f'{{"ph":"X","cat":"track","name":{quote(piece.label)},"pid":{pid},"tid":{tid},'
                    f'"ts":{ts},"dur":{dur}{args_text}}}'
                )
        yield events
        metadata, row_ids = self._rows(trace, layout)
        yield metadata
        hosts = any(not row.on_gpu for row in layout.rows)
        arrows = find_arrows(trace, self._next_flow, hosts)
        self._next_flow = arrows.free
        args = arguments(trace, arrows)
        # A complete event for each event of the layout.
        table = trace.tables["events"]
        name, category = table.columns["name"], table.columns["category"]
        names = [quote(text) for text in name.values]
        categories = [f'"cat":{quote(text)},' if text else "" for text in category.values]
        recorded = table.array("dur_ns")[layout.event]
        duration = layout.end - layout.start
        cut = np.flatnonzero(duration != recorded)
        for low in range(0, len(layout.event), _AT_ONCE):
            part = slice(low, low + _AT_ONCE)
            event = layout.event[part]
            args_texts = [args[row] for row in event.tolist()]
            for index in cut[(cut >= low) & (cut < low + _AT_ONCE)].tolist():
                args_texts[index - low] += f',"recorded dur_ns":{recorded[index]}'
            yield [
                f'{{"ph":"X",{categories[cat]}"name":{names[text]},{row_ids[row]},"ts":{ts},"dur":{dur}'
                + (f',"args":{{{arg[1:]}}}}}' if arg else "}")
                for cat, text, row, ts, dur, arg in zip(
                    category.codes[event].tolist(),
                    name.codes[event].tolist(),
                    layout.row[part].tolist(),
                    microseconds(layout.start[part] + shift_ns),
                    microseconds(duration[part]),
                    args_texts,
                    strict=True,
                )
            ]
        # Both ends of each arrow; they bind to the event that runs there then.
        row_of = np.full(len(trace.arrays.start), -1, dtype=np.int64)
        begins = layout.start == trace.arrays.start[layout.event]
        row_of[layout.event[begins]] = layout.row[begins]
        start = trace.arrays.start + shift_ns
        whole = np.flatnonzero((row_of[arrows.launch] >= 0) & (row_of[arrows.kernel] >= 0))
        for low in range(0, len(whole), _AT_ONCE):
            drawn = whole[low : low + _AT_ONCE]
            numbers = arrows.flow[drawn].tolist()
            events = []
            for phase, ends in (('"s"', arrows.launch[drawn]), ('"f","bp":"e"', arrows.kernel[drawn])):
                events += [
                    f'{{"ph":{phase},"id":{number},{row_ids[row]},"ts":{ts},"cat":"ac2g","name":"ac2g"}}'
                    for number, row, ts in zip(
                        numbers, row_of[ends].tolist(), microseconds(start[ends]), strict=True
                    )
                ]
            yield events

    def _new_id(self) -> int:
        self._next_id += 1
        return self._next_id - 1

    def _rows(self, trace: Trace, layout: RowLayout) -> tuple[list[str], list[str]]:
        """(Metadata, the place of each row as members of an event)."""
        meta, row_ids = [], []
        pids: dict[tuple[bool, int], int] = {}
        for key in dict.fromkeys((row.on_gpu, row.device) for row in layout.rows):
            pid = pids[key] = self._new_id()
            on_gpu, device = key
            name = "host" if not on_gpu else f"GPU {device}" if device >= 0 else "GPU"
            label = trace.meta.devices.get(device, "") if on_gpu else ""
            if label:
                self.devices[pid] = label
            meta += process(pid, f"rank {trace.meta.rank}: {name}", label)
        for row in layout.rows:
            pid, tid = pids[row.on_gpu, row.device], self._new_id()
            meta += thread(pid, tid, numbered(row.name, row.lane))
            row_ids.append(f'"pid":{pid},"tid":{tid}')
        return meta, row_ids


def find_arrows(trace: Trace, first: int, cpu: bool = True) -> Arrows:
    """Number the launches of a rank from `first`; without `cpu` there are none, but the work keeps numbers.

    Work without a launch call gets a number too, or readers may guess a launch by thread and time.
    """
    links = trace.tables["links"]
    kernel, launch = links.array("kernel_id"), links.array("launch_id")
    if trace.meta.cpu_only:  # nothing is launched
        kernel, launch = kernel[:0], launch[:0]
    if not cpu:
        launch = np.full_like(launch, -1)
    correlation = np.zeros(len(trace.arrays.start), dtype=np.int64)
    alone = kernel[launch < 0]
    kernel, launch = kernel[launch >= 0], launch[launch >= 0]
    calls, where, call = np.unique(launch, return_index=True, return_inverse=True)
    correlation[calls] = first + np.arange(len(calls))
    correlation[kernel] = first + call
    first += len(calls)
    correlation[alone] = first + np.arange(len(alone))
    first += len(alone)
    flow = first + np.arange(len(kernel))
    flow[where] = correlation[kernel[where]]
    return Arrows(correlation, launch, kernel, flow, first + len(kernel))


def arguments(trace: Trace, arrows: Arrows) -> list[str]:
    """The arguments of each event, each with a leading comma: `,"bytes":64`."""
    events, table, links = trace.arrays, trace.tables["events"], trace.tables["links"]
    args = [""] * len(events.start)
    # Shapes and element types of the arguments of ops.
    ops = trace.tables["ops"]
    shapes, dtypes = ops.columns["shapes"], ops.columns["dtypes"]
    pair = shapes.codes.astype(np.int64) * max(len(dtypes.values), 1) + dtypes.codes
    _, where, code = np.unique(pair, return_index=True, return_inverse=True)
    described = map(describe, ops.texts("shapes", where), ops.texts("dtypes", where))
    texts = [f',"shapes":{quote(text)}' if text else "" for text in described]
    for event, pair_code in zip(ops.array("event_id").tolist(), code.tolist(), strict=True):
        args[event] = texts[pair_code]
    recorded = table.array("correlation_id")
    rows = np.flatnonzero(events.where("launch", "sync") & ((recorded > 0) | (arrows.correlation > 0)))
    for event, number, recorded_number in zip(
        rows.tolist(), arrows.correlation[rows].tolist(), recorded[rows].tolist(), strict=True
    ):
        args[event] = _joined(number, recorded_number)
    # Correlation, bytes, blocks and launching op of GPU work.
    if not trace.meta.cpu_only:
        rows, op = links.array("kernel_id"), links.array("op_id")
        op_names = {code: quote(events.names[code]) for code in unique(events.name[op[op >= 0]]).tolist()}
        for event, number, recorded_number, size, blocks, code in zip(
            rows.tolist(),
            arrows.correlation[rows].tolist(),
            recorded[rows].tolist(),
            table.array("bytes")[rows].tolist(),
            table.array("blocks")[rows].tolist(),
            lookup(events.name, op, -1).tolist(),
            strict=True,
        ):
            args[event] = (
                _joined(number, recorded_number)
                + (f',"bytes":{size}' if size >= 0 else "")
                + (f',"blocks":{blocks}' if blocks >= 0 else "")
                + (f',"op":{op_names[code]}' if code >= 0 else "")
            )
    # Message sizes and groups, on the kernel, or on the host's record if the trace lacks the kernel.
    records = trace.tables["collectives"]
    record, kernel = records.array("event_id"), records.array("kernel_id")
    shown_at = np.where(kernel >= 0, kernel, record).tolist()
    for column in records.schema.columns:
        if column.name not in _SHOWN:
            continue
        if column.dtype == "int64":
            values = [str(value) if value >= 0 else "" for value in records.array(column.name).tolist()]
        else:
            values = [quote(text) if text not in ("", "[]") else "" for text in records.texts(column.name)]
        for event, value in zip(shown_at, values, strict=True):
            if value:
                args[event] += f',"{_SHOWN[column.name]}":{value}'
    return args


def _joined(number: int, recorded_number: int) -> str:
    """The number that joins launch and work in the fused file, and the one it has in the rank's own file."""
    return (f',"correlation":{number}' if number else "") + (
        f',"recorded correlation":{recorded_number}' if recorded_number > 0 else ""
    )


_SHOWN = {
    "collective": "collective",
    "group": "group",
    "group_description": "group description",
    "group_ranks": "group ranks",
    "group_size": "group size",
    "dtype": "dtype",
    "in_bytes": "in bytes",
    "out_bytes": "out bytes",
    "in_split": "elements sent by rank",
    "out_split": "elements received by rank",
    "order": "order in group",
}
"""Columns of the collectives table and their labels. With the profiler's names, a reader would count the
parts of all ranks as collectives of one."""


def quote(text: str) -> str:
    """A text as a JSON string; lone surrogates, which no UTF-8 holds, become U+FFFD."""
    return orjson.dumps(text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")).decode()


def microseconds(ns: Int) -> list[str]:
    """Non-negative nanoseconds as microseconds with three decimals, exactly.

    >>> microseconds(np.array([1234567]))
    ['1234.567']
    """
    us_part, ns_part = np.divmod(ns, 1000)
    return [f"{us}{_THOUSANDTHS[part]}" for us, part in zip(us_part.tolist(), ns_part.tolist(), strict=True)]


def process(pid: int, name: str, labels: str = "") -> list[str]:
    """Metadata events that name a process; processes are shown in order of `pid`."""
    events = [_metadata("process_name", pid, pid, {"name": name})]
    if labels:
        events.append(_metadata("process_labels", pid, pid, {"labels": labels}))
    return [*events, _metadata("process_sort_index", pid, pid, {"sort_index": pid})]


def thread(pid: int, tid: int, name: str) -> list[str]:
    """Metadata events that name a thread; threads are shown in order of `tid`."""
    return [
        _metadata("thread_name", pid, tid, {"name": name}),
        _metadata("thread_sort_index", pid, tid, {"sort_index": tid}),
    ]


def _metadata(name: str, pid: int, tid: int, args: Mapping[str, Any]) -> str:
    # The same order of keys as in all other events, by which readers cut the file into pieces.
    return orjson.dumps({"ph": "M", "name": name, "pid": pid, "tid": tid, "ts": 0, "args": args}).decode()


def check_suffix(path: str | os.PathLike[str]) -> None:
    """Refuse a path that does not say how to write it.

    Raises:
        TracelensError: it ends in neither of SUFFIXES.
    """
    if not os.fspath(path).lower().endswith(SUFFIXES):
        raise TracelensError(f"{os.fspath(path)}: a fused trace is written as {' or '.join(SUFFIXES)}")


def write_events(
    path: str | os.PathLike[str],
    header: Mapping[str, Any],
    batches: Iterable[list[str]],
    tail: Callable[[], Mapping[str, Any]],
) -> None:
    """Write a trace; missing parent directories are made.

    Args:
        path: ends in one of SUFFIXES; .gz is compressed.
        header: keys before the events, at least one.
        batches: the events as JSON texts; only one batch is in memory at a time.
        tail: keys behind the events, asked for when all batches are written.

    Raises:
        TracelensError: it cannot be written; the system's reason is given.
    """
    is_packed = os.fspath(path).lower().endswith(".gz")
    packer = deflate.compressobj(_LEVEL, zlib.DEFLATED, _GZIP) if is_packed else None
    try:
        with whole_file(path, parents=True) as file:
            for block in _blocks(header, batches, tail):
                file.write(packer.compress(block) if packer else block)
            if packer:
                file.write(packer.flush())
    except OSError as error:
        raise cannot_write(path, error) from error


def _blocks(
    header: Mapping[str, Any], batches: Iterable[list[str]], tail: Callable[[], Mapping[str, Any]]
) -> Iterator[bytes]:
    yield orjson.dumps(header).removesuffix(b"}") + b',"traceEvents":[\n'
    separator = ""
    for batch in batches:
        if batch:
            yield (separator + ",\n".join(batch)).encode()
            separator = ",\n"
    keys = orjson.dumps(tail())
    yield b"\n]" + (b"," + keys.removeprefix(b"{") if len(keys) > len("{}") else b"}") + b"\n"
