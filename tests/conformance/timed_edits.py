"""Edits of real traces whose effect on the step time is known to the nanosecond.

Each edit is a map of time: what lies behind a stretched span moves as a whole, host and GPU alike, so that
nothing runs before what it waits for. Only spans in which a single activity runs on the GPU, or none, are
stretched: nothing else gets longer there.
"""

from __future__ import annotations

import copy
import json
import random
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tests.builders import read
from tests.reference.raw import files, text_of
from tracelens.trace import Run, Trace, make_run, steps_of

Event = dict[str, Any]

GPU = ("kernel", "gpu_memcpy", "gpu_memset")
LAUNCHES = ("cuda_runtime", "cuda_driver")
FIRST_FREE = 10**9  # added to the ids of copies: beyond all that are taken
LEAST_LEFT = 0.2  # of a span that gets shorter: what the host does in it keeps its order
SIZES = (0.005, 0.3)  # of edits, as a share of the step

SAME, ONE_SIDED, COMM, WAIT, IDLE = (
    "same kernels", "calls on one side only", "communication", "waiting for other ranks", "idle",
)  # fmt: skip
"""Classes of causes."""


class Span(NamedTuple):
    """A piece of time, ns: of GPU work that runs alone, of a host call, or of a GPU without work to do."""

    start: int
    end: int
    row: int  # event; of a gap the work that ends it

    @property
    def dur_ns(self) -> int:
        return self.end - self.start


@dataclass
class RankEdit:
    """What changes in one rank; times are those before the edit."""

    stretches: list[tuple[int, int, int]] = field(default_factory=list)  # start, end, ns longer
    dropped: set[int] = field(default_factory=set)  # rows of events
    moved: dict[int, tuple[int, int]] = field(default_factory=dict)  # start and end by row
    added: list[tuple[Event, int, int]] = field(default_factory=list)  # event, start, end


@dataclass
class Edit:
    """What changes in a run, and what a comparison has to find."""

    kind: str
    ranks: list[RankEdit]
    delta_ns: dict[str, float]  # per step, mean over ranks, by class of cause
    op: str = ""  # that launches all that changed, if one does
    calls: float = 0.0  # more kernels per step
    shift_ns: int = 0  # all events are that much later


