"""Findings as cards: what each saves, why it is believed, what to do, and what is one click away."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tracelens.rendering.tables.rows import readable
from tracelens.rendering.tables.values import encodable, one_line, shorten
from tracelens.table import Report, Result, Table
from tracelens.units import scale_of, three_digit_decimals

_NEEDED = {"position", "finding", "additional_ns", "fraction", "saving_ns", "evidence", "remedy"}
_COMMANDS = (
    ("evidence_command", "Evidence", "evidence command"),
    ("replay_command", "Replay", "replay command"),
    ("whatif_command", "What-if", "what-if command"),
)
_POSITION = re.compile(r"Pan to timestamp, (\d+)$")
_WORD = re.compile(r"[a-z0-9]+")
_PLAIN = re.compile(r"[A-Za-z][A-Za-z _-]{3,}")
_NAME_WIDTH = 160
_NAMES = 30
"""A column with at most so many different names divides a whole: causes, stages, categories."""
_ROWS = {"launch_bound": "launch overhead"}
"""Detector to the row that it is about, where their names share too little."""


@dataclass(frozen=True)
class Copied:
    """A button that copies a text.

    Attributes:
        label: on the button.
        what: "evidence command"; for those who cannot see the button's place.
        text: that is copied.
        shown: on hover.
    """

    label: str
    what: str
    text: str
    shown: str


@dataclass(frozen=True)
class FindingCard:
    """One finding.

    Attributes:
        number: its place in the ranking.
        name: what happens.
        saving: on top of the findings above: "29.6 ms", "up to" before an upper bound; "" for nothing.
        share: of the step, 0-1.
        alone: what it saves by itself, with its range: "142.8 ms (43.0 to 146.7 ms)"; "" where unknown.
        confidence: high, medium, low, or "".
        evidence, more_evidence: the first sentence, and what follows it.
        remedy, more_remedy: likewise.
        notes: (label, text) of the details.
        copied: buttons.
        rank, ts_ns: where it loses most, since the first event of that rank's trace; -1 where unknown.
        section: anchor of the tables that show it, "" for none.
        row: (anchor of the table, text of the row) that it names, if any.
    """

    number: int
    name: str
    saving: str
    share: float
    alone: str
    confidence: str
    evidence: str
    more_evidence: str
    remedy: str
    more_remedy: str
    notes: list[tuple[str, str]]
    copied: list[Copied]
    rank: int
    ts_ns: int
    section: str
    row: tuple[str, str] | None


def finding_cards(report: Report) -> list[FindingCard]:
    """The cards of a report's ranked findings, in order; empty where it has none."""
    result = next((result for result in report.results if result.analyzer == "findings"), None)
    table = result.data.get("findings") if result else None
    if table is None or not set(table.columns) >= _NEEDED:
        return []
    sections = {result.analyzer: result for result in report.results}
    return [_card(table, row, sections) for row in range(len(table))]


def _card(table: Table, row: int, sections: dict[str, Result]) -> FindingCard:
    def text(name: str) -> str:
        return one_line(str(table.values(name)[row])).strip() if name in table.columns else ""

    def number(name: str) -> float:
        return float(table.array(name)[row]) if name in table.columns else -1.0

    saving_ns, additional_ns = number("saving_ns"), number("additional_ns")
    low_ns, high_ns = number("low_ns"), number("high_ns")
    bound = "up to " if text("basis") == "upper bound" else ""
    # One unit for all times of a card, or "37 ms of 0.09 s" would have to be compared in the head.
    scale = scale_of("ns", max(saving_ns, additional_ns, high_ns) * 10)

    def time(ns: float) -> str:
        value = ns / scale.size
        if value < 0.005:
            return "0"
        return f"{value:,.{three_digit_decimals(value)}f}"

    alone = f"{bound}{time(saving_ns)} {scale.name}"
    if 0 <= low_ns < high_ns and not bound:
        alone += f" ({time(low_ns)} to {time(high_ns)} {scale.name})"
    evidence, more_evidence = _first_sentence(text("evidence"))
    remedy, more_remedy = _first_sentence(text("remedy"))
    location = text("location")
    position = _POSITION.search(location)
    copied = [
        Copied(label, what, encodable(text(column)), encodable(text(column)))
        for column, label, what in _COMMANDS
        if text(column)
    ]
    if location:
        copied.append(
            Copied("Perfetto", "Perfetto position", position[1] if position else location, location)
        )
    section = text("evidence_command").split(" ")[2:3]
    shown = sections.get(section[0]) if section else None
    return FindingCard(
        number=int(number("position")),
        name=shorten(text("finding"), _NAME_WIDTH) or "-",
        saving=f"{bound}{time(additional_ns)} {scale.name}" if time(additional_ns) != "0" else "",
        share=min(max(number("fraction"), 0.0), 1.0),
        alone=alone,
        confidence=text("confidence"),
        evidence=evidence,
        more_evidence=more_evidence,
        remedy=remedy,
        more_remedy=more_remedy,
        notes=[
            (label, text(column))
            for label, column in (("Upper bound because", "upper_bound"), ("Scenario", "scenario"))
            if text(column)
        ],
        copied=copied,
        rank=int(number("worst_rank")),
        ts_ns=int(table.array("ts_ns")[row]) if "ts_ns" in table.columns else -1,
        section=shown.analyzer if shown else "",
        row=_row(shown, *map(text, ("detector", "finding", "evidence"))) if shown else None,
    )


def _first_sentence(text: str) -> tuple[str, str]:
    """The text up to the first semicolon or full stop outside of brackets, and the rest."""
    depth = 0
    for index, char in enumerate(text):
        depth += (char in "([") - (char in ")]")
        if depth <= 0 and char in ";." and text[index + 1 : index + 2] == " ":
            return text[:index] + "." * (char == "."), text[index + 2 :]
    return text, ""


def _row(result: Result, detector: str, finding: str, evidence: str) -> tuple[str, str] | None:
    """The table and the row that a finding is about, by the names that divide the result's tables.

    A name all of whose words are the finding's own comes first; else that which its evidence mentions first.
    """
    own = set(_words(f"{detector} {finding}"))
    said = " ".join(["", *_words(evidence), ""])
    best: tuple[float, str, str] | None = None
    for name, table in readable(result).items():
        for column in table.schema.columns:
            if not column.is_text or column.prose or column.folded:
                continue
            names = list(dict.fromkeys(table.texts(column.name)))
            for text in names if len(names) <= _NAMES else ():
                words = _words(text)
                if not words or not _PLAIN.fullmatch(text):
                    continue
                if text == _ROWS.get(detector):
                    rank = -2.0
                elif own >= set(words):
                    rank = -1.0
                else:
                    rank = float(said.find(f" {' '.join(words)} "))
                    if rank < 0:
                        continue
                if best is None or rank < best[0]:
                    best = rank, f"{result.analyzer}-{name}", one_line(text)
    return best[1:] if best else None


def _words(text: str) -> list[str]:
    return list(map(_stem, _WORD.findall(text.lower())))


def _stem(word: str) -> str:
    return word[:-1] if word.endswith("s") and len(word) > 3 else word
