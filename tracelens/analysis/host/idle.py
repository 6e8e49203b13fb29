"""Why the GPU waits: every gap in its work, with its cause."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np

from tracelens.analysis.analyzer import analyzer
from tracelens.analysis.common import no_gpu_work
from tracelens.analysis.host.reads import reads
from tracelens.analysis.host.stacks import calls, innermost, longest, stack_rows, threads
from tracelens.arrays import Bool, Int, lookup
from tracelens.table import Column, Result, Schema, Skip, codes, result, stats
from tracelens.trace import (
    WORK_KINDS,
    Events,
    Run,
    Scope,
    Trace,
    Work,
    enclosing_op,
    gpu_work,
    matching,
    steps_of,
)

GAP_NS = 1000
"""Gaps up to this separate back-to-back kernels on any GPU; they are summed, not explained."""

SHOWN = 500

CAUSES = {
    "host late": "the next work was launched after the gap began: the CPU was busy elsewhere",
    "blocking call": "the launching thread was in a call that waits for the GPU or copies synchronously",
    "garbage collection": "Python's garbage collector ran on the launching thread",
    "other stream": "the next work was queued in time; the last work before the gap ran on another stream",
    "dispatch": "the next work was queued in time on the same stream: dispatch latency of the GPU",
    "no launch": "the launch call of the next work is not in the trace",
    "window": "before the first or after the last GPU work of the recorded steps",
    "short gaps": f"up to {GAP_NS} ns each, between back-to-back kernels",
}

BLOCKING = re.compile(
    r"^(?:cuda|hip|cu)(?:Stream|Device|Event|Ctx)Synchronize|^hipMemcpyWithStream$|^(?:cuda|hip)Memcpy(?:2D|3D)?$"
    r"|^(?:cuda|hip)(?:Malloc|Free|HostAlloc|HostFree|MallocHost|FreeHost|HostMalloc)$"
)
_ON_DEVICE = re.compile(r"DtoD|DeviceToDevice|DEVICE_TO_DEVICE")
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
GARBAGE = re.compile(r"^Python GC|^gc\.collect|<built-in function collect>")

CAUSE_TABLE = Schema(
    "Idle time by cause",
    (
        Column("rank", "int64"),
        Column("cause", "str", doc="; ".join(f"{name}: {why}" for name, why in CAUSES.items())),
        Column("count", "int64", "count", "gaps"),
        Column("dur_ns", "int64", "ns"),
        Column("fraction", "float64", "fraction", "of the rank's idle time"),
    ),
    doc="; ".join(f"{name}: {why}" for name, why in CAUSES.items()) + ".",
)
HOSTS = Schema(
    "Idle time by what the host was doing",
    (
        Column("rank", "int64"),
        Column("cause", "str"),
        Column(
            "host", "category", doc="what the launching thread was in: the blocking call, else the longest"
        ),
        Column("op", "category", doc="innermost op around that"),
        Column("count", "int64", "count", "gaps"),
        Column("dur_ns", "int64", "ns"),
        Column("mean_ns", "float64", "ns"),
        Column("max_ns", "int64", "ns"),
        Column("fraction", "float64", "fraction", "of the rank's idle time"),
    ),
)
GAPS = Schema(
    "Longest gaps",
    (
        Column("rank", "int64"),
        Column("ts_ns", "int64", "ns", "since the rank's first GPU work"),
        Column("dur_ns", "int64", "ns"),
        Column("cause", "str"),
        Column(
            "host", "category", doc="what the launching thread was in: the blocking call, else the longest"
        ),
        Column("op", "category", doc="innermost op around that"),
        Column("next_work", "category", doc="GPU work after the gap"),
        Column("stream", "int64", doc="stream of that work"),
    ),
)


class Gaps(NamedTuple):
    """Gaps of one rank: [start, end), and the position in Work of what ran before and comes after (-1)."""

    start: Int
    end: Int
    before: Int
    after: Int


class Explained(NamedTuple):
    """What held the GPU up in each gap.

    Attributes:
        cause: code into CAUSES.
        host: event row of the call, op or frame that the launching thread was in, -1 if unknown: for a
            blocking call and garbage collection that one, else `busy`.
        busy: event row of the innermost call, op or frame with most of the time.
        blocked: event row of the longest blocking call, -1 if none.
        blocked_ns: its share of the gap.
        collected: event row of the longest garbage collection, -1 if none.
        collected_ns: its share of the gap.
    """

    cause: Int
    host: Int
    busy: Int
    blocked: Int
    blocked_ns: Int
    collected: Int
    collected_ns: Int


@analyzer("idle", title="Idle time", order=60)
def idle(run: Run, *, scope: Scope = "all") -> Result:
    """Why is the GPU idle, and what was the host doing meanwhile?

    Args:
        run: the ranks.
        scope: "all", or "linked": work whose launch call is not in the trace then counts as idle.

    Returns:
        tables `causes`, `hosts` (by cause and host op or Python frame) and `gaps` (the longest).
    """
    parts: dict[str, list[dict[str, Any]]] = {"causes": [], "hosts": [], "gaps": []}
    skips: list[Skip] = []
    for trace in run.traces:
        rank, work = trace.meta.rank, gpu_work(trace, scope)
        if not len(work.event):
            skips.append(Skip(f"rank {rank}", no_gpu_work(trace, scope)))
            continue
        tables = _explain(trace, work)
        for name, rows in tables.items():
            parts[name].append(rows)
        if not len(tables["gaps"]["rank"]):
            short = (
                f"no gap is longer than {GAP_NS} ns"
                if len(tables["causes"]["rank"])
                else "the GPU never waits"
            )
            skips.append(Skip(f"rank {rank}: gaps", short))
    schemas = {"causes": CAUSE_TABLE, "hosts": HOSTS, "gaps": GAPS}
    return result({name: schemas[name].concat(rows) for name, rows in parts.items()}, skips, scope=scope)


def _explain(trace: Trace, work: Work) -> dict[str, dict[str, Any]]:
    rank, gaps = trace.meta.rank, find_gaps(work, steps_of(trace).edges)
    dur = gaps.end - gaps.start
    explained = causes(trace, work, gaps)
    cause, host = explained.cause, explained.host
    names = list(CAUSES)
    by_cause = stats(cause, dur, len(names))
    total = max(int(dur.sum()), 1)
    shown = [code for code in np.argsort(-by_cause.total, kind="stable") if by_cause.number[code]]
    host_name, op_name, texts = host_names(trace, host)
    listed = np.flatnonzero(dur > GAP_NS)
    group, (cause_key, host_key, op_key) = codes(cause[listed], host_name[listed], op_name[listed])
    by_host = stats(group, dur[listed], len(cause_key))
    order = np.argsort(-by_host.total, kind="stable")
    longest = listed[np.argsort(-dur[listed], kind="stable")][:SHOWN]
    after = gaps.after[longest]
    origin = int(work.start.min())
    return {
        "causes": {
            "rank": np.full(len(shown), rank),
            "cause": [names[code] for code in shown],
            "count": by_cause.number[shown],
            "dur_ns": by_cause.total[shown],
            "fraction": by_cause.total[shown] / total,
        },
        "hosts": {
            "rank": np.full(len(order), rank),
            "cause": [names[code] for code in cause_key[order]],
            "host": [texts[code] for code in host_key[order]],
            "op": [texts[code] for code in op_key[order]],
            "count": by_host.number[order],
            "dur_ns": by_host.total[order],
            "mean_ns": by_host.mean[order],
            "max_ns": by_host.max[order],
            "fraction": by_host.total[order] / total,
        },
        "gaps": {
            "rank": np.full(len(longest), rank),
            "ts_ns": gaps.start[longest] - origin,
            "dur_ns": dur[longest],
            "cause": [names[code] for code in cause[longest]],
            "host": [texts[code] for code in host_name[longest]],
            "op": [texts[code] for code in op_name[longest]],
            "next_work": [work.names[work.name[row]] if row >= 0 else "" for row in after],
            "stream": lookup(work.stream, after, -1),
        },
    }


def host_names(trace: Trace, host: Int) -> tuple[Int, Int, list[str]]:
    """Name codes of host events and of the ops around them, and the names; unknown is ''.

    Python frames of one method on several objects carry addresses; without them they are one.
    """
    events = trace.arrays
    texts: dict[str, int] = {}
    plain = [texts.setdefault(_ADDRESS.sub("", name), len(texts)) for name in [*events.names, ""]]
    code, nothing = np.array(plain, dtype=np.int64), len(events.names)
    around = trace.once(enclosing_op)
    op = lookup(around, host, -1)
    return (
        code[lookup(events.name, host, nothing)],
        code[lookup(events.name, op, nothing)],
        list(texts),
    )


def find_gaps(work: Work, edges: Int) -> Gaps:
    """All times in the step windows in which no GPU work runs."""
    reached = np.maximum.accumulate(work.end)
    cut = np.flatnonzero(work.start[1:] > reached[:-1])
    # Who reached furthest so far: the work that ended last before the gap.
    holder = np.maximum.accumulate(np.where(work.end >= reached, np.arange(len(reached)), 0))
    start, end = reached[cut], work.start[cut + 1]
    before, after = holder[cut], cut + 1
    first, last = int(work.start[0]), int(reached[-1])
    if edges[0] < first:
        start, end = np.append(edges[0], start), np.append(first, end)
        before, after = np.append(-1, before), np.append(0, after)
    if edges[-1] > last:
        start, end = np.append(start, last), np.append(end, edges[-1])
        before, after = np.append(before, holder[-1]), np.append(after, -1)
    return Gaps(start, end, before, after)


def causes(trace: Trace, work: Work, gaps: Gaps) -> Explained:
    """Cause and host activity of each gap.

    A call that blocks until the GPU is done ends just after the gap began; what delays the next launch is
    that the queue ran empty. So any blocking call of the launching thread that reaches into the time
    between the gap's start and the launch is its cause.
    """
    events = trace.arrays
    code = {name: number for number, name in enumerate(CAUSES)}
    after, before = np.maximum(gaps.after, 0), np.maximum(gaps.before, 0)
    launch = lookup(work.launch_call, gaps.after, -1)
    called_ns = lookup(events.start, launch, gaps.start)
    same_stream = (work.stream[after] == work.stream[before]) & (work.device[after] == work.device[before])
    cause = np.where(same_stream, code["dispatch"], code["other stream"])
    cause[(launch >= 0) & (called_ns > gaps.start)] = code["host late"]
    cause[launch < 0] = code["no launch"]
    cause[(gaps.before < 0) | (gaps.after < 0)] = code["window"]
    cause[gaps.end - gaps.start <= GAP_NS] = code["short gaps"]
    busy, blocked, collected = (np.full(len(cause), -1, dtype=np.int64) for _ in range(3))
    blocked_ns, collected_ns = (np.zeros(len(cause), dtype=np.int64) for _ in range(2))
    thread = threads(events)
    blocking = waiting_calls(trace, work)
    garbage = named(events, GARBAGE)
    late = np.flatnonzero(cause == code["host late"])
    for number in np.unique(thread[launch[late]]):
        on_thread = late[thread[launch[late]] == number]
        start, end = gaps.start[on_thread], np.minimum(called_ns, gaps.end)[on_thread]
        rows = stack_rows(events, thread, number)
        busy[on_thread], _ = longest(innermost(events, rows), start, end)
        blocked[on_thread], blocked_ns[on_thread] = longest(calls(events, rows[blocking[rows]]), start, end)
        collected[on_thread], collected_ns[on_thread] = longest(
            calls(events, rows[garbage[rows]]), start, end
        )
        cause[on_thread[blocked[on_thread] >= 0]] = code["blocking call"]
        cause[on_thread[collected_ns[on_thread] * 2 > end - start]] = code["garbage collection"]
    host = np.where(cause == code["blocking call"], blocked, busy)
    host = np.where(cause == code["garbage collection"], collected, host)
    return Explained(cause, host, busy, blocked, blocked_ns, collected, collected_ns)


def named(events: Events, pattern: re.Pattern[str]) -> Bool:
    """Which events have a name that fits."""
    return matching(events.names, pattern)[events.name]


def waiting_calls(trace: Trace, work: Work) -> Bool:
    """Calls in which the host has nothing to do but wait for a GPU: none where there is no GPU."""
    return np.zeros(len(trace.arrays.start), dtype=bool) if work.cpu_only else blocking_calls(trace, work)


def blocking_calls(trace: Trace, work: Work) -> Bool:
    """Calls that wait for the GPU: by name, and copies whose call returned after the copy was done.

    In a CPU-only trace, those in which the host would wait (see reads.py).
    """
    events = trace.arrays
    if work.cpu_only:
        return reads(trace)
    mask = named(events, BLOCKING) & events.where("launch")
    # A memset, or a copy within the GPU, keeps no call waiting, however late that returns.
    inside = matching(work.names, _ON_DEVICE)
    copies = work.take((work.kind == WORK_KINDS.index("memcpy")) & (work.launch >= 0) & ~inside[work.name])
    mask[copies.launch[events.end[copies.launch] >= copies.end]] = True
    return mask
