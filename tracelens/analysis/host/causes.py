"""What the GPU waited for: each gap in its work cut into pieces, each with its cause."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from tracelens.analysis.host.activity import (
    BLOCKED,
    BUSY,
    COLLECTING,
    LOADING,
    NOTHING,
    PROFILER,
    Activity,
    Host,
)
from tracelens.analysis.host.gaps import GAP_NS, Gaps, find_gaps
from tracelens.analysis.host.waits import SYNCHRONIZE, named
from tracelens.arrays import Bool, Int, lookup
from tracelens.table import codes, nearest, sums
from tracelens.trace import Events, Scope, Trace, Work, gpu_work, steps_of

SILENT_NS = 500_000
"""Python between two ops takes a few us, rarely 0.3 ms. What takes longer is something else."""

BUSY_NS = 1_000_000
"""From one launch to the next the host takes less: a gap with more time in ops and calls waits for these."""

UNRECORDED_NS = 200_000
"""In 20 traces without losses no work stood longer than 84 us in the queue of an idle GPU, and no host waited
longer than 35 us for one. Where it takes this long, the GPU did something that is not recorded."""

CAUSES = {
    "silent host": f"the launching thread was in no recorded op or call, for {SILENT_NS / 1e6:g} ms at "
    f"once or {BUSY_NS / 1e6:g} ms of the gap: the program's own Python (data, logging, "
    "checkpoints), unrecorded garbage collection, or a process that slept or had no core",
    "CPU ops": f"ops and calls that launch nothing took over {BUSY_NS / 1e6:g} ms of the gap",
    "launch overhead": "the host was on its way to the next launch: short ops, calls and the Python "
    "between them",
    "blocking call": "the host was in a call that waits for the GPU or copies synchronously",
    "queue refill": "launch overhead after a blocking call: the launch queue was empty",
    "data loading": "the host was fetching the next batch",
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

HOST_CAUSES = tuple(CAUSES)[: list(CAUSES).index("dispatch")]
"""Those that name what the host did before it launched the next work."""

CODE = {name: code for code, name in enumerate(CAUSES)}

_WRAPPER = re.compile(r"^autograd::engine::evaluate_function: ")
_COLLECTIVE = re.compile(r"^(?:c10d::|nccl:|gloo:|record_param_comms|ncclComm|symm_mem::)")


class IdlePieces(NamedTuple):
    """Gaps cut into pieces that add up to them, in order of time.

    Attributes:
        gap: position in the gaps.
        start, end: ns.
        cause: code into CAUSES.
        host: event row of what the host was in, -1 if unknown or not the host's affair. Of CPU ops and
            collectives the outermost op; of a queue refill the blocking call before it.
        inner: event row of the innermost op, call or frame then, mostly the same.
        thread: number of the thread that launched the next work (see stacks.threads), -1 likewise.
    """

    gap: Int
    start: Int
    end: Int
    cause: Int
    host: Int
    inner: Int
    thread: Int

    @property
    def dur(self) -> Int:
        return self.end - self.start

    def take(self, rows: Int | Bool) -> IdlePieces:
        return IdlePieces(*(values[rows] for values in self))


def idle_time(trace: Trace, scope: Scope = "all") -> tuple[Gaps, IdlePieces]:
    """All gaps of a rank with GPU work, and their pieces; kept with the trace."""
    return trace.once(_all_idle_time) if scope == "all" else _idle_time(trace, gpu_work(trace, scope))


def _all_idle_time(trace: Trace) -> tuple[Gaps, IdlePieces]:
    return _idle_time(trace, trace.work)


def _idle_time(trace: Trace, work: Work) -> tuple[Gaps, IdlePieces]:
    gaps = find_gaps(work, steps_of(trace).edges)
    return gaps, idle_pieces(trace, work, gaps)


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
    launch = np.where(gaps.after < 0, _last_launch(events, work), launch)
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
        *_of_host(trace, split, gaps.start[split], launched, launch[split]),
    ]
    together = IdlePieces(*(np.concatenate(values) for values in zip(*parts, strict=True)))
    return together.take(np.lexsort((together.start, together.gap)))


def _last_launch(events: Events, work: Work) -> int:
    """Event row of the last launch call of the recording, -1 if there is none."""
    calls = work.launch_call[work.launch_call >= 0]
    return int(calls[np.argmax(events.start[calls])]) if len(calls) else -1


def _of_gaps(gap: Int, start: Int, end: Int, cause: Int) -> IdlePieces:
    unknown = np.full(len(gap), -1)
    return IdlePieces(gap, start, end, cause, unknown, unknown, unknown)


def _of_host(trace: Trace, gap: Int, start: Int, launched: Int, launch: Int) -> list[IdlePieces]:
    """The pieces of gaps up to the end of the launch call, by launching thread."""
    program = trace.once(Host)
    late = np.flatnonzero(launched > start)
    number = program.thread[launch[late]]
    outermost = trace.once(_outermost_op)
    parts = []
    for thread in np.unique(number).tolist():
        rows = late[number == thread]
        activity = program.during(thread, start[rows], launched[rows])
        cause, event = _causes(trace.arrays, activity)
        in_ops = np.isin(cause, (CODE["CPU ops"], CODE["collective call"])) & (outermost[event] >= 0)
        host = np.where(in_ops, outermost[event], event)
        gap_of, of_thread = gap[rows[activity.interval]], np.full(len(cause), thread)
        parts.append(IdlePieces(gap_of, *activity[1:3], cause, host, activity.event, of_thread))
    return parts


def _causes(events: Events, activity: Activity) -> tuple[Int, Int]:
    """Cause of each piece of the host's time, in order of gaps and time, and the event to name with it."""
    gap, what, dur = activity.interval, activity.what, activity.end - activity.start
    cause = np.full(len(gap), CODE["launch overhead"])
    for code, name in (
        (LOADING, "data loading"),
        (PROFILER, "profiler"),
        (BLOCKED, "blocking call"),
        (COLLECTING, "garbage collection"),
    ):
        cause[what == code] = CODE[name]
    waits = np.flatnonzero((what == BLOCKED) & named(events, SYNCHRONIZE)[activity.event])
    long = _total(dur[waits], gap[waits], activity.event[waits]) > UNRECORDED_NS
    cause[waits[long]] = CODE["unrecorded work"]
    busy = np.flatnonzero(what == BUSY)
    busy = busy[_total(dur[busy], gap[busy]) > BUSY_NS]
    collective = named(events, _COLLECTIVE) & events.where("op", "annotation")
    in_collective = nearest(events.parent, events.depth, collective)[activity.event[busy]] >= 0
    cause[busy] = np.where(in_collective, CODE["collective call"], CODE["CPU ops"])
    silent = np.flatnonzero(what == NOTHING)
    # A stretch is silent from one recorded op to the next, whatever frames it goes through.
    goes_on = (activity.start[silent[1:]] == activity.end[silent[:-1]]) & (
        gap[silent[1:]] == gap[silent[:-1]]
    )
    stretch = np.cumsum(np.concatenate(([0], ~goes_on))[: len(silent)])
    long = (_total(dur[silent], stretch) >= SILENT_NS) | (_total(dur[silent], gap[silent]) > BUSY_NS)
    cause[silent[long]] = CODE["silent host"]
    # Row of the last piece up to each one in which the host waited for the GPU.
    waited = np.maximum.accumulate(np.where(what == BLOCKED, np.arange(len(what)), -1))
    refill = (cause == CODE["launch overhead"]) & (waited >= 0) & (gap[waited] == gap)
    cause[refill] = CODE["queue refill"]
    return cause, np.where(refill, lookup(activity.event, waited, -1), activity.event)


def _outermost_op(trace: Trace) -> Int:
    """For each event, the outermost op around it, wrappers of the autograd engine aside; -1 for none."""
    events = trace.arrays
    is_op = events.where("op") & ~named(events, _WRAPPER)
    top = is_op & (lookup(nearest(events.parent, events.depth, is_op), events.parent, -1) < 0)
    return nearest(events.parent, events.depth, top)


def _total(values: Int, *keys: Int) -> Int:
    """For each row, the sum of the values of all rows with its keys."""
    group, first = codes(*keys)
    return sums(group, values, len(first[0]))[group] if len(values) else values
