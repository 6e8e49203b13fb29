"""A verdict as a short comment for a pull request or a job summary."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tracelens.compare.gate import Verdict

LINES = 25
_RULES = 8
_NOTES = 2
_WIDTH = 100


def comment(verdict: Verdict) -> str:
    """The verdict in Markdown: what it is, the rules in a table, the largest causes; at most LINES lines."""
    from tracelens.compare.gate import cause_text, headline, in_order, interval_text, knowledge, limited
    from tracelens.rendering.formats import escaped
    from tracelens.units import amount

    def cell(text: str) -> str:
        return escaped(text if len(text) <= _WIDTH else f"{text[: _WIDTH - 1]}…")

    lines = [f"**tracelens gate: {escaped(headline(verdict))}** ({cell(verdict.candidate)} against "
             f"{cell(verdict.base)})", ""]  # fmt: skip
    if known := knowledge(verdict):
        lines += [escaped(known), ""]
    outcomes = in_order(verdict)
    if outcomes:
        lines += ["| result | rule | base | candidate | measured | interval |", "|---|---|---|---|---|---|"]
    for outcome in outcomes[:_RULES]:
        texts = (
            outcome.status,
            str(outcome.rule),
            amount(outcome.base, outcome.unit),
            amount(outcome.candidate, outcome.unit),
            limited(outcome, outcome.interval.estimate),
            interval_text(outcome) or "-",
        )
        lines.append(f"| {' | '.join(map(cell, texts))} |")
    if (more := len(outcomes) - _RULES) > 0:
        lines += ["", f"{more} more rules: the last are {outcomes[-1].status}."]
    if verdict.causes:
        lines += [
            "",
            "Largest causes, per step:",
            *(f"- {cell(cause_text(cause))}" for cause in verdict.causes),
        ]
    skips = [f"{skip.subject}: {skip.reason}" for skip in verdict.skips]
    room = min(_NOTES, LINES - len(lines) - 1)
    if skips and room > 0:
        if len(skips) > room:
            skips[room - 1 :] = [f"{len(skips) - room + 1} more notes are in the full report"]
        lines += ["", *(f"- {cell(text)}" for text in skips[:room])][: LINES - len(lines)]
    return "\n".join(lines) + "\n"
