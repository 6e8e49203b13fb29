"""Steps: the GPU's work by the step whose host window launched it.

The host windows of the steps follow one another, each from its mark to the next one's, the last until its
mark ends. Work belongs to the step in whose window it was launched. A step begins on the GPU when all that
was launched before it is done, or where the GPU was idle then, when its mark began; it ends where the next
one begins, the last when its work is done and its mark has ended.
"""

from collections import defaultdict
from typing import NamedTuple

from tests.reference.raw import Recording, Work, clipped, length

OUTSIDE = "outside"


class Step(NamedTuple):
    """One step on the GPU.

    Attributes:
        busy: ns of it in which any GPU work runs, whoever launched it.
        kernel: sum of the durations of what it launched.
        count: kernels, copies and memsets that it launched.
    """

    name: str
    start: int
    end: int
    busy: int
    kernel: int
    count: int


class Steps(NamedTuple):
    """All steps of one rank, and what belongs to none.

    Attributes:
        window: first start to last end of all work.
        busy: union of all work.
        outside_ns: of the window, not in a step.
        outside_kernel: sum of durations of the work that no recorded step launched.
        outside_count: its number.
    """

    steps: list[Step]
    window: tuple[int, int]
    busy: int
    outside_ns: int
    outside_kernel: int
    outside_count: int


def steps(recording: Recording) -> Steps:
    owner = owners(recording)
    edges = step_edges(recording, owner)
    names = [mark.name for mark in recording.steps]
    intervals = [(work.start, work.end) for work in recording.work]
    kernel: dict[str, list[int]] = defaultdict(list)
    for work, name in zip(recording.work, owner, strict=True):
        kernel[name].append(work.dur)
    rows = [
        Step(name, low, high, length(clipped(intervals, low, high)), sum(kernel[name]), len(kernel[name]))
        for name, low, high in zip(names, edges[:-1], edges[1:], strict=True)
    ]
    window = min(start for start, _ in intervals), max(end for _, end in intervals)
    inside = sum(max(min(step.end, window[1]) - max(step.start, window[0]), 0) for step in rows)
    outside = kernel[OUTSIDE]
    return Steps(rows, window, length(intervals), window[1] - window[0] - inside, sum(outside), len(outside))


def owners(recording: Recording) -> list[str]:
    """Name of the step of each piece of work.

    A stream runs its work in the order of the launches. So work whose launch is not recorded belongs to the
    step of the work before it on its stream, and to none where no work with a launch comes before it: that
    was launched before the recording began.
    """
    before: dict[tuple[str, str], str] = {}
    linked = {(work.device, work.stream) for work in recording.work if work.called is not None}
    names = []
    for work in recording.work:
        lane = work.device, work.stream
        if work.called is not None or lane not in linked:
            # Of a stream without any recorded launch, its own start has to do.
            before[lane] = _host_step(recording, work)
        names.append(before.get(lane, OUTSIDE))
    return names


def _host_step(recording: Recording, work: Work) -> str:
    time = work.start if work.called is None else work.called
    marks = recording.steps
    if marks and time >= marks[-1].end:
        return OUTSIDE
    return next((mark.name for mark in reversed(marks) if mark.start <= time), OUTSIDE)


def step_edges(recording: Recording, owner: list[str]) -> list[int]:
    """Begin of each step, and the end of the last."""
    if not recording.steps:
        return []
    ends: dict[str, int] = {}
    for work, name in zip(recording.work, owner, strict=True):
        if name == OUTSIDE and work.called is not None and work.called >= recording.steps[-1].end:
            continue  # launched after the last step
        ends[name] = max(ends.get(name, work.end), work.end)
    edges, done = [], ends.get(OUTSIDE, recording.steps[0].start)
    for mark in recording.steps:
        edges.append(max(mark.start, done))
        done = max(done, ends.get(mark.name, done))
    return [*edges, max(done, recording.steps[-1].end)]
