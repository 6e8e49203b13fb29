"""Faults planted into real recordings: raw events are edited, and the run is timed anew.

The host and each stream keep their order and what they waited for. A kernel starts once it is launched and
what ran before it is over; a call that waited for the GPU returns when that work is done; a collective ends
on all ranks as long after its last rank came as it was recorded to. So a late rank makes the others wait, and
a pause behind which the GPU still has work costs less, as in a run. Nothing of tracelens takes part in it.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tests.builders import read
from tests.reference.raw import files, text_of
from tracelens.trace import Run, make_run

Event = dict[str, Any]
GPU = ("kernel", "gpu_memcpy", "gpu_memset")
CALLS = ("cuda_runtime", "cuda_driver")
TINY = 0.01  # ns that an added call takes until all is timed anew
LATENCY_NS = 6_000.0  # at most, from a launch call to a start, where the work was queued in the recording
CALL_NS = 5_000.0  # of a call that waits for work that is over
RETURN_NS = 100_000.0  # a call that returns this soon after the end of work waited for it
LAG_NS = 20_000.0  # at most, from that end to the return, where it did not
OVERLAP_NS = 500.0  # by which work may begin before what it waits for ends: clocks
FREE_ID = 10**9  # first id of what is added
GEMM = re.compile(r"gemm|cutlass|nvjet|xmma|_mm_", re.IGNORECASE)


class Place(NamedTuple):
    """A moment at which the host of a rank is in no op."""

    step: int
    ts: float


@dataclass
class Plan:
    """What goes wrong on one rank."""

    pauses: Sequence[tuple[Place, float, Event]] = ()  # where, ns, and the event that shows it, {} for none
    reads: Sequence[Place] = ()  # of values on the GPU, such as .item()
    extra: Sequence[tuple[Place, float]] = ()  # GEMMs of so many ns
    host: float = 1.0  # how many times as long the host takes
    kernel: Callable[[Event], float] = field(default=lambda event: 1.0)  # likewise work of the GPU
    transfer: float = 1.0  # likewise a collective once all ranks are there


def pause(rank: Rank, where: str, ns: float, event: Event | None = None) -> Plan:
    """The program stands still once in each step."""
    return Plan(pauses=[(place, ns, event or {}) for place in rank.places(where)])


def slow_gpu(factor: float) -> Plan:
    return Plan(kernel=lambda event: 1.0 if is_comm(event) else factor)


def is_comm(event: Event) -> bool:
    return "nccl" in event["name"].lower()


class Rank:
    """Raw events of one rank, ns since the run began."""

    def __init__(self, whole: Event, origin_us: float) -> None:
        # What a recorder measured besides is of the run without the fault.
        left_out = ("traceEvents", "schemaVersion", "tracelens")
        self.header = {key: value for key, value in whole.items() if key not in left_out}
        self.timeless: list[Event] = [event for event in whole["traceEvents"] if not event.get("ts")]
        self.events: list[Event] = [event for event in whole["traceEvents"] if event.get("ts")]
        self.category = [event.get("cat") for event in self.events]
        ts = np.array([float(event["ts"]) for event in self.events])
        dur = np.array([float(event.get("dur", 0)) for event in self.events])
        self.start = ((ts - origin_us) * 1000).tolist()
        self.end = (np.array(self.start) + dur * 1000).tolist()
        self.steps = sorted(
            (self.start[row], self.end[row])
            for row, event in enumerate(self.events)
            if self.category[row] == "user_annotation" and event["name"].startswith("ProfilerStep#")
        )
        self.calls = {
            event["args"]["correlation"]: row
            for row, event in enumerate(self.events)
            if self.category[row] in CALLS and "correlation" in event.get("args", {})
        }
        self.gaps: list[tuple[float, float]] = []  # in which no thread is in an op or call
        host = [row for row, cat in enumerate(self.category) if cat in ("cpu_op", *CALLS)]
        spans = sorted((self.start[row], self.end[row]) for row in host)
        reach = spans[0][1]
        for begin, end in spans:
            if begin > reach + 100:
                self.gaps.append((reach, begin))
            reach = max(reach, end)

    def places(self, where: str, count: int = 1) -> list[Place]:
        """Of each step the `start`, `middle` or `end`, or `count` places all over it."""
        found: list[Place] = []
        for step, (begin, end) in enumerate(self.steps):
            inside = [gap for gap in self.gaps if begin <= gap[0] and gap[1] <= end]
            if where == "start":
                low, high = next(gap for gap in self.gaps if gap[1] > begin + 1000)
                found.append(Place(step, begin + 1000 if low < begin + 1000 else (low + high) / 2))
            elif where == "end":
                low, high = [gap for gap in self.gaps if gap[0] < end][-1]
                found.append(Place(step, low + min(1000, (high - low) / 2)))
            elif where == "middle":
                # By the calls before it, so that it is the same place of the program in all steps and ranks.
                found.append(Place(step, sum(inside[len(inside) // 2]) / 2))
            else:
                spread = {round((part + 0.5) * len(inside) / count - 0.5) for part in range(count)}
                found += [Place(step, sum(inside[index]) / 2) for index in sorted(spread)]
        return found


class Recording:
    """A recorded run into which faults are planted."""

    def __init__(self, path: Path) -> None:
        texts = [text_of(file) for file in files(path)]
        loaded: list[Event] = [json.loads(text) for text in texts if b"traceEvents" in text]
        first = min(float(e["ts"]) for whole in loaded for e in whole["traceEvents"] if e.get("ts"))
        self.ranks = [Rank(whole, float(int(first)) - 1e6) for whole in loaded]

    @property
    def step_ns(self) -> float:
        return float(np.mean([end - begin for rank in self.ranks for begin, end in rank.steps]))

    def planted(self, plans: Mapping[int, Plan]) -> Run:
        """The run with these faults, by rank."""
        timings = [Timing(number, rank, plans.get(number, Plan())) for number, rank in enumerate(self.ranks)]
        graph: dict[Any, tuple[Any, ...]] = {}
        for timing in timings:
            graph |= timing.needs
        group_of = {}
        for group in meetings(timings):
            starts = tuple(("start", timing.number, index) for timing, index in group)
            for timing, index in group:
                graph["end", timing.number, index] = starts
                group_of[timing.number, index] = group
        time: dict[Any, float] = {}
        for node in TopologicalSorter(graph).static_order():
            kind, number, index = node
            timing, group = timings[number], group_of.get((number, index), [])
            if kind != "end" or not group:
                time[node] = timing.time_of(node, time)
                continue
            all_there = max(time["start", other.number, kernel] for other, kernel in group)
            were_there = max(other.work[kernel].start for other, kernel in group)
            factor = max(other.plan.transfer for other, _ in group)
            time[node] = all_there + factor * max(timing.work[index].end - were_there, 1000.0)
        return make_run(
            [read([*each.rank.timeless, *each.timed(time)], **each.rank.header) for each in timings]
        )


class Work(NamedTuple):
    """An activity of the GPU."""

    row: int  # event
    start: float
    end: float
    dur: float  # when timed anew
    called: float  # start of its launch call, -1 if unknown
    stream: Any


class Wait(NamedTuple):
    """A call that may wait for the GPU, from its start to its end."""

    start: float
    work: int  # that it waits for
    did: bool  # whether it returned as that ended


class Timing:
    """One rank with its plan: what each time depends on.

    Nodes are ("host", rank, ns) for moments of the host, ("start" or "end", rank, index) for work.
    """

    def __init__(self, number: int, rank: Rank, plan: Plan) -> None:
        self.number, self.rank, self.plan = number, rank, plan
        self.events, self.start, self.end = [*rank.events], [*rank.start], [*rank.end]
        self.calls = dict(rank.calls)
        self.later: dict[float, float] = defaultdict(float)  # by which the host is later behind a moment
        self._added_ns: dict[int, float] = {}  # duration of added work, by row
        self._reads: list[tuple[float, float, int]] = []  # start, end, row of the copy
        self._add()
        self.work = self._works()
        self.waits = self._waits()
        self.moments: list[float] = []
        self.needs: dict[Any, tuple[Any, ...]] = {}
        self.after: list[list[int]] = []  # by work: the work that it follows
        self.gap: list[float] = []  # from when that was over, and it was launched, to its start
        self._connect()
        self._before = dict(zip(self.moments[1:], self.moments, strict=False))

    def _add(self) -> None:
        """The events that the plan adds; they take next to no time yet."""
        for place, ns, event in self.plan.pauses:
            self.later[place.ts + TINY] += ns
            if event:
                self._append(event | self._thread(place.ts), place.ts, place.ts + TINY)
        added = [*((place, 0.0) for place in self.plan.reads), *self.plan.extra]
        if not added:
            return
        rows = [row for row, cat in enumerate(self.rank.category) if cat in GPU]
        compute = [
            row for row in rows if self.rank.category[row] == "kernel" and not is_comm(self.events[row])
        ]
        busy: dict[Any, float] = defaultdict(float)
        for row in compute:
            busy[self.events[row]["tid"]] += self.end[row] - self.start[row]
        stream = max(busy, key=lambda tid: busy[tid])
        rows = [row for row in rows if self.events[row]["tid"] == stream]
        called = {row: self.start[self.calls.get(self._id(row), row)] for row in rows}
        gemms = [row for row in compute if GEMM.search(self.events[row]["name"])]
        gemm = max(gemms, key=lambda row: self.end[row] - self.start[row])
        for count, (place, ns) in enumerate(added):
            behind = max((self.end[row] for row in rows if called[row] < place.ts), default=place.ts)
            self._add_op(FREE_ID + 10 * count, place, ns, behind, gemm)

    def _add_op(self, number: int, place: Place, ns: float, behind: float, gemm: int) -> None:
        """A GEMM of so many ns, or a value that the host reads, on the stream behind a moment."""
        thread = self._thread(place.ts)
        at = [place.ts + part * TINY for part in range(8)]
        outer, inner, call = "aten::item", "aten::_local_scalar_dense", "cudaMemcpyAsync"
        args: Event = {"Input Dims": [[1]], "Input type": ["c10::BFloat16"]}
        if ns:
            outer, inner, call = "aten::matmul", "aten::mm", "cudaLaunchKernel"
            args = {"Input Dims": [[4096, 4096]] * 2, "Input type": ["c10::BFloat16"] * 2}
        for depth, name in enumerate((outer, inner)):
            own = {"External id": number + depth, **args}
            self._append({"cat": "cpu_op", "name": name, "args": own} | thread, at[depth], at[7 - depth])
        own = {"External id": number + 1, "correlation": number}
        self.calls[number] = self._append(
            {"cat": "cuda_runtime", "name": call, "args": own} | thread, at[2], at[3]
        )
        like = self.events[gemm]
        own |= {key: like["args"][key] for key in ("device", "context", "stream") if key in like["args"]}
        work = like | {"args": own}
        if not ns:
            work |= {"cat": "gpu_memcpy", "name": "Memcpy DtoH (Device -> Pageable)"}
        row = self._append(work, behind + TINY, behind + TINY)
        self._added_ns[row] = ns or 1_500.0
        for ts, host_ns in ((at[1], 4_000.0), (at[2], 6_000.0), (at[6], 2_000.0)):
            self.later[ts + TINY] += host_ns
        if not ns:
            own = {"External id": number + 1, "correlation": number + 1}
            waits = {"cat": "cuda_runtime", "name": "cudaStreamSynchronize", "args": own}
            self._append(waits | thread, at[4], at[5])
            self._reads.append((at[4], at[5], row))

    def _append(self, event: Event, start: float, end: float) -> int:
        self.events.append(event)
        self.start.append(start)
        self.end.append(end)
        return len(self.events) - 1

    def _thread(self, ts: float) -> Event:
        """The thread that was last in an op before a moment."""
        rank = self.rank
        rows = [row for row, cat in enumerate(rank.category) if cat == "cpu_op" and rank.end[row] <= ts]
        last = rank.events[max(rows, key=lambda row: rank.end[row])]
        return {key: last[key] for key in ("ph", "pid", "tid")}

    def _id(self, row: int) -> Any:
        return self.events[row].get("args", {}).get("correlation")

    def _works(self) -> list[Work]:
        found = []
        for row, event in enumerate(self.events):
            if event.get("cat") in GPU:
                call = self.calls.get(self._id(row), -1)
                dur = self._added_ns.get(row, self.end[row] - self.start[row]) * self.plan.kernel(event)
                called = self.start[call] if call >= 0 else -1.0
                found.append(Work(row, self.start[row], self.end[row], dur, called, event.get("tid")))
        return sorted(found, key=lambda work: (work.start, work.end))

    def _waits(self) -> dict[float, Wait]:
        """Calls of the host that wait for work, by their ends."""
        of_row = {work.row: index for index, work in enumerate(self.work)}
        of_call = {work.called: index for index, work in enumerate(self.work)}
        found = {end: Wait(start, of_row[row], True) for start, end, row in self._reads}
        ended = sorted((work.end, index) for index, work in enumerate(self.work))
        for row, event in enumerate(self.rank.events):
            if event.get("cat") not in CALLS:
                continue
            start, end, name = self.start[row], self.end[row], event["name"]
            if "Synchronize" in name:
                place = bisect_right(ended, (end + OVERLAP_NS, len(ended))) - 1
                while place >= 0 and self.work[ended[place][1]].called > start:
                    place -= 1
                if place >= 0:
                    done, index = ended[place]
                    found[end] = Wait(start, index, done > start and end - done < RETURN_NS)
            elif name.startswith("cudaMemcpy") and start in of_call:
                copied = self.work[of_call[start]]
                text = self.events[copied.row]["name"]
                # Other copies return before they are done, or after it by chance.
                if "DtoH" in text and "Pageable" in text and start < copied.end <= end:
                    found[end] = Wait(start, of_call[start], True)
        return found

    def _connect(self) -> None:
        """Which moments and work follow which."""
        needs: dict[float, tuple[Any, ...]] = {min(self.start) - 1: (), max(self.end) + 1: ()}
        for ts in (work.called for work in self.work if work.called >= 0):
            needs.setdefault(ts, ())
        for ts in self.later:
            needs.setdefault(ts - TINY, ())
            needs.setdefault(ts, ())
        for end, wait in self.waits.items():
            needs.setdefault(wait.start, ())
            needs[end] = (*needs.get(end, ()), ("end", self.number, wait.work))
        self.moments = sorted(needs)
        for before, ts in pairwise(self.moments):
            self.needs["host", self.number, ts] = (("host", self.number, before), *needs[ts])
        streams: dict[Any, list[int]] = defaultdict(list)
        for index, work in enumerate(self.work):
            streams[work.stream].append(index)
        place_of = {index: place for order in streams.values() for place, index in enumerate(order)}
        ends = {
            stream: np.maximum.accumulate([self.work[index].end for index in order]).tolist()
            for stream, order in streams.items()
        }
        for index, work in enumerate(self.work):
            after = [streams[work.stream][place_of[index] - 1]] if place_of[index] else []
            for stream, order in streams.items():
                # Of another stream, the last that was called before this and over by then.
                place = bisect_right(ends[stream], work.start + OVERLAP_NS) - 1
                while place >= 0 and self.work[order[place]].called > work.called >= 0:
                    place -= 1
                if place >= 0 and stream != work.stream:
                    after.append(order[place])
            ready = max([self.work[other].end for other in after] + [work.called])
            self.after.append(after)
            self.gap.append(work.start - ready if ready >= 0 else 0.0)
            launch = [("host", self.number, work.called)] if work.called >= 0 else []
            done = [("end", self.number, other) for other in after]
            self.needs["start", self.number, index] = (*done, *launch)
            self.needs["end", self.number, index] = (("start", self.number, index),)

    def time_of(self, node: Any, time: Mapping[Any, float]) -> float:
        """When a node is, after all that it needs."""
        kind, number, place = node
        if kind == "end":
            return time["start", number, place] + self.work[place].dur
        if kind == "start":
            work, gap = self.work[place], self.gap[place]
            starts = [time["end", number, other] + gap for other in self.after[place]]
            if work.called >= 0:
                latency = min(work.start - work.called, max(gap, LATENCY_NS))
                starts.append(time["host", number, work.called] + latency)
            return max(starts, default=work.start)
        if place == self.moments[0]:
            return float(place)
        before = self._before[place]
        own = (place - before) * self.plan.host + self.later.get(place, 0.0)
        if place not in self.waits:
            return time["host", number, before] + own
        wait = self.waits[place]
        lag = max(place - self.work[wait.work].end, 0.0)
        over = time["end", number, wait.work] + (lag if wait.did else min(lag, LAG_NS))
        return max(time["host", number, before] + (min(own, CALL_NS) if wait.did else own), over)

    def timed(self, time: Mapping[Any, float]) -> list[Event]:
        """The events at their new times."""
        moved = [time["host", self.number, ts] for ts in self.moments]
        new = np.array([np.interp(edge, self.moments, moved) for edge in (self.start, self.end)])
        begun, streams = {}, defaultdict(list)
        for index, work in enumerate(self.work):
            new[:, work.row] = [time[edge, self.number, index] for edge in ("start", "end")]
            begun[self._id(work.row)] = new[0, work.row]
            streams[work.stream].append(work)
        for row, event in enumerate(self.rank.events):
            if event.get("cat") == "ac2g" and event.get("ph") == "f" and event.get("id") in begun:
                new[:, row] = begun[event["id"]]
            elif event.get("cat") == "gpu_user_annotation" and event.get("tid") in streams:
                works = streams[event["tid"]]
                low = bisect_left(works, self.start[row] - 1, key=lambda work: work.start)
                high = bisect_right(works, self.end[row] + 1, key=lambda work: work.start)
                if inside := [work.row for work in works[low:high]]:
                    new[:, row] = new[0, inside[0]], new[1, inside].max()
        times = np.rint(new)
        events = []
        for event, start, end in zip(self.events, *times.tolist(), strict=True):
            changed = {**event, "ts": start / 1000}
            events.append(changed | {"dur": (end - start) / 1000} if event.get("ph") == "X" else changed)
        return events


def meetings(timings: Sequence[Timing]) -> list[list[tuple[Timing, int]]]:
    """The kernels of each collective on all its ranks, by index, where they ran at the same time."""
    of_rank: list[dict[Any, list[int]]] = []
    for timing in timings:
        found: dict[Any, list[int]] = defaultdict(list)
        for index, work in enumerate(timing.work):
            args = timing.events[work.row].get("args", {})
            if is_comm(timing.events[work.row]) and (name := args.get("Collective name")):
                found[args.get("Process Group Ranks"), args.get("Process Group Name"), name].append(index)
        of_rank.append(found)
    result = []
    for key in dict.fromkeys(key for found in of_rank for key in found):
        members = json.loads(key[0]) if key[0] else range(len(timings))
        kernels = [of_rank[number].get(key, []) if number < len(timings) else [] for number in members]
        if len({len(of_member) for of_member in kernels}) > 1:
            continue
        for indices in zip(*kernels, strict=True):
            group = [(timings[number], index) for number, index in zip(members, indices, strict=True)]
            spans = [timing.work[index] for timing, index in group]
            if max(span.start for span in spans) < min(span.end for span in spans):
                result.append(group)
    return result
