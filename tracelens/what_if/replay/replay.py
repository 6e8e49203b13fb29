"""One step of a run under several scenarios: rows of the tables of a what-if."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median_low
from typing import Any, NamedTuple, get_args

import numpy as np

from tracelens.analysis.serving import rank_steps
from tracelens.arrays import Int
from tracelens.errors import TracelensError
from tracelens.table import Table, stack
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
    by_place,
    path_rows,
)
from tracelens.what_if.scenario import NotApplicable, ScenarioContext, ScenarioRequest

Rows = dict[str, Any]

ALL = "all"
"""Asks for all steps together."""

_DOUBTFUL = 0.1
"""Of a step; recordings with their launches, all ranks and several steps are within a fortieth."""

REPLAYS = {
    "as measured": "with nothing changed; what has no reason stays as it was",
    "typical launches": "every launch takes the median time from call to kernel; how far the step then is "
    "from the measured one says how well the graph predicts",
    "no unexplained delays": "what the graph alone explains",
}


class Outcome(NamedTuple):
    """What one scenario came to: rows of the tables of these names.

    Attributes:
        projected_ns: of the step.
        whatif: one row.
        assumptions: one row.
        critical_path: a row a category.
        bottlenecks: a row a name.
        ranks: a row a rank.
    """

    projected_ns: int
    whatif: Rows
    assumptions: Rows
    critical_path: Rows
    bottlenecks: Rows
    ranks: Rows


class Replay:
    """One step of a run, replayed.

    Attributes:
        window: the step.
        alone: why the interval of a projection holds `window` alone, "" where it holds all recorded steps.
        alternatives: the steps that it holds.
        base_ns: its duration as measured, mean over the ranks.
    """

    def __init__(self, recorded: Recorded, scene: ScenarioContext, step: str | None) -> None:
        self.graph, self.scene = recorded.graph, scene
        serves = any(rank_steps(trace).steps for trace in self.graph.run.traces)
        step = ALL if step is None and serves else step
        self.window = _window(recorded, step)
        self.alone = _alone(recorded, step, serves)
        self.alternatives = [self.window] if self.alone else recorded.windows
        self.names = labels(recorded)
        self.base = self.window.spans(self.graph.start, self.graph.end)
        self.base_ns = _mean(self.base)
        same = Edit.of(self.graph)
        self.before: Mapping[str, int] = {}
        self.path, self.bottlenecks, self.before = self._path(MEASURED, same, schedule(self.graph, same))
        self.path["delta_ns"] = [0] * len(self.before)

    def scenario(self, one: ScenarioRequest) -> Outcome:
        """Replay the step as a scenario, or several together, have it.

        The interval goes from the shortest to the longest of all recorded steps under all readings of
        unexplained delays, the projected step among them. One step alone may be shorter with more delays
        left: they may move its begin, when the GPU is done with the step before, further than its end.

        Raises:
            NotApplicable: the run has nothing of what it changes, or nothing of its step is left.
            TracelensError: something in it would take longer than any step.
        """
        edit = Edit.of(self.graph)
        try:
            assumed = [item.change(self.scene, edit, argument) for item, argument in one.parts]
        except TooLong as error:
            raise TracelensError(
                f"scenario {one.text}: something would take over 1,000 s; give numbers closer to what was "
                "measured"
            ) from error
        times = {delays: schedule(self.graph, edit, delays) for delays in get_args(Delays)}
        path, bottlenecks, parts = self._path(one.text, edit, times["typical"])
        typical = self.window.spans(times["typical"].start, times["typical"].end)
        projected = _mean(typical)
        if projected <= 0:
            raise NotApplicable("nothing of the step is left: no GPU work in it waits for anything")
        steps = [
            _mean(window.spans(at.start, at.end)) for at in times.values() for window in self.alternatives
        ]
        row = {
            "scenario": one.text,
            "base_ns": self.base_ns,
            "projected_ns": projected,
            "low_ns": min(steps),
            "high_ns": max(steps),
            "gain": self.base_ns / max(projected, 1) - 1,
            "bottleneck": next(iter(parts), ""),
        }
        told = {
            "scenario": one.text,
            "change": " ".join(dict.fromkeys(item.doc for item, _ in one.parts)),
            "assumption": "; ".join(dict.fromkeys(assumed)),
        }
        ranks = {
            "scenario": [one.text] * len(typical),
            "rank": np.array(self.graph.run.ranks),
            "base_ns": self.base,
            "projected_ns": typical,
        }
        return Outcome(projected, _single(row), _single(told), path, bottlenecks, ranks)

    def explained(self) -> Table:
        """EXPLAINED: replays without what has no reason."""
        whole = max(sum(self.before.values()), 1)
        edits = (Edit.of(self.graph), typical_launches(self.graph), edges_alone(self.graph))
        times = [schedule(self.graph, edit, "high") for edit in edits]
        took = [_mean(self.window.spans(one.start, one.end)) for one in times]
        return EXPLAINED.table(
            {
                "replay": list(REPLAYS),
                "base_ns": [self.base_ns] * len(took),
                "replayed_ns": took,
                "error": [ns / max(self.base_ns, 1) - 1 for ns in took],
                "unexplained_fraction": [self.before.get(UNEXPLAINED, 0) / whole, -1.0, -1.0],
                "meaning": list(REPLAYS.values()),
            }
        )

    def tables(self, found: Sequence[Outcome]) -> dict[str, Table]:
        """All tables; scenarios best first, and paths with the measured one ahead."""
        ordered = sorted(found, key=lambda one: one.projected_ns)
        return {
            "whatif": stack(WHATIF, [one.whatif for one in ordered]),
            "assumptions": stack(ASSUMPTIONS, [one.assumptions for one in ordered]),
            "critical_path": by_place(CRITICAL_PATH, [self.path, *(one.critical_path for one in ordered)]),
            "bottlenecks": by_place(BOTTLENECKS, [self.bottlenecks, *(one.bottlenecks for one in ordered)]),
            "explained": self.explained(),
            "ranks": stack(STEP_RANKS, [one.ranks for one in ordered]),
        }

    def _path(self, name: str, edit: Edit, times: Times) -> tuple[Rows, Rows, dict[str, int]]:
        """Rows of CRITICAL_PATH and of BOTTLENECKS, and the path's parts by category, most first."""
        path = critical_path(self.graph, self.names, self.window, times, edit.lag)
        ranks = self.graph.run.ranks
        rows = path_rows(name, path, self.before)
        return rows, bottleneck_rows(name, path, self.names, ranks, self.graph.rank), path.by_category()


