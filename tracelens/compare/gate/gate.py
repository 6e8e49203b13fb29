"""The gate: checks rules against two sides and gives a machine-readable verdict.

A rule with the values of its metric is a `GateCase`, which judges them: pass, fail, or inconclusive. Sides
are compared like with like (`check_alike`) or not at all. `of_diff` and `of_metrics` say why a side is
slower.

The *resolution* of two sides is the smallest change of a metric that they show: that would be missed with
probability MISSED at most. A rule that a user wrote means its limit, and is inconclusive where the limit is
below the resolution. A default rule is decided there at the resolution: it passes if the sides differ by no
more than two sides of one program do, and the outcome says from which change on it would not have passed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from math import exp, inf, log, sqrt
from typing import Literal, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from tracelens.analysis.common import Setup
from tracelens.analysis.completeness import DOUBTS, affected
from tracelens.arrays import Float, median
from tracelens.compare.gate.rules import PROFILED, GateRule, default_rules
from tracelens.compare.gate.runs import ASPECTS, Samples, Side, is_named, nearest, of_rank
from tracelens.compare.noise import Interval, PooledVariance, is_computed, noise, plausible
from tracelens.compare.thresholds import (
    CLEAR_SHARE,
    CLEAR_WAITING,
    CLOCK_CLASS_SHARE,
    CLOCK_RANGE,
    CONFIDENCE,
    MISSED,
    MOST_RUNS,
    PACE,
    ROUNDING,
    UNCHANGED,
)
from tracelens.errors import TracelensError
from tracelens.table import Result, Skip

Word = Literal["pass", "fail", "inconclusive"]


class Verdict(Struct, frozen=True):
    """The outcomes of all rules."""

    outcomes: tuple[RuleOutcome, ...]
    base: str  # name of the base
    candidate: str  # name of the candidate
    confidence: float  # family-wise, of all intervals together
    skips: tuple[Skip, ...] = ()  # rules that could not be checked, and what else is not compared
    causes: tuple[Cause, ...] = ()  # of the difference, largest first; none with "pass"
    identical: bool = False  # whether both sides are the same bytes

    def __repr__(self) -> str:
        counts = f"{len(self.failed)} failed, {len(self.inconclusive)} inconclusive"
        sides = f"{self.candidate!r} against {self.base!r}"
        return f"Verdict({self.verdict}: {counts} of {len(self.outcomes)} rules, {sides})"

    @property
    def verdict(self) -> Word:
        """Fail if a rule fails, inconclusive if noise hides whether one holds, else pass."""
        if self.failed:
            return "fail"
        return "inconclusive" if self.inconclusive or not (self.outcomes or self.identical) else "pass"

    @property
    def failed(self) -> tuple[RuleOutcome, ...]:
        return tuple(outcome for outcome in self.outcomes if outcome.status == "fail")

    @property
    def inconclusive(self) -> tuple[RuleOutcome, ...]:
        return tuple(outcome for outcome in self.outcomes if outcome.status == "inconclusive")

    def because(self, causes: Sequence[Cause]) -> Verdict:
        return replace(self, causes=tuple(causes))


Status = Literal["fail", "inconclusive", "pass"]
Source = Literal["none", "runs", "history", "within a run", "prior"]


class RuleOutcome(Struct, frozen=True):
    """The outcome of one rule."""

    rule: GateRule
    metric: str
    unit: str
    # fail: the whole interval is beyond the limit, or the change is clear; pass: also the change that would
    # be missed with probability MISSED is within it, or for default rules the sides differ by no more than
    # noise does; else inconclusive
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
    # Limit that the runs could show: the rule's own, or where that is below their resolution, the resolution
    shown: float
    notes: tuple[str, ...] = ()  # caveats
    runs_needed: int = 0  # runs a side that would decide; 0 if it is decided, or needs more than MOST_RUNS


class GateCase(Struct, frozen=True):
    """A rule with the values of its metric."""

    rule: GateRule
    metric: str
    unit: str
    base: list[Float]  # one value a step of each run
    candidate: list[Float]
    history: PooledVariance  # of older runs of the program, relative unless the unit is a fraction
    step_ns: float  # mean step time of the base, 0 if unknown
    waiting: float | None = None  # share of the step in which the GPU computes nothing; None if unknown
    clock: float = 0.0  # by how much kernels of all classes differ alike between the sides
    identical: bool = False  # whether both sides are the same bytes

    @property
    def sides(self) -> tuple[list[Float], ...]:
        return (self.candidate,) if self.rule.kind == "absolute" else (self.base, self.candidate)

    @property
    def varies(self) -> bool:
        """Whether there is noise: also where nothing tells that there is none."""
        return self.source != "none"

    @property
    def source(self) -> Source:
        sides = self.sides
        if self.identical and self.rule.kind != "absolute":
            return "none"  # one recording does not differ from itself
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

    def judge(self, tail: float, min_effect: float = 0.0, *, advise: bool = True) -> RuleOutcome:
        """Compare the values with the limit, with `tail` as the probability of each end of the interval.

        A time that changes by less than `min_effect` of the step does not fail. With `advise`, an
        inconclusive outcome says how many runs would decide.
        """
        rule, limit, source = self.rule, self.rule.limit, self.source
        base, candidate = _mean(self.base), _mean(self.candidate)
        interval, quick = self._intervals(base, candidate, tail, MISSED)
        margin = ROUNDING * (abs(limit) if rule.kind != "difference" else max(abs(base), abs(limit)))
        sense = 1 if rule.sense == "<=" else -1
        ends = (interval.low, quick.high) if sense > 0 else (interval.high, quick.low)
        beyond, within = (sense * (end - limit) for end in ends)
        status: Status = "fail" if beyond > margin else "pass" if within <= margin else "inconclusive"
        shown, notes = limit, []
        if source == "within a run":
            notes.append("noise between runs assumed")
        elif source == "prior":
            notes.append("all noise assumed: a single value per side")
        if rule.kind == "ratio" and base == 0 != candidate:
            notes.append("0 in the base, so the ratio is infinite; limit the difference or the value instead")
        is_large, is_clear = self._large(base, candidate) if status == "inconclusive" else (False, False)
        if is_clear:
            status = "fail"
            notes.append(f"{CLEAR_SHARE:.0%} of the step or more, and more than steps vary by")
        if status == "inconclusive" and rule.at_resolution and not is_large:
            edge, shown = self._resolution(base, candidate)
            # What repeats from run to run says nothing where it varies by so much in these.
            is_shown = of_rank(self.metric)[1] not in PRECISE or shown <= 1 + CLEAR_SHARE
            if is_shown and interval.estimate <= edge + margin:
                status = "pass"
            else:
                shown = limit
        if status != "pass" and rule.kind != "absolute" and min_effect:
            # A time or fraction of the step.
            step = {"ns": self.step_ns, "fraction": 1.0}.get(self.unit, 0.0)
            if abs(candidate - base) < min_effect * step:
                status = "pass"
                notes.append(f"the change is below {min_effect:.3g} of the step (--min-effect)")
        runs_needed = self._runs_needed(tail, min_effect) if advise and status == "inconclusive" else 0
        return RuleOutcome(
            rule=rule,
            metric=self.metric,
            unit=self.unit,
            status=status,
            base=base,
            candidate=candidate,
            interval=interval,
            tail=tail,
            runs=(len(self.base), len(self.candidate)),
            steps=(sum(map(len, self.base)), sum(map(len, self.candidate))),
            source=source,
            shown=shown,
            notes=tuple(notes),
            runs_needed=runs_needed,
        )

    def _resolution(self, base: float, candidate: float) -> tuple[float, float]:
        """Up to where a default rule passes, and the smallest change that would not; it is an upper limit.

        The first is the limit, or what an unchanged program exceeds with probability UNCHANGED. The second is
        above it by the noise that hides a change with probability MISSED.
        """
        limit, ratio = self.rule.limit, self.rule.kind == "ratio"
        (estimate, _, high, _), quick = self._intervals(base, candidate, UNCHANGED, MISSED)
        if ratio and not 0 < estimate < inf:
            return limit, limit
        unchanged = high / estimate if ratio else high - estimate
        edge = max(limit, unchanged)
        return edge, edge * quick.high / estimate if ratio else edge + quick.high - estimate

    def _large(self, base: float, candidate: float) -> tuple[bool, bool]:
        """Whether a part of the step is beyond the limit by a large share of the step, and clearly.

        Large is CLEAR_SHARE of the step, and more than the base's own steps lie apart. Clear is what is also
        more than runs of a step that waits so much lie apart, and in half at least in the typical step: one
        stalled step is no change of the program. Of a limit on the value itself the limit is the base.
        """
        rule, name = self.rule, of_rank(self.metric)[1]
        sense = 1 if rule.sense == "<=" else -1
        limits = {"ratio": base * rule.limit, "difference": base + rule.limit, "absolute": rule.limit}
        allowed = limits[rule.kind]
        before = allowed if rule.kind == "absolute" else base
        step = before if name in WHOLE_STEP else 1.0 if self.unit == "fraction" else self.step_ns
        least = CLEAR_SHARE * step * (1 - ROUNDING)
        is_strict = sense * (allowed - before) < least and sense * (candidate - allowed) > 0
        change = sense * (candidate - before)
        varies = float(np.ptp(np.concatenate(self.base)))
        if name not in CLEAR or not is_strict or change < least or least <= 0 or change <= varies:
            return False, False
        typical = sense * (median(np.concatenate(self.candidate)) - before)
        runs = sqrt(float(np.mean([1 / len(side) for side in self.sides])))
        waited = CLEAR_WAITING * (1.0 if self.waiting is None else self.waiting) * runs * step
        return True, typical >= least / 2 and change >= waited

    def _runs_needed(self, tail: float, min_effect: float) -> int:
        """The fewest runs a side with which the rule would be decided if sides differ as they do; 0 if many.

        The expected verdict: of runs whose means spread around those of now by the noise that is likely now,
        each with the steps of a run of now.
        """
        base, candidate = _mean(self.base), _mean(self.candidate)
        if min(base, candidate) <= 0:
            return 0
        now = [len(side) for side in self.sides]
        typical = self._intervals(base, candidate, TYPICAL)[0]
        ratio = self.rule.kind == "ratio"
        of_sides = log(typical.high / typical.estimate) if ratio else typical.high - typical.estimate
        of_run = of_sides / Z_TYPICAL / sqrt(sum(1 / runs for runs in now))

        def decides(runs: int) -> bool:
            sides = []
            for side, mean in ((self.base, base), (self.candidate, candidate)):
                offsets = np.linspace(-1, 1, max(runs, len(side)))
                offsets *= of_run / offsets.std(ddof=1) / (1 if ratio else mean)
                form = side[0] / max(float(side[0].mean()), 1e-300)
                sides.append([form * mean * max(1 + offset, 0.0) for offset in offsets.tolist()])
            more = replace(self, base=sides[0], candidate=sides[1])
            return more.judge(tail, min_effect, advise=False).status != "inconclusive"

        more_runs = range(min(now) + 1, MOST_RUNS + 1)
        place = bisect_left(more_runs, True, key=decides)
        return more_runs[place] if place < len(more_runs) else 0

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
        # What the noise of differences and values is relative to; that of fractions is absolute.
        scale = (candidate if self.rule.kind == "absolute" else max(base, candidate)) or 1.0
        if self.unit == "fraction":
            scale = 1.0
        halves = [half * scale for half in self._half_widths(scale, scale, tails)]
        highest = 1.0 if self.unit == "fraction" else inf
        lowest = -highest if self.rule.kind == "difference" else 0.0
        return [
            Interval(estimate, max(estimate - half, lowest), min(estimate + half, highest), known)
            for half in halves
        ]

    def _half_widths(self, base: float, candidate: float, tails: Sequence[float]) -> list[float]:
        """How far noise may move the limited quantity, with each side's values divided by these."""
        if self.source == "none":
            return [0.0] * len(tails)
        limits, history = plausible(self.metric, self.unit, self.waiting, self.clock), self.history
        if self.unit == "fraction":  # its noise is absolute
            smaller = min(base, candidate)
            limits = limits.times(1 / smaller)
            history = PooledVariance(history.variance / smaller**2, history.freedom)
        first = [] if self.rule.kind == "absolute" else [run / base for run in self.base]
        second = [run / candidate for run in self.candidate]
        if of_rank(self.metric)[1] == PACE and len(first) + len(second) >= PAIRED_RUNS:
            paired = without_part_effects([*first, *second])
            first, second = paired[: len(first)], paired[len(first) :]
        mixture = noise(first, second, limits, history)
        return [mixture.half_width(tail) for tail in tails]


