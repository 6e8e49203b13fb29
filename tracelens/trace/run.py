"""`Run`: the ranks of one job, which rank each trace is, and the steps of each."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from tracelens.arrays import Bool, Int, lookup
from tracelens.errors import DamageKind, ParseError, TracelensError
from tracelens.table import codes, shortened, sums
from tracelens.trace.classify import WORK_KINDS
from tracelens.trace.in_flight import in_flight_at_start
from tracelens.trace.trace import (
    STEP_MARK,
    Trace,
    TraceMeta,
    TraceWindow,
    matching,
    rows_by_code,
)

if TYPE_CHECKING:
    from tracelens.trace.activities import Work

_RANK_IN_NAME = re.compile(r"rank[-_. ]?(\d{1,9})(?!\d)", re.IGNORECASE)
_NUMBER = re.compile(r"(\d+)")
_RANK_BEFORE = re.compile(r"rank[-_. ]?$", re.IGNORECASE)
_DUMP = re.compile(r"(.+)\.(\d{10,20})\.pt\.trace\.json(?:\.gz)?")
# Files that differ in such a number are several recordings, not several ranks.
_NO_RANK_BEFORE = re.compile(
    r"(?:steps?|iter|iteration|epoch|cycle|batch|run|take|try|attempt|version|v)[-_. #]?$", re.IGNORECASE
)
# Clocks of hosts may be wrong by a time zone or two.
_TOGETHER_NS = 6 * 3600 * 10**9
YEAR_2001_NS = 10**18
"""Timestamps beyond count from 1970; a clock that counts from the start of the machine never gets there."""

_FEW_STEPS = 8  # labels that a message lists
_NEVER = np.iinfo(np.int64).max
WHOLE, BEFORE, AFTER = "(whole trace)", "(before the first step)", "(after the last step)"


class Run(Struct, frozen=True):
    """Traces of one job, one a rank, in order of rank."""

    traces: tuple[Trace, ...]

    @property
    def ranks(self) -> list[int]:
        return [trace.meta.rank for trace in self.traces]

    def __repr__(self) -> str:
        runs: list[list[int]] = []  # of ranks without a gap
        for rank in self.ranks:
            if runs and runs[-1][-1] == rank - 1:
                runs[-1].append(rank)
            else:
                runs.append([rank])
        ranks = shortened([f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs])
        count = f"{len(self.traces)} {'rank' if len(self.traces) == 1 else 'ranks'}"
        labels: set[str] = set()
        for trace in self.traces:
            names = trace.tables["events"].columns["name"].values
            marks = [name for name in names if STEP_MARK.search(name)]
            labels |= set(marks) if trace.window is None else {trace.window.label}

        def natural(label: str) -> list[tuple[int, str]]:
            return [(int(part), "") if part.isdecimal() else (-1, part) for part in _NUMBER.split(label)]

        steps = shortened([label.rpartition("#")[2] for label in sorted(labels, key=natural)])
        events = sum(len(trace.tables["events"]) for trace in self.traces)
        return f"Run({count}: {ranks}; {f'steps {steps}' if steps else 'no step marks'}; {events:,} events)"


def make_run(traces: Iterable[Trace], *, partial: bool = False) -> Run:
    """Order traces of one job by rank; `partial` and errors are those of `check_ranks`."""
    unranked, spans = list(traces), []
    for trace in unranked:
        start, dur = (trace.tables["events"].array(name) for name in ("ts_ns", "dur_ns"))
        spans.append((int(start.min()), int((start + dur).max())) if len(start) else (0, -1))
    ranks = check_ranks([trace.meta for trace in unranked], spans, partial=partial)
    ranked = [
        replace(trace, meta=replace(trace.meta, rank=rank))
        for trace, rank in zip(unranked, ranks, strict=True)
    ]
    return Run(tuple(sorted(ranked, key=lambda trace: trace.meta.rank)))


def check_ranks(
    metas: Sequence[TraceMeta], spans: Sequence[tuple[int, int]], *, partial: bool = False
) -> list[int]:
    """The rank of each trace: what it says, else what its name says, else 0 for a single one.

    Args:
        metas: of the traces of one job.
        spans: first and last time in each, in ns of its clock; last < first where it has no time.
        partial: whether ranks may be missing between the lowest and the highest one, and files be read in
            part.

    Returns:
        the ranks, in the order of `metas`.

    Raises:
        ParseError: the rank of a trace is unknown, two claim one, one between others is missing, or they are
            not of one job, or reading a file failed; the message names the files.
    """
    for meta in () if partial else metas:
        if meta.damage and meta.damage.kind == DamageKind.READ_ERROR:
            advice = "read it again, or --partial (partial=True) to take what came"
            raise ParseError(meta.path, f"{meta.damage}; {advice}")
    if len(metas) > 1:
        _check_dumps(metas)
        sized = [meta for meta in metas if meta.world_size > 0]
        for meta in sized:
            if meta.world_size != sized[0].world_size:
                text = f"has world size {meta.world_size}, but {sized[0].path} has {sized[0].world_size}"
                raise ParseError(meta.path, f"{text}; pass the traces of one job")
        # Traces recorded far apart are refused, where their clocks can be compared.
        times = []
        for meta, (first, last) in zip(metas, spans, strict=True):
            base = 0 if first >= YEAR_2001_NS else meta.epoch_ns
            if first <= last and first + base >= YEAR_2001_NS:
                times.append((first + base, last + base, meta.path))
        if times:
            _, end, early = min(times, key=lambda time: time[1])
            start, _, late = max(times, key=lambda time: time[0])
            if start - end > _TOGETHER_NS:
                hours = (start - end) // (3600 * 10**9)
                apart = f"{hours} hours" if hours < 48 else f"{hours // 24} days"
                text = f"begins {apart} after {early} ends"
                compare = f"or compare two: tracelens diff {early} {late}"
                raise ParseError(late, f"{text}; pass the traces of one recording, {compare}")
    ranks = [meta.rank if meta.rank >= 0 else _named(meta.path) for meta in metas]
    if ranks == [-1]:
        return [0]
    if -1 in ranks:
        numbers = _by_difference([meta.path for meta in metas])
        if not numbers or not all(rank in (-1, number) for rank, number in zip(ranks, numbers, strict=True)):
            unnamed = metas[ranks.index(-1)]
            if foreign := next((meta for meta in metas if meta.no_work), None):
                raise ParseError(foreign.path, f"{foreign.no_work}; pass the other traces without it")
            problem = "neither the trace nor its name says which rank it is; name it rank<N>.json"
            raise ParseError(unnamed.path, problem)
        ranks = numbers
    if len(metas) > 1:
        _check_duplicates(metas, ranks)
    order = sorted(zip(ranks, (meta.path for meta in metas), strict=True))
    gaps = [(below, above) for below, above in pairwise(order) if above[0] - below[0] > 1]
    if gaps and not partial:
        (low, low_path), (high, high_path) = gaps[0]
        between = _numbers(low + 1, high - 1)
        more = _few([_numbers(below + 1, above - 1) for (below, _), (above, _) in gaps[1:]])
        missing = sum(above - below - 1 for (below, _), (above, _) in gaps)
        text = f"is rank {high} and {low_path} is rank {low}, but {between} between them"
        text += f" {'are' if high - low > 2 else 'is'} missing"
        text += f", and further up {more}" if more else ""
        advice = f"pass {'them' if missing > 1 else 'it'} too, or --partial (partial=True) to go without"
        raise ParseError(high_path, f"{text}; {advice}")
    return ranks


def named_ranks(paths: Sequence[str]) -> list[int]:
    """The ranks that the names of all files of a job give, -1 for a file whose name gives none."""
    ranks = [_named(path) for path in paths]
    if len(paths) > 1 and set(ranks) == {-1}:
        return _by_difference(paths) or ranks
    return ranks


def _named(path: str) -> int:
    """The rank in a file name, that of a member before that of its archive; -1 for none."""
    name = Path(path).name
    match = _RANK_IN_NAME.search(name.rpartition("!")[2]) or _RANK_IN_NAME.search(name)
    return int(match[1]) if match else -1


def _by_difference(paths: Sequence[str]) -> list[int] | None:
    """Ranks by the one number in which otherwise equal paths differ (trace_0.json, trace_1.json).

    It must be called rank, or run from 0 up: what begins elsewhere or has holes may be a process id.
    """
    pieces = [_NUMBER.split(path) for path in paths]
    texts = pieces[0][::2]
    if any(piece[::2] != texts for piece in pieces):
        return None
    columns = zip(*(piece[1::2] for piece in pieces), strict=True)
    named = zip(texts, columns, strict=False)  # there is one text more
    differing = [(before, column) for before, column in named if len({*column}) > 1]
    if len(differing) != 1:
        return None
    before, column = differing[0]
    numbers = [int(text) for text in column]
    if _RANK_BEFORE.search(before):
        return numbers
    is_rank = sorted(numbers) == list(range(len(numbers))) and not _NO_RANK_BEFORE.search(before)
    return numbers if is_rank else None


def _check_dumps(metas: Sequence[TraceMeta]) -> None:
    """Refuse several dumps of a worker, as torch's handler for TensorBoard writes them into one folder."""
    dumps: dict[tuple[str, int], list[tuple[int, str]]] = {}
    for meta in metas:
        if match := _DUMP.fullmatch(meta.path):
            dumps.setdefault((match[1], meta.rank), []).append((int(match[2]), meta.path))
    several = [[path for _, path in sorted(of_worker)] for of_worker in dumps.values() if len(of_worker) > 1]
    if several:
        *_, older, newest = several[0]
        worker = os.path.basename(_DUMP.sub(r"\1", newest))
        of_each = f"the newest of each worker: {_few([max(of)[1] for of in dumps.values()])}"
        pass_ = f"pass {f'the newest: {newest}' if len(dumps) == 1 else of_each}"
        text = f"holds {len(several[0])} dumps of worker {worker}; {pass_}; or compare two: tracelens diff"
        raise ParseError(os.path.dirname(newest) or os.curdir, f"{text} {older} {newest}")


