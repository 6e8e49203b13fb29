"""Why the GPU waits: gaps in its work, cut into pieces by what its host's threads did, and their causes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tracelens.analysis.analyzer import analyzer
from tracelens.analysis.common import no_gpu_work, op_arguments
from tracelens.analysis.host.launches import (
    GARBAGE,
    LOADS_CODE,
    QUEUE_FULL,
    SYNCHRONIZE,
    named,
    overhead,
    profiler_calls,
    waiting_calls,
)
from tracelens.arrays import Bool, Int, lookup, marked, median, ordered, ranges, taken, unique
from tracelens.native import core
from tracelens.table import RANK, Coded, Column, Result, Schema, Skip, codes, nearest, result, stats, sums
from tracelens.trace import (
    STACK_KINDS,
    STEP_MARK,
    Events,
    Run,
    Scope,
    Trace,
    Union,
    Work,
    cut,
    enclosing_op,
    fitting,
    gpu_work,
    steps_of,
    union,
)
from tracelens.units import duration

SHOWN = 500  # longest gaps listed
OTHER_THREADS = 8  # where a thread is silent, so many others that launch most are looked at

# What decides on a cause.
# Gaps up to this separate back-to-back kernels on any GPU; they are summed, not explained.
GAP_NS = 1000
# Python between two ops takes a few us, rarely 0.3 ms. What takes longer is something else.
SILENT_NS = 500_000
# From one launch to the next the host takes less: a gap with more time in ops and calls waits for these.
BUSY_NS = 1_000_000
# In 20 traces without losses no work stood longer than 84 us in the queue of an idle GPU, and no host waited
# longer than 35 us for one. Where it takes this long, the GPU did something that is not recorded.
UNRECORDED_NS = 200_000
# An op in which kernels were loaded is their loading from so many times its usual length on: ops of 60 to
# 90 us took 2 to 9 ms in all cases on 8 H200, of which the driver recorded the last 40 to 350 us as loading.
LOADING_RATIO = 2
# An op stalls where its own code takes over 0.5 ms and 10 times as long as its like do from begin to end.
# What shares its core with another process loses 4 ms at once, the scheduler's slice: 9 ops in 3 steps. Of
# 177 ranks without such a fault, 471 steps, 14 ops did so, for 0.6 to 2.7 ms.
STALLED_NS = 500_000
STALLED_RATIO = 10
STALLED_QUANTILE = 0.4  # what two fifths of its like do not exceed is usual: of three calls two may stall
STALLED_CALLS = 3  # with fewer of them nothing is known to be usual
# What recurs: time whose like takes at least half as long in other steps, in two at least and in a tenth
# of all (a server's prefill steps, a checkpoint every ten steps). Loading kernels recurs where most steps do
# it: the first steps load one kernel after the other, none of them again.
ALIKE_SHARE = 0.5
RECURS_IN = 0.1
LOADING_RECURS_IN = 0.5

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_WRAPPER = re.compile(r"^autograd::engine::evaluate_function: ")
_COLLECTIVE = re.compile(r"^(?:c10d::|nccl:|gloo:|record_param_comms|ncclComm|symm_mem::)")
_LOADING = re.compile(r"enumerate\(DataLoader\)|DataLoader.*__next__|dataloader\.py\(\d+\): __next__")
_COPY = re.compile(r"^aten::copy_$")
# Python of a class or mode that takes ops over, such as DTensor's: what it has kept for one op's arguments it
# has to work out for another's.
_IN_PYTHON = re.compile(r"^Python(?:Subclass|DispatchMode)$")
_FOREVER = 1 << 62

_HOST = Column("host", "category", doc="the call, op, annotation or Python frame that the host was in")
_OP = Column(
    "op", "category", doc="innermost op around that; for a silent host, the ops or calls before and after"
)
CAUSES = {
    "silent host": "the launching thread was in no recorded op, call or Python frame, for "
    f"{SILENT_NS / 1e6:g} ms at once or {BUSY_NS / 1e6:g} ms of the gap: the program's own Python (data, "
    "logging, checkpoints), unrecorded garbage collection, or a process that slept or had no core",
    "Python code": "the same, but Python frames are recorded and say where",
    "stalled host": f"the host was in an op's own code for over {STALLED_NS / 1e6:g} ms and {STALLED_RATIO} "
    "times as long as its like take, with nothing recorded inside: another process had the core, or the op "
    "waited for a lock, a page or other threads",
    "CPU ops": f"ops and calls that launch nothing took over {BUSY_NS / 1e6:g} ms of the gap",
    "launch overhead": "the host was on its way to the next launch: short ops, calls and the Python "
    "between them",
    "blocking call": "the host was in a call that waits for the GPU or copies synchronously",
    "queue refill": "launch overhead after a blocking call: the launch queue was empty",
    "data loading": "the host was fetching the next batch",
    "kernel loading": "kernels were loaded or compiled, mostly once in a process",
    "garbage collection": "Python's garbage collector ran",
    "collective call": f"the host was inside a collective call for over {BUSY_NS / 1e6:g} ms",
    "profiler": "the profiler's own work, absent from a run without it",
    "dispatch": "launched, and queued behind work of its own stream",
    "other stream": "launched, and queued; the last work before the gap ran on another stream",
    "unrecorded work": "the host waited for the GPU, or launched work sat in its queue, for over "
    f"{UNRECORDED_NS / 1e6:g} ms with nothing recorded running: kernels missing from "
    "the trace, or another process",
    "no launch": "the launch call of the next work is not in the trace",
    "window": "after the last GPU work of the steps, where no launch identifies the thread",
    "short gaps": f"up to {GAP_NS} ns each, between back-to-back kernels",
}

_LISTED = "; ".join(f"{name}: {why}" for name, why in CAUSES.items())
CAUSE_TABLE = Schema(
    "Idle time by cause",
    (
        RANK,
        Column("cause", "str", doc=_LISTED),
        Column("count", "int64", "count", "gaps with time of this cause"),
        Column("dur_ns", "int64", "ns", "idle time of this cause"),
        Column("fraction_of_idle", "float64", "fraction", "share of the rank's idle time"),
        Column(
            "once_ns",
            "int64",
            "ns",
            "part of it whose like (same op or frame, or the cause as a whole) is in no other step; 0 for "
            "what belongs to launching and the GPU; missing with fewer than two steps",
            absent=-1,
        ),
    ),
    doc=f"Each gap is divided by time among its causes, which add up to the idle time. {_LISTED}.",
    leading="dur_ns",
    descending=True,
)
HOSTS = Schema(
    "Idle time by host activity",
    (
        RANK,
        Column("cause", "str", doc="as in `causes`"),
        _HOST,
        _OP,
        Column("count", "int64", "count", "gaps"),
        Column("dur_ns", "int64", "ns", "idle time with the host there"),
        Column("mean_ns", "float64", "ns", "mean share of a gap", intensive=True),
        Column("max_ns", "int64", "ns", "longest share of a gap", intensive=True),
        Column("fraction_of_idle", "float64", "fraction", "share of the rank's idle time"),
    ),
    leading="dur_ns",
    descending=True,
)
GAPS = Schema(
    "Longest gaps",
    (
        RANK,
        Column("ts_ns", "int64", "ns", "since the rank's first GPU work"),
        Column("dur_ns", "int64", "ns", "length of the gap"),
        Column("step", "category", doc="step in which the gap begins"),
        Column("cause", "str", doc="cause of most of it, as in `causes`"),
        Column("fraction_of_gap", "float64", "fraction", "share of the gap"),
        _HOST,
        _OP,
        Column("next_work", "category", doc="GPU work after the gap"),
        Column("stream", "int64", doc="stream of that work", absent=-1),
    ),
    key=(),
    leading="dur_ns",
    descending=True,
)
PIECES = Schema(
    "Pieces of the longest gaps",
    (
        RANK,
        Column("local_ts_ns", "int64", "ns", "by the clock of the rank's own trace"),
        Column("dur_ns", "int64", "ns", "length of the piece"),
        Column("cause", "category", doc="as in `causes`"),
        _HOST,
        _OP,
    ),
    detail=True,
    key=(),
)

TABLES = {"causes": CAUSE_TABLE, "hosts": HOSTS, "gaps": GAPS, "pieces": PIECES}

HOST_CAUSES = tuple(CAUSES)[: list(CAUSES).index("dispatch")]
"""Those that name what the host did before it launched the next work."""
CODE = {name: code for code, name in enumerate(CAUSES)}
AVOIDABLE = tuple(
    name
    for name in HOST_CAUSES
    if name not in ("launch overhead", "blocking call", "queue refill", "profiler")
)
"""What a program can do at another time than while its GPU waits."""


class IdlePieces(NamedTuple):
    """Gaps cut into pieces that add up to them, in order of time."""

    gap: Int  # position in the gaps
    start: Int  # ns
    end: Int  # ns
    cause: Int  # code into CAUSES
    # Event row of what the host was in, -1 if unknown or not the host's affair. Of CPU ops and collectives
    # the outermost op; of a queue refill the blocking call before it.
    host: Int
    inner: Int  # event row of the innermost op, call or frame then, mostly the same
    thread: Int  # number of the thread that launched the next work (see stacks.threads), -1 likewise

    @property
    def dur(self) -> Int:
        return self.end - self.start

    def take(self, rows: Int | Bool) -> IdlePieces:
        return IdlePieces(*taken(self, rows))


class Recurrence(Struct, frozen=True):
    """Which idle time is there again in other steps."""

    once: Bool  # of each piece: it is in a step, and its like is in too few others
    steps: int  # steps compared; with fewer than two nothing is known to recur


class Gaps(NamedTuple):
    """Gaps of one rank: [start, end), and the position in Work of what ran before and comes after (-1)."""

    start: Int
    end: Int
    before: Int
    after: Int

    @property
    def dur(self) -> Int:
        return self.end - self.start

    def take(self, rows: Int | Bool) -> Gaps:
        """The gaps at these positions or under this mask."""
        return Gaps(*taken(self, rows))


NOTHING, BUSY, STALLED, LOADING, LOADING_CODE, PROFILER, BLOCKED, COLLECTING = range(8)
"""What a thread does at a moment: nothing that is recorded (Python frames and annotations do nothing by
themselves), an op or a runtime call, an op that gets nothing done, fetching a batch, loading or compiling
kernels, the profiler's business, waiting for a GPU, collecting garbage. Where several events are around, the
last of these that one of them says; an op that stalls does so in its own time only."""


_CAUSE_OF = {
    NOTHING: "launch overhead",
    BUSY: "launch overhead",
    STALLED: "stalled host",
    LOADING: "data loading",
    LOADING_CODE: "kernel loading",
    PROFILER: "profiler",
    BLOCKED: "blocking call",
    COLLECTING: "garbage collection",
}
"""Why a GPU waits meanwhile, unless it takes long."""
_CAUSE_OF_ACTIVITY = np.array([CODE[_CAUSE_OF[what]] for what in range(len(_CAUSE_OF))])


class Activity(NamedTuple):
    """What threads did in intervals; disjoint, in order of the intervals."""

    interval: Int  # position of the interval
    start: Int  # ns
    end: Int  # ns
    what: NDArray[np.int8]  # one of NOTHING to COLLECTING
    event: Int  # row of the event that says so, of NOTHING the frame or annotation around it; -1 for none

    def take(self, rows: Int | Bool) -> Activity:
        return Activity(*taken(self, rows))

    def outside(self, times: Union) -> Activity:
        """What lies outside of these times."""
        if not len(self.start):
            return self
        free = times.complement(int(self.start[0]), int(self.end[-1]))
        rows, start, end = cut(self.start, self.end, free)
        return self.take(rows)._replace(start=start, end=end)


class Host:
    """The threads of a trace that launch GPU work; ask with `trace.once(Host)`."""

    def __init__(self, trace: Trace) -> None:
        self._events = events = trace.arrays
        work = trace.work
        self.thread = threads(trace)
        calling = work.launch_call[work.launch_call >= 0]
        numbers, first, count = np.unique(self.thread[calling], return_index=True, return_counts=True)
        order = np.argsort(-count, kind="stable")
        self._pid = dict(
            zip(numbers[order].tolist(), events.pid[calling[first[order]]].tolist(), strict=True)
        )
        self._pieces: dict[int, Pieces] = {}
        self._calls: dict[int, tuple[Int, Int]] = {}
        says = [
            (BUSY, events.where("op", "launch")),
            (LOADING, events.fitting(_LOADING, "python", "annotation", "op")),
            (LOADING_CODE, events.fitting(LOADS_CODE, "launch", "python", "annotation")),
            (BLOCKED, waiting_calls(trace, work)),
            (COLLECTING, events.fitting(GARBAGE, "python", "annotation", "slice")),
            (PROFILER, trace.once(profiler_calls)),
        ]
        frames = events.where("python", "annotation", "slice") & ~named(events, STEP_MARK) & ~events.copied
        self._event = nearest(events.parent, events.depth, frames)
        self._what = np.full(len(events.start), NOTHING, dtype=np.int8)
        for what, mask in says:
            own = mask & ~events.copied  # what a graph replays takes no time of the host
            if not own.any():
                continue
            event = nearest(events.parent, events.depth, own)
            rows = np.flatnonzero(event >= 0)
            self._event[rows], self._what[rows] = event[rows], what
        self._long_ops = long_ops(trace)
        recorded = overhead(events)
        self._overhead = [
            (what, rows[np.argsort(events.start[rows], kind="stable")])
            for what, mask in (
                (LOADING_CODE, recorded.loading),
                (PROFILER, recorded.profiler),
                (BLOCKED, recorded.queue_full),
            )
            if len(rows := np.flatnonzero(mask))
        ]

    @cached_property
    def outermost_op(self) -> Int:
        """For each event, the outermost op around it, wrappers of the autograd engine aside; -1 for none."""
        events = self._events
        is_op = events.where("op") & ~named(events, _WRAPPER)
        top = is_op & (lookup(nearest(events.parent, events.depth, is_op), events.parent, -1) < 0)
        return nearest(events.parent, events.depth, top)

    def calls(self, number: int) -> tuple[Int, Int]:
        """Ops and calls of a thread by their ends and by their begins.

        Of nested ones the outermost comes last and first: it ends last, and begins first.
        """
        if number not in self._calls:
            events = self._events
            is_call = events.where("op", "launch") & ~events.copied
            rows = np.flatnonzero(is_call & (self.thread == number))
            ended = rows[ordered(events.end[rows])]
            self._calls[number] = ended, rows[ordered(events.start[rows], events.depth[rows])]
        return self._calls[number]

    def during(self, number: int, start: Int, end: Int) -> Activity:
        """What a thread did in intervals; where it did nothing, what the other launching threads did.

        A thread that waits in Python for another (the autograd engine's, a pipeline's) is not the one that
        holds the GPU up.

        Args:
            number: of the thread.
            start: ns, of disjoint intervals in order of time.
            end: ns.
        """
        own = self._with_overhead(number, self._of_thread(number, start, end))
        parts, silent = [], own.take(own.what == NOTHING)
        others = [other for other, pid in self._pid.items() if pid == self._pid[number] and other != number]
        for other in others[:OTHER_THREADS]:
            if not len(silent.start):
                break
            activity = self._of_thread(other, silent.start, silent.end)
            activity = activity.take(activity.what != NOTHING)
            if len(activity.start):
                parts.append(activity._replace(interval=silent.interval[activity.interval]))
                silent = silent.outside(union(activity.start, activity.end))
        return _in_order(own.take(own.what != NOTHING), *parts, silent) if parts else own

    def _of_thread(self, number: int, start: Int, end: Int) -> Activity:
        """What one thread did in intervals."""
        interval, pieces = overlaps(self._everywhere(number), start, end)
        owner = pieces.owner
        what, event = lookup(self._what, owner, NOTHING), lookup(self._event, owner, -1)
        return Activity(interval, pieces.start, pieces.end, what, event)

    def _everywhere(self, number: int) -> Pieces:
        """All time of a thread, that before its first and after its last event included."""
        if number not in self._pieces:
            # What a graph replays, copied under its launch, is not on the call stack.
            on_stack = self._events.where(*STACK_KINDS) & ~self._events.copied
            pieces = innermost(self._events, np.flatnonzero((self.thread == number) & on_stack))
            # One piece ends where the next begins, so that both can be views of one array.
            edges = np.concatenate(([-_FOREVER], pieces.start, pieces.end[-1:], [_FOREVER]))
            self._pieces[number] = Pieces(edges[:-1], edges[1:], np.concatenate(([-1], pieces.owner, [-1])))
            self._load_code(number)
            self._stall(number)
        return self._pieces[number]

    def _load_code(self, number: int) -> None:
        """Find the ops and calls of a thread in which kernels were loaded, and which took unusually long.

        Of finding and loading a kernel the driver records the last part only.
        """
        events = self._events
        for what, rows in self._overhead:
            if what != LOADING_CODE:
                continue
            owner, held = self._held_up(number, rows)
            dur, usual = events.end - events.start, events.where("op", "launch")
            usual[owner[owner >= 0]] = False
            for row in unique(owner[held & (lookup(self._what, owner, NOTHING) == BUSY)]).tolist():
                alike = dur[usual & (events.name == events.name[row])]
                if not len(alike) or dur[row] > LOADING_RATIO * median(alike):
                    self._what[row] = LOADING_CODE

    def _stall(self, number: int) -> None:
        """Find the ops of a thread that took long in their own code."""
        pieces, (rows, least_ns) = self._pieces[number], self._long_ops
        owned = np.flatnonzero(np.isin(pieces.owner, rows))
        of_op = np.searchsorted(rows, pieces.owner[owned])
        own_ns = sums(of_op, pieces.end[owned] - pieces.start[owned], len(rows))
        stalled = rows[own_ns >= least_ns]
        self._what[stalled[self._what[stalled] == BUSY]] = STALLED

    def _held_up(self, number: int, overhead: Int) -> tuple[Int, Bool]:
        """In which event of a thread each overhead lies, -1 for none, and whether it held the thread up.

        Whose call it held is not recorded: it was this thread's if that was busy and got nothing done
        meanwhile, or if nothing else is known of most of the time in which it was silent.
        """
        pieces, start, end = (
            self._everywhere(number),
            self._events.start[overhead],
            self._events.end[overhead],
        )
        borders = pieces.start[1:]
        piece = np.searchsorted(borders, start, side="right")
        owner, dur = pieces.owner[piece], pieces.end[piece] - pieces.start[piece]
        what = lookup(self._what, owner, NOTHING)
        held = (what == BUSY) | ((what == NOTHING) & (2 * (end - start) > dur))
        return owner, held & (piece == np.searchsorted(borders, end))

    def _with_overhead(self, number: int, activity: Activity) -> Activity:
        """The same, but for what overhead held up: a busy thread, or one of which nothing else is known."""
        held_up = [
            (what, calls(self._events, rows[self._held_up(number, rows)[1]])) for what, rows in self._overhead
        ]
        # Of all that the thread did, little lies in these times.
        touched = np.zeros(len(activity.start), dtype=bool)
        every = Pieces(activity.start, activity.end, np.arange(len(touched)))
        for _, times in held_up:
            touched[overlaps(every, times.start, times.end)[1].owner] = True
        if not touched.any():
            return activity
        slowed = activity.take(touched)
        for what, times in held_up:
            yielding = slowed.take(slowed.what < what)
            hit, inside = overlaps(times, yielding.start, yielding.end)
            taken_over = yielding.take(hit)._replace(
                start=inside.start, end=inside.end, what=np.full_like(hit, what, np.int8), event=inside.owner
            )
            others = yielding.outside(union(times.start, times.end))
            slowed = _in_order(slowed.take(slowed.what >= what), taken_over, others)
        return _in_order(activity.take(~touched), slowed)


class Pieces(Struct, frozen=True):
    """Disjoint pieces of one thread's time in order, each with the event row it belongs to (-1: none)."""

    start: Int
    end: Int
    owner: Int