PRECISE = ("computation.time", "kernel.count", "comm.bytes", "memory.peak")
"""Metrics that repeat from run to run: GPU work, counts and sizes."""
WHOLE_STEP = ("step.time", PACE)
CLEAR = (
    *WHOLE_STEP,
    "computation.time",
    "exposed_comm.time",
    "idle.time",
    "exposed_comm.fraction",
    "idle.fraction",
)
"""The step and the parts that add up to it: one that grows by a large share of the step makes it longer.

Time of communication beside computation does not, and varies with what ranks wait for each other.
"""
CLOCK_CLASSES = 3
"""Classes of kernels from which on what they have in common is the clock."""
PAIRED_RUNS = 6
"""Runs, three a side, from which on the parts of the loop tell what they have in common."""
TYPICAL, Z_TYPICAL = 0.25, 0.6745
"""Tail and standard deviations of the typical noise: half of all noise is smaller."""

MUST_AGREE = ("device", "ranks", "model")
"""What makes two runs incomparable where it differs, unless allowed; other differences are notes."""

MOST = 5


class Cause(NamedTuple):
    """One part of the difference of the step times, ns per step."""

    name: str
    base_ns: float
    candidate_ns: float
    op: str = ""  # in which most of it happened
    more: float = 0.0  # GPU activities of that op per step, candidate - base

    @property
    def delta_ns(self) -> float:
        return self.candidate_ns - self.base_ns


