"""The labeled steps of one serving rank: the part that travels to where ranks are compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from msgspec import Struct

from tracelens.analysis.comm import MatchedCollective, align_run
from tracelens.analysis.common import KINDS, Label, grammar
from tracelens.arrays import Bool, Int, lookup, median, ordered
from tracelens.errors import TracelensError
from tracelens.table import shortened
from tracelens.trace import (
    WORK_KINDS,
    Events,
    Run,
    Scope,
    Stretch,
    Trace,
    excerpt,
    gpu_work,
    in_flight_at_start,
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
    # ns, from the first to the last of its kernels, but behind what was in flight when the recording began;
    # of its mark where no kernel is linked to it
    start: int
    end: int
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


class RankStep(NamedTuple):
    """One rank's share of a common step; the step's times are by the clock of the first rank."""

    rank: int
    step: Step


class GlobalStep(Struct, frozen=True):
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
        labels = [on_rank.step.label for on_rank in self.rank_steps]
        names = Counter(
            f"dummy {label.kind}" if label.dummy and label.kind != "idle" else label.kind for label in labels
        )
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


class Reference(Struct, frozen=True):
    """How long a step takes in which all ranks decode, ns."""

    dur_ns: int  # -1 where nothing tells
    source: str  # one of REFERENCES


RECORDED, LEAST_WORK, UNKNOWN = REFERENCES = ("all-decode steps", "least GPU work", "")


class Delay(Struct, frozen=True):
    """What decoding ranks lost to those in another phase, and how much of it agreement would save, ns."""

    total: int
    alignable: int


PHASES = KINDS
"""Phases by which a run can be narrowed: the kinds of step."""


def rank_steps(trace: Trace, *, scope: Scope = "all") -> RankSteps:
    """The labeled steps of one rank; those of all its work are kept with the trace."""
    return trace.once(_rank_steps) if scope == "all" else _rank_steps(trace, scope)


def _rank_steps(trace: Trace, scope: Scope = "all") -> RankSteps:
    events, rank, known = trace.arrays, trace.meta.rank, grammar()
    candidates = events.where(*_HOST_KINDS) & ~events.copied
    codes = _read(events, candidates, known.step)
    marks = np.flatnonzero(candidates & _named(events, codes))
    if not codes:  # recorded without the CPU: what the profiler drew of the marks on the GPU
        candidates = events.where("gpu_annotation")
        codes = _read(events, candidates, known.step)
        if not codes:
            return RankSteps(rank, [])
        # Of marks on several streams, those of the stream with most of them: each shows every step.
        marks = np.flatnonzero(candidates & _named(events, codes))
        lanes = np.stack((events.pid[marks], events.tid[marks]), axis=1)
        _, lane, count = np.unique(lanes, axis=0, return_inverse=True, return_counts=True)
        marks = marks[lane.ravel() == np.argmax(count)]

    # A mark inside another is none of a step.
    rows = marks[ordered(events.start[marks], -events.end[marks])]
    before = np.concatenate(([np.iinfo(np.int64).min], np.maximum.accumulate(events.end[rows])[:-1]))
    rows = rows[(events.end[rows] > before) | (events.start[rows] >= before)]
    labels = [codes[code] for code in events.name[rows].tolist()]
    host_start, host_end = events.start[rows], events.end[rows]
    until = np.maximum(host_end, host_start + 1)

    # A step runs from its first kernel to its last one.
    work = gpu_work(trace, scope)
    kernels = work.take(work.is_kernel & (work.launch >= 0))
    mark = interval_of(host_start, until, events.start[kernels.launch])
    kernels, mark = kernels.take(mark >= 0), mark[mark >= 0]
    first = np.full(len(labels), np.iinfo(np.int64).max)
    last = np.full(len(labels), np.iinfo(np.int64).min)
    np.minimum.at(first, mark, kernels.start)
    np.maximum.at(last, mark, kernels.end)
    launched = last >= first
    start, end = np.where(launched, first, host_start), np.where(launched, last, host_end)
    # Behind what was in flight when the recording began, which is none of the step's.
    in_flight_end = trace.once(in_flight_at_start).end
    start = np.where((start < in_flight_end) & (in_flight_end < end), in_flight_end, start)
    replays = np.array([_GRAPH_LAUNCH in name for name in events.names] or [False])
    replayed = np.zeros(len(labels), dtype=bool)
    replayed[mark[replays[events.name[kernels.launch]]]] = True
    runs = [
        label.run or ("graph" if graph else "eager" if any_kernel else "")
        for label, graph, any_kernel in zip(labels, replayed.tolist(), launched.tolist(), strict=True)
    ]
    compute_ns = work.union(*(kind for kind in WORK_KINDS if kind != "comm")).covered(start, end)

    # Two-batch overlap: tokens of the labeled halves by their number, communication, and what hides it.
    tokens_of: list[dict[int, int]] = [{} for _ in labels]
    half_codes = _read(events, candidates, known.half)
    half_rows = np.flatnonzero(candidates & _named(events, half_codes))
    of_step = interval_of(host_start, until, events.start[half_rows])
    for step, code in zip(of_step.tolist(), events.name[half_rows].tolist(), strict=True):
        if step >= 0:
            number, tokens = half_codes[code]
            tokens_of[step][number] = max(tokens, tokens_of[step].get(number, tokens))
    halves = [tuple(by_number[number] for number in sorted(by_number)) for by_number in tokens_of]
    comm_ns, hidden_ns = np.full((2, len(labels)), -1)
    two = np.flatnonzero([label.tbo or len(half) > 1 for label, half in zip(labels, halves, strict=True)])
    if len(two):
        comm, computation = work.union("comm"), work.union("computation")
        both = union(*(np.concatenate(pair) for pair in zip(comm, computation, strict=True)))
        comm_ns[two], in_computation, in_both = (
            part.covered(start[two], end[two]) for part in (comm, computation, both)
        )
        hidden_ns[two] = comm_ns[two] + in_computation - in_both

    times = (start, end, host_start, host_end, comm_ns, hidden_ns, compute_ns)
    steps = [
        Step(
            label=label,
            eager=run == "eager",
            graph=run == "graph",
            start=begin,
            end=finish,
            halves=half,
            comm_ns=in_comm,
            hidden_ns=hidden,
            host_start=host_begin,
            host_end=host_finish,
            compute_ns=computed,
        )
        for label, run, half, begin, finish, host_begin, host_finish, in_comm, hidden, computed in zip(
            labels, runs, halves, *(values.tolist() for values in times), strict=True
        )
        # Those of the chosen step of the profiler, where one is chosen.
        if trace.window is None or trace.window.start <= begin < trace.window.end
    ]
    return RankSteps(rank, steps, engine_of(events, marks, codes.values()), trace.source is not None)


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


def by_one_clock(ranks: Sequence[RankSteps], shift: Mapping[int, int]) -> list[RankSteps]:
    """The same by the common clock, see AlignedRun."""
    return [
        rank._replace(steps=[step._replace(start=step.start + ns, end=step.end + ns) for step in rank.steps])
        for rank in ranks
        for ns in [shift[rank.rank]]
    ]


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
        joined = []
        for rank in open_ranks:
            step = queues[rank][next_of[rank]]
            shared = _shared(step, seed)
            enough = 2 * shared >= max(min(step.dur_ns, seed.dur_ns), 1)
            if rank == first or (enough and all(shared >= _shared(step, later) for later in after)):
                joined.append(RankStep(rank, step))
                next_of[rank] += 1
        if len(joined) > 1:
            steps.append(GlobalStep(tuple(joined)))
    return steps


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

    # (begin, end) of each step of a rank on its GPU, copies included, by rank and begin of its mark on the
    # host. By the rule of trace.steps_of it begins when the GPU has finished what comes before or, where it
    # was idle then, when the host began it. Where nothing comes before: with its first work.
    extents: dict[tuple[int, int], tuple[int, int]] = {}
    for trace, rank in zip(run.traces, ranks, strict=True):
        work = trace.work
        columns = ("host_start", "host_end", "start", "end")
        host_start, host_end, low, high = (
            np.array([getattr(step, name) for step in rank.steps], dtype=np.int64) for name in columns
        )
        launched = work.launch >= 0
        until = np.maximum(host_end, host_start + 1)
        of_step = interval_of(host_start, until, trace.arrays.start[work.launch[launched]])
        inside = of_step >= 0
        np.minimum.at(low, of_step[inside], work.start[launched][inside])
        np.maximum.at(high, of_step[inside], work.end[launched][inside])
        earlier = np.searchsorted(work.start, low)
        finished = lookup(np.maximum.accumulate(work.end), earlier - 1, low)
        begin = np.where(earlier > 0, np.minimum(np.maximum(host_start, finished), low), low)
        # Work from before the recording is not part of a step whose GPU waits for it.
        in_flight = trace.once(in_flight_at_start).end
        begin = np.where((begin < in_flight) & (in_flight < high), in_flight, begin)
        keys = ((rank.rank, host_begin) for host_begin in host_start.tolist())
        by_one = zip((begin + shift[rank.rank]).tolist(), (high + shift[rank.rank]).tolist(), strict=True)
        extents |= dict(zip(keys, by_one, strict=True))

    # (step, start, end, how much of what comes before it is left out), by the common clock.
    windows: list[tuple[GlobalStep, int, int, int]] = []
    earlier_ns, last_end = 0, None
    for step in steps:
        if phase_of(step) == phase:
            begins, ends = zip(
                *(extents[number, own.host_start] for number, own in step.rank_steps), strict=True
            )
            if last_end is not None:
                earlier_ns += max(min(begins) - last_end, 0)
            last_end = max(ends) if last_end is None else max(last_end, *ends)
            windows.append((step, min(begins), max(ends), earlier_ns))

    traces = []
    for trace in run.traces:
        stretches: list[Stretch] = []
        for window, start_ns, end_ns, left_out_ns in windows:
            for own in (on_rank.step for on_rank in window.rank_steps if on_rank.rank == trace.meta.rank):
                host_left_out_ns = left_out_ns
                if stretches:
                    before = stretches[-1]
                    host_gap_ns = own.host_start - before.host_end
                    host_left_out_ns = min(left_out_ns, host_gap_ns + before.host_earlier_ns)
                ns = shift[trace.meta.rank]
                stretches.append(
                    Stretch(
                        start_ns - ns,
                        end_ns - ns,
                        own.host_start,
                        own.host_end,
                        left_out_ns,
                        host_left_out_ns,
                    )
                )
        if not stretches:
            counts = Counter(
                phase_of(step) for step in steps for number, _ in step.rank_steps if number == trace.meta.rank
            )
            has = shortened([f"{count} {name}" for name, count in counts.most_common()])
            raise TracelensError(f"{trace.meta.path}: no step {phase!r} (has: {has})")
        traces.append(excerpt(trace, phase, stretches))
    return Run(tuple(traces))


def phase_of(step: GlobalStep) -> str:
    """The phase that all ranks with requests are in: "mixed" for several, "idle" without requests."""
    phases = step.phases
    return next(iter(phases)) if len(phases) == 1 else "mixed" if phases else "idle"
