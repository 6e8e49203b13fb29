"""Rows that are read one by one: a name, a few short facts, and sentences; for tables with much prose."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tracelens.rendering.tables.rows import Cut
from tracelens.rendering.tables.values import (
    ABSENT,
    PERCENT,
    ColumnFormat,
    column_format,
    is_text,
    label,
    one_line,
    shorten,
)
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
class _FormattedColumn:
    """A column with its shown cells, raw and as text."""

    fmt: ColumnFormat
    raw: list[Any]
    texts: list[str]

    @property
    def column(self) -> Column:
        return self.fmt.column


def entries(part: Cut) -> list[Entry]:
    """The shown rows of a table as entries."""
    columns = [_formatted(part, column) for column in part.columns]
    name = next((column for column in columns if is_text(column.column) and not column.column.prose), None)
    ranked = columns[0].column.unit == "count" and columns[0].raw == list(range(1, part.count + 1))
    ranking = columns[0] if ranked else None
    short = [
        column
        for column in columns
        if not column.column.prose and column is not name and column is not ranking
    ]
    share = next((column for column in short if column.column.unit == "fraction"), None)
    made = []
    for row in range(part.count):
        facts = list(_facts(short, row))
        share_at = next((index for index, (column, _) in enumerate(facts) if column is share), -1)
        made.append(
            Entry(
                number=ranking.texts[row] if ranking else "",
                name=shorten(name.texts[row].strip(), _NAME_WIDTH) or ABSENT if name else ABSENT,
                share=min(max(float(share.raw[row]), 0.0), 1.0) if share and share_at >= 0 else None,
                share_at=share_at,
                facts=[fact for _, fact in facts],
                prose=[
                    (label(column.column), shorten(column.texts[row], _PROSE_WIDTH))
                    for column in columns
                    if column.column.prose and column.texts[row].strip()
                ],
            )
        )
    return made


def _formatted(part: Cut, column: Column) -> _FormattedColumn:
    fmt = column_format(part.table, column)
    raw = part.cells(column)
    return _FormattedColumn(fmt, raw, fmt.texts(raw))


def _facts(short: list[_FormattedColumn], row: int) -> Iterator[tuple[_FormattedColumn, Fact]]:
    """The cells of a row that say something."""
    for formatted in short:
        text = formatted.texts[row].strip()
        if not text or text == ABSENT:
            continue
        column = formatted.column
        name, doc = label(column), one_line(column.doc)
        if column.unit in PERCENT and doc.startswith("of "):
            # A share is best read with its whole.
            name, text = "", f"{text} {doc.partition(',')[0]}"
        elif formatted.fmt.unit:
            text = f"{text} {formatted.fmt.unit}"
        yield formatted, Fact(name, shorten(text, _NAME_WIDTH), doc)