def gate(
    base: Side | Samples | Sequence[Samples],
    candidate: Side | Samples | Sequence[Samples],
    rules: Sequence[GateRule] = (),
    *,
    confidence: float = CONFIDENCE,
    min_effect: float = 0.0,
    allow: Collection[str] = (),
    trust_anyway: bool = False,
    identical: bool = False,
    advise: bool = True,
) -> Verdict:
    """Check runs against a baseline.

    A metric has one value per step, the mean over the ranks that all runs have; see `noise` for what the
    values of few runs can tell. A rule fails if the whole interval of its ratio, difference or mean lies
    beyond the limit, and passes if a change beyond the limit would show with a probability of 1 - MISSED at
    least; default rules are decided at the resolution of the runs where that is above their limit. The false
    alarm probability of the verdict, 1 - confidence, goes to the rules whose values vary: half of it to the
    first, the rest to the others alike (weighted Bonferroni). Metrics that are equal in every step, such as
    most counts, have no interval.

    Args:
        base: the runs before.
        candidate: the runs after.
        rules: empty for the defaults; default rules whose metric is missing are skipped.
        confidence: family-wise confidence level, between 0.5 and 1.
        min_effect: times and fractions that change by less than this share of the step do not fail.
        allow: which of device, ranks and model may differ.
        trust_anyway: compare also where the recording of a side is in doubt.
        identical: both sides are the same bytes, so that nothing differs by noise.
        advise: say how many runs would decide an inconclusive rule, which takes most of the time.

    Raises:
        TracelensError: a rule's metric is missing, its unit does not fit, the runs differ in what cannot be
            compared, or the recording of a side is doubtful in what a rule compares.
    """
    if not 0.5 < confidence < 1:
        raise TracelensError(
            f"confidence {confidence:g}: must be above 0.5 and below 1, such as {CONFIDENCE}"
        )
    if not 0 <= min_effect < 1:
        raise TracelensError(f"min-effect {min_effect:g}: must be at least 0 and below 1, such as 0.005")

    sides = Side.of(base), Side.of(candidate)
    runs = [run for side in sides for run in side.runs]
    for run in runs[1:]:
        if run.scope != runs[0].scope:
            raise TracelensError(
                f"{runs[0].name} counts GPU work of scope {runs[0].scope!r}, {run.name} of {run.scope!r}; "
                "use the same --scope for both"
            )
    first, second = ([(run.name, run.setup) for run in side.runs] for side in sides)
    skips = [*check_alike(first, second, allow)]
    # The ranks to compare of each side: common ones, else all.
    for side in sides:
        if not side.ranks:
            raise TracelensError(f"{side.label}: no rank is in all its runs; pass runs of the same ranks")
    common = tuple(rank for rank in sides[0].ranks if rank in sides[1].ranks)
    ranks = [common or side.ranks for side in sides]
    for side, used in zip(sides, ranks, strict=True):
        for run in side.runs:
            if unused := [rank for rank in run.ranks if rank not in used]:
                text = ", ".join(map(str, unused))
                skips.append(Skip(f"{run.name}: rank {text}", "another run does not have it"))
    if not common:
        skips.append(Skip("rank by rank", "no common rank; all ranks of each run are compared"))
    versions = [sorted({run.version for run in side.runs}) for side in sides]
    if versions[0] != versions[1]:
        old, new = (", ".join(texts).strip(", ") or "an unknown version" for texts in versions)
        subject = "same tracelens version on both sides"
        skips.append(Skip(subject, f"base by {old}, candidate by {new}: metrics may be defined differently"))

    parts = sides[0].parts & sides[1].parts
    before, after = (side.only(used).with_parts(parts) for side, used in zip(sides, ranks, strict=True))
    cases: list[GateCase] = []
    for rule in rules or default_rules():
        if not rules and rule.metric in PROFILED and any(case.metric == PACE for case in cases):
            skips.append(Skip(f"default rule {rule}", f"{PACE} covers it, without the profiler's cost"))
            continue
        try:
            cases.append(replace(read_case(rule, before, after), identical=identical))
        except TracelensError as error:
            if rules:
                raise
            skips.append(Skip(f"default rule {rule}", str(error).partition(": ")[2]))
    # The doubts about a side that concern what is compared are notes, or stop it.
    for side in (before, after):
        for run, doubt in side.doubts:
            concerned = [case.metric for case in cases if affected(doubt.name, case.metric)]
            if not concerned:
                continue
            who = f"rank {doubt.rank}: " if doubt.rank >= 0 and len(side.ranks) > 1 else ""
            if not trust_anyway:
                more = f" and {len(concerned) - 1} more" if len(concerned) > 1 else ""
                kind = DOUBTS.get(doubt.name)
                advice = f"{kind.advice}, or pass" if kind else "give"
                raise TracelensError(
                    f"{run.name}: its recording cannot be trusted for {concerned[0]}{more}: {who}"
                    f"{doubt.name} ({doubt.evidence}); {advice} --trust-anyway (trust_anyway=True)"
                )
            skips.append(Skip(f"{run.name}: trusted anyway", f"{who}{doubt.name}: {doubt.evidence}"))

    alpha = 1 - confidence
    varying = [number for number, case in enumerate(cases) if case.varies]
    tails = [alpha / 2] * len(cases)
    for number in varying[1:]:
        tails[number] = alpha / 2 / (len(varying) - 1)
    if len(varying) == 1:
        tails[varying[0]] = alpha
    outcomes = tuple(
        case.judge(tail, min_effect, advise=advise) for case, tail in zip(cases, tails, strict=True)
    )
    before_name, after_name = (side.label for side in sides)
    return Verdict(outcomes, before_name, after_name, confidence, tuple(skips), identical=identical)


