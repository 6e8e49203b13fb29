"""What the picture needs of one rank: the part that travels."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tracelens.analysis.common import no_gpu_work
from tracelens.analysis.step_timeline.activities import activity_texts
from tracelens.analysis.step_timeline.states import States, rank_states
from tracelens.arrays import Int
from tracelens.trace import Scope, Trace, gpu_work, steps_of


class RankTimeline(NamedTuple):
    """One rank, times by its own clock.

    Attributes:
        rank: of the trace.
        host: name of the machine, "" where the trace does not say.
        first_ns: its first event.
        absent: why there is nothing to show, "" where there is.
        labels: of its steps, "" for a recording without marks.
        edges: of the steps, one more than labels.
        states: without waiting.
        step: of each kernel, position of the step that launched it.
        kernels: columns of KERNELS but the rank, in order of start.
    """

    rank: int
    host: str
    first_ns: int
    absent: str
    labels: list[str]
    edges: Int
    states: States
    step: Int
    kernels: dict[str, Any]


def rank_timeline(trace: Trace, *, scope: Scope = "all") -> RankTimeline:
    """The part of one rank.

    Args:
        trace: of the rank.
        scope: which GPU work counts, see trace.Scope.
    """
    rank, work = trace.meta.rank, gpu_work(trace, scope)
    if not len(work.event):
        none = np.zeros(0, dtype=np.int64)
        nothing = States(none, none, none, [])
        return RankTimeline(rank, "", 0, no_gpu_work(trace, scope), [], none, nothing, none, {})
    steps = steps_of(trace)
    labels = steps.labels if steps.marked else [""]
    position = trace.arrays.places(trace.work.event)[work.event]
    times = {"stream": work.stream, "ts_ns": work.start, "dur_ns": work.dur}
    kernels = {**times, **activity_texts(trace, work)}
    header = rank, trace.meta.host, int(trace.arrays.start.min())
    of_work = steps.of_work[position]
    return RankTimeline(*header, "", labels, steps.edges, rank_states(trace, scope), of_work, kernels)
