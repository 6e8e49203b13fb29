"""The gate: checks rules against two sides and gives a machine-readable verdict."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from tracelens.analysis.completeness import DOUBTS, affected
from tracelens.compare.gate.causes import Cause
from tracelens.compare.gate.likeness import check_alike
from tracelens.compare.gate.outcome import Case, Outcome, read_case
from tracelens.compare.gate.rules import PACE, PROFILED, Rule, default_rules
from tracelens.compare.gate.runs import Side
from tracelens.compare.gate.samples import Samples
from tracelens.errors import TracelensError
from tracelens.table import Skip

CONFIDENCE = 0.99
"""Family-wise confidence level: probability that no rule fails if nothing changed."""

Word = Literal["pass", "fail", "inconclusive"]


@dataclass(frozen=True)
class Verdict:
    """The outcomes of all rules."""

    outcomes: tuple[Outcome, ...]
    base: str  # name of the base
    candidate: str  # name of the candidate
    confidence: float  # family-wise, of all intervals together
    skips: tuple[Skip, ...] = ()  # rules that could not be checked, and what else is not compared
    causes: tuple[Cause, ...] = ()  # of the difference, largest first; none with "pass"

    def __repr__(self) -> str:
        counts = f"{len(self.failed)} failed, {len(self.inconclusive)} inconclusive"
        sides = f"{self.candidate!r} against {self.base!r}"
        return f"Verdict({self.verdict}: {counts} of {len(self.outcomes)} rules, {sides})"

    @property
    def verdict(self) -> Word:
        """Fail if a rule fails, inconclusive if noise hides whether one holds, else pass."""
        if self.failed:
            return "fail"
        return "inconclusive" if self.inconclusive or not self.outcomes else "pass"

    @property
    def failed(self) -> tuple[Outcome, ...]:
        """The outcomes that make it a regression."""
        return tuple(outcome for outcome in self.outcomes if outcome.status == "fail")

    @property
    def inconclusive(self) -> tuple[Outcome, ...]:
        """The outcomes of which noise does not tell whether the rule holds."""
        return tuple(outcome for outcome in self.outcomes if outcome.status == "inconclusive")

    def because(self, causes: Sequence[Cause]) -> Verdict:
        """The verdict with the causes of the difference."""
        return replace(self, causes=tuple(causes))


def gate(
    base: Side | Samples | Sequence[Samples],
    candidate: Side | Samples | Sequence[Samples],
    rules: Sequence[Rule] = (),
    *,
    confidence: float = CONFIDENCE,
    min_effect: float = 0.0,
    allow: Collection[str] = (),
    trust_anyway: bool = False,
) -> Verdict:
    """Check runs against a baseline.

    A metric has one value per step, the mean over the ranks that all runs have; see `noise` for what the
    values of few runs can tell. A rule fails if the whole interval of its ratio, difference or mean lies
    beyond the limit, and passes if a change beyond the limit would show with a probability of 1 - MISSED at
    least. The false alarm probability of the verdict, 1 - confidence, goes to the rules whose values vary:
    half of it to the first, the rest to the others alike (weighted Bonferroni). Metrics that are equal in
    every step, such as most counts, have no interval.

    Args:
        base: the runs before.
        candidate: the runs after.
        rules: empty for the defaults; default rules whose metric is missing are skipped.
        confidence: family-wise confidence level, between 0.5 and 1.
        min_effect: times and fractions that change by less than this share of the step do not fail.
        allow: which of device, ranks and model may differ.
        trust_anyway: compare also where the recording of a side is in doubt.

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
    _check_scope(sides)
    first, second = ([(run.name, run.setup) for run in side.runs] for side in sides)
    skips = [*check_alike(first, second, allow), *_notes(*sides)]
    parts = sides[0].parts & sides[1].parts
    before, after = (
        side.only(ranks).with_parts(parts) for side, ranks in zip(sides, _ranks(*sides), strict=True)
    )
    cases, missing = _cases(rules, before, after)
    skips += missing
    for side in (before, after):
        skips += _doubtful(side, [case.metric for case in cases], trust_anyway)
    tails = _tails(cases, 1 - confidence)
    outcomes = tuple(case.judge(tail, min_effect) for case, tail in zip(cases, tails, strict=True))
    return Verdict(outcomes, sides[0].label, sides[1].label, confidence, tuple(skips))