class RankEvents:
    """Raw events of one rank, in whole ns."""

    def __init__(self, whole: Event, origin_us: float) -> None:
        self.header = {
            key: value for key, value in whole.items() if key not in ("traceEvents", "schemaVersion")
        }
        self.events: list[Event] = [event for event in whole["traceEvents"] if event.get("ts")]
        self._timeless: list[Event] = [event for event in whole["traceEvents"] if not event.get("ts")]
        ts = np.array([float(event["ts"]) for event in self.events])
        dur = np.array([float(event.get("dur", 0)) for event in self.events])
        self.start = np.rint((ts - origin_us) * 1000).astype(np.int64)
        self.end = self.start + np.rint(dur * 1000).astype(np.int64)
        self.trace = self.edited(RankEdit())
        self.category = [event.get("cat") for event in self.events]
        self.work = sorted(
            (row for row, name in enumerate(self.category) if name in GPU),
            key=lambda row: int(self.start[row]),
        )
        self._launched = {
            event["args"].get("correlation"): int(self.start[row])
            for row, event in enumerate(self.events)
            if self.category[row] in LAUNCHES
        }
        self._arrows: defaultdict[int, list[int]] = defaultdict(list)
        for row, event in enumerate(self.events):
            if event.get("ph") in ("s", "f") and self.category[row] == "ac2g":
                self._arrows[event.get("id", -1)].append(row)
        steps = steps_of(self.trace).only_whole()
        self.steps = len(steps.labels)
        parsed_later = int(self.trace.work.start.min()) - int(self.start[self.work[0]])
        self.edges: list[int] = (steps.edges - parsed_later).tolist()
        self.alone, self.gaps = self._alone_and_gaps()

    def _alone_and_gaps(self) -> tuple[list[Span], list[Span]]:
        """GPU work that runs alone, and gaps of the GPU before the next launch, all of them inside a step.

        Behind the launch a longer gap would be a GPU that does not do what it has, which no recording shows.
        """
        alone, gaps, busy_until = [], [], -1
        following = [*self.start[self.work[1:]].tolist(), 1 << 62]
        for row, next_start in zip(self.work, following, strict=True):
            start, end = int(self.start[row]), int(self.end[row])
            if busy_until <= start < end < next_start and self._in_one_step(start, end):
                alone.append(Span(start, end, row))
            launched = self._launched.get(self.events[row].get("args", {}).get("correlation"), -1)
            if 0 <= busy_until < launched - 2 <= start and self._in_one_step(busy_until, start):
                gaps.append(Span(busy_until, launched, row))
            busy_until = max(busy_until, end)
        return alone, gaps

    def _in_one_step(self, start: int, end: int) -> bool:
        step = bisect_right(self.edges, start)
        return 0 < step <= self.steps and self.edges[step - 1] < start and end < self.edges[step]

    def edited(self, edit: RankEdit, shift_ns: int = 0) -> Trace:
        """The trace with these changes, all of it `shift_ns` later."""
        knots, later = [0], [0]
        for start, end, more in sorted(edit.stretches):
            knots += [start, end]
            later += [later[-1], later[-1] + more]
        start_ns, end_ns = self.start.copy(), self.end.copy()
        for row, span in edit.moved.items():
            start_ns[row], end_ns[row] = span
        kept = [row for row in range(len(self.events)) if row not in edit.dropped]
        events = [self.events[row] for row in kept] + [event for event, *_ in edit.added]
        times = np.array(
            [
                np.concatenate((ns[kept], np.array([span[side] for _, *span in edit.added], dtype=np.int64)))
                for side, ns in enumerate((start_ns, end_ns))
            ]
        )
        times += np.rint(np.interp(times, knots, later)).astype(np.int64) + shift_ns
        timed = [*self._timeless]
        for event, start, end in zip(events, *times.tolist(), strict=True):
            changed = {**event, "ts": start / 1000}
            timed.append(changed | {"dur": (end - start) / 1000} if event.get("ph") == "X" else changed)
        return read(timed, **self.header)

    def calls(self) -> dict[str, list[tuple[Span, Span]]]:
        """By name, ops that call no other, with the one kernel that they launch, which runs alone."""
        number_of = {
            row: event["args"]["correlation"]
            for row, event in enumerate(self.events)
            if "correlation" in event.get("args", {})
        }
        kernels: dict[Any, list[int]] = defaultdict(list)
        for row in self.work:
            kernels[number_of.get(row)].append(row)
        alone = {span.row: span for span in self.alone if self.category[span.row] == "kernel"}
        threads: dict[Any, list[int]] = defaultdict(list)
        for row in np.argsort(self.start, kind="stable").tolist():
            if self.category[row] in ("cpu_op", "user_annotation", *LAUNCHES):
                threads[self.events[row].get("pid"), self.events[row].get("tid")].append(row)
        found: dict[str, list[tuple[Span, Span]]] = defaultdict(list)
        for rows in threads.values():
            starts = self.start[rows].tolist()
            for place, row in enumerate(rows):
                begin, end = int(self.start[row]), int(self.end[row])
                inside = rows[bisect_left(starts, begin) : bisect_left(starts, end)]
                others = [other for other in inside if other != row]
                is_leaf = all(self.category[other] in LAUNCHES for other in others)
                if self.category[row] != "cpu_op" or not is_leaf or any(self.end[others] > end):
                    continue
                before = rows[max(place - 1, 0)]
                if before != row and self.start[before] == begin and self.end[before] == end:
                    continue  # which of the two is outside, their order says
                work = [kernel for other in others for kernel in kernels.get(number_of.get(other), ())]
                if (
                    len(work) == 1
                    and work[0] in alone
                    and alone[work[0]].start > end
                    and not self.is_comm(work[0])
                ):
                    found[self.events[row]["name"]].append((Span(begin, end, row), alone[work[0]]))
        return found

    def is_comm(self, row: int) -> bool:
        return "nccl" in self.events[row]["name"]

    def inside(self, op: Span) -> list[int]:
        """Rows of an op that calls no other, and of its launch calls."""
        thread = [self.events[op.row].get(key) for key in ("pid", "tid")]
        rows = np.flatnonzero((self.start >= op.start) & (self.end <= op.end)).tolist()
        return [
            row
            for row in rows
            if (row == op.row or self.category[row] in LAUNCHES)
            and [self.events[row].get(key) for key in ("pid", "tid")] == thread
        ]

    def arrows(self, rows: Sequence[int]) -> list[int]:
        """Rows of the arrows between these launch calls and their kernels."""
        numbers = {self.events[row].get("args", {}).get("correlation") for row in rows} - {None}
        return sorted(row for number in numbers for row in self._arrows[number])


