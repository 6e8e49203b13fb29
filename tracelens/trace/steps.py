"""Steps: which GPU work belongs to which step mark of the profiler, and when each step ran."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from tracelens.arrays import Bool, Int, lookup
from tracelens.errors import TracelensError
from tracelens.table import codes, sums
from tracelens.trace.activities import WORK_KINDS, Work
from tracelens.trace.grouping import rows_by_code
from tracelens.trace.names import STEP_MARK, matching
from tracelens.trace.run import Run
from tracelens.trace.trace import Trace, TraceWindow

_FEW_STEPS = 8
_NEVER = np.iinfo(np.int64).max
WHOLE, BEFORE, AFTER = "(whole trace)", "(before the first step)", "(after the last step)"


class Steps(NamedTuple):
    """Consecutive windows that cover all GPU work: window i is [edges[i], edges[i + 1]) on the GPU.

    Attributes:
        labels: step names, or one of WHOLE, BEFORE, AFTER.
        edges: ns, one more than labels: on the GPU.
        marks: ns, one more than labels: where the host began and ended them.
        of_work: window of each row of `Trace.work`: that in which the host launched it.
        closes: the same, but for work that runs on through all of a later step: that step.
        marked: whether the trace has step marks.
    """

    labels: list[str]
    edges: Int
    marks: Int
    of_work: Int
    closes: Int
    marked: bool

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
    its steps short. GPU work outside of all steps gets windows of its own, so that nothing is lost. Without
    GPU work there is no window.
    """
    return trace.once(_steps)


def launched_in(trace: Trace, steps: Steps, events: Int) -> Int:
    """The window of each of these event rows of GPU work, which the host launched in it."""
    return steps.of_work[trace.arrays.places(trace.work.event)[events]]


def _steps(trace: Trace) -> Steps:
    work = trace.work
    none = np.zeros(len(work.event), dtype=np.int64)
    if trace.window is not None:
        _, *spans = trace.window
        edges, marks = np.array(spans, dtype=np.int64).reshape(2, 2)
        return Steps([trace.window.label], edges, marks, none, none, True)
    if not len(work.event):
        return Steps([], np.zeros(1, np.int64), np.zeros(1, np.int64), none, none, False)
    begin, finish = int(work.start.min()), int(work.end.max())
    rows = _marks(trace)
    if not len(rows):
        edges = np.array([begin, max(finish, begin + 1)])
        return Steps([WHOLE], edges, edges, none, none, False)
    events, count = trace.arrays, len(rows)
    labels = [events.names[code] for code in events.name[rows]]
    marks = np.append(events.start[rows], events.end[rows[-1]])
    # Number of the step that launched each piece: 0 for what comes before the first, count + 1 after all.
    launched = np.searchsorted(marks, _launched(trace, int(marks[0])), side="right")
    closes = _closing(work, launched, count)
    edges = np.maximum(marks, _finished(closes, work.end, count)[:-1])
    before, after = int(begin < edges[0]), int(finish > edges[-1])
    labels = [BEFORE] * before + labels + [AFTER] * after
    edges = np.array([begin] * before + edges.tolist() + [finish] * after)
    first, last = int(events.start.min()), int(events.end.max())
    host_first, host_last = min(first, int(marks[0])), max(last, int(marks[-1]))
    marks = np.array([host_first] * before + marks.tolist() + [host_last] * after)
    of_work, closes = (np.clip(step - 1 + before, 0, len(labels) - 1) for step in (launched, closes))
    return Steps(labels, edges, marks, of_work, closes, True)


def _marks(trace: Trace) -> Int:
    """Event rows of the step marks in order of time, the first of each name."""
    events = trace.arrays
    marks = np.flatnonzero(matching(events.names, STEP_MARK))
    rows = np.flatnonzero(np.isin(events.name, marks) & events.where("annotation") & ~events.copied)
    rows = rows[np.argsort(events.start[rows], kind="stable")]
    _, first = np.unique(events.name[rows], return_index=True)
    return rows[np.sort(first)]