def doubt(explained: Table) -> str:
    """Why projections cannot be trusted, from EXPLAINED; "" where the graph explains the step."""
    missed, unexplained = explained.array("error"), float(explained.array("unexplained_fraction")[0])
    if max(unexplained, float(np.abs(missed).max())) <= _DOUBTFUL:
        return ""
    return (
        f"{unexplained:.0%} of its critical path has no reason in the trace, and without unexplained delays "
        f"the replay is {missed[-1]:+.0%} off, so projections are hardly to be trusted; give all ranks, "
        "recorded with launch calls over several steps"
    )


def _alone(recorded: Recorded, step: str | None, serves: bool) -> str:
    """Why other recorded steps do not say how much the step may differ; "" where they do."""
    if step == ALL:
        return "all steps together are recorded once"
    if serves:
        return "each step of a serving engine is another batch"
    return "one step is recorded" if len(recorded.windows) == 1 else ""


def _window(recorded: Recorded, step: str | None) -> StepSpan:
    """The step that is looked at."""
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
    spans = [int(one.spans(graph.start, graph.end).sum()) for one in recorded.windows]
    return recorded.windows[spans.index(median_low(spans))]


def _single(row: Mapping[str, Any]) -> Rows:
    return {name: [value] for name, value in row.items()}


def _mean(spans: Int) -> int:
    return round(float(spans.mean()))