@analyzer("idle", title="Idle time", order=60, tables=TABLES, sums_steps=True)
def idle(run: Run, *, scope: Scope = "all") -> Result:
    """Why is the GPU idle, and what is the host doing at that time?

    Reading:
        `causes` adds up to all idle time. `hosts` says where in the program the host was, `gaps` when the
        longest gaps were and what ended them.

    Limits:
        A cause is what the launching thread is recorded to do; where little is recorded, the host counts as
        silent. Waiting inside a communication kernel is not idle time.

    Args:
        run: the ranks.
        scope: "all", or "linked": work whose launch call is not in the trace then counts as idle.

    Returns:
        tables `causes`, `hosts` (by cause and host op or Python frame), `gaps` (the longest) and `pieces`
        (of these, each moment with its cause).
    """
    parts: dict[str, list[dict[str, Any]]] = {name: [] for name in TABLES}
    skips: list[Skip] = []
    names = list(CAUSES)
    for trace in run.traces:
        rank, work = trace.meta.rank, gpu_work(trace, scope)
        if not len(work.event):
            skips.append(Skip(f"rank {rank}", no_gpu_work(trace, scope)))
            continue
        gaps, pieces = idle_time(trace, scope)
        total = max(int(gaps.dur.sum()), 1)
        # A gap's share of a cause, or of a host, is one share, however often it was broken off.
        share, _, cause = _shares(pieces.dur, pieces.gap, pieces.cause)
        by_cause = stats(cause, share, len(CAUSES))
        causes = [code for code in np.argsort(-by_cause.total, kind="stable") if by_cause.number[code]]
        host, op, texts = host_names(trace, pieces)
        recurs = recurrence(trace, pieces)
        once_ns = sums(pieces.cause[recurs.once], pieces.dur[recurs.once], len(CAUSES))
        tables: dict[str, dict[str, Any]] = {
            "causes": {
                "cause": [names[code] for code in causes],
                "count": by_cause.number[causes],
                "dur_ns": by_cause.total[causes],
                "fraction_of_idle": by_cause.total[causes] / total,
                "once_ns": once_ns[causes] if recurs.steps > 1 else np.full(len(causes), -1),
            }
        }
        is_long = pieces.cause != CODE["short gaps"]
        long = taken((pieces.dur, pieces.gap, pieces.cause, host, op), is_long)
        share, _, cause, at_host, in_op = _shares(*long)
        group, (cause, at_host, in_op) = codes(cause, at_host, in_op)
        by_host = stats(group, share, len(cause))
        order = np.argsort(-by_host.total, kind="stable")
        tables["hosts"] = {
            "cause": [names[code] for code in cause[order]],
            "host": [texts[code] for code in at_host[order]],
            "op": [texts[code] for code in in_op[order]],
            "count": by_host.number[order],
            "dur_ns": by_host.total[order],
            "mean_ns": by_host.mean[order],
            "max_ns": by_host.max[order],
            "fraction_of_idle": by_host.total[order] / total,
        }

        # The longest gaps with the cause and the host of most of their time, and their pieces.
        steps = steps_of(trace)
        listed = np.flatnonzero(gaps.dur > GAP_NS)
        longest = listed[ordered(-gaps.dur[listed])][:SHOWN]
        rows = np.flatnonzero(np.isin(pieces.gap, longest))
        main_cause, main_ns = _largest(pieces, rows, len(gaps.start), pieces.cause)
        of_cause = rows[pieces.cause[rows] == main_cause[pieces.gap[rows]]]
        main_host, _ = _largest(pieces, of_cause, len(gaps.start), host)
        of_host = of_cause[host[of_cause] == main_host[pieces.gap[of_cause]]]
        main_op, _ = _largest(pieces, of_host, len(gaps.start), op)
        dur, after = gaps.dur[longest], gaps.after[longest]
        step = np.searchsorted(steps.edges, gaps.start[longest], side="right") - 1
        tables["gaps"] = {
            "ts_ns": gaps.start[longest] - int(work.start.min()),
            "dur_ns": dur,
            "step": Coded.picked(np.clip(step, 0, len(steps.labels) - 1), steps.labels),
            "cause": Coded.picked(main_cause[longest], names),
            "fraction_of_gap": main_ns[longest] / dur,
            "host": Coded.picked(main_host[longest], texts),
            "op": Coded.picked(main_op[longest], texts),
            "next_work": Coded.picked(lookup(work.name, after, len(work.names)), [*work.names, ""]),
            "stream": lookup(work.stream, after, -1),
        }
        tables["pieces"] = {
            "local_ts_ns": pieces.start[rows],
            "dur_ns": pieces.dur[rows],
            "cause": Coded.picked(pieces.cause[rows], names),
            "host": Coded.picked(host[rows], texts),
            "op": Coded.picked(op[rows], texts),
        }
        for name, columns in tables.items():
            parts[name].append({"rank": np.full(len(next(iter(columns.values()))), rank), **columns})
        if not len(tables["gaps"]["dur_ns"]):
            short = f"no gap is longer than {GAP_NS} ns" if causes else "the GPU never waits"
            skips.append(Skip(f"rank {rank}: gaps", short))
        silent_ns = int(by_cause.total[CODE["silent host"]])
        if silent_ns and not trace.arrays.where("python").any():
            reason = "no Python frames recorded; with_stack=True (tracelens.record: stack=True) shows them"
            skips.append(Skip(f"rank {rank}: activity of a host silent for {duration(silent_ns)}", reason))
    return result({name: TABLES[name].concat(rows) for name, rows in parts.items()}, skips, scope=scope)


