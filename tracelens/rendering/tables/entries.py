"""Rows that are read one by one: a name, a few short facts, and sentences; for tables with much prose."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tracelens.rendering.tables.rows import Cut
from tracelens.rendering.tables.values import ABSENT, PERCENT, Shown, is_text, label, look, one_line, shorten
from tracelens.table import Column

# Names stand on a line of their own; sentences are whole, unless a trace makes them endless.
_NAME_WIDTH = 160
_PROSE_WIDTH = 1200


@dataclass(frozen=True)
class Fact:
    """One short cell: 'saving' '728.300 ms'.

    Attributes:
        label: what it is; empty where the text says it itself ('87.3% of the step').
        text: the value with its unit.
        doc: what the column means.
    """

    label: str
    text: str
    doc: str

    def __str__(self) -> str:
        return f"{self.label} {self.text}".strip()


@dataclass(frozen=True)
class Entry:
    """One row.

    Attributes:
        number: its place in a table that is ranked, else empty.
        name: its first text.
        share: its first fraction, 0-1, if the table has one and it is known.
        share_at: where among the facts that fraction is, else -1.
        facts: the other short cells that are known, in order of the columns.
        prose: (label, text) of the sentences that are there.
    """

    number: str
    name: str
    share: float | None
    share_at: int
    facts: list[Fact]
    prose: list[tuple[str, str]]


@dataclass(frozen=True)
class _Told:
    """A column with its shown cells, raw and as text."""

    how: Shown
    raw: list[Any]
    texts: list[str]

    @property
    def column(self) -> Column:
        return self.how.column


def entries(part: Cut) -> list[Entry]:
    """The shown rows of a table as entries."""
    told = [_told(part, column) for column in part.columns]
    name = next((one for one in told if is_text(one.column) and not one.column.prose), None)
    ranked = told[0].column.unit == "count" and told[0].raw == list(range(1, part.count + 1))
    place = told[0] if ranked else None
    short = [one for one in told if not one.column.prose and one is not name and one is not place]
    share = next((one for one in short if one.column.unit == "fraction"), None)
    made = []
    for row in range(part.count):
        facts = list(_facts(short, row))
        at = next((index for index, (one, _) in enumerate(facts) if one is share), -1)
        made.append(
            Entry(
                number=place.texts[row] if place else "",
                name=shorten(name.texts[row].strip(), _NAME_WIDTH) or ABSENT if name else ABSENT,
                share=min(max(float(share.raw[row]), 0.0), 1.0) if share and at >= 0 else None,
                share_at=at,
                facts=[fact for _, fact in facts],
                prose=[
                    (label(one.column), shorten(one.texts[row], _PROSE_WIDTH))
                    for one in told
                    if one.column.prose and one.texts[row].strip()
                ],
            )
        )
    return made


def _told(part: Cut, column: Column) -> _Told:
    how = look(part.table, column)
    raw = part.cells(column)
    return _Told(how, raw, how.texts(raw))


def _facts(short: list[_Told], row: int) -> Iterator[tuple[_Told, Fact]]:
    """The cells of a row that say something."""
    for one in short:
        text = one.texts[row].strip()
        if not text or text == ABSENT:
            continue
        column = one.column
        name, doc = label(column), one_line(column.doc)
        if column.unit in PERCENT and doc.startswith("of "):
            # A share is best read with its whole.
            name, text = "", f"{text} {doc.partition(',')[0]}"
        elif one.how.unit:
            text = f"{text} {one.how.unit}"
        yield one, Fact(name, shorten(text, _NAME_WIDTH), doc)
