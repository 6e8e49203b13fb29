"""The labeled steps of one serving rank: the part that travels to where ranks are compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import NamedTuple, TypeVar

import numpy as np

from tracelens.analysis.comm import MatchedCollective, align_run
from tracelens.analysis.common import KINDS, Label, grammar
from tracelens.arrays import Bool, Int, lookup
from tracelens.errors import TracelensError
from tracelens.table import shortened
from tracelens.trace import (
    WORK_KINDS,
    Events,
    Run,
    Scope,
    Stretch,
    Trace,
    Work,
    excerpt,
    gpu_work,
    interval_of,
    select_step,
    union,
)

T = TypeVar("T")
_HOST_KINDS = ("annotation", "slice", "op")
_GRAPH_LAUNCH = "GraphLaunch"


class Step(NamedTuple):
    """One forward pass of a rank."""

    label: Label  # what the program says of it
    eager: bool  # it launched its kernels one by one, by its label or else by its launch calls
    graph: bool  # it replayed a graph; neither where nothing tells
    start: int  # ns, from the first to the last of its kernels; of its mark where none is linked to it
    end: int  # ns, from the first to the last of its kernels; of its mark where none is linked to it
    halves: tuple[int, ...]  # tokens of the halves under two-batch overlap, as far as they are labeled
    comm_ns: int  # communication between start and end; -1 but for two-batch overlap
    hidden_ns: int  # of that, beside computation
    host_start: int = -1  # of its mark, by the rank's own clock
    host_end: int = -1  # of its mark, by the rank's own clock
    compute_ns: int = -1  # GPU work other than communication between start and end; -1 where not measured

    @property
    def dur_ns(self) -> int:
        return self.end - self.start

    @property
    def two_batches(self) -> bool:
        """Whether it ran as two overlapped batches."""
        return self.label.tbo or len(self.halves) > 1


class RankSteps(NamedTuple):
    """The steps of one rank in order."""

    rank: int  # of the run
    steps: list[Step]  # in order of time
    engine: str = ""  # that ran them; "" without steps
    is_excerpt: bool = False  # what ran between the steps is left out: the rank is narrowed to a phase


class _Marks(NamedTuple):
    """Labelled ranges in order of start: code of their names, ns."""

    name: Int
    start: Int
    end: Int


class RankStep(NamedTuple):
    """One rank's share of a common step; the step's times are by the clock of the first rank."""

    rank: int
    step: Step


class GlobalStep(NamedTuple):
    """What several ranks ran at the same time, in order of rank."""

    rank_steps: tuple[RankStep, ...]

    @property
    def start(self) -> int:
        return min(on_rank.step.start for on_rank in self.rank_steps)

    @property
    def end(self) -> int:
        return max(on_rank.step.end for on_rank in self.rank_steps)

    @property
    def dur_ns(self) -> int:
        return max(on_rank.step.dur_ns for on_rank in self.rank_steps)

    @property
    def kinds(self) -> str:
        """How many ranks ran what: "1 prefill, 7 decode"."""
        names = Counter(_name(on_rank.step) for on_rank in self.rank_steps)
        ordered = sorted(names.items(), key=lambda item: (-item[1], item[0]))
        return ", ".join(f"{count} {name}" for name, count in ordered)

    @property
    def phases(self) -> set[str]:
        """The kinds of step of the ranks that have requests."""
        return {on_rank.step.label.kind for on_rank in self.rank_steps if not on_rank.step.label.dummy}

    @property
    def mismatch(self) -> bool:
        """Whether ranks with requests are in different phases."""
        return len(self.phases) > 1

    @property
    def idle(self) -> int:
        return sum(on_rank.step.label.dummy for on_rank in self.rank_steps)

    @property
    def tokens(self) -> int:
        """Tokens of all requests, -1 where a rank does not tell its own."""
        counts = [on_rank.step.label.tokens for on_rank in self.rank_steps if not on_rank.step.label.dummy]
        return -1 if min(counts, default=-1) < 0 else sum(counts)

    @property
    def tokens_max(self) -> int:
        """Tokens of the rank with most of them, to which the others are padded; -1 as for `tokens`."""
        return max(on_rank.step.label.tokens for on_rank in self.rank_steps) if self.tokens >= 0 else -1

    @property
    def slots(self) -> int:
        """Tokens that the ranks run together, padding included; -1 as for `tokens`."""
        return self.tokens_max * len(self.rank_steps) if self.tokens >= 0 else -1


class Reference(NamedTuple):
    """How long a step takes in which all ranks decode, ns."""

    dur_ns: int  # -1 where nothing tells
    source: str  # one of REFERENCES


RECORDED, LEAST_WORK, UNKNOWN = REFERENCES = ("all-decode steps", "least GPU work", "")


class Delay(NamedTuple):
    """What decoding ranks lost to those in another phase, and how much of it agreement would save, ns."""

    total: int
    alignable: int


PHASES = KINDS
"""Phases by which a run can be narrowed: the kinds of step."""


class _Window(NamedTuple):
    """A step and when it runs by the common clock; how much of what comes before it is left out."""

    step: GlobalStep
    start: int
    end: int
    earlier_ns: int


def rank_steps(trace: Trace, *, scope: Scope = "all") -> RankSteps:
    """The labeled steps of one rank.

    Args:
        trace: of the rank.
        scope: which GPU work counts, see trace.Scope.
    """
    events, rank = trace.arrays, trace.meta.rank
    candidates, labels = events.where(*_HOST_KINDS) & ~events.copied, grammar().step
    codes = _read(events, candidates, labels)
    labelled = candidates & _named(events, codes)
    if not codes:  # recorded without the CPU: what the profiler drew of the marks on the GPU
        candidates = events.where("gpu_annotation")
        codes = _read(events, candidates, labels)
        labelled = _one_lane(events, candidates & _named(events, codes))
    if not codes:
        return RankSteps(rank, [])
    work, marks = gpu_work(trace, scope), _outermost(events, labelled)
    steps = _steps(events, work, marks, [codes[code] for code in marks.name.tolist()])
    halves = _halves(events, candidates, marks)
    steps = [step._replace(halves=tokens) for step, tokens in zip(steps, halves, strict=True)]
    engine = engine_of(events, np.flatnonzero(labelled), codes.values())
    return RankSteps(
        rank, _in_window(trace, _overlapped(work, _computed(work, steps))), engine, trace.source is not None
    )


def _read(events: Events, where: Bool, reader: Callable[[str], T | None]) -> dict[int, T]:
    """What the reader makes of the names of these events, by code; without the names it cannot read."""
    used = np.flatnonzero(np.bincount(events.name[where], minlength=1))
    readings = ((code, reader(events.names[code])) for code in used.tolist())
    return {code: reading for code, reading in readings if reading is not None}


def _named(events: Events, codes: Mapping[int, object]) -> Bool:
    is_label = np.zeros(len(events.names) + 1, dtype=bool)
    is_label[list(codes)] = True
    mask: Bool = is_label[events.name]
    return mask


def _one_lane(events: Events, mask: Bool) -> Bool:
    """Of marks on several streams, those of the stream with most of them: each shows every step."""
    rows = np.flatnonzero(mask)
    if not len(rows):
        return mask
    lanes = np.stack((events.pid[rows], events.tid[rows]), axis=1)
    _, lane, count = np.unique(lanes, axis=0, return_inverse=True, return_counts=True)
    kept = np.zeros_like(mask)
    kept[rows[lane.ravel() == np.argmax(count)]] = True
    return kept


def _outermost(events: Events, mask: Bool) -> _Marks:
    """The chosen events in order of start, without those inside another."""
    rows = np.flatnonzero(mask)
    rows = rows[np.lexsort((-events.end[rows], events.start[rows]))]
    before = np.concatenate(([np.iinfo(np.int64).min], np.maximum.accumulate(events.end[rows])[:-1]))
    rows = rows[(events.end[rows] > before) | (events.start[rows] >= before)]
    return _Marks(events.name[rows], events.start[rows], events.end[rows])


def _mark_of(marks: _Marks, times: Int) -> Int:
    """In which mark each time lies, -1 for none."""
    return interval_of(marks.start, np.maximum(marks.end, marks.start + 1), times)


def _steps(events: Events, work: Work, marks: _Marks, labels: Sequence[Label]) -> list[Step]:
    """The steps of these marks, each from its first kernel to its last one."""
    kernels = work.take(work.is_kernel & (work.launch >= 0))
    mark = _mark_of(marks, events.start[kernels.launch])
    kernels, mark = kernels.take(mark >= 0), mark[mark >= 0]
    first = np.full(len(labels), np.iinfo(np.int64).max)
    last = np.full(len(labels), np.iinfo(np.int64).min)
    np.minimum.at(first, mark, kernels.start)
    np.maximum.at(last, mark, kernels.end)
    replays = np.array([_GRAPH_LAUNCH in name for name in events.names] or [False])
    replayed = np.zeros(len(labels), dtype=bool)
    replayed[mark[replays[events.name[kernels.launch]]]] = True
    launched = last >= first
    start, end = np.where(launched, first, marks.start), np.where(launched, last, marks.end)
    runs = [
        label.run or ("graph" if graph else "eager" if any_kernel else "")
        for label, graph, any_kernel in zip(labels, replayed.tolist(), launched.tolist(), strict=True)
    ]
    times = zip(*(times.tolist() for times in (start, end, marks.start, marks.end)), strict=True)
    return [
        Step(
            label=label,
            eager=run == "eager",
            graph=run == "graph",
            start=low,
            end=high,
            halves=(),
            comm_ns=-1,
            hidden_ns=-1,
            host_start=begin,
            host_end=finish,
        )
        for label, run, (low, high, begin, finish) in zip(labels, runs, times, strict=True)
    ]


def _halves(events: Events, candidates: Bool, marks: _Marks) -> list[tuple[int, ...]]:
    """Tokens of the labeled halves of each step, by their number."""
    tokens_of: list[dict[int, int]] = [{} for _ in marks.start]
    codes = _read(events, candidates, grammar().half)
    rows = np.flatnonzero(candidates & _named(events, codes)) if codes else np.empty(0, dtype=np.int64)
    for mark, code in zip(
        _mark_of(marks, events.start[rows]).tolist(), events.name[rows].tolist(), strict=True
    ):
        if mark >= 0:
            number, tokens = codes[code]
            tokens_of[mark][number] = max(tokens, tokens_of[mark].get(number, tokens))
    return [tuple(by_number[number] for number in sorted(by_number)) for by_number in tokens_of]


def _computed(work: Work, steps: list[Step]) -> list[Step]:
    """The steps with the time of their GPU work other than communication."""
    start, end = (np.array([getattr(step, name) for step in steps]) for name in ("start", "end"))
    compute_ns = work.union(*(kind for kind in WORK_KINDS if kind != "comm")).covered(start, end)
    return [step._replace(compute_ns=ns) for step, ns in zip(steps, compute_ns.tolist(), strict=True)]


def _overlapped(work: Work, steps: list[Step]) -> list[Step]:
    """The steps, those with two-batch overlap with their communication and what computation hides of it."""
    rows = [row for row, step in enumerate(steps) if step.two_batches]
    if not rows:
        return steps
    start, end = (np.array([getattr(steps[row], name) for row in rows]) for name in ("start", "end"))
    comm, computation = work.union("comm"), work.union("computation")
    both = union(*(np.concatenate(pair) for pair in zip(comm, computation, strict=True)))
    in_comm, in_computation, in_both = (part.covered(start, end) for part in (comm, computation, both))
    measured = list(steps)
    for index, row in enumerate(rows):
        hidden = int(in_comm[index] + in_computation[index] - in_both[index])
        measured[row] = steps[row]._replace(comm_ns=int(in_comm[index]), hidden_ns=hidden)
    return measured


def _in_window(trace: Trace, steps: list[Step]) -> list[Step]:
    """The steps that belong to the chosen step of the profiler, where one is chosen."""
    if trace.window is None:
        return steps
    low, high = trace.window.start, trace.window.end
    return [step for step in steps if low <= step.start < high]


def _name(step: Step) -> str:
    label = step.label
    return f"dummy {label.kind}" if label.dummy and label.kind != "idle" else label.kind


def by_one_clock(ranks: Sequence[RankSteps], shift: Mapping[int, int]) -> list[RankSteps]:
    """The same by the common clock, see AlignedRun."""
    return [rank._replace(steps=_shifted(rank.steps, shift[rank.rank])) for rank in ranks]


def _shifted(steps: Sequence[Step], shift: int) -> list[Step]:
    return [step._replace(start=step.start + shift, end=step.end + shift) for step in steps]


def global_steps(ranks: Sequence[RankSteps]) -> list[GlobalStep]:
    """The steps that several ranks, all by one clock, ran together, in order of time.

    Ranks that share their expert layers meet in every layer, so the steps that are one lie over each other
    in time. The step that starts first is joined by the next step of each other rank which overlaps it by
    at least half of the shorter of both, and no less than it overlaps the step after.
    """
    queues = {rank.rank: rank.steps for rank in ranks}
    next_of = dict.fromkeys(queues, 0)
    steps: list[GlobalStep] = []
    while open_ranks := [rank for rank in queues if next_of[rank] < len(queues[rank])]:
        first = min(open_ranks, key=lambda rank: (queues[rank][next_of[rank]].start, rank))
        seed, *after = queues[first][next_of[first] : next_of[first] + 2]
        joined = [
            RankStep(rank, queues[rank][next_of[rank]])
            for rank in open_ranks
            if rank == first or _together(queues[rank][next_of[rank]], seed, after)
        ]
        for on_rank in joined:
            next_of[on_rank.rank] += 1
        if len(joined) > 1:
            steps.append(GlobalStep(tuple(joined)))
    return steps


def _together(step: Step, seed: Step, after: Sequence[Step]) -> bool:
    shared = _shared(step, seed)
    enough = 2 * shared >= max(min(step.dur_ns, seed.dur_ns), 1)
    return enough and all(shared >= _shared(step, following) for following in after)


def _shared(first: Step, second: Step) -> int:
    """For how long two steps run together; what has no extent counts as 1 ns."""
    ends = (max(step.end, step.start + 1) for step in (first, second))
    return max(min(ends) - max(first.start, second.start), 0)


def reference(steps: Sequence[GlobalStep], collectives: Sequence[MatchedCollective]) -> Reference:
    """The median step in which all ranks decode; without any, the least GPU work of a decoding rank.

    Beside a prefill a decoding rank waits for it in collectives, and mostly launches kernels one by one,
    because ranks replay graphs together. Its GPU work and transfers without that waiting are what a replayed
    decode needs at most: they still include the experts' share of the other ranks' prompts.

    Args:
        steps: by the common clock.
        collectives: of the same ranks, by the same clock: what is transfer, and what is waiting.
    """
    decode_ns = [step.dur_ns for step in steps if step.phases == {"decode"}]
    if decode_ns:
        return Reference(round(median(decode_ns)), RECORDED)
    decoding = [
        on_rank
        for global_step in steps
        if global_step.mismatch
        for on_rank in global_step.rank_steps
        if on_rank.step.label.kind == "decode" and not on_rank.step.label.dummy
    ]
    transfers: dict[int, list[tuple[int, int]]] = {rank: [] for rank, _ in decoding}
    for collective in collectives if decoding else ():
        wait_ns = collective.wait_ns
        for rank, _, start, end in collective.participants:
            if rank in transfers:
                transfers[rank].append((start, end - start - wait_ns[rank]))
    work_ns = []
    for rank, rank_transfers in transfers.items():
        starts, dur_ns = np.array(sorted(rank_transfers), dtype=np.int64).reshape(-1, 2).T
        before = np.concatenate(([0], np.cumsum(dur_ns)))
        for step in [step for of_rank, step in decoding if of_rank == rank and step.compute_ns >= 0]:
            first, stop = np.searchsorted(starts, (step.start, step.end))
            if stop > first:
                work_ns.append(step.compute_ns + int(before[stop] - before[first]))
    return Reference(min(work_ns), LEAST_WORK) if work_ns else Reference(-1, UNKNOWN)


def delay(steps: Sequence[GlobalStep], decode_ns: int) -> Delay:
    """The delay of decoding ranks by ranks in another phase; -1 without a reference.

    Each mismatched step in which a rank decodes is late by what it took longer than a step in which all
    decode. Had all ranks prefilled in the same steps, only the delays of the rank that prefilled longest
    were left.

    Args:
        steps: of all ranks.
        decode_ns: duration of a step in which all ranks decode, -1 where not known.
    """
    if decode_ns < 0:
        nothing = -1 if any(step.mismatch for step in steps) else 0
        return Delay(nothing, nothing)
    total = 0
    caused: Counter[int] = Counter()
    for step in steps:
        if step.mismatch and "decode" in step.phases:
            late = max(step.dur_ns - decode_ns, 0)
            total += late
            for rank, own_step in step.rank_steps:
                if own_step.label.kind != "decode" and not own_step.label.dummy:
                    caused[rank] += late
    return Delay(total, total - max(caused.values(), default=0))


def engine_of(events: Events, marks: Int, labels: Iterable[Label]) -> str:
    """The engine whose steps a rank ran; all that it may be, joined by "or", where nothing tells.

    The outermost frame of an engine's code on the threads of the marks, else a label that only one engine
    writes, else ops of only one engine that may have written the labels.

    Args:
        events: of the rank.
        marks: event rows of the labeled ranges.
        labels: all that the rank's labels say, of ranges inside others, too.
    """
    known = grammar().engines
    thread = np.zeros(len(events.start), dtype=bool)
    for pid, tid in set(zip(events.pid[marks].tolist(), events.tid[marks].tolist(), strict=True)):
        thread |= (events.pid == pid) & (events.tid == tid)
    frames = thread & events.where("python")
    if frames.any():
        depth = {}
        for engine in known:
            if engine.frames and (inside := frames & events.named(engine.frames.search)).any():
                depth[engine.name] = int(events.depth[inside].min())
        if depth:
            return min(depth, key=lambda name: depth[name])
    written = list(dict.fromkeys(label.engines for label in labels))
    certain = list(dict.fromkeys(engines[0] for engines in written if len(engines) == 1))
    if certain:
        return ", ".join(certain)
    possible = list(dict.fromkeys(name for engines in written for name in engines))
    ops = events.where("op")
    seen = [
        engine.name
        for engine in known
        if engine.name in possible and engine.ops and (ops & events.named(engine.ops.search)).any()
    ]
    return " or ".join(seen or possible)


def at_step(run: Run, step: str | int | None) -> Run:
    """The run narrowed to a step, "2" or 2 for ProfilerStep#2, or a phase of serving; None for all of it."""
    if step is None:
        return run
    return select_phase(run, str(step)) if step in PHASES else select_step(run, str(step))