class Program:
    """A recorded run, to be edited."""

    def __init__(self, path: Path) -> None:
        loaded: list[Event] = [json.loads(text_of(file)) for file in files(path)]
        first = min(float(e["ts"]) for whole in loaded for e in whole["traceEvents"] if e.get("ts"))
        # Small numbers keep all digits of a nanosecond, and shifts need room below.
        self.ranks = [RankEvents(whole, float(int(first)) - 1e6) for whole in loaded]
        self.base = make_run([rank.trace for rank in self.ranks])
        self.step_ns = sum((rank.edges[-1] - rank.edges[0]) / rank.steps for rank in self.ranks) / len(loaded)

    def edited(self, edit: Edit) -> Run:
        changes = zip(self.ranks, edit.ranks, strict=True)
        return make_run([rank.edited(change, edit.shift_ns) for rank, change in changes])


def nothing(program: Program, draw: random.Random) -> Edit:
    """The same run, recorded at another time."""
    shift_ns = draw.randrange(-900_000_000, 10**12)
    return Edit("nothing", [RankEdit() for _ in program.ranks], {}, shift_ns=shift_ns)


def _size_ns(program: Program, draw: random.Random) -> float:
    """A change of the step, all sizes alike likely."""
    low, high = np.log(SIZES)
    return program.step_ns * float(np.exp(draw.uniform(low, high)))


def _some_calls(rank: RankEvents, draw: random.Random) -> tuple[str, list[tuple[Span, Span]]] | None:
    calls = rank.calls()
    if not calls:
        return None
    names = sorted(calls)
    ns = [sum(kernel.dur_ns for _, kernel in calls[name]) for name in names]
    # Of most ops little runs: half of the edits are of those that take long.
    (name,) = draw.choices(names, ns) if draw.random() < 0.5 else (draw.choice(names),)
    return name, calls[name]


def _sampled_calls(rank: RankEvents, draw: random.Random) -> tuple[str, list[tuple[Span, Span]]] | None:
    """A hundred of them at most."""
    if (chosen := _some_calls(rank, draw)) is None:
        return None
    name, calls = chosen
    return name, draw.sample(calls, draw.randint(1, min(len(calls), 100)))


def other_speed(program: Program, draw: random.Random) -> Edit | None:
    """All kernels of an op that run alone take longer or shorter by one factor."""
    (rank,) = program.ranks
    if (chosen := _some_calls(rank, draw)) is None:
        return None
    name, calls = chosen
    before_ns = sum(kernel.dur_ns for _, kernel in calls)
    factor = _size_ns(program, draw) * rank.steps / before_ns
    factor = max(-factor, LEAST_LEFT - 1) if draw.random() < 0.4 else factor
    more = [round(factor * kernel.dur_ns) for _, kernel in calls]
    stretches = [(kernel.start, kernel.end, ns) for (_, kernel), ns in zip(calls, more, strict=True)]
    return Edit("other speed", [RankEdit(stretches)], {SAME: sum(more) / rank.steps}, name)


