"""The first screen of a report as terminal text: verdict, tiles, the first rows, and where the rest is."""

from __future__ import annotations

from dataclasses import replace

from tracelens.guard import banner
from tracelens.rendering.formats.console import new_screen, print_rows, print_tiles, screen_text
from tracelens.rendering.tables import Cut, ShownColumn, cut, for_people, one_line, readable, shorten
from tracelens.table import Report, Result, Summary, Table

LINES = 25
_ROWS = 10
_FIRST = "findings"
"""Whose table stands on the first screen; without it that of the first result."""
_SURE = "confidence"


def brief(report: Report, summary: Summary, *, width: int = 100, color: bool = False) -> str:
    """At most LINES lines, in terminals of 80 columns and more.

    Args:
        report: any report.
        summary: of it.
        width: of the terminal, in columns.
        color: with ANSI colours.
    """
    head, tail = _head(report, summary, width, color), _tail(report, width, color)
    left = LINES - head.count("\n") - tail.count("\n")
    table = ""
    for rows in range(_ROWS, 0, -1):
        table = _table(report, rows, width, color)
        if table.count("\n") <= left:
            break
    return head + table + tail


def _head(report: Report, summary: Summary, width: int, color: bool) -> str:
    screen = new_screen(width, color)
    screen.print(shorten(one_line(report.title.partition(": ")[0]), width), style="dim")
    if incomplete := banner(report.failures):
        screen.print(one_line(incomplete), style="bold red")
    screen.print(one_line(summary.verdict), style="bold")
    screen.print()
    print_tiles(screen, summary.tiles)
    return screen_text(screen)


def _table(report: Report, rows: int, width: int, color: bool) -> str:
    """The first rows of the table to read first, one line each; or why it has none."""
    screen = new_screen(width, color)
    results = for_people(report).results
    result = next((result for result in report.results if result.analyzer == _FIRST), None)
    result = result or next((result for result in results if _first_table(result) is not None), None)
    if result is None:
        return ""
    screen.print()
    table = _first_table(result)
    if table is None:
        reason = next((str(skip.reason) for skip in result.skips), "nothing")
        screen.print(shorten(one_line(f"{result.title}: {reason}"), width))
        return screen_text(screen)
    part = cut(table, rows)
    hidden = len(table) - part.count
    screen.print(one_line(table.schema.title) + (f" ({hidden:,} more)" if hidden else ""), style="bold")
    print_rows(screen, _on_one_line(part))
    return screen_text(screen)


def _first_table(result: Result) -> Table | None:
    return next((table for table in readable(result).values() if len(table)), None)


def _on_one_line(part: Cut) -> Cut:
    """A table without sentences; of entries number, name, first time, first share and confidence."""
    columns = [shown for shown in part.columns if not (shown.column.prose or shown.column.folded)]
    if part.table.schema.kind == "entries":
        columns = _facts(columns)
    return replace(part, columns=columns)


def _facts(columns: list[ShownColumn]) -> list[ShownColumn]:
    def first(unit: str) -> ShownColumn | None:
        return next((shown for shown in columns if shown.column.unit == unit), None)

    number = columns[0] if columns[0].column.unit == "count" else None
    name = next((shown for shown in columns if shown.column.is_text), None)
    if name:
        # What follows a colon explains the name.
        name = replace(name, texts=[text.partition(": ")[0] for text in name.texts])
    sure = next((shown for shown in columns if shown.column.name == _SURE), None)
    return [shown for shown in (number, name, first("ns"), first("fraction"), sure) if shown]


def _tail(report: Report, width: int, color: bool) -> str:
    screen = new_screen(width, color)
    sections = len(for_people(report).results)
    one = "; one: tracelens analyze NAME PATH" if sections > 1 else ""
    count = f"All {sections} sections" if sections > 1 else "All tables"
    screen.print()
    screen.print(f"{count}: --full or -o report.html{one}", style="dim")
    return screen_text(screen)
