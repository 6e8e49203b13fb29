"""The labeled steps of one serving rank: the part that travels to where ranks are compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from tracelens.analysis.common import Label, grammar
from tracelens.analysis.serving.engines import engine_of
from tracelens.arrays import Bool, Int
from tracelens.trace import WORK_KINDS, Events, Scope, Trace, Work, gpu_work, interval_of, union

T = TypeVar("T")

_HOST_KINDS = ("annotation", "slice", "op")
_GRAPH_LAUNCH = "GraphLaunch"


class Step(NamedTuple):
    """One forward pass of a rank.

    Attributes:
        label: what the program says of it.
        eager: it launched its kernels one by one, by its label or else by its launch calls.
        graph: it replayed a graph; neither where nothing tells.
        start, end: ns, from the first to the last of its kernels; of its mark where none is linked to it.
        halves: tokens of the halves under two-batch overlap, as far as they are labeled.
        comm_ns: communication between start and end; -1 but for two-batch overlap.
        hidden_ns: of that, beside computation.
        host_start, host_end: of its mark, by the rank's own clock.
        compute_ns: GPU work other than communication between start and end; -1 where not measured.
    """

    label: Label
    eager: bool
    graph: bool
    start: int
    end: int
    halves: tuple[int, ...]
    comm_ns: int
    hidden_ns: int
    host_start: int = -1
    host_end: int = -1
    compute_ns: int = -1

    @property
    def dur_ns(self) -> int:
        return self.end - self.start

    @property
    def two_batches(self) -> bool:
        """Whether it ran as two overlapped batches."""
        return self.label.tbo or len(self.halves) > 1


class RankSteps(NamedTuple):
    """The steps of one rank in order.

    Attributes:
        rank: of the run.
        steps: in order of time.
        engine: that ran them; "" without steps.
        is_excerpt: what ran between the steps is left out: the rank is narrowed to a phase.
    """

    rank: int
    steps: list[Step]
    engine: str = ""
    is_excerpt: bool = False


class _Marks(NamedTuple):
    """Labelled ranges in order of start: code of their names, ns."""

    name: Int
    start: Int
    end: Int


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
        Step(label, run == "eager", run == "graph", low, high, (), -1, -1, begin, finish)
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
