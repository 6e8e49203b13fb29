"""One rule held against two sides: pass, fail, or inconclusive."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import exp, inf, log
from typing import Literal

import numpy as np

from tracelens.arrays import Float
from tracelens.compare.diff import Interval
from tracelens.compare.gate.noise import Plausible, Range, Spread, noise, plausible
from tracelens.compare.gate.rules import Rule
from tracelens.compare.gate.runs import Side
from tracelens.compare.gate.samples import is_named, nearest
from tracelens.errors import TracelensError

MISSED = 0.1
"""Highest probability with which a change just beyond a limit may pass: a test's usual type II error."""

Status = Literal["fail", "inconclusive", "pass"]
Source = Literal["none", "runs", "history", "within a run", "prior"]

_ROUNDING = 1e-9
"""Relative rounding error allowed at a limit."""
_HUGE = 700.0
"""Beyond exp of it there are no floats."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of one rule."""

    rule: Rule
    metric: str
    unit: str
    # fail: the whole interval is beyond the limit; pass: also the change that would be missed with
    # probability MISSED is within it; else inconclusive
    status: Status
    base: float  # mean of the base's runs
    candidate: float  # mean of the candidate's runs
    interval: Interval  # of the quantity that the rule limits
    tail: float  # probability of each end of the interval
    runs: tuple[int, int]  # number of runs of base and candidate
    steps: tuple[int, int]  # number of steps of base and candidate, of all runs
    # What tells the noise: none if nothing varies; several runs of a side; a baseline's history; the steps of
    # the runs, between which it is assumed; nothing, so that all of it is assumed
    source: Source
    notes: tuple[str, ...] = ()  # caveats


@dataclass(frozen=True)
class Case:
    """A rule with the values of its metric."""

    rule: Rule
    metric: str
    unit: str
    base: list[Float]  # one value a step of each run
    candidate: list[Float]
    history: Spread  # of older runs of the program, relative unless the unit is a fraction
    step_ns: float  # mean step time of the base, 0 if unknown

    @property
    def sides(self) -> tuple[list[Float], ...]:
        return (self.candidate,) if self.rule.kind == "absolute" else (self.base, self.candidate)

    @property
    def varies(self) -> bool:
        """Whether there is noise: also where nothing tells that there is none."""
        return self.source != "none"

    @property
    def source(self) -> Source:
        """What tells the noise."""
        sides = self.sides
        constant = all((run == run[0]).all() for side in sides for run in side) and all(
            len({run[0] for run in side}) == 1 for side in sides
        )
        nothing = not any(run.any() for side in sides for run in side)
        if nothing or (constant and all(sum(map(len, side)) > 1 for side in sides)):
            return "none"
        if any(len(side) > 1 for side in sides):
            return "runs"
        if self.history.freedom >= 1:
            return "history"
        return "within a run" if any(len(run) > 1 for side in sides for run in side) else "prior"

    def judge(self, tail: float, min_effect: float = 0.0) -> Outcome:
        """Compare the values with the limit.

        Args:
            tail: probability of each end of the interval.
            min_effect: a time that changes by less than this share of the step does not fail.
        """
        rule, limit = self.rule, self.rule.limit
        base, candidate = _mean(self.base), _mean(self.candidate)
        interval, quick = self._intervals(base, candidate, tail, MISSED)
        margin = _ROUNDING * (abs(limit) if rule.kind != "difference" else max(abs(base), abs(limit)))
        sense = 1 if rule.sense == "<=" else -1
        ends = (interval.low, quick.high) if sense > 0 else (interval.high, quick.low)
        beyond, within = (sense * (end - limit) for end in ends)
        status: Status = "fail" if beyond > margin else "pass" if within <= margin else "inconclusive"
        notes = list(self._remarks(base, candidate))
        if status != "pass" and self._small(candidate - base, min_effect):
            status = "pass"
            notes.append(f"the change is below {min_effect:.3g} of the step (--min-effect)")
        counts = [(len(side), sum(map(len, side))) for side in (self.base, self.candidate)]
        (runs_b, steps_b), (runs_c, steps_c) = counts
        return Outcome(
            rule, self.metric, self.unit, status, base, candidate, interval, tail, (runs_b, runs_c),
            (steps_b, steps_c), self.source, tuple(notes),
        )  # fmt: skip

    def _small(self, change: float, min_effect: float) -> bool:
        if self.rule.kind == "absolute" or not min_effect:
            return False
        if self.unit == "ns":
            return abs(change) < min_effect * self.step_ns
        return self.unit == "fraction" and abs(change) < min_effect

    def _intervals(self, base: float, candidate: float, *tails: float) -> list[Interval]:
        """Intervals of what the rule limits, one a tail."""
        known = self.source in ("none", "runs", "history")
        if self.rule.kind == "ratio":
            if base == 0:
                sure = candidate == 0 or all((run > 0).all() for run in self.candidate)
                estimate = inf if candidate else 1.0
                return [Interval(estimate, estimate if sure else 0.0, estimate, known)] * len(tails)
            if candidate == 0:
                return [Interval(0.0, 0.0, 0.0, known)] * len(tails)
            middle = log(candidate / base)
            return [
                Interval(candidate / base, _exp(middle - half), _exp(middle + half), known)
                for half in self._half_widths(base, candidate, tails)
            ]
        estimate = candidate - (base if self.rule.kind == "difference" else 0.0)
        scale = self._scale(base, candidate)
        halves = [half * scale for half in self._half_widths(scale, scale, tails)]
        return [Interval(estimate, estimate - half, estimate + half, known) for half in halves]

    def _scale(self, base: float, candidate: float) -> float:
        """What the noise of differences and values is relative to."""
        if self.unit == "fraction":
            return 1.0
        return (candidate if self.rule.kind == "absolute" else max(base, candidate)) or 1.0

    def _half_widths(self, base: float, candidate: float, tails: Sequence[float]) -> list[float]:
        """How far noise may move the limited quantity, with each side's values divided by these."""
        if self.source == "none":
            return [0.0] * len(tails)
        limits, history = plausible(self.metric, self.unit), self.history
        if self.unit == "fraction":  # its noise is absolute
            smaller = min(base, candidate)
            limits = Plausible(*(Range(low / smaller, high / smaller) for low, high in limits))
            history = Spread(history.variance / smaller**2, history.freedom)
        first = [] if self.rule.kind == "absolute" else [run / base for run in self.base]
        mixture = noise(first, [run / candidate for run in self.candidate], limits, history)
        return [mixture.half_width(tail) for tail in tails]

    def _remarks(self, base: float, candidate: float) -> Iterator[str]:
        if self.source == "within a run":
            yield "noise between runs assumed"
        elif self.source == "prior":
            yield "all noise assumed: a single value per side"
        if self.rule.kind == "ratio" and base == 0 != candidate:
            yield "0 in the base, so the ratio is infinite; limit the difference or the value instead"


