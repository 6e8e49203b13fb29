"""Fused files read back: as JSON, for what a viewer needs, and by the parser, beside the ranks' traces."""

from __future__ import annotations

import gzip
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import tracelens
from tracelens.read.json.events import exact_ns
from tracelens.trace import Run, Trace

Event = dict[str, Any]
Seen = tuple[Any, ...]


def load_json(path: Path) -> dict[str, Any]:
    """The whole file; numbers with a point stay text."""
    data = path.read_bytes()
    if data.startswith(b"\x1f\x8b"):
        data = gzip.decompress(data)
    found: dict[str, Any] = json.loads(data, parse_float=str)
    return found


def named(events: Iterable[Event], what: str) -> dict[tuple[int, int], str]:
    """(pid, tid) to the name that metadata gives it."""
    return {(event["pid"], event["tid"]): event["args"]["name"] for event in events if event["name"] == what}


def process_names(events: Iterable[Event]) -> dict[int, str]:
    return {pid: name for (pid, _), name in named(events, "process_name").items()}


def slices(data: Mapping[str, Any]) -> dict[tuple[str, str], list[tuple[str, int, int]]]:
    """(process, thread) names, as shown from top to bottom, to (name, start, dur) in absolute ns."""
    events, base = data["traceEvents"], data["baseTimeNanoseconds"]
    process, thread = process_names(events), named(events, "thread_name")
    found: dict[tuple[str, str], list[tuple[str, int, int]]] = {
        (process[pid], thread[pid, tid]): [] for pid, tid in sorted(thread)
    }
    for event in events:
        if event["ph"] == "X":
            key = process[event["pid"]], thread[event["pid"], event["tid"]]
            found[key].append((event["name"], base + exact_ns(event["ts"]), exact_ns(event["dur"])))
    return {key: sorted(rows, key=lambda row: (row[1], -row[2])) for key, rows in found.items()}


def check_for_viewer(data: Mapping[str, Any]) -> None:
    """What Perfetto needs to show every event: ids, names, times, nesting, arrows that hit."""
    events = data["traceEvents"]
    assert {event["ph"] for event in events} <= {"X", "M", "s", "f"}
    assert {type(event[key]) for event in events for key in ("pid", "tid")} == {int}
    assert all(0 < event[key] < 1 << 31 for event in events for key in ("pid", "tid"))
    threads = named(events, "thread_name")
    assert len({tid for _, tid in threads}) == len(threads), "a thread id is used by two processes"
    rows: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            start, dur = exact_ns(event["ts"]), exact_ns(event["dur"])
            assert start >= 0
            assert dur >= 0
            rows[event["pid"], event["tid"]].append((start, start + dur))
    assert set(rows) <= set(threads)
    process = process_names(events)
    assert {pid for pid, _ in rows} <= set(process)
    for place, found in rows.items():
        assert found == sorted(found, key=lambda item: (item[0], -item[1])), threads[place]
        assert crossings(found) == 0, threads[place]
        if process[place[0]].endswith(": overview"):
            assert all(one[1] <= two[0] for one, two in pairwise(sorted(found))), "slices of a track overlap"
    check_arrows(events, rows)


def check_arrows(events: list[Event], rows: Mapping[tuple[int, int], list[tuple[int, int]]]) -> None:
    starts = {place: {start for start, _ in found} for place, found in rows.items()}
    ends: dict[str, Counter[int]] = {"s": Counter(), "f": Counter()}
    for event in events:
        if event["ph"] in ends:
            assert event["cat"] == "ac2g"
            ends[event["ph"]][event["id"]] += 1
            assert exact_ns(event["ts"]) in starts[event["pid"], event["tid"]]
    assert ends["s"] == ends["f"]
    assert set(ends["s"].values()) <= {1}


def crossings(found: list[tuple[int, int]]) -> int:
    """How many intervals begin inside another one and end behind it."""
    count = 0
    open_: list[int] = []
    for start, end in sorted(found, key=lambda item: (item[0], -item[1])):
        while open_ and open_[-1] <= start:
            open_.pop()
        if open_ and end > open_[-1]:
            count += 1
        else:
            open_.append(end)
    return count


def read_back(path: Path) -> Trace:
    """The fused file as the parser sees it: one intact trace."""
    (trace,) = tracelens.load(path).traces
    assert trace.meta.format == "kineto"
    assert trace.meta.read == trace.meta.kept
    assert not trace.meta.dropped
    assert not trace.meta.repaired
    assert not trace.meta.problems
    return trace


def seen(trace: Trace, shift_ns: int) -> dict[int, Seen]:
    """Every event by row: what it is, when, how deep, in what, and what launched it.

    Copies are left out: reading makes the ops of what a graph replays, behind all that was recorded.
    """
    events, epoch = trace.arrays, trace.meta.epoch_ns + shift_ns
    category = trace.tables["events"].texts("category")
    kernels, launches = (trace.tables["links"].array(name).tolist() for name in ("kernel_id", "launch_id"))
    launch = dict(zip(kernels, launches, strict=True))
    start, end = events.start.tolist(), events.end.tolist()
    plain = [
        (epoch + start[row], end[row] - start[row], events.names[name], events.kinds[kind], category[row])
        for row, (name, kind) in enumerate(zip(events.name.tolist(), events.kind.tolist(), strict=True))
    ]
    found = {}
    for row, (parent, depth) in enumerate(zip(events.parent.tolist(), events.depth.tolist(), strict=True)):
        if events.copied[row]:
            continue
        above = plain[parent] if parent >= 0 else None
        call = launch.get(row, -1)
        found[row] = (*plain[row], depth, above, plain[call] if call >= 0 else None)
    return found


def events_by_rank(path: Path, trace: Trace) -> dict[int, list[Seen]]:
    """The events of the fused file, rows added by fuse left out, by the rank that their process names."""
    process = process_names(load_json(path)["traceEvents"])
    found = defaultdict(list)
    everything = seen(trace, 0)
    for row, pid in enumerate(trace.arrays.pid.tolist()):
        rank, _, what = process[pid].removeprefix("rank ").partition(": ")
        if what != "overview" and row in everything:
            found[int(rank)].append(everything[row])
    return found


def check_same(
    path: Path, run: Run, offsets: Mapping[int, int] | None = None, *, nesting: bool = True
) -> None:
    """All events of all ranks are in the file, with their times, names, nesting and launch calls.

    `nesting`: False for a run with events that cross others: they cannot be drawn around what they contain.
    """
    fused = read_back(path)
    kernel, launch = (fused.tables["links"].array(name) for name in ("kernel_id", "launch_id"))
    assert fused.arrays.linked[kernel].tolist() == (launch >= 0).tolist()
    found = events_by_rank(path, fused)
    assert sorted(found) == run.ranks
    for trace in run.traces:
        rank = trace.meta.rank
        expected = seen(trace, (offsets or {}).get(rank, 0))
        assert [row[0] for row in found[rank]] == sorted(row[0] for row in expected.values()), rank
        assert counted(found[rank], nesting) == counted(expected.values(), nesting), rank


def counted(rows: Iterable[Seen], nesting: bool) -> Counter[Seen]:
    return Counter(row if nesting else (*row[:5], row[-1]) for row in rows)