def _check_duplicates(metas: Sequence[TraceMeta], ranks: Sequence[int]) -> None:
    claims: dict[int, list[TraceMeta]] = {}
    for rank, meta in zip(ranks, metas, strict=True):
        claims.setdefault(rank, []).append(meta)
    for rank, (first, *duplicates) in sorted(claims.items(), key=lambda claim: claim[0]):
        if duplicates:
            paths = [meta.path for meta in (first, *duplicates)]
            folders = {os.path.dirname(path) for path in paths}
            if len(paths) > 2 and len(folders) == 1:  # the recordings of a folder, by their names
                names = _few([os.path.basename(path) for path in paths])
                compare = f"pass one of them, or compare two: tracelens diff {paths[0]} {paths[1]}"
                text = f"holds {len(paths)} recordings of rank {rank}: {names}; {compare}"
                raise ParseError(folders.pop() or os.curdir, text)
            *between, last = duplicates
            same = [first.path, *(meta.path for meta in between)]
            text = f"so is {same[0]}" if len(same) == 1 else f"so are {_few(same)}"
            source = "" if last.rank >= 0 else " by its name"
            compare = f"or compare two: tracelens diff {first.path} {duplicates[0].path}"
            raise ParseError(last.path, f"is rank {rank}{source}, and {text}; pass one of them, {compare}")