def select_phase(run: Run, phase: str) -> Run:
    """The steps of one phase, as if only they were recorded; what lies between the steps is left out.

    Ranks that serve together are cut at the same times: a step is of a phase if all ranks with requests are
    in it, "mixed" if they are in different ones, and "idle" if none has a request.

    Args:
        run: all of it.
        phase: one of PHASES.

    Raises:
        TracelensError: a rank has no such step; the message says which ones there are.
    """
    ranks = [trace.once(rank_steps) for trace in run.traces]
    if not all(rank.steps for rank in ranks):
        bare = next(trace for trace, rank in zip(run.traces, ranks, strict=True) if not rank.steps)
        engines = shortened([engine.name for engine in grammar().engines])
        raise TracelensError(f"{bare.meta.path}: no step {phase!r}: no step label of {engines} in the trace")
    shift = align_run(run).shift if len(ranks) > 1 else {ranks[0].rank: 0}
    aligned = by_one_clock(ranks, shift)
    together = global_steps(aligned)
    matched = {(rank, step.host_start) for steps in together for rank, step in steps.rank_steps}
    alone = [
        GlobalStep((RankStep(rank.rank, step),))
        for rank in aligned
        for step in rank.steps
        if (rank.rank, step.host_start) not in matched
    ]
    steps = sorted([*together, *alone], key=lambda step: step.start)
    extents = {trace.meta.rank: _extents(trace, shift[trace.meta.rank]) for trace in run.traces}
    windows = _windows([step for step in steps if phase_of(step) == phase], extents)
    return Run(tuple(_excerpt(trace, phase, steps, windows, shift[trace.meta.rank]) for trace in run.traces))