def without_part_effects(runs: list[Float]) -> list[Float]:
    """The runs without what their parts of the loop have in common: after the recording steps are slower.

    What is left varies by chance; its spread is that of one run less.
    """
    if len({len(run) for run in runs}) != 1 or len(runs[0]) < 2:
        return runs
    rows = np.array(runs)
    left = rows / rows.mean(axis=0)
    means = left.mean(axis=1, keepdims=True)
    return list(means + (left - means) * sqrt(len(runs) / (len(runs) - 1)))


def step_noise(
    base: Float, candidate: Float, waiting: float | None = None
) -> Literal["beyond", "within", "unclear"]:
    """What a gate says of the step times of two runs, of a longer and of a shorter step alike.

    `waiting` is the share of the step in which the GPU computes nothing.

    Beyond noise is what fails the default rule at the least tail that it can get, within noise what passes.
    """
    shorter, longer = sorted((base, candidate), key=np.mean)
    rule = next(rule for rule in default_rules() if rule.metric == "step.time")
    mean_ns = float(shorter.mean())
    case = GateCase(
        rule=rule,
        metric=rule.metric,
        unit="ns",
        base=[shorter],
        candidate=[longer],
        history=PooledVariance(),
        step_ns=mean_ns,
        waiting=waiting,
    )
    tail = (1 - CONFIDENCE) / 2 / max(len(default_rules()) - 1, 1)
    status = case.judge(tail, advise=False).status if mean_ns else "inconclusive"
    words: dict[Status, Literal["beyond", "within", "unclear"]]
    words = {"fail": "beyond", "pass": "within", "inconclusive": "unclear"}
    return words[status]


