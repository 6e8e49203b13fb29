"""Replays one step of a run under several scenarios, and makes the rows of the what-if tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median_low
from typing import Any, NamedTuple, get_args

import numpy as np

from tracelens.analysis.serving import rank_steps
from tracelens.arrays import Int
from tracelens.errors import TracelensError
from tracelens.table import Table
from tracelens.what_if.graph import Edit, Recorded, StepSpan, TooLong
from tracelens.what_if.replay.check import edges_alone, typical_launches
from tracelens.what_if.replay.labels import labels
from tracelens.what_if.replay.path import UNEXPLAINED, critical_path
from tracelens.what_if.replay.schedule import Delays, Times, schedule
from tracelens.what_if.replay.tables import (
    ASSUMPTIONS,
    BOTTLENECKS,
    CRITICAL_PATH,
    EXPLAINED,
    MEASURED,
    STEP_RANKS,
    WHATIF,
    bottleneck_rows,
    interleaved,
    path_rows,
)
from tracelens.what_if.scenario import NotApplicable, ScenarioContext, ScenarioRequest

Rows = dict[str, Any]

ALL = "all"
"""Selects all steps together."""

_DOUBTFUL = 0.1
"""Largest trusted share of a step; recordings of all ranks and several steps stay within 1/40."""

REPLAYS = {
    "as measured": "nothing changed, unexplained delays kept",
    "typical launches": "every launch takes the median time from call to kernel; the error shows how well "
    "the graph predicts the step",
    "no unexplained delays": "what the graph alone explains",
}


class Outcome(NamedTuple):
    """The result of one scenario: rows of the tables of these names."""

    projected_ns: int  # of the step
    whatif: Rows
    assumptions: Rows
    critical_path: Rows  # one row per category
    bottlenecks: Rows  # one row per name
    ranks: Rows  # one row per rank


class Replay:
    """One step of a run, replayed.

    Attributes:
        window: the step.
        single_step_reason: why low and high cover `window` alone, "" if they cover all recorded steps.
        alternatives: the steps they cover.
        base_ns: measured duration of `window`, mean over ranks.
    """

    def __init__(self, recorded: Recorded, context: ScenarioContext, step: str | None) -> None:
        self.graph, self.context = recorded.graph, context
        serves = any(rank_steps(trace).steps for trace in self.graph.run.traces)
        step = ALL if step is None and serves else step
        self.window = _window(recorded, step)
        self.single_step_reason = _single_step_reason(recorded, step, serves)
        self.alternatives = [self.window] if self.single_step_reason else recorded.windows
        self.names = labels(recorded)
        self.base = self.window.spans(self.graph.start, self.graph.end)
        if (self.base < 0).any():
            raise TracelensError("a step ends before it begins: clocks of ranks contradict each other")
        self.base_ns = _mean(self.base)
        same = Edit.of(self.graph)
        self.before: Mapping[str, int] = {}
        self.path, self.bottlenecks, self.before = self._path(MEASURED, same, schedule(self.graph, same))
        self.path["delta_ns"] = [0] * len(self.before)

    def scenario(self, request: ScenarioRequest) -> Outcome:
        """Replay the step under one scenario, or several together.

        Low to high spans all recorded steps with unexplained delays kept, typical and removed. A single step
        may get shorter with more delays kept: they may move its begin, when the GPU is done with the step
        before, further than its end.

        Raises:
            NotApplicable: the run has nothing that the scenario changes, or nothing of its step is left.
            TracelensError: a duration would exceed that of any step.
        """
        edit = Edit.of(self.graph)
        try:
            assumed = [item.change(self.context, edit, argument) for item, argument in request.parts]
        except TooLong as error:
            raise TracelensError(
                f"scenario {request.text}: a duration would exceed 1,000 s; choose values closer to the "
                "measured ones"
            ) from error
        times = {delays: schedule(self.graph, edit, delays) for delays in get_args(Delays)}
        path, bottlenecks, parts = self._path(request.text, edit, times["typical"])
        typical = self.window.spans(times["typical"].start, times["typical"].end)
        projected = _mean(typical)
        if projected <= 0:
            raise NotApplicable("nothing of the step is left: no GPU work in it waits for anything")
        steps = [
            _mean(window.spans(replayed.start, replayed.end))
            for replayed in times.values()
            for window in self.alternatives
        ]
        row = {
            "scenario": request.text,
            "base_ns": self.base_ns,
            "projected_ns": projected,
            "low_ns": min(steps),
            "high_ns": max(steps),
            "gain": self.base_ns / max(projected, 1) - 1,
            "bottleneck": next(iter(parts), ""),
        }
        assumption_row = {
            "scenario": request.text,
            "change": " ".join(dict.fromkeys(item.doc for item, _ in request.parts)),
            "assumption": "; ".join(dict.fromkeys(assumed)),
        }
        ranks = {
            "scenario": [request.text] * len(typical),
            "rank": np.array(self.graph.run.ranks),
            "base_ns": self.base,
            "projected_ns": typical,
        }
        return Outcome(projected, _single(row), _single(assumption_row), path, bottlenecks, ranks)

    def explained(self) -> Table:
        """EXPLAINED: the step replayed unchanged, with typical launches, and without unexplained delays."""
        path_ns = max(sum(self.before.values()), 1)
        edits = (Edit.of(self.graph), typical_launches(self.graph), edges_alone(self.graph))
        times = [schedule(self.graph, edit, "high") for edit in edits]
        replayed_ns = [_mean(self.window.spans(replayed.start, replayed.end)) for replayed in times]
        return EXPLAINED.table(
            {
                "replay": list(REPLAYS),
                "base_ns": [self.base_ns] * len(replayed_ns),
                "replayed_ns": replayed_ns,
                "error": [ns / max(self.base_ns, 1) - 1 for ns in replayed_ns],
                "unexplained_fraction": [self.before.get(UNEXPLAINED, 0) / path_ns, -1.0, -1.0],
                "meaning": list(REPLAYS.values()),
            }
        )

    def tables(self, outcomes: Sequence[Outcome]) -> dict[str, Table]:
        """All tables; scenarios best first, the measured path before the projected ones."""
        ordered = sorted(outcomes, key=lambda outcome: outcome.projected_ns)
        return {
            "whatif": WHATIF.concat([outcome.whatif for outcome in ordered]),
            "assumptions": ASSUMPTIONS.concat([outcome.assumptions for outcome in ordered]),
            "critical_path": interleaved(
                CRITICAL_PATH, [self.path, *(outcome.critical_path for outcome in ordered)]
            ),
            "bottlenecks": interleaved(
                BOTTLENECKS, [self.bottlenecks, *(outcome.bottlenecks for outcome in ordered)]
            ),
            "explained": self.explained(),
            "ranks": STEP_RANKS.concat([outcome.ranks for outcome in ordered]),
        }

    def _path(self, name: str, edit: Edit, times: Times) -> tuple[Rows, Rows, dict[str, int]]:
        """Rows of CRITICAL_PATH and of BOTTLENECKS, and the path's parts by category, most first."""
        path = critical_path(self.graph, self.names, self.window, times, edit.lag)
        ranks = self.graph.run.ranks
        rows = path_rows(name, path, self.before)
        return rows, bottleneck_rows(name, path, self.names, ranks, self.graph.rank), path.by_category()


