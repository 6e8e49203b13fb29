"""Step times of a recorded run under scenarios: what `project whatif` and the findings both ask."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median_low

import numpy as np

from tracelens.arrays import Int
from tracelens.errors import TracelensError
from tracelens.what_if.graph import Edit, Recorded, StepSpan, TooLong
from tracelens.what_if.replay.profiler_share import (
    ProfilerShare,
    known_step_ns,
    profiler_share,
    scaled,
)
from tracelens.what_if.replay.rerun import varied
from tracelens.what_if.replay.schedule import Delays, EditedSegment
from tracelens.what_if.replay.step import Extent, StepReplay
from tracelens.what_if.scenario import NotApplicable, ScenarioContext, ScenarioRequest

ALL = "all"
"""Selects all steps together."""

_KEPT = 6
"""Edits kept by a projector; each holds some 30 bytes a node and edge."""


@dataclass(frozen=True, eq=False)
class Projection:
    """A step under a scenario; the interval is replayed when it is asked for.

    Attributes:
        request: the scenario, or several together.
        assumed: what each part of it assumes.
        edit: what it changes in the graph.
        typical: the step on each rank, with typical delays.
        step_ns: its duration, mean of the ranks.
    """

    request: ScenarioRequest
    assumed: Sequence[str]
    edit: Edit
    typical: Sequence[Extent]
    step_ns: int
    _step: StepReplay
    _edited: EditedSegment
    _alternatives: Sequence[StepReplay]
    _share: ProfilerShare

    @property
    def low_ns(self) -> int:
        """Of the shortest of all recorded steps, with any delays and host times, mean of the ranks."""
        return min(*self.steps_ns, *self.host_extremes_ns)

    @property
    def high_ns(self) -> int:
        """Of the longest."""
        return max(*self.steps_ns, *self.host_extremes_ns)

    def savings_ns(self, unchanged: Projection) -> list[int]:
        """What each replay saves against its own replay without a scenario; its typical one comes first.

        Where the step without the profiler is known, that is what less or more host time compares with.
        """
        own_extremes = unchanged.host_extremes_ns or [unchanged.step_ns] * len(self.host_extremes_ns)
        before, after = [*unchanged.steps_ns, *own_extremes], [*self.steps_ns, *self.host_extremes_ns]
        return [before_ns - after_ns for before_ns, after_ns in zip(before, after, strict=True)]

    @cached_property
    def rerun_ns(self) -> tuple[int, int]:
        """Of another run with the change, at least and at most: times also differ as they do between runs."""
        graph = self._step.graph
        reruns = [mean_ns(spans(self._step.extents(varied(graph, self.edit, sign)))) for sign in (-1, 1)]
        return min(self.low_ns, *reruns), max(self.high_ns, *reruns)

    @cached_property
    def extents(self) -> Mapping[Delays, Sequence[Extent]]:
        """The step on each rank, by what becomes of unexplained delays."""
        others: tuple[Delays, ...] = ("low", "high")
        replays = {delays: self._step.replayed(self._edited, delays) for delays in others}
        return {"low": replays["low"], "typical": self.typical, "high": replays["high"]}

    @cached_property
    def steps_ns(self) -> list[int]:
        """All recorded steps, with unexplained delays typical, kept and removed, mean of the ranks."""
        extremes: tuple[Delays, ...] = ("low", "high")
        replays = [self.typical, *(self.extents[delays] for delays in extremes)]
        for step in self._alternatives:
            edited = EditedSegment(step.segment, self.edit)
            # Typical delays of other steps lie between.
            replays += [step.replayed(edited, delays) for delays in extremes]
        return [mean_ns(spans(extents)) for extents in replays]

    @cached_property
    def host_extremes_ns(self) -> list[int]:
        """The step with as little and as much host time as it may have; see `ProfilerShare`."""
        extremes = self._share.extremes(self._step.graph, self.edit)
        return [mean_ns(spans(self._step.extents(extreme))) for extreme in extremes]


class Projector:
    """One step of a run, replayed under scenarios.

    Attributes:
        window: the step.
        step_count: number of recorded steps in it: 1, or all of a serving engine.
        single_step_reason: why low and high cover `window` alone, "" if they cover all recorded steps.
        step: its replay.
        alternatives: replays of the other steps they cover.
        recorded: measured duration of `window` on each rank, ns.
        recorded_ns: their mean.
        share: the profiler's share of host time, without which scenarios start.
        base: replayed duration of `window` without it on each rank, ns; `recorded` where it is not known.
        base_ns: their mean.
    """

    def __init__(
        self,
        recorded: Recorded,
        context: ScenarioContext,
        step: str | None = None,
        *,
        unprofiled_step_ms: float | None = None,
    ) -> None:
        """Prepare the replay of a step.

        Args:
            recorded: the run as a graph.
            context: what scenarios may read of it.
            step: "2" for ProfilerStep#2; "all" for all together; by default the one of median duration.
            unprofiled_step_ms: a step without the profiler, in place of what the traces say.
        """
        self.graph, self.context = recorded.graph, context
        self._edits: dict[tuple[tuple[str, str], ...], tuple[Edit, list[str]]] = {}
        serves = any(rank.serves for rank in self.graph.ranks)
        step = ALL if step is None and serves else step
        self.window = _window(recorded, step)
        self.step_count = len(recorded.windows) if step == ALL else 1
        self.single_step_reason = _single_step_reason(recorded, step, serves)
        self.step = StepReplay(self.graph, self.window)
        others = [] if self.single_step_reason else recorded.windows
        self.alternatives = [StepReplay(self.graph, window) for window in others if window is not self.window]
        self.recorded = self.window.spans(self.graph.start, self.graph.end)
        if (self.recorded < 0).any():
            raise TracelensError("a step ends before it begins: clocks of ranks contradict each other")
        self.recorded_ns = mean_ns(self.recorded)
        self.share = self._profiler_share(step, unprofiled_step_ms)
        self.base = self.recorded if self.share.factor == 1 else self._spans(self.share.base(self.graph))
        self.base_ns = mean_ns(self.base)

    def _profiler_share(self, step: str | None, unprofiled_step_ms: float | None) -> ProfilerShare:
        known_ns = known_step_ns(unprofiled_step_ms, [rank.timed_ns for rank in self.graph.ranks])
        if all(rank.cpu_only for rank in self.graph.ranks):
            text = "CPU-only run: the profiler slows the work itself, which stays as recorded"
            return ProfilerShare(limit=text if known_ns is not None else "")
        if step == ALL and known_ns is not None:
            return ProfilerShare(
                limit="all steps together stay as recorded: the profiler's share is known for one step only"
            )

        def replayed_ns(factor: float) -> int:
            return mean_ns(self._spans(scaled(self.graph, Edit.of(self.graph), factor)))

        return profiler_share(known_ns, replayed_ns)

    def _spans(self, edit: Edit) -> Int:
        return spans(self.step.extents(edit))

    def project(self, request: ScenarioRequest) -> Projection:
        """Replay the step under one scenario, or several together.

        Low to high spans all recorded steps with unexplained delays kept, typical and removed, and the step
        with as little and as much host time as it may have without the profiler.

        Raises:
            NotApplicable: the run has nothing that the scenario changes, or nothing of its step is left.
            TracelensError: a duration would exceed that of any step.
        """
        edit, assumed = self._edited(request)
        edited = EditedSegment(self.step.segment, edit)
        typical = self.step.replayed(edited)
        step_ns = mean_ns(spans(typical))
        if step_ns <= 0:
            raise NotApplicable("no step would be left: no GPU work in it waits for anything")
        return Projection(
            request, assumed, edit, typical, step_ns, self.step, edited, self.alternatives, self.share
        )

    @cached_property
    def unchanged(self) -> Projection:
        """The step under no scenario."""
        return self.project(ScenarioRequest("", ()))

    def step_ns(self, request: ScenarioRequest) -> int:
        """The `step_ns` of a projection alone, 0 where nothing of the step is left; raises as `project`."""
        edit, _ = self._edited(request)
        return max(mean_ns(spans(self.step.replayed(EditedSegment(self.step.segment, edit)))), 0)

    def _edited(self, request: ScenarioRequest) -> tuple[Edit, list[str]]:
        """What a request changes in the graph, and what it assumes.

        The last few are kept, so that of several scenarios together only those that are new are applied.
        """
        parts = tuple((item.name, argument) for item, argument in request.parts)
        done = next((count for count in range(len(parts), 0, -1) if parts[:count] in self._edits), 0)
        before, known = self._edits[parts[:done]] if done else (self.share.base(self.graph), [])
        edit, assumed = before.copy(), [*known]
        try:
            for item, argument in request.parts[done:]:
                assumed.append(item.change(self.context, edit, argument))
        except TooLong as error:
            raise TracelensError(
                f"scenario {request.text}: a duration would exceed 1,000 s; choose values closer to the "
                "measured ones"
            ) from error
        self._edits[parts] = edit, assumed
        while len(self._edits) > _KEPT:
            del self._edits[next(iter(self._edits))]
        return edit, assumed


def spans(extents: Sequence[Extent]) -> Int:
    """Duration of a replayed step on each rank, ns."""
    return np.array([extent.dur for extent in extents])


def mean_ns(durations: Int) -> int:
    """Mean of the ranks, whole ns."""
    return round(float(durations.mean()))


def _single_step_reason(recorded: Recorded, step: str | None, serves: bool) -> str:
    """Why other recorded steps do not show how much steps vary; "" if they do."""
    if step == ALL:
        return "all steps together were recorded only once"
    if serves:
        return "every step of a serving engine runs a different batch"
    return "only one step is recorded" if len(recorded.windows) == 1 else ""


def _window(recorded: Recorded, step: str | None) -> StepSpan:
    """The step to replay."""
    graph = recorded.graph
    if step == ALL:
        first, last = recorded.windows[0], recorded.windows[-1]
        return first._replace(label="all steps", end=last.end)
    if step is not None:
        for window in recorded.windows:
            if window.label in (step, f"ProfilerStep#{step}"):
                return window
        known = ", ".join(window.label for window in recorded.windows)
        path = graph.ranks[0].path
        raise TracelensError(f"{path}: no step {step!r} on all ranks (has: {known})")
    durations = [int(window.spans(graph.start, graph.end).sum()) for window in recorded.windows]
    return recorded.windows[durations.index(median_low(durations))]