def _exp(value: float) -> float:
    return exp(min(max(value, -_HUGE), _HUGE))


def _mean(runs: Sequence[Float]) -> float:
    return float(np.mean([run.mean() for run in runs]))


def read_case(rule: Rule, base: Side, candidate: Side) -> Case:
    """The values of a rule's metric.

    Raises:
        TracelensError: there are none, or its unit does not fit; it begins with "rule '...': ".
    """
    sides = (base, candidate)
    names = [side.find(rule.metric) for side in sides]
    metric = names[0] or names[1]
    if metric is None:
        subject = rule.metric.partition("[")[0] if is_named(rule.metric) else "metric"
        reason = base.why_not(rule.metric) or candidate.why_not(rule.metric)
        close = nearest(rule.metric, [run for side in sides for run in side.runs])
        hint = reason or (
            f"did you mean {close!r}?" if close else "the table steps.metrics lists all metrics"
        )
        raise TracelensError(f"rule '{rule}': neither run has the {subject} {rule.metric!r}; {hint}")
    for name, side in zip(names, sides, strict=True):
        if name is None and not is_named(metric):
            reason = side.why_not(metric) or "record it in both runs, or drop the rule"
            raise TracelensError(f"rule '{rule}': {side.label} has no {metric!r}: {reason}")
    owner = base if names[0] else candidate
    unit = next(run.unit(metric) for run in owner.runs if run.find(metric))
    rule.check_unit(unit)
    relative = unit != "fraction"
    history = base.noise_of_history(metric, relative).pooled(candidate.noise_of_history(metric, relative))
    step_ns = _mean(base.each_step("step.time")) if base.find("step.time") else 0.0
    values = [side.each_step(metric) for side in sides]
    return Case(rule, metric, unit, values[0], values[1], history, step_ns)
