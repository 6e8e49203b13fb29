"""Step times of a recorded run under scenarios: what `project whatif` and the findings both ask.

The profiler slows the host down, by a little in each op and call, and leaves kernels nearly as they are. So
a recorded step is more launch-bound than the same step is without it, and savings of host time look too
large. Where the step's time without the profiler is known, scenarios start from the likeliest factor on all
host time: near the usual one, and near that which makes the replay take so long.

Measured on 47 recordings on H100s and H200s (torch 2.11; the bundled workload, plain torch, and a dozen
families of the Hugging Face library; one to four GPUs), with 14 or more steps timed without the profiler just
before. In the 15 whose host alone decides the step, the factor is 0.42 to 0.62, 0.57 in the median with a
deviation of 0.05. Where the GPU is nearly as slow as the host, the factor that fits is larger, up to 1, and
does not hold once the GPU has less to do: three such runs with fewer tokens took what 0.57 tells. One factor
is an average over calls, and another program makes others: from before a change to after it, it became 0.66
to 1.23 of itself (six pairs). So intervals of what changes the host reach from `LOWER_HOST_SHARE` to
`UPPER_HOST_SHARE` of the host time that is left.

Another run with the change differs from its replay as runs differ from each other: in host and GPU times, by
the RERUN shares (`varied`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from tracelens.arrays import Int, steady_steps, typical_step
from tracelens.errors import TracelensError
from tracelens.units import duration
from tracelens.what_if.graph import Edge, Edit, Recorded, RunGraph, StepSpan, TooLong, times
from tracelens.what_if.replay.schedule import Delays, EditedSegment, SteadyStep, StepReplay
from tracelens.what_if.scenario import NotApplicable, ScenarioContext, ScenarioRequest
from tracelens.what_if.thresholds import (
    CALIBRATED,
    HOST_SHARE_DEVIATION,
    LEAST_HOST_SHARE,
    LOWER_HOST_SHARE,
    NOTEWORTHY,
    PAUSE_DEVIATION,
    PAUSE_NS,
    REPLAY_DEVIATION,
    RERUN_CHANGED_SHARE,
    RERUN_GPU_SHARE,
    RERUN_HOST_SHARE,
    UNKNOWN_HOST_SHARE,
    UPPER_HOST_SHARE,
    USUAL_HOST_SHARE,
)

if TYPE_CHECKING:
    from tracelens.table import Table

ALL = "all"
"""Selects all steps together."""
_KEPT = 4
"""Edits kept by a projector."""


class Projection(Struct, frozen=True, eq=False, dict=True):
    """A step under a scenario; the interval is replayed when it is asked for."""

    request: ScenarioRequest  # the scenario, or several together
    assumed: Sequence[str]  # what each part of it assumes
    edit: Edit  # what it changes in the graph
    typical: SteadyStep  # the step, with typical delays
    step_ns: int  # its duration, mean of the ranks
    _projector: Projector
    _edited: EditedSegment

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
        """Of another run with the change, at least and at most: times also differ as they do between runs.

        As wide as it takes to hold 90% of what runs with a change measured, see `CALIBRATED`.
        """
        graph, projector = self._projector.graph, self._projector
        reruns = [projector.replayed_ns(varied(graph, self.edit, sign)) for sign in (-1, 1)]
        below, above = self.step_ns - min(self.low_ns, *reruns), max(self.high_ns, *reruns) - self.step_ns
        return max(self.step_ns - round(CALIBRATED * below), 0), self.step_ns + round(CALIBRATED * above)

    @cached_property
    def steps_ns(self) -> list[int]:
        """All recorded steps, with unexplained delays typical, kept and removed, mean of the ranks.

        Typical delays of other steps lie between.
        """
        extremes: tuple[Delays, ...] = ("low", "high")
        step, others = self._projector.step, self._projector.alternatives
        edited = [(step, self._edited)]
        edited += [(other, other.edited(self.edit)) for other in others]
        replays = [replay.replayed(segment, delays) for replay, segment in edited for delays in extremes]
        return [self.step_ns, *(mean_ns(replay.dur) for replay in replays)]

    @cached_property
    def host_extremes_ns(self) -> list[int]:
        """The step with as little and as much host time as it may have; see `ProfilerShare`."""
        projector = self._projector
        extremes = projector.share.extremes(projector.graph, projector.base_edit, self.edit)
        replays = [projector.step.replayed(self._edited.with_lag(extreme.lag)) for extreme in extremes]
        return [mean_ns(replay.dur) for replay in replays]


class Projector:
    """The steps of a run, replayed under scenarios; one of them is projected."""

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
            step: "2" for ProfilerStep#2; "all" for all together; by default the one of median duration,
                without the first.
            unprofiled_step_ms: a step without the profiler, in place of what the traces say.
        """
        self.graph, self.context = recorded.graph, context
        self._edits: dict[tuple[tuple[str, str], ...], tuple[Edit, list[str]]] = {}
        serves = any(rank.serves for rank in self.graph.ranks)
        step = ALL if step is None and serves else step
        self.window = _window(recorded, step)
        # The number of recorded steps in it: 1, or all of a serving engine.
        self.step_count = len(recorded.windows) if step == ALL else 1
        # Why low and high cover `window` alone, "" if they cover all recorded steps.
        self.single_step_reason = ""
        if step == ALL:
            self.single_step_reason = "all steps together were recorded only once"
        elif serves:
            self.single_step_reason = "every step of a serving engine runs a different batch"
        elif len(recorded.windows) == 1:
            self.single_step_reason = "only one step is recorded"
        self.step = StepReplay(self.graph, self.window)
        # Replays of the other steps that low and high cover.
        steady = steady_steps(len(recorded.windows), len(self.graph.ranks))
        others = [] if self.single_step_reason else recorded.windows[steady.start if len(steady) > 1 else 0 :]
        self.alternatives = [StepReplay(self.graph, window) for window in others if window is not self.window]
        # Measured duration of `window` on each rank, ns, and the mean.
        self.recorded = self.step.recorded
        if (self.recorded < 0).any():
            raise TracelensError("a step ends before it begins: clocks of ranks contradict each other")
        self.recorded_ns = mean_ns(self.recorded)
        # The profiler's share of host time, and the step without it, from which scenarios start.
        self.share = self._profiler_share(step, unprofiled_step_ms)
        self.base_edit = self.share.base(self.graph)
        self.base = self.recorded if self.share.as_recorded else self._spans(self.base_edit)
        self.base_ns = mean_ns(self.base)
        # How much of the step the graph explains, where that has been worked out.
        self.explained: Table | None = None

    def _profiler_share(self, step: str | None, unprofiled_step_ms: float | None) -> ProfilerShare:
        # The step without the profiler: as the user gives it, else the mean of the ranks that timed theirs.
        timed_ns = [rank.timed_ns for rank in self.graph.ranks if rank.timed_ns > 0]
        known_ns = float(np.mean(timed_ns)) if timed_ns else None
        if unprofiled_step_ms is not None:
            known_ns = unprofiled_step_ms * 1e6
        if all(rank.cpu_only for rank in self.graph.ranks):
            text = "CPU-only run: the profiler slows the work itself, which stays as recorded"
            return ProfilerShare(limit=text if known_ns is not None else "")
        if step == ALL and known_ns is not None:
            return ProfilerShare(
                limit="all steps together stay as recorded: the profiler's share is known for one step only"
            )

        def scaled_ns(factor: float, pauses: float = 1.0) -> int:
            return self.replayed_ns(scaled(self.graph, Edit.recorded(self.graph), factor, pauses))

        return profiler_share(known_ns, scaled_ns)

    def replayed_ns(self, edit: Edit) -> int:
        """The edited step, mean of the ranks."""
        return mean_ns(self._spans(edit))

    def _spans(self, edit: Edit) -> Int:
        return self.step.steady(edit).dur

    def project(self, request: ScenarioRequest) -> Projection:
        """Replay the run under one scenario, or several together.

        Low to high spans all recorded steps with unexplained delays kept, typical and removed, and the step
        with as little and as much host time as it may have without the profiler.

        Raises:
            NotApplicable: the run has nothing that the scenario changes, or nothing of its step is left.
            TracelensError: a duration would exceed that of any step.
        """
        edit, assumed = self._edited(request)
        edited = self.step.edited(edit)
        typical = self.step.replayed(edited)
        step_ns = mean_ns(typical.dur)
        if step_ns <= 0:
            raise NotApplicable("no step would be left: no GPU work in it waits for anything")
        return Projection(
            request=request,
            assumed=assumed,
            edit=edit,
            typical=typical,
            step_ns=step_ns,
            _projector=self,
            _edited=edited,
        )

    @cached_property
    def unchanged(self) -> Projection:
        return self.project(ScenarioRequest("", ()))

    def step_ns(self, request: ScenarioRequest) -> int:
        """The `step_ns` of a projection alone, 0 where nothing of the step is left; raises as `project`."""
        edit, _ = self._edited(request)
        return max(self.replayed_ns(edit), 0)

    def _edited(self, request: ScenarioRequest) -> tuple[Edit, list[str]]:
        """What a request changes in the graph, and what it assumes.

        The last few are kept, so that of several scenarios together only those that are new are applied.
        """
        parts = tuple((item.name, argument) for item, argument in request.parts)
        done = next((count for count in range(len(parts), 0, -1) if parts[:count] in self._edits), 0)
        before, known = self._edits[parts[:done]] if done else (self.base_edit, [])
        edit, assumed = before.copy(), [*known]
        try:
            for item, argument in request.parts[done:]:
                assumed.append(item.change(self.context, edit, argument))
        except TooLong as error:
            raise TracelensError(
                f"scenario {request.text}: a duration would exceed 1,000 s; choose values closer to the "
                "measured ones"
            ) from error
        edit.share(before)
        self._edits[parts] = edit, assumed
        while len(self._edits) > _KEPT:
            del self._edits[next(iter(self._edits))]
        return edit, assumed