def _shares(dur: Int, *keys: Int) -> tuple[Int, ...]:
    """Time of all pieces with the same keys, and these keys."""
    group, distinct = codes(*keys)
    time = np.zeros(len(distinct[0]), dtype=np.int64)
    np.add.at(time, group, dur)
    return time, *distinct


def _largest(pieces: IdlePieces, rows: Int, gaps: int, value: Int) -> tuple[Int, Int]:
    """For each gap, the value with most of the time of these pieces, and that time."""
    time, gap, values = _shares(pieces.end[rows] - pieces.start[rows], pieces.gap[rows], value[rows])
    order = ordered(gap, time)
    largest, largest_ns = np.full(gaps, -1), np.zeros(gaps, dtype=np.int64)
    largest[gap[order]], largest_ns[gap[order]] = values[order], time[order]
    return largest, largest_ns


def host_names(trace: Trace, pieces: IdlePieces) -> tuple[Int, Int, list[str]]:
    """Codes of what the host was in during each piece and of the op around it, and the texts; '' is unknown.

    A silent host has no op around it, but one before and one behind it.
    """
    events, (code, names) = trace.arrays, trace.once(_plain_names)
    texts, nothing = {name: number for number, name in enumerate(names)}, len(events.names)
    op = code[lookup(events.name, lookup(trace.once(enclosing_op), pieces.inner, -1), nothing)]
    silent_rows = np.flatnonzero(pieces.cause == CODE["silent host"])
    if len(silent_rows):
        # What the thread was in before and after each stretch of silence.
        silent, program = pieces.take(silent_rows), trace.once(Host)
        begins = np.ones(len(silent.start), dtype=bool)
        begins[1:] = (silent.start[1:] != silent.end[:-1]) | (silent.gap[1:] != silent.gap[:-1])
        stretch = np.cumsum(begins) - 1
        first = np.flatnonzero(begins)
        last = np.append(first[1:], len(begins)) - 1
        before, after = np.full(len(first), -1), np.full(len(first), -1)
        for number in unique(silent.thread[first]).tolist():
            of_thread = np.flatnonzero(silent.thread[first] == number)
            ended, begun = program.calls(number)
            index = np.searchsorted(events.end[ended], silent.start[first[of_thread]], side="right") - 1
            before[of_thread] = lookup(ended, index, -1)
            index = np.searchsorted(events.start[begun], silent.end[last[of_thread]])
            after[of_thread] = lookup(np.append(begun, -1), index, -1)
        around = [
            f"{events.names[events.name[low]] if low >= 0 else 'start'} -> "
            f"{events.names[events.name[high]] if high >= 0 else 'end'}"
            for low, high in zip(before.tolist(), after.tolist(), strict=True)
        ]
        op[silent_rows] = [texts.setdefault(around[index], len(texts)) for index in stretch.tolist()]
    return code[lookup(events.name, pieces.host, nothing)], op, list(texts)