def _numbers(low: int, high: int) -> str:
    if low == high:
        return f"rank {low}"
    return f"ranks {low} {'and' if high == low + 1 else 'to'} {high}"


def _few(items: Sequence[str]) -> str:
    """Items for a sentence, at most three of them by name."""
    shown = [*items] if len(items) <= 3 else [*items[:2], f"{len(items) - 2} more"]
    return " and ".join([", ".join(shown[:-1]), shown[-1]]) if len(shown) > 1 else "".join(shown)


class Steps(NamedTuple):
    """Consecutive windows that cover all GPU work: window i is [edges[i], edges[i + 1]) on the GPU."""

    labels: list[str]  # step names, or one of WHOLE, BEFORE, AFTER
    edges: Int  # ns, one more than labels: on the GPU
    marks: Int  # ns, one more than labels: where the host began and ended them
    of_work: Int  # window of each row of `Trace.work`: that in which the host launched it
    closes: Int  # the same, but for work that runs on through all of a later step: that step
    marked: bool  # whether the trace has step marks

    @property
    def whole(self) -> range:
        """Positions of the steps: of all windows but those before the first mark and after the last.

        A single window is what there is of a step, also where somebody selected what lies before the first.
        """
        if len(self.labels) == 1:
            return range(1)
        return range(self.labels[:1] == [BEFORE], len(self.labels) - (self.labels[-1:] == [AFTER]))

    def begun_at(self, times: Int) -> Int:
        """The window in which the host was at each of these times; the nearest of those outside."""
        return np.clip(np.searchsorted(self.marks, times, side="right") - 1, 0, len(self.labels) - 1)

    def only_whole(self) -> Steps:
        """The steps without what lies before and after them; -1 for work of no step."""
        first, stop = self.whole.start, self.whole.stop
        of_work, closes = (np.where((step >= first) & (step < stop), step - first, -1) for step in self[3:5])
        edges, marks = self.edges[first : stop + 1], self.marks[first : stop + 1]
        return Steps(self.labels[first:stop], edges, marks, of_work, closes, self.marked)


