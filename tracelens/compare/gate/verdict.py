"""A verdict as tables, and each of its outcomes as a sentence."""

from __future__ import annotations

from math import inf
from typing import Any

from tracelens.compare.gate.gate import Outcome, Verdict
from tracelens.table import Column, Report, Result, Schema
from tracelens.units import amount

VERDICT = Schema(
    "Verdict",
    (
        Column("result", "str", doc="pass, fail, or unclear: beyond the limit, but within noise"),
        Column("rule", "str"),
        Column("base", "str", doc="mean over the base's steps and ranks"),
        Column("candidate", "str", doc="mean over the candidate's steps and ranks"),
        Column("measured", "str", doc="the limited quantity: ratio, difference, or the candidate's value"),
        Column(
            "interval", "str", doc="its confidence interval; '-' if steps do not vary or noise is unknown"
        ),
        Column("note", "str", prose=True),
    ),
    doc="A rule fails if the whole interval lies beyond its limit. A plain number limits candidate / base, a "
    "signed one the difference, one with a unit or 'abs' the candidate itself.",
)
FIGURES = Schema(
    "Figures of the verdict",
    (
        Column("rule", "str"),
        Column("metric", "str"),
        Column("unit", "str", doc="of base and candidate, and of limit and interval unless a ratio"),
        Column("kind", "str", doc="limited quantity: ratio, difference or absolute"),
        Column("sense", "str"),
        Column("limit", "float64"),
        Column("status", "str", doc="pass, fail or unclear"),
        Column("base", "float64"),
        Column("candidate", "float64"),
        Column("base_steps", "int64", "count"),
        Column("candidate_steps", "int64", "count"),
        Column("estimate", "float64", doc="of the limited quantity; infinite if the base of a ratio is 0"),
        Column("low", "float64", doc="lower end of the interval"),
        Column("high", "float64", doc="upper end of the interval"),
        Column("tail_fraction", "float64", "fraction", "probability of each tail of the interval"),
        Column("noise_known", "bool", doc="false with a single step on one side: no interval then"),
    ),
    detail=True,
)

_FIRST = ("fail", "unclear", "pass")


def report(verdict: Verdict, **meta: Any) -> Report:
    """The verdict as a report of one result, for any renderer."""
    return Report((result(verdict),), title=f"tracelens gate: {headline(verdict)}", meta=meta)


def result(verdict: Verdict) -> Result:
    """The verdict as a result: tables `verdict`, failed rules first, and `figures`, in order of the rules."""
    ordered = sorted(verdict.outcomes, key=lambda outcome: _FIRST.index(outcome.status))
    table = {
        "result": [outcome.status for outcome in ordered],
        "rule": [str(outcome.rule) for outcome in ordered],
        "base": [amount(outcome.base, outcome.unit) for outcome in ordered],
        "candidate": [amount(outcome.candidate, outcome.unit) for outcome in ordered],
        "measured": [_limited(outcome, outcome.interval.estimate) for outcome in ordered],
        "interval": [_interval(outcome) or "-" for outcome in ordered],
        "note": ["; ".join(outcome.notes) for outcome in ordered],
    }
    return Result(
        "gate",
        "Verdict",
        {"verdict": VERDICT.table(table), "figures": FIGURES.table(_figures(verdict.outcomes))},
        doc=f"Is the candidate as good as the base? {headline(verdict).capitalize()}.",
        skips=verdict.skips,
        meta={
            "verdict": "fail" if verdict.failed else "pass",
            "base": verdict.base,
            "candidate": verdict.candidate,
            "confidence": verdict.confidence,
        },
    )


def _figures(outcomes: tuple[Outcome, ...]) -> dict[str, list[Any]]:
    rows = [
        (
            str(outcome.rule),
            outcome.metric,
            outcome.unit,
            outcome.rule.kind,
            outcome.rule.sense,
            outcome.rule.limit,
            outcome.status,
            outcome.base,
            outcome.candidate,
            *outcome.steps,
            outcome.interval.estimate,
            outcome.interval.low,
            outcome.interval.high,
            outcome.tail,
            outcome.interval.known,
        )
        for outcome in outcomes
    ]
    columns = zip(*rows, strict=True) if rows else ((),) * len(FIGURES.names)
    return dict(zip(FIGURES.names, map(list, columns), strict=True))


def headline(verdict: Verdict) -> str:
    """The verdict in a few words."""
    count = dict.fromkeys(_FIRST, 0)
    for outcome in verdict.outcomes:
        count[outcome.status] += 1
    rules = f"{len(verdict.outcomes)} rule{'s' if len(verdict.outcomes) != 1 else ''}"
    rest = f", {count['unclear']} unclear" if count["unclear"] else ""
    if count["fail"]:
        return f"regression, {count['fail']} of {rules} failed{rest}"
    return f"no regression, {count['pass']} of {rules} held{rest}"


def sentence(outcome: Outcome) -> str:
    """One outcome with its numbers, on one line."""
    side = "at most" if outcome.rule.sense == "<=" else "at least"
    measure = "value" if outcome.rule.kind == "absolute" else outcome.rule.kind
    text = (
        f"{outcome.metric}: {amount(outcome.base, outcome.unit)} to "
        f"{amount(outcome.candidate, outcome.unit)} per step, {measure} "
        f"{_limited(outcome, outcome.interval.estimate)}, allowed {side} "
        f"{_limited(outcome, outcome.rule.limit)}"
    )
    if interval := _interval(outcome):
        text += f"; interval {interval} from {outcome.steps[0]} and {outcome.steps[1]} steps"
    if outcome.status == "unclear":
        text += "; may be noise"
    return "; ".join((text, *outcome.notes))


def _limited(outcome: Outcome, value: float) -> str:
    """A value of the limited quantity."""
    if outcome.rule.kind == "ratio":
        # Intervals of a few small counts reach far.
        return "> 1000" if 1000 < value < inf else "< 0.001" if 0 < value < 0.001 else f"{value:.4g}"
    if outcome.rule.kind == "difference" and outcome.unit == "fraction":
        return f"{value:+.4f}"  # as rules write it; % would be relative
    sign = "+" if outcome.rule.kind == "difference" and value >= 0 else ""
    return sign + amount(value, outcome.unit)


def _interval(outcome: Outcome) -> str:
    """The interval as text, "" if it has no width."""
    interval = outcome.interval
    if interval.low == interval.high:
        return ""
    return f"{_limited(outcome, interval.low)} … {_limited(outcome, interval.high)}"