def _plain_names(trace: Trace) -> tuple[Int, Sequence[str]]:
    """The names of events, and behind them "", without what tells objects apart: code of each, and texts.

    Python frames of one method on several objects carry addresses.
    """
    plain = Coded.of([_ADDRESS.sub("", name) for name in (*trace.arrays.names, "")])
    return plain.codes.astype(np.int64), plain.values


def recurrence(trace: Trace, pieces: IdlePieces) -> Recurrence:
    """Which pieces of gaps with an avoidable cause happened once, see ALIKE_SHARE and RECURS_IN."""
    steps = steps_of(trace).only_whole()
    count = len(steps.labels) if steps.marked else 1
    once = np.zeros(len(pieces.gap), dtype=bool)
    rows = np.flatnonzero(np.array([name in AVOIDABLE for name in CAUSES]).take(pieces.cause))
    step = np.searchsorted(steps.edges, pieces.start[rows], side="right") - 1
    inside = (step >= 0) & (step < count)
    if count < 2 or not inside.any():
        return Recurrence(once, count)
    host, op, _ = host_names(trace, pieces.take(rows))
    rows, step, host, op = rows[inside], step[inside], host[inside], op[inside]
    loads = pieces.cause[rows] == CODE["kernel loading"]
    least = np.where(loads, LOADING_RECURS_IN * count, np.maximum(RECURS_IN * count, 2))
    recurs = np.zeros(len(rows), dtype=bool)
    # By what the host was in, or where that is another place in each step, by the cause alone.
    for keys in ((pieces.cause[rows], host, op), (pieces.cause[rows],)):
        like, _ = codes(*keys)
        cell, (of_like, _) = codes(like, step)
        total = sums(cell, pieces.dur[rows], len(of_like)).astype(float)
        order = np.lexsort((total, of_like))
        # Cells of one like, by time: how many of them take at least half as long as each.
        first = np.searchsorted(of_like[order], of_like, side="left")
        last = np.searchsorted(of_like[order], of_like, side="right")
        alike = np.array(
            [
                high - low - np.searchsorted(total[order[low:high]], ALIKE_SHARE * own)
                for low, high, own in zip(first.tolist(), last.tolist(), total.tolist(), strict=True)
            ]
        )
        recurs |= (alike[cell] >= least) & (alike[cell] > 1)
    once[rows[~recurs]] = True
    return Recurrence(once, count)