def _exp(value: float) -> float:
    return exp(min(max(value, -700.0), 700.0))  # beyond exp of that there are no floats


def _mean(runs: Sequence[Float]) -> float:
    return float(np.mean([run.mean() for run in runs]))


def read_case(rule: GateRule, base: Side, candidate: Side) -> GateCase:
    """The values of a rule's metric.

    Raises:
        TracelensError: there are none, or its unit does not fit; it begins with "rule '...': ".
    """
    sides = (base, candidate)
    names = [side.find(rule.metric) for side in sides]
    metric = names[0] or names[1]
    if metric is None:
        subject = rule.metric.partition("[")[0] if is_named(rule.metric) else "metric"
        hint = base.why_not(rule.metric) or candidate.why_not(rule.metric)
        if not hint:
            close = nearest(rule.metric, [run for side in sides for run in side.runs])
            hint = f"did you mean {close!r}?" if close else "the table steps.metrics lists all metrics"
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
    return GateCase(
        rule=rule,
        metric=metric,
        unit=unit,
        base=values[0],
        candidate=values[1],
        history=history,
        step_ns=step_ns,
        waiting=waiting_share(base, candidate, PACE if of_rank(metric)[1] == PACE else "step.time"),
        clock=clock_difference(base, candidate),
    )


def waiting_share(base: Side, candidate: Side, step: str) -> float | None:
    """The share of the step in which the GPU computes nothing; None if unknown.

    Of the side where it is smaller: where a step grew by waiting, that is what is judged. `step` is the
    metric of the step: as it was recorded, or without the profiler.
    """
    shares = [
        1 - _mean(side.each_step("computation.time")) / _mean(side.each_step(step))
        for side in (base, candidate)
        if side.find("computation.time") and side.find(step) and _mean(side.each_step(step))
    ]
    return max(min(shares), 0.0) if len(shares) == 2 else None