_CLOSE = 1e-4
"""Relative distance at which a replayed step counts as the one looked for."""


class ProfilerShare(Struct, frozen=True):
    """How a recorded step becomes the step without the profiler."""

    factor: float = 1.0  # of host time but its pauses; 1 keeps it as recorded
    pauses: float = 1.0  # factor of those
    known_ns: float | None = None  # the step without the profiler, None if unknown
    # share of the projected step's host time to which intervals reach down; 1 where they need not
    lower: float = 1.0
    # why the replay does not take `known_ns`, or what is not known; "" if there is nothing to tell
    limit: str = ""

    @property
    def as_recorded(self) -> bool:
        return self.factor == self.pauses == 1

    def base(self, graph: RunGraph) -> Edit:
        """What scenarios start from, on copies of it."""
        return scaled(graph, Edit.recorded(graph), self.factor, self.pauses)

    @property
    def upper(self) -> float:
        """Share of the projected step's host time to which intervals reach up: to the recorded at most."""
        return min(UPPER_HOST_SHARE, 1 / self.factor)

    def extremes(self, graph: RunGraph, base: Edit, edit: Edit) -> list[Edit]:
        """An edit with as little, and with as much host time as it may have without the profiler.

        None where the recording tells the factor, and the edit leaves the host as it is.
        """
        host_time = graph.host_time
        is_same = edit.kept[host_time].all() and np.array_equal(edit.lag[host_time], base.lag[host_time])
        if not self.as_recorded and is_same:
            return []
        return [scaled(graph, edit, share) for share in (self.lower, self.upper) if share != 1]