def idle_time(trace: Trace, scope: Scope = "all") -> tuple[Gaps, IdlePieces]:
    """All gaps of a rank with GPU work, and their pieces; kept with the trace."""
    return trace.once(_idle_time) if scope == "all" else _idle_time(trace, scope)


def _idle_time(trace: Trace, scope: Scope = "all") -> tuple[Gaps, IdlePieces]:
    work = gpu_work(trace, scope)
    steps = steps_of(trace)
    gaps = find_gaps(work, steps.edges)
    if not steps.marked and len(steps.labels) > 1:  # what is before was in flight when the recording began
        gaps = gaps.take(gaps.end > steps.edges[steps.whole.start])
    return gaps, idle_pieces(trace, work, gaps)


def known_pieces(trace: Trace, work: Work, gaps: Gaps) -> IdlePieces:
    """`idle_pieces` of gaps most of which are in `idle_time`, too, and have the same pieces there.

    Not so where the work begins and ends.
    """
    everywhere, pieces = idle_time(trace)
    known = np.minimum(np.searchsorted(everywhere.start, gaps.start), len(everywhere.start) - 1)
    same = gaps.after >= 0 if len(everywhere.start) else np.zeros(len(gaps.start), dtype=bool)
    for value, value_everywhere in zip(
        _between_events(work, gaps), _between_events(trace.work, everywhere), strict=True
    ):
        same[same] = value[same] == value_everywhere[known[same]]
    others = np.flatnonzero(~same)
    if not len(others) and len(gaps.start) == len(everywhere.start):
        return pieces
    other_pieces = idle_pieces(trace, work, gaps.take(others))
    position = np.full(len(everywhere.start), -1)
    position[known[same]] = np.flatnonzero(same)
    gap = np.concatenate((position[pieces.gap], others[other_pieces.gap]))
    rows = np.flatnonzero(gap >= 0)
    rows = rows[np.argsort(gap[rows], kind="stable")]
    # One column after the other: there may be millions of pieces.
    together = IdlePieces._make(
        np.concatenate(values).take(rows) for values in zip(pieces, other_pieces, strict=True)
    )
    return together._replace(gap=gap[rows].astype(np.int32))


