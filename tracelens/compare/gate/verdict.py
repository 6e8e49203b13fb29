"""A verdict as tables, and each of its outcomes as a sentence."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import Any

from tracelens.compare.gate.gate import Cause, RuleOutcome, Verdict
from tracelens.compare.gate.runs import of_rank
from tracelens.compare.noise import is_computed
from tracelens.compare.thresholds import MISSED, MOST_RUNS, PACE
from tracelens.printable import printable
from tracelens.table import Column, Report, Result, Schema, Summary, Tile
from tracelens.units import amount

VERDICT = Schema(
    "Verdict",
    (
        Column("result", "str", doc="pass, fail, or inconclusive: noise hides whether the rule holds"),
        Column("rule", "str", doc="metric, sense and limit"),
        Column("base", "str", doc="mean over the base's runs, steps and ranks"),
        Column("candidate", "str", doc="mean over the candidate's runs, steps and ranks"),
        Column("measured", "str", doc="the limited quantity: ratio, difference, or the candidate's value"),
        Column("interval", "str", doc="its confidence interval; '-' if nothing varies"),
        Column("note", "str", doc="doubts, or what an inconclusive rule needs; '' for none", prose=True),
    ),
    doc="A rule fails if the whole interval lies beyond its limit, and passes if a change beyond it would "
    f"show with {1 - MISSED:.0%} probability. A default rule whose limit these runs cannot show is decided "
    "at the smallest change that they show, which its note states. A plain number limits candidate / base, "
    "a signed one the difference, one with a unit or 'abs' the candidate itself.",
)
CAUSES = Schema(
    "Causes",
    (
        Column(
            "cause",
            "str",
            doc="category of the difference between the step times; idle time by host activity",
        ),
        Column("base_ns", "float64", "ns", "per step"),
        Column("cand_ns", "float64", "ns", "per step"),
        Column("delta_ns", "float64", "ns", "candidate - base"),
    ),
    doc="The largest parts of the difference in the traces.",
)
FIGURES = Schema(
    "Figures of the verdict",
    (
        Column("rule", "str", doc="the rule in full: metric, sense and limit"),
        Column("metric", "str", doc="what the rule limits, as in the table `metrics` of `steps`"),
        Column("unit", "str", doc="of base and candidate, and of limit and interval unless a ratio"),
        Column("kind", "str", doc="limited quantity: ratio, difference or absolute"),
        Column("sense", "str", doc="<= for an upper limit, >= for a lower one"),
        Column("limit", "float64", doc="limit of the quantity that `kind` names"),
        Column("shown", "float64", doc="the limit, or where a default rule holds at what these runs show, "
                                       "the smallest change that they would show"),
        Column("status", "str", doc="pass, fail or inconclusive"),
        Column("base", "float64", doc="mean over the base's runs, steps and ranks"),
        Column("candidate", "float64", doc="the same for the candidate"),
        Column("base_runs", "int64", "count", "runs of the base"),
        Column("candidate_runs", "int64", "count", "runs of the candidate"),
        Column("runs_needed", "int64", "count", "runs a side that would decide an inconclusive rule; 0 if it "
                                                f"is decided, or needs more than {MOST_RUNS}"),
        Column("base_steps", "int64", "count", "of all runs"),
        Column("candidate_steps", "int64", "count", "of all runs"),
        Column("estimate", "float64", doc="of the limited quantity; infinite if the base of a ratio is 0"),
        Column("low", "float64", doc="lower end of the interval"),
        Column("high", "float64", doc="upper end of the interval"),
        Column("tail_probability", "float64", "fraction", "probability of each tail of the interval"),
        Column("noise", "str", doc="source of the noise estimate: none if nothing varies; several runs of "
                                   "a side; a stored baseline's history; the steps within a run (noise "
                                   "between runs is assumed); prior (all noise is assumed)"),
    ),
    detail=True,
)  # fmt: skip
TABLES = {"verdict": VERDICT, "causes": CAUSES, "figures": FIGURES}
_FIRST = ("fail", "inconclusive", "pass")
_RULES = {"fail": "Rules failed", "inconclusive": "Rules inconclusive", "pass": "Rules held"}
_SHOWN = 3
_PARTS = {
    "computation.time": "GPU work",
    "kernel.count": "kernels",
    "comm.bytes": "bytes of collectives",
    "step.time": "step time",
    PACE: "step time without the profiler",
    "exposed_comm.fraction": "exposed communication",
    "exposed_comm.time": "exposed communication",
    "idle.fraction": "idle time",
    "idle.time": "idle time",
    "moe.blocking_calls": "blocking calls",
    "memory.peak": "peak memory",
}
"""Parts of a step in words."""
_OWN_WORK = ("computation.time", "kernel.count")
"""Parts that are work of the program: where they did not change, noise of the rest is noise of the host."""
_PART_WIDTH = 60
# A comment is read in a list of others: the verdict, the first rules and the largest causes fill one screen.
COMMENT_LINES = 25
_COMMENT_RULES = 8
_COMMENT_NOTES = 2
_COMMENT_WIDTH = 100


def report(verdict: Verdict, **meta: Any) -> Report:
    """The verdict as a report of one result, for any renderer."""
    return Report((result(verdict),), "tracelens gate", meta, summary(verdict))


def summary(verdict: Verdict) -> Summary:
    """The headline with the first rule that does not hold, and the counts of rules."""
    ordered = in_order(verdict)
    text = headline(verdict).replace(", ", ": ", 1)
    text = text[:1].upper() + text[1:]
    if ordered and ordered[0].status != "pass":
        worst = ordered[0]
        side = "at most" if worst.rule.sense == "<=" else "at least"
        measured, allowed = (limited(worst, value) for value in (worst.interval.estimate, worst.rule.limit))
        before, after = (amount(value, worst.unit) for value in (worst.base, worst.candidate))
        measure = "" if worst.rule.kind == "absolute" else f"{worst.rule.kind} {measured}, "
        text += f"; {worst.metric} {before} to {after} ({measure}allowed {side} {allowed})"
    count = [(status, sum(outcome.status == status for outcome in ordered)) for status in _FIRST]
    tiles = [
        Tile(status, _RULES[status], number, "count", section="gate") for status, number in count if number
    ]
    for outcome in ordered[:_SHOWN]:
        before, after = (amount(value, outcome.unit) for value in (outcome.base, outcome.candidate))
        measured, note = limited(outcome, outcome.interval.estimate), f"{before} to {after}"
        name = outcome.metric
        tiles.append(Tile(name, name, None, "", note=note, section="gate", text=measured))
    return Summary(f"{text}.", tuple(tiles))


def result(verdict: Verdict) -> Result:
    """The verdict as a result: `verdict`, failed rules first, `causes`, `figures` in order of the rules."""
    ordered = in_order(verdict)
    table = {
        "result": [outcome.status for outcome in ordered],
        "rule": [str(outcome.rule) for outcome in ordered],
        "base": [amount(outcome.base, outcome.unit) for outcome in ordered],
        "candidate": [amount(outcome.candidate, outcome.unit) for outcome in ordered],
        "measured": [limited(outcome, outcome.interval.estimate) for outcome in ordered],
        "interval": [interval_text(outcome) or "-" for outcome in ordered],
        "note": ["; ".join(_notes(outcome)) for outcome in ordered],
    }
    tables = {"verdict": VERDICT.table(table)}
    if verdict.causes:
        tables["causes"] = CAUSES.from_rows(
            (cause.name, cause.base_ns, cause.candidate_ns, cause.delta_ns) for cause in verdict.causes
        )
    tables["figures"] = FIGURES.from_rows(
        {
            "rule": str(outcome.rule),
            "metric": outcome.metric,
            "unit": outcome.unit,
            "kind": outcome.rule.kind,
            "sense": outcome.rule.sense,
            "limit": outcome.rule.limit,
            "shown": outcome.shown,
            "status": outcome.status,
            "base": outcome.base,
            "candidate": outcome.candidate,
            "base_runs": outcome.runs[0],
            "candidate_runs": outcome.runs[1],
            "runs_needed": outcome.runs_needed,
            "base_steps": outcome.steps[0],
            "candidate_steps": outcome.steps[1],
            "estimate": outcome.interval.estimate,
            "low": outcome.interval.low,
            "high": outcome.interval.high,
            "tail_probability": outcome.tail,
            "noise": outcome.source,
        }
        for outcome in verdict.outcomes
    )
    return Result(
        "gate",
        "Verdict",
        tables,
        doc=knowledge(verdict),
        skips=verdict.skips,
        meta={
            "verdict": verdict.verdict,
            "base": verdict.base,
            "candidate": verdict.candidate,
            "confidence": verdict.confidence,
            "identical": verdict.identical,
        },
        command="tracelens gate BASE CAND --report verdict.json",
    )


def in_order(verdict: Verdict) -> list[RuleOutcome]:
    """The outcomes, failed ones first."""
    return sorted(verdict.outcomes, key=lambda outcome: _FIRST.index(outcome.status))


def headline(verdict: Verdict) -> str:
    """The verdict in a few words."""
    count = dict.fromkeys(_FIRST, 0)
    for outcome in verdict.outcomes:
        count[outcome.status] += 1
    rules = f"{len(verdict.outcomes)} rule{'s' if len(verdict.outcomes) != 1 else ''}"
    same = "the inputs are identical, " if verdict.identical else ""
    if not verdict.outcomes:
        if verdict.identical:
            return f"no regression, {same}no rule could be checked"
        return "inconclusive, no rule could be checked"
    parts = explanation(verdict)
    if count["fail"]:
        rest = f", {count['inconclusive']} inconclusive" if count["inconclusive"] else ""
        return f"regression, {same}{count['fail']} of {rules} failed{rest}: {parts}"
    if count["inconclusive"]:
        hidden = f"noise hides whether {count['inconclusive']} of {rules} held"
        return f"inconclusive, {same}{hidden}; {parts}"
    return f"no regression, {same}{count['pass']} of {rules} held" + (f"; {parts}" if parts else "")


def knowledge(verdict: Verdict) -> str:
    """What is known of the noise, where that is little."""
    sources = {outcome.source for outcome in verdict.outcomes}
    if not sources & {"within a run", "prior"}:
        return ""
    known = "only the noise within a run is known" if "within a run" in sources else "no noise is known"
    return (
        f"One run per side: {known}, between runs it is assumed. Several runs per side or a stored "
        "baseline (tracelens gate baseline add) measure it."
    )


def sentence(outcome: RuleOutcome) -> str:
    """One outcome with its numbers, on one line."""
    side = "at most" if outcome.rule.sense == "<=" else "at least"
    measure = "value" if outcome.rule.kind == "absolute" else outcome.rule.kind
    text = (
        f"{outcome.metric}: {amount(outcome.base, outcome.unit)} to "
        f"{amount(outcome.candidate, outcome.unit)} per step, {measure} "
        f"{limited(outcome, outcome.interval.estimate)}, allowed {side} "
        f"{limited(outcome, outcome.rule.limit)}"
    )
    if interval := interval_text(outcome):
        runs = f"{outcome.runs[0]} and {outcome.runs[1]} runs of {outcome.steps[0]} and {outcome.steps[1]}"
        text += f"; interval {interval} from {runs} steps"
    if outcome.status == "inconclusive":
        text += "; too noisy to tell"
    return "; ".join((text, *_notes(outcome)))


def _notes(outcome: RuleOutcome) -> Iterator[str]:
    """What else is to say of an outcome: caveats, what the runs would show, and what would decide it."""
    yield from outcome.notes
    if outcome.shown != outcome.rule.limit:
        change = _change(outcome, outcome.shown)
        yield f"a change would show from {change} on" if _may_show(outcome) else "no change would show"
    if outcome.status == "inconclusive":
        yield _remedy(outcome)


def _may_show(outcome: RuleOutcome) -> bool:
    """Whether the least change that would show can be: no part of a step is more than all of it."""
    return outcome.unit != "fraction" or outcome.rule.kind == "ratio" or abs(outcome.shown) < 1


def _remedy(outcome: RuleOutcome) -> str:
    if outcome.runs_needed:
        return f"{outcome.runs_needed} runs a side would decide"
    return f"more than {MOST_RUNS} runs a side would be needed"


def _change(outcome: RuleOutcome, limited_value: float) -> str:
    """A value of the limited quantity as a change: '+12%', '+5% of the step'."""
    if outcome.rule.kind == "ratio":
        return _percent(limited_value - 1)
    if outcome.unit == "fraction":
        return f"{_percent(limited_value)} of the step"
    return limited(outcome, limited_value)


def _percent(change: float) -> str:
    """A relative change with two digits, or all of the larger ones: '+0.35%', '-12%', '+1,340%'."""
    percent = 100 * change
    return f"{percent:+,.0f}%" if abs(percent) >= 10 else f"{percent:+.2g}%"


def part_name(outcome: RuleOutcome) -> str:
    """The part of the step that a rule limits, in words where it has some."""
    rank, name = of_rank(outcome.metric)
    part = _PARTS.get(name, name)
    part = part if len(part) <= _PART_WIDTH else f"{part[: _PART_WIDTH - 1]}…"
    return part if rank is None else f"{part} of rank {rank}"


def _delta(outcome: RuleOutcome, causes: Sequence[Cause]) -> str:
    """The change of a part: '+1.35 ms of GPU work per step (8 more aten::mm)'."""
    part = part_name(outcome)
    delta = outcome.candidate - outcome.base
    if outcome.rule.kind == "absolute":
        return f"{part} {amount(outcome.candidate, outcome.unit)}"
    if outcome.unit == "fraction":
        return f"{part} {_percent(delta)} of the step"
    signed = f"{'-' if delta < 0 else '+'}{amount(abs(delta), outcome.unit)}"
    if outcome.metric == "computation.time":
        computing = [cause for cause in causes if cause.op and is_computed(cause.op)]
        where = next((cause for cause in computing if cause.delta_ns * delta > 0), None)
        if where is None:
            return f"{signed} of {part} per step"
        count = f"{where.more:.3g} more {where.op}" if where.more * delta > 0 else f"most in {where.op}"
        return f"{signed} of {part} per step ({count[:_PART_WIDTH]})"
    if outcome.unit == "count":
        return f"{signed} {part} per step"
    if not outcome.base:
        return f"{part} {signed}"
    return f"{part} {signed} ({_percent(outcome.candidate / outcome.base - 1)})"


def _is_unchanged(outcome: RuleOutcome) -> bool:
    """Whether no change is within the noise; counts have none, whatever is assumed of other programs."""
    no_change = {"ratio": 1.0, "difference": 0.0}.get(outcome.rule.kind)
    if outcome.unit == "count" or no_change is None:
        return outcome.base == outcome.candidate
    return outcome.interval.low <= no_change <= outcome.interval.high


def explanation(verdict: Verdict) -> str:
    """The verdict part by part: what failed, what is undecided and what decides it, what would have shown."""
    failed = [_delta(outcome, verdict.causes) for outcome in verdict.failed]
    if len(failed) > _SHOWN:
        failed[_SHOWN:] = [f"{len(failed) - _SHOWN} more"]
    sentences = [", ".join(failed)] if failed else []
    open_rules = verdict.inconclusive
    if failed:
        if open_rules:
            sentences.append(f"{_listed([part_name(outcome) for outcome in open_rules])} inconclusive")
        return "; ".join(sentences)
    passed = [outcome for outcome in verdict.outcomes if outcome.status == "pass"]
    if open_rules:
        own = [outcome for outcome in passed if of_rank(outcome.metric)[1] in _OWN_WORK]
        if same := [part_name(outcome) for outcome in own if _is_unchanged(outcome)]:
            sentences.append(f"{_listed(same)} unchanged")
        if allowed := [_delta(outcome, verdict.causes) for outcome in own if not _is_unchanged(outcome)]:
            sentences.append(f"{_listed(allowed)} allowed")
        sentences += [f"{part_name(outcome)}: {_remedy(outcome)}" for outcome in open_rules[:_SHOWN]]
        return "; ".join(sentences)
    shown = [outcome for outcome in passed if outcome.shown != outcome.rule.limit]
    if shown:
        changes = [
            f"{part_name(outcome)} from {_change(outcome, outcome.shown)} on"
            for outcome in shown
            if _may_show(outcome)
        ]
        if changes:
            sentences.append(f"would show: {', '.join(changes)}")
        if hidden := [part_name(outcome) for outcome in shown if not _may_show(outcome)]:
            sentences.append(f"no change of {_listed(hidden)} would show")
    return "; ".join(sentences)


def _listed(words: Sequence[str]) -> str:
    """'a', 'a and b', 'a, b and c'."""
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def limited(outcome: RuleOutcome, value: float) -> str:
    """A value of the limited quantity as text."""
    if outcome.rule.kind == "ratio":
        # Intervals of a few small counts reach far.
        return "> 1000" if 1000 < value < inf else "< 0.001" if 0 < value < 0.001 else f"{value:.4g}"
    if outcome.rule.kind == "difference" and outcome.unit == "fraction":
        return f"{value:+.4f}"  # as rules write it; % would be relative
    sign = "+" if outcome.rule.kind == "difference" and value >= 0 else ""
    return sign + amount(value, outcome.unit)


def interval_text(outcome: RuleOutcome) -> str:
    """The interval as text, "" if it has no width."""
    interval = outcome.interval
    if interval.low == interval.high:
        return ""
    return f"{limited(outcome, interval.low)} … {limited(outcome, interval.high)}"


def cause_text(cause: Cause) -> str:
    """One cause with its numbers, on one line."""
    sign = "+" if cause.delta_ns >= 0 else "-"
    base, candidate, delta = (
        amount(ns, "ns") for ns in (cause.base_ns, cause.candidate_ns, abs(cause.delta_ns))
    )
    return f"{sign}{delta} {cause.name}: {base} to {candidate} per step"


def commands(verdict: Verdict) -> Iterator[str]:
    """The verdict as GitHub Actions workflow commands, one line each: errors, warnings, and a notice."""
    for outcome in verdict.outcomes:
        if outcome.status != "pass":
            level = "error" if outcome.status == "fail" else "warning"
            title = _escaped(f"tracelens gate: {outcome.rule}").replace(":", "%3A").replace(",", "%2C")
            yield f"::{level} title={title}::{_escaped(sentence(outcome))}"
    for cause in verdict.causes:
        yield f"::notice title=tracelens gate%3A cause::{_escaped(cause_text(cause))}"
    yield f"::notice title=tracelens gate::{_escaped(headline(verdict))}"


def _escaped(text: str) -> str:
    """Text for workflow commands; it has no line ends."""
    return printable(text).replace("%", "%25")


def junit(verdict: Verdict) -> bytes:
    """The verdict as JUnit XML, which CI systems show as tests.

    A failed rule is a failure, an inconclusive one an error (so that no CI system shows it as a success), a
    rule that could not be checked is skipped; the values are each case's output, the causes the suite's.
    `printable` leaves the characters that XML 1.0 allows (https://www.w3.org/TR/xml/#charsets).
    """
    from xml.etree import ElementTree  # most verdicts are not written as XML

    counts = {
        "tests": str(len(verdict.outcomes) + len(verdict.skips)),
        "failures": str(len(verdict.failed)),
        "errors": str(len(verdict.inconclusive)),
        "skipped": str(len(verdict.skips)),
        "time": "0",
    }
    root = ElementTree.Element("testsuites", counts)
    suite = ElementTree.SubElement(root, "testsuite", {"name": "tracelens gate", **counts})

    def added(name: str) -> ElementTree.Element:
        attributes = {"classname": "tracelens.gate", "name": printable(name), "time": "0"}
        return ElementTree.SubElement(suite, "testcase", attributes)

    for outcome in verdict.outcomes:
        case = added(str(outcome.rule))
        text = printable(sentence(outcome))
        if outcome.status == "fail":
            failure = ElementTree.SubElement(case, "failure", {"message": text, "type": "regression"})
            failure.text = text
        if outcome.status == "inconclusive":
            error = ElementTree.SubElement(case, "error", {"message": text, "type": "inconclusive"})
            error.text = text
        ElementTree.SubElement(case, "system-out").text = f"{outcome.status}: {text}"
    for skip in verdict.skips:
        ElementTree.SubElement(added(skip.subject), "skipped", {"message": printable(skip.reason)})
    lines = [headline(verdict), knowledge(verdict), *map(cause_text, verdict.causes)]
    ElementTree.SubElement(suite, "system-out").text = printable("\n".join(filter(None, lines)))
    ElementTree.indent(root)
    return bytes(ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)) + b"\n"


def comment(verdict: Verdict, escaped: Callable[[str], str]) -> str:
    """The verdict in Markdown: what it is, the rules in a table, the largest causes; few lines.

    `escaped` makes of a text what Markdown shows as it is.
    """

    def cell(text: str) -> str:
        return escaped(text if len(text) <= _COMMENT_WIDTH else f"{text[: _COMMENT_WIDTH - 1]}…")

    sides = f"({cell(verdict.candidate)} against {cell(verdict.base)})"
    lines = [f"**tracelens gate: {escaped(headline(verdict))}** {sides}", ""]
    if known := knowledge(verdict):
        lines += [escaped(known), ""]
    outcomes = in_order(verdict)
    if outcomes:
        lines += ["| result | rule | base | candidate | measured | interval |", "|---|---|---|---|---|---|"]
    for outcome in outcomes[:_COMMENT_RULES]:
        texts = (
            outcome.status,
            str(outcome.rule),
            amount(outcome.base, outcome.unit),
            amount(outcome.candidate, outcome.unit),
            limited(outcome, outcome.interval.estimate),
            interval_text(outcome) or "-",
        )
        lines.append(f"| {' | '.join(map(cell, texts))} |")
    if (more := len(outcomes) - _COMMENT_RULES) > 0:
        lines += ["", f"{more} more rules: the last are {outcomes[-1].status}."]
    if verdict.causes:
        causes = [f"- {cell(cause_text(cause))}" for cause in verdict.causes]
        lines += ["", "Largest causes, per step:", *causes]
    skips = [f"{skip.subject}: {skip.reason}" for skip in verdict.skips]
    room = min(_COMMENT_NOTES, COMMENT_LINES - len(lines) - 1)
    if skips and room > 0:
        if len(skips) > room:
            skips[room - 1 :] = [f"{len(skips) - room + 1} more notes are in the full report"]
        lines += ["", *(f"- {cell(text)}" for text in skips[:room])][: COMMENT_LINES - len(lines)]
    return "\n".join(lines) + "\n"