def mean_ns(durations: Int) -> int:
    """Mean of the ranks, whole ns."""
    return round(float(durations.mean()))


def _window(recorded: Recorded, step: str | None) -> StepSpan:
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
    return recorded.windows[typical_step(durations, len(graph.ranks))]


def scaled(graph: RunGraph, edit: Edit, factor: float, pauses: float = 1.0) -> Edit:
    """An edit with the host's time, between its calls and from thread to thread, times a factor.

    Of time without a call what is beyond `PAUSE_NS` is a pause, with a factor of its own.
    """
    if factor == pauses == 1:
        return edit
    host_time = graph.host_time
    result = replace(edit, lag=edit.lag.copy())
    lag = edit.lag[host_time]
    changed, paused = times(np.minimum(lag, PAUSE_NS), factor), np.flatnonzero(lag > PAUSE_NS)
    changed[paused] += times(lag[paused] - PAUSE_NS, pauses)
    result.lag[host_time] = changed
    return result


def profiler_share(known_ns: float | None, replayed_ns: Callable[..., int]) -> ProfilerShare:
    """The share with which a replayed step takes as long as it does without the profiler, if that is known.

    `replayed_ns` is the step with host time times a factor, and its pauses times another one; it does not
    fall with either.
    """
    if known_ns is None:
        text = (
            f"unknown: host time stays as recorded, and low assumes down to {UNKNOWN_HOST_SHARE:g} of it "
            "(measured without the profiler: 0.34 to 0.82); record with tracelens.record(..., "
            "pace_steps=20) or pass --unprofiled-step-ms (unprofiled_step_ms=)"
        )
        return ProfilerShare(lower=UNKNOWN_HOST_SHARE, limit=text)
    recorded_ns = replayed_ns(1.0)
    pauses_ns = (recorded_ns - replayed_ns(1.0, 1 - _STEP)) / _STEP
    replayed = {1.0: recorded_ns, LEAST_HOST_SHARE: replayed_ns(LEAST_HOST_SHARE)}
    share, last = ProfilerShare(USUAL_HOST_SHARE), 0.0
    while abs(share.factor - last) > _CLOSE and len(replayed) < _MOST_REPLAYS:
        replayed[share.factor] = replayed_ns(share.factor)
        share, last = _likeliest(known_ns, pauses_ns, replayed), share.factor
    base_ns = replayed_ns(share.factor, share.pauses)
    longer_ns = replayed_ns(min(share.factor + HOST_SHARE_DEVIATION, 1), share.pauses)
    tells = longer_ns - base_ns > REPLAY_DEVIATION * known_ns
    share = replace(share, lower=LOWER_HOST_SHARE if tells else UNKNOWN_HOST_SHARE)
    if abs(known_ns / base_ns - 1) <= NOTEWORTHY:
        return share
    why = f"host time is {share.factor:.2f} of the recorded"
    if pauses_ns > NOTEWORTHY * recorded_ns:
        why += f", and pauses of the host {share.pauses:.2f}"
    elif share.factor == 1:
        why = "host time stays as recorded"
    elif not tells:
        why += ", as it usually is; less or more would not change the step, which is GPU-bound"
    limit = (
        f"the step takes {duration(known_ns)} without the profiler and {duration(base_ns)} in the replay, "
        f"the baseline of projections: {why}"
    )
    return replace(share, limit=limit)


