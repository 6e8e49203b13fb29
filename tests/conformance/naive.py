"""The same sums a second time: plain Python, one event after the other, nothing shared with tracelens."""

import gzip
import heapq
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from tracelens.trace import Trace

COMM = re.compile("rccl|nccl|cross_device_reduce", re.IGNORECASE)
COPY = re.compile("^MEMORY_COPY_|^__amd_rocclr_copyBuffer")


class Piece(NamedTuple):
    """GPU work: [start, end) in ns and its kind."""

    start: int
    end: int
    kind: str


def read_work(path: Path) -> list[Piece]:
    """GPU work straight from the JSON, in whole ns, by the rules in the corpus's list of exact numbers."""
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        data = json.load(file, parse_float=str)  # exact; a Decimal is made of the few that are needed
    events = data["traceEvents"] if isinstance(data, dict) else data
    found = []
    for event in events:
        if kind := _kind(event):
            start, dur = (round(Decimal(event[key]) * 1000) for key in ("ts", "dur"))
            found.append(Piece(start, start + dur, kind))
    return found


def _kind(event: dict[str, Any]) -> str:
    if event.get("ph") != "X":
        return ""
    category = str(event.get("cat", "")).lower().removeprefix("gpu_")
    if category == "kernel":
        if COPY.search(event["name"]):
            return "memcpy"
        return "comm" if COMM.search(event["name"]) else "computation"
    return category if category in ("memcpy", "memset") else ""


def together(work: Iterable[Piece]) -> Counter[frozenset[str]]:
    """For each set of kinds, the time in which exactly these run at the same time."""
    borders = sorted(
        [(piece.start, 1, piece.kind) for piece in work] + [(piece.end, -1, piece.kind) for piece in work]
    )
    time: Counter[frozenset[str]] = Counter()
    running: Counter[str] = Counter()
    before = borders[0][0] if borders else 0
    for at, step, kind in borders:
        time[frozenset(name for name, count in running.items() if count)] += at - before
        running[kind] += step
        before = at
    return time


def timeline(work: Sequence[Piece]) -> dict[str, int]:
    """The metrics of tracelens' timeline in its default scope."""
    time = together(work)

    def during(kind: str, *absent: str) -> int:
        return sum(ns for kinds, ns in time.items() if kind in kinds and not kinds & set(absent))

    total = max(piece.end for piece in work) - min(piece.start for piece in work)
    return {
        "total": total,
        "busy": total - time[frozenset()],
        "idle": time[frozenset()],
        "computation": during("computation"),
        "comm": during("comm"),
        "memcpy": during("memcpy"),
        "memset": during("memset"),
        "exposed_comm": during("comm", "computation"),
        "exposed_memcpy": during("memcpy", "computation", "comm"),
        "exposed_memset": during("memset", "computation", "comm", "memcpy"),
    }


def owners(work: Sequence[tuple[int, int, int]], edges: Sequence[int]) -> Counter[tuple[int, int]]:
    """Time that each piece of work owns in each window between `edges`, by (piece, window).

    Args:
        work: (start, end, priority) in order of start; the lowest priority owns the time, among equals
            the one that started first.
        edges: sorted.
    """
    borders = sorted({*edges, *(at for piece in work for at in piece[:2])})
    starting: defaultdict[int, list[int]] = defaultdict(list)
    for row, piece in enumerate(work):
        starting[piece[0]].append(row)
    time: Counter[tuple[int, int]] = Counter()
    running: list[tuple[int, int, int]] = []
    window = -1
    for at, after in pairwise(borders):
        while window + 1 < len(edges) and edges[window + 1] <= at:
            window += 1
        for row in starting[at]:
            heapq.heappush(running, (work[row][2], at, row))
        while running and work[running[0][2]][1] <= at:
            heapq.heappop(running)
        if running and 0 <= window < len(edges) - 1:
            time[running[0][2], window] += after - at
    return time


def covered(intervals: Iterable[tuple[int, int]]) -> int:
    """Length of the union."""
    total, reached = 0, None
    for start, end in sorted(intervals):
        low = start if reached is None else max(start, reached)
        total += max(end - low, 0)
        reached = end if reached is None else max(reached, end)
    return total


class OpTime(NamedTuple):
    """GPU time of one op name: calls that launched work, and ns of their own and including what they call.

    `events`: pieces of GPU work in the subtrees.
    """

    count: int
    direct: int
    subtree: int
    events: int


def op_times(trace: Trace, kernel_ids: Iterable[int]) -> dict[tuple[str, bool], OpTime]:
    """GPU time by (op name, whether the call is inside a recomputed forward) of the given GPU events.

    Each event belongs to the op of the links table; a call's own time is the union of its events. A call
    inside a counted one of the same name is part of that one's subtree and not counted again.
    """
    events = trace.events
    name = events["name"].astype(object).to_numpy()
    start, dur = events["ts_ns"].tolist(), events["dur_ns"].tolist()
    parent = trace.tables["events"].array("parent_id").tolist()
    op_of = dict(
        zip(trace.links["kernel_id"].tolist(), trace.tables["links"].array("op_id").tolist(), strict=True)
    )
    own: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for kernel in kernel_ids:
        if op_of[kernel] >= 0:
            own[op_of[kernel]].append((start[kernel], start[kernel] + dur[kernel]))
    totals: defaultdict[tuple[str, bool], list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for call, intervals in own.items():
        above = ancestors(parent, call)
        here = (name[call], any(is_recompute_frame(name[frame]) for frame in above))
        length = covered(intervals)
        totals[here][0] += 1
        totals[here][1] += length
        holders = {name[op]: op for op in [call, *above] if op in own}  # of one name the outermost stays
        for text in holders:
            totals[text, here[1]][2] += length
            totals[text, here[1]][3] += len(intervals)
    return {key: OpTime(*values) for key, values in totals.items()}


def ancestors(parent: Sequence[int], row: int) -> list[int]:
    """Rows around an event, innermost first."""
    found = []
    while (row := parent[row]) >= 0:
        found.append(row)
    return found


def is_recompute_frame(name: str) -> bool:
    """Whether this Python frame runs a checkpointed forward again: torch/utils/checkpoint.py recompute_fn."""
    return "torch/utils/checkpoint.py" in name and name.endswith(": recompute_fn")