def _launched(trace: Trace, begin: int) -> Int:
    """When the host launched each piece of work, ns.

    Work of a stream runs in the order of its launches. So work whose launch is not recorded, although that of
    work before it on its stream is, was launched before the next piece, and at the latest when it started;
    behind the last piece, with it. What comes before all work with a launch on its stream was queued before
    the recording began: before `begin`. Of a stream without launches only the time is known.
    """
    work, starts = trace.work, trace.arrays.start
    is_linked = work.launch_call >= 0
    launched = lookup(starts, work.launch_call, work.start)
    if is_linked.all() or not is_linked.any():
        return launched
    for rows in rows_by_code(work.lane).values():
        linked, loose = np.flatnonzero(is_linked[rows]), np.flatnonzero(~is_linked[rows])
        if not len(linked) or not len(loose):
            continue
        following = np.append(launched[rows[linked]], _NEVER)
        latest = np.minimum(work.start[rows[loose]], following[np.searchsorted(linked, loose)])
        launched[rows[loose]] = np.where(loose < linked[0], np.minimum(latest, begin - 1), latest)
    return launched


def _closing(work: Work, launched: Int, count: int) -> Int:
    """The step that each piece of work closes: that which launched it.

    Work that is still running when the main stream has finished the step after, such as a kernel that stays
    on the GPU for good, ends a later step: the first that is not over by then. Copies on other streams, as of
    a checkpoint or of the next batch, run beside the steps and end the last one only.
    """
    is_main = _on_main_stream(work)
    until = np.append(_finished(launched[is_main], work.end[is_main], count)[1:], _NEVER)
    until[count:] = _NEVER
    has_next = np.isin(np.arange(1, count + 3), launched[is_main])
    outlasts = (work.end > until[launched]) & has_next[launched]
    beside = ~is_main & ~np.isin(work.kind, [WORK_KINDS.index(kind) for kind in ("computation", "comm")])
    closes = np.where(outlasts, np.searchsorted(until, work.end), launched)
    return np.where(beside, np.maximum(closes, count), closes)


def _finished(step: Int, end: Int, count: int) -> Int:
    """When all work of each step and those before it has ended, for step 0 to `count` + 1."""
    done = np.full(count + 2, -_NEVER, dtype=np.int64)
    np.maximum.at(done, step, end)
    return np.maximum.accumulate(done)


def _on_main_stream(work: Work) -> Bool:
    """Which work is on the stream that runs most computation, else most of all."""
    group, (streams, _) = codes(work.stream.astype(np.int64), work.device.astype(np.int64))
    computes = work.kind == WORK_KINDS.index("computation")
    pieces = computes if computes.any() else np.ones_like(computes)
    is_main: Bool = group == np.argmax(sums(group, pieces.astype(np.int64), len(streams)))
    return is_main


def select_step(run: Run, step: str) -> Run:
    """The run narrowed to one step; GPU work that crosses the step's borders is cut there.

    Args:
        run: all of it.
        step: "2" for ProfilerStep#2, or the whole mark.

    Raises:
        TracelensError: a rank has no such step; the message lists the ones it has.
    """
    return Run(tuple(replace(trace, window=_window(trace, step)) for trace in run.traces))


def _window(trace: Trace, step: str) -> TraceWindow:
    steps = steps_of(trace)
    for label, edges, marks in zip(steps.labels, pairwise(steps.edges), pairwise(steps.marks), strict=True):
        if label in (step, f"ProfilerStep#{step}"):
            return TraceWindow(label, *map(int, (*edges, *marks)))
    path = trace.meta.path
    if not steps.marked:
        raise TracelensError(f"{path}: no step {step!r}: the trace has no step marks; leave --step out")
    *others, last = steps.labels
    known = ", ".join([*steps.labels] if len(others) < _FEW_STEPS else [*others[:_FEW_STEPS], "...", last])
    raise TracelensError(f"{path}: no step {step!r} (has: {known})")
