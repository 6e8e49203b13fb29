"""The gate: checks rules against two runs and gives a machine-readable verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from tracelens.analysis.completeness import DOUBTS, affected
from tracelens.arrays import Float
from tracelens.compare.diff import Interval, absolute, difference, ratio, varies
from tracelens.compare.gate.rules import Rule, default_rules
from tracelens.compare.gate.samples import Samples, is_named, nearest
from tracelens.errors import TracelensError
from tracelens.table import Skip

CONFIDENCE = 0.98
"""Family-wise confidence level: probability that no rule fails if nothing changed."""

Status = Literal["fail", "unclear", "pass"]

_ROUNDING = 1e-9
"""Relative rounding error allowed at a limit."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of one rule."""

    rule: Rule
    metric: str
    unit: str
    # fail: the whole interval is beyond the limit; unclear: the estimate is, but may be noise; else pass
    status: Status
    base: float  # mean of the base's steps
    candidate: float  # mean of the candidate's steps
    interval: Interval  # of the quantity that the rule limits
    tail: float  # probability of each end of the interval
    steps: tuple[int, int]  # number of steps of base and candidate
    notes: tuple[str, ...] = ()  # caveats


@dataclass(frozen=True)
class Verdict:
    """The outcomes of all rules."""

    outcomes: tuple[Outcome, ...]
    base: str  # name of the base
    candidate: str  # name of the candidate
    confidence: float  # family-wise, of all intervals together
    skips: tuple[Skip, ...] = ()  # rules that could not be checked, and what else is not compared

    def __repr__(self) -> str:
        unclear = sum(outcome.status == "unclear" for outcome in self.outcomes)
        counts = f"{len(self.failed)} failed, {unclear} unclear of {len(self.outcomes)} rules"
        return f"Verdict({counts}: {self.candidate!r} against {self.base!r})"

    @property
    def failed(self) -> tuple[Outcome, ...]:
        """The outcomes that make it a regression."""
        return tuple(outcome for outcome in self.outcomes if outcome.status == "fail")


def gate(
    base: Samples,
    candidate: Samples,
    rules: Sequence[Rule] = (),
    *,
    confidence: float = CONFIDENCE,
    trust_anyway: bool = False,
) -> Verdict:
    """Check a run against a baseline.

    A metric has one value per step, the mean over the ranks that both runs have. A rule fails only if the
    whole interval of its ratio, difference or mean lies beyond the limit. The false alarm probability of the
    verdict, 1 - confidence, is split evenly over the rules whose values vary (Bonferroni). Metrics that are
    equal in every step, such as most counts, have no interval.

    Args:
        base: the run before.
        candidate: the run after.
        rules: empty for the defaults; default rules whose metric is missing are skipped.
        confidence: family-wise confidence level, between 0.5 and 1.
        trust_anyway: compare also where the recording of a side is in doubt.

    Raises:
        TracelensError: a rule's metric is missing, its unit does not fit, the runs count GPU work of
            different scopes, or the recording of a side is doubtful in what a rule compares.
    """
    if not 0.5 < confidence < 1:
        raise TracelensError(
            f"confidence {confidence:g}: must be above 0.5 and below 1, such as {CONFIDENCE}"
        )
    if base.scope != candidate.scope:
        raise TracelensError(
            f"{base.name} counts GPU work of scope {base.scope!r}, {candidate.name} of {candidate.scope!r}; "
            f"give both the same --scope"
        )
    skips = list(_notes(base, candidate))
    base, candidate = (
        side.only(ranks) for side, ranks in zip((base, candidate), _ranks(base, candidate), strict=True)
    )
    cases: list[_Case] = []
    for rule in rules or default_rules():
        try:
            cases.append(_case(rule, base, candidate))
        except TracelensError as error:
            if rules:
                raise
            skips.append(Skip(f"default rule {rule}", str(error).partition(": ")[2]))
    for side in (base, candidate):
        skips += _doubtful(side, [case.metric for case in cases], trust_anyway)
    noisy = sum(case.varies for case in cases)
    tail = (1 - confidence) / max(noisy, 1)
    return Verdict(
        tuple(case.judge(tail) for case in cases), base.name, candidate.name, confidence, tuple(skips)
    )


