"""The whole steps of one rank: when each ran on the GPU, and when the host called for its work."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tracelens.arrays import Int
from tracelens.table import codes, sums
from tracelens.trace import WORK_KINDS, Trace, Work, find_steps


class Windows(NamedTuple):
    """Consecutive whole steps; step i lasts from edges[i] to edges[i + 1].

    Attributes:
        labels: step names, or steps.WHOLE where steps are not marked.
        edges: ns, one more than labels: on the GPU.
        marks: ns, one more than labels: on the host.
        called: when each piece of work was called, ns; before the first mark if before the recording began.
        marked: whether the trace has step marks.
    """

    labels: list[str]
    edges: Int
    marks: Int
    called: Int
    marked: bool

    def ran_in(self, times: Int) -> Int:
        """The step in which each host time lies, -1 for none; the last mark belongs to the last step."""
        step = np.searchsorted(self.marks, times, side="right") - 1
        step[times == self.marks[-1]] = len(self.labels) - 1
        return np.where(step < len(self.labels), step, -1)


def step_windows(trace: Trace, work: Work) -> Windows:
    """The whole steps of a rank with GPU work.

    A host that runs ahead marks steps long before the GPU comes to them; between such marks lies hardly
    any time, and all of it behind the last one. So a step begins with its mark, or when the GPU is done
    with what its busiest stream was given before, whichever is later. That is how the last step's end is
    found as well, see steps.find_steps. Where the host waits for the GPU in every step, these are the marks.
    """
    steps = find_steps(trace, work)
    if trace.window is not None or not steps.marked:
        return Windows(steps.labels, steps.edges, steps.edges, work.start, steps.marked)
    whole_steps = steps.whole
    marks = steps.edges[whole_steps.start : whole_steps.stop + 1]
    main = busiest(work)
    called = _called(trace, work, main, int(marks[0]))
    order = np.argsort(called[main], kind="stable")
    done = np.maximum.accumulate(np.append(np.iinfo(np.int64).min, work.end[main][order]))
    before = np.searchsorted(called[main][order], marks[:-1], side="left")
    edges = np.minimum(np.append(np.maximum(marks[:-1], done[before]), marks[-1]), marks[-1])
    return Windows(steps.labels[whole_steps.start : whole_steps.stop], edges, marks, called, True)


def _called(trace: Trace, work: Work, main: Int, begin: int) -> Int:
    """When each piece of work was called; what the GPU had queued when recording began, before `begin`.

    Where the trace links work to calls, that is what runs without one ahead of the first with one.
    """
    called = np.where(work.launch_call >= 0, trace.arrays.start[np.maximum(work.launch_call, 0)], work.start)
    linked = main[work.launch_call[main] >= 0]
    if len(linked):
        queued = work.unlinked & (work.start < work.start[linked[0]])
        called[queued] = np.minimum(called[queued], begin - 1)
    return called


def busiest(work: Work) -> Int:
    """Positions of the work on the stream that computes most, else is busiest."""
    group, (streams, _) = codes(work.stream.astype(np.int64), work.device.astype(np.int64))
    computes = work.kind == WORK_KINDS.index("computation")
    weight = np.where(computes, work.dur, 0) if computes.any() else work.dur
    return np.flatnonzero(group == np.argmax(sums(group, weight, len(streams))))