def _cases(rules: Sequence[Rule], base: Side, candidate: Side) -> tuple[list[Case], list[Skip]]:
    """The rules with their values, and the default rules that could not be checked."""
    cases: list[Case] = []
    skips: list[Skip] = []
    for rule in rules or default_rules():
        if not rules and rule.metric in PROFILED and any(case.metric == PACE for case in cases):
            skips.append(Skip(f"default rule {rule}", f"{PACE} covers it, without the profiler's cost"))
            continue
        try:
            cases.append(read_case(rule, base, candidate))
        except TracelensError as error:
            if rules:
                raise
            skips.append(Skip(f"default rule {rule}", str(error).partition(": ")[2]))
    return cases, skips


def _tails(cases: Sequence[Case], alpha: float) -> list[float]:
    """The probability of each case's interval ends: half of alpha for the first that varies."""
    varying = [number for number, case in enumerate(cases) if case.varies]
    tails = [alpha / 2] * len(cases)
    for number in varying[1:]:
        tails[number] = alpha / 2 / (len(varying) - 1)
    if len(varying) == 1:
        tails[varying[0]] = alpha
    return tails


def _check_scope(sides: Sequence[Side]) -> None:
    """Raises TracelensError if runs count GPU work of different scopes."""
    runs = [run for side in sides for run in side.runs]
    for run in runs[1:]:
        if run.scope != runs[0].scope:
            raise TracelensError(
                f"{runs[0].name} counts GPU work of scope {runs[0].scope!r}, {run.name} of {run.scope!r}; "
                "use the same --scope for both"
            )


def _doubtful(side: Side, metrics: Sequence[str], trust_anyway: bool) -> Iterator[Skip]:
    """The doubts about a side that concern these metrics, as notes.

    Raises:
        TracelensError: there is one, and nobody said to trust it anyway.
    """
    for run, doubt in side.doubts:
        concerned = [metric for metric in metrics if affected(doubt.name, metric)]
        if not concerned:
            continue
        who = f"rank {doubt.rank}: " if doubt.rank >= 0 and len(side.ranks) > 1 else ""
        if not trust_anyway:
            more = f" and {len(concerned) - 1} more" if len(concerned) > 1 else ""
            kind = DOUBTS.get(doubt.name)
            advice = f"{kind.advice}, or pass" if kind else "give"
            raise TracelensError(
                f"{run.name}: its recording cannot be trusted for {concerned[0]}{more}: {who}{doubt.name} "
                f"({doubt.evidence}); {advice} --trust-anyway (trust_anyway=True)"
            )
        yield Skip(f"{run.name}: trusted anyway", f"{who}{doubt.name}: {doubt.evidence}")


def _ranks(base: Side, candidate: Side) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ranks to compare of each side: common ones, else all.

    Raises:
        TracelensError: the runs of a side have no rank in common.
    """
    for side in (base, candidate):
        if not side.ranks:
            raise TracelensError(f"{side.label}: no rank is in all its runs; pass runs of the same ranks")
    common = tuple(rank for rank in base.ranks if rank in candidate.ranks)
    return (common, common) if common else (base.ranks, candidate.ranks)


def _notes(base: Side, candidate: Side) -> Iterator[Skip]:
    """How the two sides differ besides their values."""
    for side, used in zip((base, candidate), _ranks(base, candidate), strict=True):
        for run in side.runs:
            if unused := [rank for rank in run.ranks if rank not in used]:
                text = ", ".join(map(str, unused))
                yield Skip(f"{run.name}: rank {text}", "another run does not have it")
    if not set(base.ranks) & set(candidate.ranks):
        yield Skip("rank by rank", "no common rank; all ranks of each run are compared")
    versions = [sorted({run.version for run in side.runs}) for side in (base, candidate)]
    if versions[0] != versions[1]:
        before, after = (", ".join(texts).strip(", ") or "an unknown version" for texts in versions)
        yield Skip(
            "same tracelens version on both sides",
            f"base by {before}, candidate by {after}: metrics may be defined differently",
        )
