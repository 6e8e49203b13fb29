"""Markdown: for pull requests and job summaries, where every name must stay a name."""

from __future__ import annotations

from collections.abc import Mapping

from tracelens.guard import banner
from tracelens.rendering.formats.markdown_text import code, escaped
from tracelens.rendering.renderer import renderer
from tracelens.rendering.tables import (
    Cut,
    Entry,
    ShownColumn,
    compared,
    cut,
    details,
    entries,
    for_people,
    meta_items,
    more,
    shorten,
    shortened_names,
    skipped,
    tile_range,
    tile_value,
)
from tracelens.table import Report, Result, Summary, Table

ROWS = 20
_NAME_WIDTH = 64
_PROSE_WIDTH = 1200


@renderer("markdown", suffix=".md", doc="tables for a pull request or a job summary, the first rows of each")
def files(report: Report) -> Mapping[str, bytes]:
    """One Markdown file."""
    return {"report.md": markdown(report).encode()}


def markdown(report: Report) -> str:
    """The report as GitHub-flavoured Markdown; names are escaped, shortened and on one line."""
    incomplete = banner(report.failures)
    report = for_people(report)
    lines = [f"# {escaped(report.title)}", ""]
    lines += [f"> **{escaped(incomplete)}**", ""] if incomplete else []
    lines += summary_lines(report.summary) if report.summary is not None else []
    lines += [f"- {escaped(f'{name}: {text}')}" for name, text in meta_items(report.meta)]
    for result in report.results:
        lines += ["", *_result(result)]
    if not report.results:
        lines += ["", "This report has no results."]
    return "\n".join(lines) + "\n"


def summary_lines(summary: Summary) -> list[str]:
    """The verdict, and its tiles as a table."""
    lines = [f"**{escaped(summary.verdict)}**", ""]
    if summary.tiles:
        rows = [
            [escaped(text) for text in (tile.label, tile_value(tile), tile_range(tile), tile.note)]
            for tile in summary.tiles
        ]
        lines += [
            _row(["figure", "value", "range", "note"]),
            _row([":---", "---:", "---:", ":---"]),
            *map(_row, rows),
            "",
        ]
    return lines


def _result(result: Result) -> list[str]:
    lines = [f"## {escaped(result.title)}"]
    if result.doc:
        lines += ["", escaped(result.doc)]
    options = meta_items(result.meta)
    if options:
        lines += ["", escaped(", ".join(f"{name}: {text}" for name, text in options))]
    for number, table in enumerate(compared(result).values()):
        # A section that begins with a table of its own name has its heading already.
        lines += ["", *_table(result, table, heading=number > 0 or table.schema.title != result.title)]
    if details(result):
        lines += ["", escaped(details(result))]
    if result.skips:
        lines += ["", "Not computed:", ""]
        lines += [f"- **{escaped(subjects)}**: {escaped(reason)}" for subjects, reason in skipped(result)]
    return lines


def _table(result: Result, table: Table, *, heading: bool) -> list[str]:
    schema = table.schema
    lines = [f"### {escaped(schema.title)}", ""] if heading else []
    if schema.doc:
        lines += [escaped(schema.doc), ""]
    if not len(table):
        return [*lines, "No rows."]
    part = cut(table, ROWS)
    lines += _entries(entries(part)) if schema.kind == "entries" else _rows(part)
    note = more(result, part)
    return [*lines, "", escaped(note)] if note else lines


def _entries(shown_entries: list[Entry]) -> list[str]:
    """A list: the name of an entry with its facts, and each of its texts as a paragraph."""
    lines: list[str] = []
    for entry in shown_entries:
        mark = f"{entry.number}." if entry.number else "-"
        facts = escaped(" · ".join(map(str, entry.facts)))
        lines += [f"{mark} **{escaped(entry.name)}**{': ' if facts else ''}{facts}", ""]
        # Paragraphs belong to the entry when they stand below its first letter.
        margin = " " * (len(mark) + 1)
        for label, text in entry.prose:
            lines += [f"{margin}*{escaped(label)}*: {escaped(text)}", ""]
        for label, text in entry.folded:
            lines += [f"{margin}*{escaped(label)}*: {code(text)}", ""]
    return lines[:-1]


def _rows(part: Cut) -> list[str]:
    cells = list(map(_cells, part.columns))
    if part.depth is not None:
        cells[0] = [f"{'&emsp;' * depth}{text}" for text, depth in zip(cells[0], part.depth, strict=True)]
    head = _row([escaped(shown.format.header) for shown in part.columns])
    rule = _row(["---:" if shown.column.is_number else ":---" for shown in part.columns])
    return [head, rule, *map(_row, zip(*cells, strict=True))]


def _cells(shown: ShownColumn) -> list[str]:
    if shown.column.is_number:
        return [escaped(text) if "(" in text else text for text in shown.texts]
    if shown.column.prose:
        return [escaped(shorten(text, _PROSE_WIDTH)) for text in shown.texts]
    return list(map(escaped, shortened_names(shown.texts, _NAME_WIDTH)))


def _row(cells: list[str] | tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"
