"""Savings by replay: the step under the scenario of each remedy, and under several together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TypeVar

from tracelens.errors import TracelensError, UnknownName
from tracelens.findings.candidates import Candidate, Saving
from tracelens.guard import Failure, guard
from tracelens.table import Skip
from tracelens.what_if import (
    DOUBTFUL,
    Projector,
    Replay,
    ScenarioRequest,
    doubt,
    parse_request,
    reliability_warning,
)

T = TypeVar("T")

SUBJECT = "savings by replay"
NO_SCENARIO = "no scenario models the remedy"
NOT_REGISTERED = "there is no scenario {}"
UNRELIABLE = "the run's dependency graph does not explain the step"


class Replays:
    """Step times under scenarios, each replayed once.

    Attributes:
        base_ns: the step as recorded, mean of the ranks.
        step_count: number of recorded steps in it: 1, or all of a serving engine.
        meta: which step that is.
        skips: why there are no replays, or why they are unreliable.
    """

    def __init__(self, projector: Projector | Skip, step_ns: float) -> None:
        """Prepare replays.

        Args:
            projector: of the run, or why it has none.
            step_ns: mean duration of a step, for a run without a projector.
        """
        self.skips: list[Skip] = []
        self.base_ns, self.step_count, self.meta = step_ns, 1, dict[str, str | int]()
        self._projector: Projector | None = None
        # Of several scenarios together by their text, which a user can replay.
        self._step_ns: dict[str, float | None] = {"": step_ns}
        if isinstance(projector, Skip):
            self.skips.append(projector)
            return
        self._projector = projector
        self.base_ns, self.step_count = float(projector.base_ns), projector.step_count
        self._step_ns[""] = self.base_ns
        self.meta = {"step": projector.window.label, "base_ns": projector.base_ns}

    @cached_property
    def doubt(self) -> float:
        """Share of the step that the graph does not explain, 1 where that is unknown; worked out if used."""
        if self._projector is None:
            return 1.0
        explained = guard("trust in the graph", Replay(self._projector).explained)
        if isinstance(explained, Failure):
            self.skips.append(Skip(SUBJECT, explained))
            return 1.0
        if warning := reliability_warning(explained):
            self.skips.append(Skip(SUBJECT, warning))
        return doubt(explained)

    def sized(self, candidate: Candidate) -> Candidate:
        """A candidate with what the replay of its scenario saves; where there is none, with its estimate."""
        saving, scenario = candidate.saving, candidate.request
        replayed = self._asked(scenario, _saving) if scenario else NO_SCENARIO
        if isinstance(replayed, str):
            return candidate._replace(saving=Saving.estimated(saving.ns, replayed))
        self._step_ns[scenario] = self.base_ns - replayed.ns
        reason = UNRELIABLE if self.doubt > DOUBTFUL else ""
        return candidate._replace(saving=replayed._replace(upper_bound=reason))

    def gain_ns(self, fixed: Sequence[str], scenario: str) -> float:
        """What a scenario saves of the step under others; 0 if these leave nothing that it changes."""
        before, after = self._together(fixed), self._together([*fixed, scenario])
        return 0.0 if before is None or after is None else before - after

    def _together(self, scenarios: Sequence[str]) -> float | None:
        """The step under several scenarios together, None if they do not combine."""
        text = "+".join(dict.fromkeys(scenarios))
        if text not in self._step_ns:
            step_ns = self._asked(text, Projector.step_ns)
            self._step_ns[text] = None if isinstance(step_ns, str) else max(float(step_ns), 0.0)
        return self._step_ns[text]

    def _asked(self, scenario: str, question: Callable[[Projector, ScenarioRequest], T]) -> T | str:
        """What a projector says to a scenario, or why it cannot be replayed."""
        projector = self._projector
        if projector is None:
            return self.skips[0].reason
        try:
            answer = guard(f"scenario {scenario}", lambda: question(projector, parse_request(scenario)))
        except UnknownName:
            return NOT_REGISTERED.format(scenario)
        except TracelensError as why:
            return f"{scenario}: {why}"
        if isinstance(answer, Failure):
            self.skips.append(Skip(f"scenario {scenario}", answer))
        return answer


def _saving(projector: Projector, request: ScenarioRequest) -> Saving:
    """What a scenario saves; low to high as that of a projection, of each replay against its own base."""
    projection = projector.project(request)
    saved_ns = projection.savings_ns(projector.unchanged)
    low_ns, high_ns = (max(float(ns), 0.0) for ns in (min(saved_ns), max(saved_ns)))
    return Saving(float(projector.base_ns - projection.step_ns), low_ns, high_ns, request.text)
