"""Step windows: the run's wall time cut at the profiler's step marks."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from tracelens.arrays import Int, lookup
from tracelens.errors import TracelensError
from tracelens.trace.activities import Work, gpu_work
from tracelens.trace.names import STEP_MARK, matching
from tracelens.trace.run import Run
from tracelens.trace.trace import Trace, TraceWindow

WHOLE, BEFORE, AFTER = "(whole trace)", "(before the first step)", "(after the last step)"


class Steps(NamedTuple):
    """Consecutive windows that cover all GPU work: window i is [edges[i], edges[i + 1]).

    Attributes:
        labels: step names, or one of WHOLE, BEFORE, AFTER.
        edges: ns, one more than labels.
        marked: whether the trace has step marks.
    """

    labels: list[str]
    edges: Int
    marked: bool

    @property
    def whole(self) -> range:
        """Positions of the steps: of all windows but those before the first mark and after the last.

        A single window is what there is of a step, also where somebody selected what lies before the first.
        """
        if len(self.labels) == 1:
            return range(1)
        return range(self.labels[:1] == [BEFORE], len(self.labels) - (self.labels[-1:] == [AFTER]))


def is_step(label: str) -> bool:
    """Whether a window of this name is a step, and not what lies before the first mark or after the last."""
    return label not in (BEFORE, AFTER)


def find_steps(trace: Trace, work: Work) -> Steps:
    """The step windows of a trace with GPU work.

    A step lasts from its mark's start to the next mark's start: GPU work runs behind the CPU, so work of
    one step that is still running when the next one begins counts where it runs. The last step lasts
    until its mark ends and all GPU work launched in it has ended. GPU work outside of all steps gets
    windows of its own, so that nothing is lost.
    """
    if trace.window is not None:
        return Steps([trace.window.label], np.array([trace.window.start, trace.window.end]), True)
    begin, finish = int(work.start.min()), int(work.end.max())
    events = trace.arrays
    marks = np.flatnonzero(matching(events.names, STEP_MARK))
    rows = np.flatnonzero(np.isin(events.name, marks) & events.where("annotation"))
    rows = rows[np.argsort(events.start[rows], kind="stable")]
    _, first = np.unique(events.name[rows], return_index=True)
    rows = rows[np.sort(first)]
    if not len(rows):
        return Steps([WHOLE], np.array([begin, max(finish, begin + 1)]), False)
    labels = [events.names[code] for code in events.name[rows]]
    last_end = int(events.end[rows[-1]])
    launched = lookup(events.start, work.launch_call, work.start)
    inside = launched < last_end
    last_end = max(last_end, int(work.end[inside].max(initial=last_end)))
    edges = [*events.start[rows].tolist(), last_end]
    if begin < edges[0]:
        labels, edges = [BEFORE, *labels], [begin, *edges]
    if finish > last_end:
        labels, edges = [*labels, AFTER], [*edges, finish]
    return Steps(labels, np.array(edges), True)


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
    work = gpu_work(trace)
    steps = find_steps(trace, work) if len(work.event) else Steps([], np.empty(0, dtype=np.int64), False)
    for label, low, high in zip(steps.labels, steps.edges[:-1], steps.edges[1:], strict=True):
        if label in (step, f"ProfilerStep#{step}"):
            return TraceWindow(label, int(low), int(high))
    known = ", ".join(steps.labels) if steps.marked else "no step marks"
    raise TracelensError(f"{trace.meta.path}: no step {step!r} (has: {known})")