def clock_difference(base: Side, candidate: Side) -> float:
    """By how much kernels of all classes differ alike between two sides; 0 if by more than clocks do.

    The median over the classes, so that a change of some of them is none of the clock.
    """
    names = {name for side in (base, candidate) for run in side.runs for name in run.values}
    classes = [
        name
        for name in sorted(names)
        if name.startswith("category[") and name.endswith(".time") and is_computed(name)
    ]
    times = np.array(
        [[_mean(side.each_step(name)) for side in (base, candidate)] for name in classes]
    ).reshape(-1, 2)
    times = times[(times > CLOCK_CLASS_SHARE * times.sum(axis=0)).all(axis=1)]
    if len(times) < CLOCK_CLASSES:
        return 0.0
    difference = abs(median(np.log(times[:, 1] / times[:, 0])))
    return difference if difference <= CLOCK_RANGE else 0.0


def check_alike(
    base: Sequence[tuple[str, Setup]], candidate: Sequence[tuple[str, Setup]], allow: Collection[str] = ()
) -> Iterator[Skip]:
    """How the runs of two sides (name, setup) differ in what they are; what only one of them tells is left.

    Raises:
        TracelensError: `allow` names nothing of MUST_AGREE, or what must agree differs.
    """
    if unknown := [name for name in allow if name not in MUST_AGREE]:
        raise TracelensError(f"--allow {unknown[0]}: not one of {', '.join(MUST_AGREE)}")
    first_name, first = base[0]
    reported = set()
    for name, setup in [*base[1:], *candidate]:
        for aspect in ASPECTS:
            before, after = getattr(first, aspect), getattr(setup, aspect)
            if not before or not after or before == after:
                continue
            if isinstance(before, Mapping):
                keys = [key for key in before if key in after and before[key] != after[key]]
                if not keys:
                    continue
                before, after = (", ".join(f"{key} {side[key]}" for key in keys) for side in (before, after))
            difference = f"{before} against {after}"
            if aspect in MUST_AGREE and aspect not in allow:
                raise TracelensError(
                    f"{first_name} and {name} cannot be compared: {aspect} {difference}; "
                    f"compare runs of the same {aspect}, or pass --allow {aspect} (allow=['{aspect}'])"
                )
            if (aspect, difference) not in reported:
                reported.add((aspect, difference))
                yield Skip(f"same {aspect} on both sides", difference)