def added(program: Program, draw: random.Random) -> Edit | None:
    """Some calls of an op happen twice: on the host within the time of one, on the GPU one after another."""
    (rank,) = program.ranks
    if (chosen := _sampled_calls(rank, draw)) is None:
        return None
    name, calls = chosen
    edit = RankEdit()
    for op, kernel in calls:
        half = op.dur_ns // 2
        host = rank.inside(op)
        arrows = rank.arrows(host)
        for row in host:
            start, end = (op.start + (int(ns[row]) - op.start) // 2 for ns in (rank.start, rank.end))
            edit.moved[row] = start, end
            edit.added.append((_again(rank.events[row]), start + half, end + half))
        for row in arrows:
            start = int(rank.start[row])
            where = (op.start + (start - op.start) // 2) if op.start <= start <= op.end else start
            if where != start:
                edit.moved[row] = where, where
            later = where + half if where < op.end else kernel.end
            edit.added.append((_again(rank.events[row]), later, later))
        # One nanosecond behind the kernel becomes the copy.
        edit.added.append((_again(rank.events[kernel.row]), kernel.end, kernel.end + 1))
        edit.stretches.append((kernel.end, kernel.end + 1, kernel.dur_ns - 1))
    count, more_ns = len(calls) / rank.steps, sum(kernel.dur_ns for _, kernel in calls) / rank.steps
    return Edit("added", [edit], {ONE_SIDED: more_ns, IDLE: -count}, name, count)


def _again(event: Event) -> Event:
    """A copy with ids of its own."""
    made = copy.deepcopy(event)
    for key in ("correlation", "External id", "Ev Idx", "Record function id"):
        if made.get("args", {}).get(key):
            made["args"][key] += FIRST_FREE
    if "id" in made:
        made["id"] += FIRST_FREE
    return made


def removed(program: Program, draw: random.Random) -> Edit | None:
    """Some calls of an op are gone; most of the time of their kernels is gone with them."""
    (rank,) = program.ranks
    if (chosen := _sampled_calls(rank, draw)) is None:
        return None
    name, calls = chosen
    edit = RankEdit()
    idle_ns = 0
    for op, kernel in calls:
        host = rank.inside(op)
        edit.dropped.update((*host, kernel.row, *rank.arrows(host)))
        left_ns = round(LEAST_LEFT * kernel.dur_ns)
        edit.stretches.append((kernel.start, kernel.end, left_ns - kernel.dur_ns))
        idle_ns += left_ns
    gone_ns = sum(kernel.dur_ns for _, kernel in calls)
    delta_ns = {ONE_SIDED: -gone_ns / rank.steps, IDLE: idle_ns / rank.steps}
    return Edit("removed", [edit], delta_ns, name, -len(calls) / rank.steps)


def _in_gaps(program: Program, gaps: Sequence[Span], size_ns: float) -> tuple[list[RankEdit], float]:
    """Each of the gaps grows in its middle; together by a size per step."""
    (rank,) = program.ranks
    more = max(round(size_ns * rank.steps / len(gaps)), 1)
    middles = [(gap.start + gap.end) // 2 for gap in gaps]
    edit = RankEdit([(middle, middle + 1, more) for middle in middles])
    return [edit], more * len(gaps) / rank.steps


def slower_host(program: Program, draw: random.Random) -> Edit | None:
    """An op takes longer on the host wherever the GPU has nothing to do then."""
    (rank,) = program.ranks
    middles = [((gap.start + gap.end) // 2, gap) for gap in rank.gaps]
    by_name: dict[str, list[Span]] = defaultdict(list)
    ops = np.array([row for row, name in enumerate(rank.category) if name == "cpu_op"])
    for middle, gap in middles:
        for row in ops[(rank.start[ops] < middle) & (rank.end[ops] > middle + 1)].tolist():
            by_name[rank.events[row]["name"]].append(gap)
    if not by_name:
        return None
    gaps = by_name[draw.choice(sorted(by_name))]
    edits, delta_ns = _in_gaps(program, list(dict.fromkeys(gaps)), _size_ns(program, draw))
    return Edit("slower host", edits, {IDLE: delta_ns})


def pause(program: Program, draw: random.Random) -> Edit | None:
    """The program stands still once in each step."""
    (rank,) = program.ranks
    by_step: dict[int, list[Span]] = defaultdict(list)
    for gap in rank.gaps:
        by_step[bisect_right(rank.edges, gap.start)].append(gap)
    if not by_step:
        return None
    edits, delta_ns = _in_gaps(
        program, [draw.choice(gaps) for gaps in by_step.values()], _size_ns(program, draw)
    )
    return Edit("pause", edits, {IDLE: delta_ns})


def _collectives(program: Program) -> list[list[Span]]:
    """Collectives that run alone on every rank, each as a span per rank."""
    of_rank = []
    for rank in program.ranks:
        alone = {span.row: span for span in rank.alone}
        rows = [row for row in rank.work if rank.is_comm(row) and "SendRecv" not in rank.events[row]["name"]]
        of_rank.append([(rank.events[row]["name"], alone.get(row)) for row in rows])
    if len({len(of) for of in of_rank}) > 1:
        return []
    return [
        [span for _, span in same if span is not None]
        for same in zip(*of_rank, strict=True)
        if len({name for name, _ in same}) == 1 and all(span for _, span in same)
    ]


def slower_transfer(program: Program, draw: random.Random) -> Edit | None:
    """Collectives take longer when all ranks are there."""
    both = [
        spans for spans in _collectives(program) if max(s.start for s in spans) < min(s.end for s in spans)
    ]
    if not both:
        return None
    chosen = draw.sample(both, draw.randint(1, len(both)))
    steps = program.ranks[0].steps
    more = round(_size_ns(program, draw) * steps / len(chosen))
    edits = [
        RankEdit([(spans[place].end - 1, spans[place].end, more) for spans in chosen])
        for place in range(len(program.ranks))
    ]
    return Edit("slower transfer", edits, {COMM: more * len(chosen) / steps})


def _waited_for(
    program: Program, draw: random.Random, delays: Callable[[RankEvents, Span, int], list[Span]]
) -> tuple[list[RankEdit], float] | None:
    """The rank that comes last to collectives comes later still, and the others wait for it.

    `delays` are the spans of a rank, between the end of its last collective and a collective, that may take
    longer. Returned with the size of the change per step, of every rank.
    """
    late: dict[int, list[tuple[list[Span], Span]]] = defaultdict(list)
    for spans in _collectives(program):
        last = max(range(len(spans)), key=lambda place: spans[place].start)
        rank, own = program.ranks[last], spans[last]
        ends = [int(rank.end[row]) for row in rank.work if rank.is_comm(row) and rank.start[row] < own.start]
        before = delays(rank, own, max(ends, default=0))
        if before and all(span.end > own.start + 2 for span in spans):
            late[last].append((spans, draw.choice(before)))
    if not late:
        return None
    last = draw.choice(sorted(late))
    chosen = draw.sample(late[last], draw.randint(1, len(late[last])))
    steps = program.ranks[0].steps
    more = round(_size_ns(program, draw) * steps / len(chosen))
    edits = [RankEdit() for _ in program.ranks]
    for spans, delay in chosen:
        for place, span in enumerate(spans):
            start = delay.start if place == last else span.start
            edits[place].stretches.append((start, start + 1, more))
    return edits, more * len(chosen) / steps


def late_rank(program: Program, draw: random.Random) -> Edit | None:
    """A rank starts collectives later, as its host launches them later."""

    def gap_before(rank: RankEvents, collective: Span, after_ns: int) -> list[Span]:
        return [gap for gap in rank.gaps if gap.row == collective.row and gap.start >= after_ns]

    if (made := _waited_for(program, draw, gap_before)) is None:
        return None
    edits, total_ns = made
    ranks = len(program.ranks)
    return Edit("late rank", edits, {WAIT: total_ns * (ranks - 1) / ranks, IDLE: total_ns / ranks})


def slow_rank(program: Program, draw: random.Random) -> Edit | None:
    """Kernels of a rank take longer before collectives."""

    def kernels_before(rank: RankEvents, collective: Span, after_ns: int) -> list[Span]:
        return [
            span
            for span in rank.alone
            if after_ns <= span.start < collective.start and rank.category[span.row] == "kernel"
        ]

    if (made := _waited_for(program, draw, kernels_before)) is None:
        return None
    edits, total_ns = made
    ranks = len(program.ranks)
    return Edit("slow rank", edits, {WAIT: total_ns * (ranks - 1) / ranks, SAME: total_ns / ranks})


def two_at_once(program: Program, draw: random.Random) -> Edit | None:
    """Two edits of different kinds, of different ops and at different times."""
    first, second = (kind(program, draw) for kind in draw.sample((other_speed, added, removed, pause), 2))
    if first is None or second is None or first.op == second.op:
        return None
    (one,), (other,) = first.ranks, second.ranks
    both = RankEdit(
        sorted([*one.stretches, *other.stretches]),
        one.dropped | other.dropped,
        one.moved | other.moved,
        [*one.added, *other.added],
    )
    spans = both.stretches
    if any(before[1] > after[0] for before, after in pairwise(spans)):
        return None
    if both.dropped & both.moved.keys() or one.moved.keys() & other.moved.keys():
        return None
    delta_ns = Counter(first.delta_ns)
    delta_ns.update(second.delta_ns)
    return Edit("two at once", [both], dict(delta_ns), calls=first.calls + second.calls)


ON_ONE_RANK: tuple[Callable[[Program, random.Random], Edit | None], ...] = (
    nothing, other_speed, added, two_at_once, removed, slower_host, two_at_once, pause,
)  # fmt: skip
ON_RANKS: tuple[Callable[[Program, random.Random], Edit | None], ...] = (
    slower_transfer, late_rank, slow_rank, nothing,
)  # fmt: skip


def random_edit(program: Program, seed: int) -> Edit:
    """One edit that the program allows, of the kinds in turn."""
    draw = random.Random(seed)
    kinds = ON_ONE_RANK if len(program.ranks) == 1 else ON_RANKS
    for attempt in range(len(kinds)):
        for _ in range(20):
            if (edit := kinds[(seed + attempt) % len(kinds)](program, draw)) is not None:
                return edit
    raise AssertionError("no edit fits")