def reliability_warning(explained: Table) -> str:
    """Why projections are unreliable, from EXPLAINED; "" if the graph explains the step."""
    missed, unexplained = explained.array("error"), float(explained.array("unexplained_fraction")[0])
    if max(unexplained, float(np.abs(missed).max())) <= _DOUBTFUL:
        return ""
    return (
        f"projections are unreliable: {unexplained:.0%} of the critical path is unexplained, and without "
        f"unexplained delays the replay is off by {missed[-1]:+.0%}; record all ranks with launch calls over "
        "several steps"
    )


def _single_step_reason(recorded: Recorded, step: str | None, serves: bool) -> str:
    """Why other recorded steps do not show how much steps vary; "" if they do."""
    if step == ALL:
        return "all steps together occur once"
    if serves:
        return "every step of a serving engine runs a different batch"
    return "only one step is recorded" if len(recorded.windows) == 1 else ""


def _window(recorded: Recorded, step: str | None) -> StepSpan:
    """The step to replay."""
    graph = recorded.graph
    if step == ALL:
        first, last = recorded.windows[0], recorded.windows[-1]
        return StepSpan("all steps", first.begin, last.end)
    if step is not None:
        for window in recorded.windows:
            if window.label in (step, f"ProfilerStep#{step}"):
                return window
        known = ", ".join(window.label for window in recorded.windows)
        path = graph.run.traces[0].meta.path
        raise TracelensError(f"{path}: no step {step!r} on all ranks (has: {known})")
    spans = [int(window.spans(graph.start, graph.end).sum()) for window in recorded.windows]
    return recorded.windows[spans.index(median_low(spans))]


def _single(row: Mapping[str, Any]) -> Rows:
    return {name: [value] for name, value in row.items()}


def _mean(spans: Int) -> int:
    return round(float(spans.mean()))