def of_diff(result: Result, most: int = MOST) -> tuple[Cause, ...]:
    """The largest causes in a result of `diff`: by what happened, and in which op most of it did."""
    table = result.data["waterfall"]
    level, name, cause = (table.texts(column) for column in ("level", "name", "cause"))
    base, candidate, before, after = (
        table.array(column).astype(float) for column in ("base_ns", "cand_ns", "base_count", "cand_count")
    )
    delta, more = candidate - base, after - before
    causes = []
    for row, kind_of_row in enumerate(level):
        if kind_of_row != "cause" or base[row] == candidate[row]:
            continue
        inside = [
            other
            for other, kind in enumerate(level)
            if kind == "op" and cause[other] == name[row] and delta[row] * delta[other] > 0
        ]
        example = max(inside, key=lambda other: abs(candidate[other] - base[other]), default=None)
        where = (name[example], float(more[example])) if example is not None else ("", 0.0)
        text = f"{name[row]}, most in {where[0]}" if example is not None else name[row]
        causes.append(Cause(text, base[row], candidate[row], *where))
    return tuple(sorted(causes, key=lambda part: -abs(part.delta_ns))[:most])


def of_metrics(base: Side, candidate: Side, most: int = MOST) -> tuple[Cause, ...]:
    """The ops and kernel classes whose time moved most, from stored metrics."""
    sides = base, candidate
    known = sorted({name for side in sides for run in side.runs for name in run.values})
    times = [name for name in known if name.endswith(".time")]
    names = [name for name in times if name.startswith("op[")]
    names = names or [name for name in times if name.startswith("category[")]
    if base.find("idle.time") and candidate.find("idle.time"):
        names.append("idle.time")
    causes = []
    for name in names:
        subject = name.removesuffix(".time")
        op = subject[3:-1] if subject.startswith("op[") else ""
        count = [_mean(side.each_step(f"{subject}.count")) if op else 0.0 for side in sides]
        times_ns = [_mean(side.each_step(name)) for side in sides]
        causes.append(Cause(subject, times_ns[0], times_ns[1], op, count[1] - count[0]))
    moved = [cause for cause in causes if cause.delta_ns]
    return tuple(sorted(moved, key=lambda cause: -abs(cause.delta_ns))[:most])