_STEP = 0.1
"""By how much factors are varied."""
_MOST_REPLAYS = 20
_EXACT = 0.002
"""Relative deviation of a step that the host alone decides."""
_NEAR = 0.03
"""Distance of two factors that are the same for all that is known."""


def _likeliest(known_ns: float, pauses_ns: float, replayed: Mapping[float, int]) -> ProfilerShare:
    """The factors with the least squares of deviations: theirs from the usual, the step's from `known_ns`.

    A replay is as exact as its step is the host's: where others decide, it leaves out how they hold each
    other up. `replayed` has the step of some factors, to interpolate in, as steps grow convexly with them.
    What the step takes longer without the profiler than recorded no factor explains.
    """
    factors = np.linspace(LEAST_HOST_SHARE, 1, 1001)
    step_ns = np.interp(factors, sorted(replayed), [replayed[factor] for factor in sorted(replayed)])
    slope = np.gradient(step_ns, factors)
    decided = np.clip((slope * factors + pauses_ns) / np.maximum(step_ns, 1), 0, 1)
    deviation_ns = known_ns * (REPLAY_DEVIATION * (1 - decided) + _EXACT)
    off_ns = min(known_ns, replayed[1.0]) - step_ns
    # The pauses that fit each factor best, in closed form: the squares are a parabola in them.
    pauses = off_ns * pauses_ns / (pauses_ns**2 + (deviation_ns / PAUSE_DEVIATION) ** 2)
    squares = ((factors - USUAL_HOST_SHARE) / HOST_SHARE_DEVIATION) ** 2
    squares += (pauses / PAUSE_DEVIATION) ** 2 + ((off_ns - pauses * pauses_ns) / deviation_ns) ** 2
    best = int(np.argmin(squares))
    factor, pause = float(factors[best]), float(pauses[best])
    # So near to the one that fits, the usual factor has no say.
    fits = float(np.interp(known_ns - pause * pauses_ns, step_ns, factors))
    return ProfilerShare(fits if abs(fits - factor) < _NEAR else factor, 1 + pause, known_ns)


def varied(graph: RunGraph, edit: Edit, sign: int) -> Edit:
    """The edit with all host and GPU times longer (sign 1) or shorter (-1) by their shares."""
    result = Edit(edit.dur.copy(), edit.delay, edit.lag.copy(), edit.kept)
    host = graph.is_edge(Edge.HOST, Edge.HANDOVER, Edge.ORDER)
    result.lag[host] = times(edit.lag[host], 1 + sign * RERUN_HOST_SHARE)
    share = np.where(edit.dur != graph.dur, RERUN_CHANGED_SHARE, RERUN_GPU_SHARE)
    nodes = np.flatnonzero(edit.dur)
    result.dur[nodes] = times(edit.dur[nodes], 1 + sign * share[nodes])
    return result