def phase_of(step: GlobalStep) -> str:
    """The phase that all ranks with requests are in: "mixed" for several, "idle" without requests."""
    phases = step.phases
    return next(iter(phases)) if len(phases) == 1 else "mixed" if phases else "idle"


def _extents(trace: Trace, shift: int) -> dict[int, tuple[int, int]]:
    """(begin, end) of each step of a rank on its GPU, copies included, by the begin of its mark on the host.

    By the rule of trace.steps_of it begins when the GPU has finished what comes before or, where it was idle
    then, when the host began it. Where nothing comes before, that is not recorded: with its first work.
    """
    work, steps = trace.work, trace.once(rank_steps).steps
    marks = np.array([(step.host_start, step.host_end) for step in steps], dtype=np.int64).reshape(-1, 2)
    low, high = (
        np.array([getattr(step, name) for step in steps], dtype=np.int64) for name in ("start", "end")
    )
    launched = work.launch >= 0
    until = np.maximum(marks[:, 1], marks[:, 0] + 1)
    of_step = interval_of(marks[:, 0], until, trace.arrays.start[work.launch[launched]])
    inside = of_step >= 0
    np.minimum.at(low, of_step[inside], work.start[launched][inside])
    np.maximum.at(high, of_step[inside], work.end[launched][inside])
    earlier = np.searchsorted(work.start, low)
    finished = lookup(np.maximum.accumulate(work.end), earlier - 1, low)
    begin = np.where(earlier > 0, np.minimum(np.maximum(marks[:, 0], finished), low), low)
    extents = zip((begin + shift).tolist(), (high + shift).tolist(), strict=True)
    return dict(zip(marks[:, 0].tolist(), extents, strict=True))