def _between_events(work: Work, gaps: Gaps) -> Gaps:
    """The same gaps, before and after as event rows."""
    before, after = (lookup(work.event, place, -1) for place in (gaps.before, gaps.after))
    return gaps._replace(before=before, after=after)


def idle_pieces(trace: Trace, work: Work, gaps: Gaps) -> IdlePieces:
    """What was waited for in each moment of the gaps.

    Until the next work has been launched the GPU waits for the host, and the cause is what its launching
    thread was doing then; from there on it waits for the queue.

    Args:
        trace: of the rank.
        work: its GPU work.
        gaps: of it, in order of time.
    """
    events = trace.arrays
    after = np.maximum(gaps.after, 0)
    launch = lookup(work.launch_call, gaps.after, -1)
    # What ended the last step kept its thread busy; nothing is launched there any more.
    calls = work.launch_call[work.launch_call >= 0]
    launch[gaps.after < 0] = calls[np.argmax(events.start[calls])] if len(calls) else -1
    whole = np.full(len(gaps.start), -1)
    whole[launch < 0] = CODE["no launch"]
    whole[(gaps.after < 0) & (launch < 0)] = CODE["window"]
    whole[gaps.dur <= GAP_NS] = CODE["short gaps"]
    split = np.flatnonzero(whole < 0)
    launched = np.clip(events.end[launch[split]], gaps.start[split], gaps.end[split])
    launched = np.where(gaps.after[split] < 0, gaps.end[split], launched)
    in_queue = gaps.end[split] - launched
    queue = np.flatnonzero(in_queue > 0)
    before = np.maximum(gaps.before, 0)
    same_stream = (work.stream[after] == work.stream[before]) & (work.device[after] == work.device[before])
    same_stream |= gaps.before < 0
    waited = np.where(same_stream[split], CODE["dispatch"], CODE["other stream"])
    waited[in_queue > UNRECORDED_NS] = CODE["unrecorded work"]
    undivided = np.flatnonzero(whole >= 0)
    parts = [
        _of_gaps(undivided, gaps.start[undivided], gaps.end[undivided], whole[undivided]),
        _of_gaps(split[queue], launched[queue], gaps.end[split[queue]], waited[queue]),
    ]
    late = np.flatnonzero(launched > gaps.start[split])
    rows = split[late]
    for pieces in host_pieces(trace, launch[rows], gaps.start[rows], launched[late]):
        parts.append(pieces._replace(gap=rows[pieces.gap]))
    # There may be millions of pieces: what are no times takes four bytes.
    times = {"start": np.int64, "end": np.int64}
    together = IdlePieces._make(
        np.concatenate(values, dtype=times.get(name, np.int32), casting="same_kind")
        for name, values in zip(IdlePieces._fields, zip(*parts, strict=True), strict=True)
    )
    return together.take(ordered(together.start))


