"""Rows that are read one by one: a name, a few short facts, and sentences; for tables with much prose."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tracelens.rendering.tables.rows import Cut, ShownColumn
from tracelens.rendering.tables.values import ABSENT, encodable, label, one_line, shorten
from tracelens.units import PERCENT

# Names stand on a line of their own; sentences are whole, unless a trace makes them endless.
_NAME_WIDTH = 160
_PROSE_WIDTH = 1200
_LINE_WIDTH = 4000


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
        folded: (label, text) of the lines to copy, such as commands.
    """

    number: str
    name: str
    share: float | None
    share_at: int
    facts: list[Fact]
    prose: list[tuple[str, str]]
    folded: list[tuple[str, str]]


def entries(part: Cut) -> list[Entry]:
    """The shown rows of a table as entries."""
    columns = part.columns
    long = {shown.column.name for shown in columns if shown.column.prose or shown.column.folded}
    name = next((shown for shown in columns if shown.column.is_text and shown.column.name not in long), None)
    ranked = columns[0].column.unit == "count" and columns[0].cells == list(range(1, part.count + 1))
    ranking = columns[0] if ranked else None
    short = [
        shown
        for shown in columns
        if shown.column.name not in long and shown is not name and shown is not ranking
    ]
    share = next((shown for shown in short if shown.column.unit == "fraction"), None)
    made = []
    for row in range(part.count):
        facts = list(_facts(short, row))
        share_at = next((index for index, (shown, _) in enumerate(facts) if shown is share), -1)
        made.append(
            Entry(
                number=ranking.texts[row] if ranking else "",
                name=shorten(name.texts[row].strip(), _NAME_WIDTH) or ABSENT if name else ABSENT,
                share=min(max(float(share.cells[row]), 0.0), 1.0) if share and share_at >= 0 else None,
                share_at=share_at,
                facts=[fact for _, fact in facts],
                prose=[
                    (label(shown.column), shorten(shown.texts[row], _PROSE_WIDTH))
                    for shown in columns
                    if shown.column.prose and shown.texts[row].strip()
                ],
                folded=[
                    (label(shown.column), _whole(str(shown.cells[row])))
                    for shown in columns
                    if shown.column.folded and str(shown.cells[row])
                ],
            )
        )
    return made


def _whole(text: str) -> str:
    """A line to copy: as it is, or not at all."""
    if len(text) > _LINE_WIDTH:
        return f"{len(text):,} characters, which only JSON and CSV hold"
    return encodable(one_line(text))


def _facts(short: list[ShownColumn], row: int) -> Iterator[tuple[ShownColumn, Fact]]:
    """The cells of a row that say something."""
    for shown in short:
        text = shown.texts[row].strip()
        if not text or text == ABSENT:
            continue
        column = shown.column
        name, doc = label(column), one_line(column.doc)
        if column.unit in PERCENT and doc.startswith("of "):
            # A share is best read with its whole.
            name, text = "", f"{text} {doc.partition(',')[0]}"
        elif shown.format.unit:
            text = f"{text} {shown.format.unit}"
        yield shown, Fact(name, shorten(text, _NAME_WIDTH), doc)
