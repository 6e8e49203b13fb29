"""The headline row of a report: the few numbers of its first small table, whatever analyzer made it."""

from __future__ import annotations

from dataclasses import dataclass

from tracelens.rendering.tables.rows import readable
from tracelens.rendering.tables.values import one_line, rounded, shorten
from tracelens.table import Column, Report, Table

_MOST = 12
_LEAST = 0.0005  # what shows as 0.0%
_UNITS = ("ns", "bytes", "flops", "flops/s", "bytes/s")


@dataclass(frozen=True)
class Card:
    """One headline number: what, how much, and its share or the spread over ranks."""

    label: str
    value: str
    note: str
    fraction: float | None


def cards(report: Report) -> list[Card]:
    """Cards from the first readable table that is a short list of named quantities; empty when there is none.

    Such a table has exactly one text column, at most twelve different names in it, and a quantity with a
    unit. Values that differ between rows of one name (ranks) are shown as a range; what rounds to nothing
    is left out.
    """
    for result in report.results:
        for table in readable(result).values():
            text = [column for column in table.schema.columns if column.is_text]
            amounts = [column for column in table.schema.columns if column.unit in _UNITS]
            if len(text) == 1 and amounts and 0 < len(set(table.texts(text[0].name))) <= _MOST:
                return _cards(table, text[0], amounts[0])
    return []


def _cards(table: Table, name: Column, amount: Column) -> list[Card]:
    share = next((column for column in table.schema.columns if column.unit == "fraction"), None)
    rows: dict[str, list[int]] = {}
    for row, text in enumerate(table.texts(name.name)):
        rows.setdefault(text, []).append(row)
    made = []
    for text, which in rows.items():
        amounts = table.array(amount.name)[which]
        shares = None if share is None else table.array(share.name)[which]
        if amounts.max() <= 0 or (shares is not None and shares.max() < _LEAST):
            continue
        made.append(
            Card(
                label=shorten(one_line(text).replace("_", " "), 40),
                value=rounded(amount, amounts.min(), amounts.max()),
                note="" if shares is None or share is None else rounded(share, shares.min(), shares.max()),
                fraction=None if shares is None else float(min(shares.max(), 1)),
            )
        )
    return made