def is_step(label: str) -> bool:
    """Whether a window of this name is a step, and not what lies before the first mark or after the last."""
    return label not in (BEFORE, AFTER)


def steps_of(trace: Trace) -> Steps:
    """The step windows of a trace: the definition that all of tracelens uses.

    The step of GPU work is the one whose host window (from its mark to the next) launched it. A step begins
    when the GPU has finished the steps before it or, where the GPU was idle then, when the host began it;
    the last one ends when all that was launched in it has ended. So a host that runs ahead does not make
    its steps short, and work in flight when the recording began makes neither its first step long nor a
    recording without step marks. GPU work outside of all steps gets windows of its own, so that nothing is
    lost. Without GPU work there is no window.
    """
    return trace.once(_windows)


def recorded_span(trace: Trace, work: Work) -> tuple[int, int]:
    """The time that figures of all of a trace are of: of a selected step its window.

    Else from the first start to the last end of GPU work; without step marks, behind what was in flight when
    the recording began.
    """
    steps = steps_of(trace)
    if trace.window is not None:
        return int(steps.edges[0]), int(steps.edges[-1])
    begin = work.start.min() if steps.marked else max(work.start.min(), steps.edges[steps.whole.start])
    return int(begin), int(work.end.max())


def launched_in(trace: Trace, steps: Steps, events: Int) -> Int:
    """The window of each of these event rows of GPU work, which the host launched in it."""
    return steps.of_work[trace.arrays.places(trace.work.event)[events]]