@dataclass(frozen=True)
class _Case:
    """A rule with the values of its metric."""

    rule: Rule
    metric: str
    unit: str
    base: Float
    candidate: Float

    @property
    def varies(self) -> bool:
        sides = (self.candidate,) if self.rule.kind == "absolute" else (self.base, self.candidate)
        return varies(*sides)

    def judge(self, tail: float) -> Outcome:
        """Compare the values with the limit."""
        rule, limit = self.rule, self.rule.limit
        if rule.kind == "ratio":
            interval = ratio(self.base, self.candidate, tail)
        elif rule.kind == "difference":
            interval = difference(self.base, self.candidate, tail)
        else:
            interval = absolute(self.candidate, tail)
        margin = _ROUNDING * (
            abs(limit) if rule.kind != "difference" else max(abs(self.base).max(), abs(limit))
        )
        if rule.sense == "<=":
            beyond, surely = interval.estimate > limit + margin, interval.low > limit + margin
        else:
            beyond, surely = interval.estimate < limit - margin, interval.high < limit - margin
        status: Status = "fail" if surely else "unclear" if beyond else "pass"
        return Outcome(
            rule,
            self.metric,
            self.unit,
            status,
            float(self.base.mean()),
            float(self.candidate.mean()),
            interval,
            tail,
            (len(self.base), len(self.candidate)),
            tuple(self._remarks(interval)),
        )

    def _remarks(self, interval: Interval) -> Iterator[str]:
        if not interval.known:
            short = "candidate" if len(self.candidate) < 2 else "base"
            yield f"noise unknown: a single step in the {short}; means are compared directly"
        if self.rule.kind == "ratio" and self.base.mean() == 0 != self.candidate.mean():
            yield "0 in the base, so the ratio is infinite; limit the difference or the value instead"


def _case(rule: Rule, base: Samples, candidate: Samples) -> _Case:
    """The values of a rule's metric.

    Raises:
        TracelensError: there are none, or its unit does not fit; it begins with "rule '...': ".
    """
    names = [side.find(rule.metric) for side in (base, candidate)]
    metric = names[0] or names[1]
    if metric is None:
        subject = rule.metric.partition("[")[0] if is_named(rule.metric) else "metric"
        reason = base.why_not(rule.metric) or candidate.why_not(rule.metric)
        close = nearest(rule.metric, (base, candidate))
        hint = reason or (
            f"did you mean {close!r}?" if close else "the table steps.metrics lists all metrics"
        )
        raise TracelensError(f"rule '{rule}': neither run has the {subject} {rule.metric!r}; {hint}")
    for name, side in zip(names, (base, candidate), strict=True):
        if name is None and not is_named(metric):
            reason = side.why_not(metric) or "record it in both runs, or drop the rule"
            raise TracelensError(f"rule '{rule}': {side.name} has no {metric!r}: {reason}")
    unit = (base if names[0] else candidate).units[metric]
    rule.check_unit(unit)
    return _Case(rule, metric, unit, base.each_step(metric), candidate.each_step(metric))


def _doubtful(side: Samples, metrics: Sequence[str], trust_anyway: bool) -> Iterator[Skip]:
    """The doubts about a side that concern these metrics, as notes.

    Raises:
        TracelensError: there is one, and nobody said to trust it anyway.
    """
    for doubt in side.doubts:
        concerned = [metric for metric in metrics if affected(doubt.name, metric)]
        if not concerned:
            continue
        who = f"rank {doubt.rank}: " if doubt.rank >= 0 and len(side.ranks) > 1 else ""
        if not trust_anyway:
            more = f" and {len(concerned) - 1} more" if len(concerned) > 1 else ""
            kind = DOUBTS.get(doubt.name)
            advice = f"{kind.advice}, or give" if kind else "give"
            raise TracelensError(
                f"{side.name}: its recording cannot be believed for {concerned[0]}{more}: {who}{doubt.name} "
                f"({doubt.evidence}); {advice} --trust-anyway (trust_anyway=True)"
            )
        yield Skip(f"{side.name}: trusted anyway", f"{who}{doubt.name}: {doubt.evidence}")


def _ranks(base: Samples, candidate: Samples) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ranks to compare of each side: common ones, else all."""
    common = tuple(rank for rank in base.ranks if rank in candidate.ranks)
    return (common, common) if common else (base.ranks, candidate.ranks)


def _notes(base: Samples, candidate: Samples) -> Iterator[Skip]:
    """How the two sides differ besides their values."""
    for side, used in zip((base, candidate), _ranks(base, candidate), strict=True):
        if unused := [rank for rank in side.ranks if rank not in used]:
            text = ", ".join(map(str, unused))
            yield Skip(f"{side.name}: rank {text}", "the other run does not have it")
    if not set(base.ranks) & set(candidate.ranks):
        yield Skip("rank by rank", "no common rank; all ranks of each run are compared")
    if base.version != candidate.version:
        yield Skip(
            "same tracelens version on both sides",
            f"base by {base.version or 'an unknown version'}, candidate by "
            f"{candidate.version or 'an unknown version'}: metrics may be defined differently",
        )