def _windows(
    steps: Sequence[GlobalStep], extents: Mapping[int, Mapping[int, tuple[int, int]]]
) -> list[_Window]:
    windows: list[_Window] = []
    earlier_ns, until = 0, None
    for step in steps:
        begins, ends = zip(*(extents[rank][own.host_start] for rank, own in step.rank_steps), strict=True)
        start, end = min(begins), max(ends)
        if until is not None:
            earlier_ns += max(start - until, 0)
        until = end if until is None else max(until, end)
        windows.append(_Window(step, start, end, earlier_ns))
    return windows


def _excerpt(
    trace: Trace, phase: str, steps: Sequence[GlobalStep], windows: Sequence[_Window], shift: int
) -> Trace:
    """One rank's part of these windows."""
    stretches: list[Stretch] = []
    for window in windows:
        for rank, own in window.step.rank_steps:
            if rank != trace.meta.rank:
                continue
            host_earlier_ns = window.earlier_ns
            if stretches:
                before = stretches[-1]
                host_earlier_ns = min(
                    host_earlier_ns, own.host_start - before.host_end + before.host_earlier_ns
                )
            start, end = window.start - shift, window.end - shift
            stretches.append(
                Stretch(start, end, own.host_start, own.host_end, window.earlier_ns, host_earlier_ns)
            )
    if not stretches:
        counts = Counter(
            phase_of(step) for step in steps for rank, _ in step.rank_steps if rank == trace.meta.rank
        )
        known = shortened([f"{count} {name}" for name, count in counts.most_common()])
        raise TracelensError(f"{trace.meta.path}: no step {phase!r} (has: {known})")
    return excerpt(trace, phase, stretches)