def _windows(trace: Trace) -> Steps:
    work = trace.work
    none = np.zeros(len(work.event), dtype=np.int64)
    if trace.window is not None:
        _, *spans = trace.window
        edges, marks = np.array(spans, dtype=np.int64).reshape(2, 2)
        return Steps([trace.window.label], edges, marks, none, none, True)
    if not len(work.event):
        return Steps([], np.zeros(1, np.int64), np.zeros(1, np.int64), none, none, False)
    begin, finish = int(work.start.min()), int(work.end.max())
    # The marks in order of time, the first of each name.
    events = trace.arrays
    marks = np.flatnonzero(matching(events.names, STEP_MARK))
    rows = np.flatnonzero(np.isin(events.name, marks) & events.where("annotation") & ~events.copied)
    rows = rows[np.argsort(events.start[rows], kind="stable")]
    rows = rows[np.sort(np.unique(events.name[rows], return_index=True)[1])]
    in_flight_end = trace.once(in_flight_at_start).end
    if not len(rows):
        finish = max(finish, begin + 1)
        if begin < in_flight_end < finish:
            edges, marks = np.array([begin, in_flight_end, finish]), np.array([begin, begin, finish])
            whole = np.where((work.launch < 0) & (work.end <= in_flight_end), 0, 1)
            return Steps([BEFORE, WHOLE], edges, marks, whole, whole, False)
        edges = np.array([begin, finish])
        return Steps([WHOLE], edges, edges, none, none, False)
    count = len(rows)
    labels = [events.names[code] for code in events.name[rows]]
    marks = np.append(events.start[rows], events.end[rows[-1]])
    # Work of a stream runs in the order of its launches. So work whose launch is not recorded, although that
    # of work before it on its stream is, was launched before the next piece, and at the latest when it
    # started; behind the last piece, with it. What comes before all work with a launch on its stream was
    # queued before the recording began. Of a stream without launches only the time is known.
    is_linked = work.launch_call >= 0
    launched_ns = lookup(events.start, work.launch_call, work.start)
    for pieces in rows_by_code(work.lane).values() if is_linked.any() and not is_linked.all() else ():
        linked, loose = np.flatnonzero(is_linked[pieces]), np.flatnonzero(~is_linked[pieces])
        if len(linked) and len(loose):
            following = np.append(launched_ns[pieces[linked]], _NEVER)
            latest = np.minimum(work.start[pieces[loose]], following[np.searchsorted(linked, loose)])
            queued = np.minimum(latest, int(marks[0]) - 1)
            launched_ns[pieces[loose]] = np.where(loose < linked[0], queued, latest)
    # Number of the step that launched each piece: 0 for what comes before the first, count + 1 after all.
    launched = np.searchsorted(marks, launched_ns, side="right")
    # Each piece closes the step that launched it. Work that is still running when the main stream has
    # finished the step after, such as a kernel that stays on the GPU for good, ends a later step: the first
    # that is not over by then. Copies on other streams, as of a checkpoint or of the next batch, run beside
    # the steps and end the last one only. The main stream runs most computation, else most of all.
    group, (streams, _) = codes(work.stream.astype(np.int64), work.device.astype(np.int64))
    computes = work.kind == WORK_KINDS.index("computation")
    counted = computes if computes.any() else np.ones_like(computes)
    is_main: Bool = group == np.argmax(sums(group, counted.astype(np.int64), len(streams)))
    until = np.append(_finished(launched[is_main], work.end[is_main], count)[1:], _NEVER)
    until[count:] = _NEVER
    has_next = np.isin(np.arange(1, count + 3), launched[is_main])
    outlasts = (work.end > until[launched]) & has_next[launched]
    closes = np.where(outlasts, np.searchsorted(until, work.end), launched)
    beside = ~is_main & ~np.isin(work.kind, [WORK_KINDS.index(kind) for kind in ("computation", "comm")])
    closes = np.where(beside, np.maximum(closes, count), closes)
    edges = np.maximum(marks, _finished(closes, work.end, count)[:-1])
    if marks[0] < in_flight_end < finish:
        edges = np.maximum(edges, in_flight_end)
    before, after = int(begin < edges[0]), int(finish > edges[-1])
    labels = [BEFORE] * before + labels + [AFTER] * after
    edges = np.array([begin] * before + edges.tolist() + [finish] * after)
    first, last = int(events.start.min()), int(events.end.max())
    host_first, host_last = min(first, int(marks[0])), max(last, int(marks[-1]))
    marks = np.array([host_first] * before + marks.tolist() + [host_last] * after)
    of_work, closes = (np.clip(step - 1 + before, 0, len(labels) - 1) for step in (launched, closes))
    return Steps(labels, edges, marks, of_work, closes, True)


def _finished(step: Int, end: Int, count: int) -> Int:
    """When all work of each step and those before it has ended, for step 0 to `count` + 1."""
    done = np.full(count + 2, -_NEVER, dtype=np.int64)
    np.maximum.at(done, step, end)
    return np.maximum.accumulate(done)


def select_step(run: Run, step: str) -> Run:
    """The run narrowed to one step; GPU work that crosses the step's borders is cut there.

    Args:
        run: all of it.
        step: "2" for ProfilerStep#2, or the whole mark.

    Raises:
        TracelensError: a rank has no such step; the message lists the ones it has.
    """
    traces = []
    for trace in run.traces:
        steps, path = steps_of(trace), trace.meta.path
        windows = zip(steps.labels, pairwise(steps.edges), pairwise(steps.marks), strict=True)
        fitting = [window for window in windows if window[0] in (step, f"ProfilerStep#{step}")]
        if not fitting and not steps.marked:
            raise TracelensError(f"{path}: no step {step!r}: the trace has no step marks; leave --step out")
        if not fitting:
            *others, last = steps.labels
            few = [*others[:_FEW_STEPS], "...", last] if len(others) >= _FEW_STEPS else steps.labels
            raise TracelensError(f"{path}: no step {step!r} (has: {', '.join(few)})")
        label, edges, marks = fitting[0]
        traces.append(replace(trace, window=TraceWindow(label, *map(int, (*edges, *marks)))))
    return Run(tuple(traces))