def host_pieces(trace: Trace, call: Int, start: Int, end: Int) -> Iterator[IdlePieces]:
    """What the host did in disjoint intervals (ns) on its way to a call in each, thread by thread.

    Args:
        trace: of the rank.
        call: event rows.
        start: of the intervals, in order of time.
        end: of the same.
    """
    program = trace.once(Host)
    is_in_ops = np.array([name in ("CPU ops", "collective call") for name in CAUSES])
    number = program.thread[call]
    for thread in unique(number).tolist():
        rows = np.flatnonzero(number == thread)
        activity = program.during(thread, start[rows], end[rows])
        cause, host = _causes(trace, activity)
        in_ops = np.flatnonzero(marked(cause, is_in_ops))
        op = program.outermost_op[host[in_ops]]
        host[in_ops] = np.where(op >= 0, op, host[in_ops])
        yield IdlePieces(
            gap=rows[activity.interval],
            start=activity.start,
            end=activity.end,
            cause=cause,
            host=host,
            inner=activity.event,
            thread=np.full(len(cause), thread),
        )


def _of_gaps(gap: Int, start: Int, end: Int, cause: Int) -> IdlePieces:
    unknown = np.full(len(gap), -1)
    return IdlePieces(gap=gap, start=start, end=end, cause=cause, host=unknown, inner=unknown, thread=unknown)


class LongOps(NamedTuple):
    """Ops that take unusually long for no reason that is recorded beside or around them."""

    row: Int  # ascending
    least_ns: Int  # the time in their own code, less all that is recorded inside, from which on they stalled


def long_ops(trace: Trace) -> LongOps:
    """The ops that may have stalled, see STALLED_NS.

    Not among them are ops that the driver or the profiler held up, calls of collectives, which may wait for
    other ranks, a first call that launches, since it may load kernels, copies within host memory, which wait
    for pages and worker threads, and Python that takes ops over, whose like do other work. An op whose
    arguments are not recorded may have had more to do, unless all it does is launch. A host that computes
    itself shares its cores with its own threads.
    """
    events = trace.arrays
    if trace.work.cpu_only:
        none = np.empty(0, dtype=np.int64)
        return LongOps(none, none)
    is_op = events.where("op") & ~events.copied
    dur = events.end - events.start
    is_long = is_op & (dur >= STALLED_NS)
    rows = np.flatnonzero(is_long)
    # Most spend their time in what they call.
    inner = np.flatnonzero(lookup(is_long, events.parent, False) & ~events.copied)
    called_ns = sums(np.searchsorted(rows, events.parent[inner]), dur[inner], len(rows))
    rows = rows[dur[rows] - called_ns >= STALLED_NS]
    every = events.where("overhead")
    held_up = union(events.start[every], events.end[every]).covered(events.start[rows], events.end[rows]) > 0
    rows = rows[~held_up & ~trace.once(_in_collective_call)[rows]]
    launches = np.zeros(len(events.start), dtype=bool)
    launches[events.parent[inner[events.where("launch")[inner]]]] = True
    launching = launches[rows]
    is_kept = launching | ~fitting(events.names, events.name[rows], _COPY)
    is_kept &= ~fitting(events.names, events.name[rows], _IN_PYTHON)
    rows, launching = rows[is_kept], launching[is_kept]
    if not len(rows):
        return LongOps(rows, rows)
    # Their like: of the same name and arguments.
    is_like = np.zeros(len(events.names), dtype=bool)
    is_like[events.name[rows]] = True
    calls = np.flatnonzero(is_op & marked(events.name, is_like))
    argument, arguments = op_arguments(trace, calls)
    like, (of_like, _) = codes(events.name[calls], argument)
    order = ordered(like, dur[calls])
    first = np.searchsorted(like[order], np.arange(len(of_like)))
    count = np.bincount(like, minlength=len(of_like))
    usual_ns = dur[calls][order][first + (STALLED_QUANTILE * (count - 1)).astype(np.int64)]
    begin = np.full(len(of_like), _FOREVER)
    np.minimum.at(begin, like, events.start[calls])
    call = np.searchsorted(calls, rows)
    own = like[call]
    only_launches = launching | fitting(events.names, events.name[rows], _WRAPPER)
    least_ns = np.maximum(STALLED_RATIO * usual_ns[own], STALLED_NS)
    kept = (count[own] >= STALLED_CALLS) & (dur[rows] >= least_ns)
    has_arguments = np.array([text != "" for text in arguments.texts(argument[call])], dtype=bool)
    kept &= (has_arguments | only_launches) & ~(launching & (events.start[rows] == begin[own]))
    return LongOps(rows[kept], least_ns[kept])


def _in_collective_call(trace: Trace) -> Bool:
    """For each event, whether it is a call of a collective or inside of one."""
    events = trace.arrays
    collective = events.fitting(_COLLECTIVE, "op", "annotation")
    return nearest(events.parent, events.depth, collective) >= 0


def _causes(trace: Trace, activity: Activity) -> tuple[Int, Int]:
    """Cause of each piece of the host's time, in order of gaps and time, and the event to name with it."""
    events = trace.arrays
    gap, what, dur = activity.interval, activity.what, activity.end - activity.start
    cause = _CAUSE_OF_ACTIVITY.take(what)
    blocked = np.flatnonzero(what == BLOCKED)
    call = activity.event[blocked]
    waits = blocked[named(events, SYNCHRONIZE)[call]]
    long = _total(dur[waits], codes(gap[waits], activity.event[waits])[0]) > UNRECORDED_NS
    cause[waits[long]] = CODE["unrecorded work"]
    busy = np.flatnonzero(what == BUSY)
    busy = busy[_total(dur[busy], gap[busy]) > BUSY_NS]
    in_collective = trace.once(_in_collective_call)[activity.event[busy]]
    cause[busy] = np.where(in_collective, CODE["collective call"], CODE["CPU ops"])
    silent = np.flatnonzero(what == NOTHING)
    # A stretch is silent from one recorded op to the next, whatever frames it goes through.
    goes_on = (activity.start[silent[1:]] == activity.end[silent[:-1]]) & (
        gap[silent[1:]] == gap[silent[:-1]]
    )
    stretch = np.cumsum(np.concatenate(([0], ~goes_on))[: len(silent)])
    long = (_total(dur[silent], stretch) >= SILENT_NS) | (_total(dur[silent], gap[silent]) > BUSY_NS)
    in_frame = trace.once(_in_frame)[activity.event[silent[long]]] & (activity.event[silent[long]] >= 0)
    cause[silent[long]] = np.where(in_frame, CODE["Python code"], CODE["silent host"])
    # Row of the last piece up to each one in which the host waited for the GPU.
    emptied = blocked[~named(events, QUEUE_FULL)[call]]
    waited = np.repeat(np.append(-1, emptied), np.diff(emptied, prepend=0, append=len(what)))
    refill = np.flatnonzero((cause == CODE["launch overhead"]) & (waited >= 0))
    refill = refill[gap[waited[refill]] == gap[refill]]
    cause[refill] = CODE["queue refill"]
    event = activity.event.copy()
    event[refill] = event[waited[refill]]
    return cause, event


def _in_frame(trace: Trace) -> Bool:
    """For each event, whether it is a Python frame or inside of one."""
    events = trace.arrays
    return nearest(events.parent, events.depth, events.where("python")) >= 0


def _total(values: Int, group: Int) -> Int:
    """For each row, the sum of the values of all rows of its group."""
    return sums(group, values, int(group.max(initial=-1)) + 1)[group]


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


def _in_order(*parts: Activity) -> Activity:
    """One of several, in order of time."""
    together = Activity(*(np.concatenate(values) for values in zip(*parts, strict=True)))
    return together.take(np.argsort(together.start, kind="stable"))


def threads(trace: Trace) -> Int:
    """A number for each (pid, tid), one element an event; kept with the trace."""
    return trace.once(_threads)


def _threads(trace: Trace) -> Int:
    number, _ = codes(trace.arrays.pid, trace.arrays.tid)
    return number


def innermost(events: Events, rows: Int) -> Pieces:
    """Cut a thread's time at every begin and end; each piece belongs to the event that began last around it.

    Neighbors may overlap without being nested, by clocks that are read in turn or times rounded to us.
    """
    # Outer ones first where some begin together.
    rows = rows[ordered(events.start[rows], -events.end[rows], events.depth[rows])]
    start, end = events.start[rows], events.end[rows]
    time = np.sort(np.concatenate((start, end)), kind="stable")  # of two runs that mostly ascend
    return Pieces(time[:-1], time[1:], lookup(rows, _running(start, end, time)[:-1], -1))


def _running(start: Int, end: Int, time: Int) -> Int:
    """At each time, the last of several that has begun and not ended; -1 for none.

    Args:
        start: ns, ascending.
        end: ns.
        time: ns, ascending.
    """
    if native := core():
        result = np.empty(len(time), dtype=np.int64)
        native.running(start, end, time, result)
        return result
    owner = np.searchsorted(start, time, side="right") - 1
    # Of each event in order of begin, position of the last one before it that ends later, -1 for none.
    longer = np.arange(-1, len(end) - 1)
    unresolved = np.arange(len(end))
    while len(unresolved := unresolved[longer[unresolved] >= 0]):
        # Every row asks the one that it has come to; on "no", whom that one has come to meanwhile.
        earlier = longer[unresolved]
        not_longer = end[earlier] <= end[unresolved]
        unresolved = unresolved[not_longer]
        longer[unresolved] = longer[earlier[not_longer]]
    # What is over by now gives way to the last one before it that goes on.
    while len(over := np.flatnonzero((owner >= 0) & (end[owner] <= time))):
        owner[over] = longer[owner[over]]
    return owner


def calls(events: Events, rows: Int) -> Pieces:
    """The given events of one thread as pieces; of nested ones the outer."""
    order = rows[np.argsort(events.start[rows], kind="stable")]
    end = np.maximum.accumulate(events.end[order]) if len(order) else order
    start = events.start[order].copy()
    start[1:] = np.maximum(start[1:], end[:-1])
    return Pieces(start, np.maximum(events.end[order], start), order)


def overlaps(pieces: Pieces, start: Int, end: Int) -> tuple[Int, Pieces]:
    """Pieces cut to intervals.

    Args:
        pieces: of one thread.
        start: ns, of disjoint intervals.
        end: ns.

    Returns:
        (position of the interval, piece), in order of the intervals.
    """
    if not len(pieces.start) or not len(start):
        none = np.empty(0, dtype=np.int64)
        return none, Pieces(none, none, none)
    first = np.maximum(np.searchsorted(pieces.start, start, side="right") - 1, 0)
    last = np.searchsorted(pieces.start, end, side="left")
    interval, piece = ranges(first, np.maximum(last - first, 0))
    low = np.maximum(pieces.start[piece], start[interval])
    high = np.minimum(pieces.end[piece], end[interval])
    inside = np.flatnonzero(high > low)
    return interval[inside], Pieces(low[inside], high[inside], pieces.owner[piece[inside]])
