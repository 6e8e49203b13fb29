"""Markdown: for pull requests and job summaries, where every name must stay a name.

Texts of traces are shown as they are, linking to nothing, fetching nothing and notifying nobody.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from tracelens.guard import banner
from tracelens.printable import without_commands
from tracelens.rendering.renderer import renderer
from tracelens.rendering.tables import (
    compared,
    cut,
    details,
    entries,
    for_people,
    heading,
    meta_items,
    more,
    one_line,
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

# What Markdown acts on within a line or at its start, each made literal by a backslash.
_SPECIAL = re.compile(
    r"[\\`*\[\]|~$]|(?<![^\W_])_|_(?![^\W_])|^[#+-]|^=(?==*$)|^:(?=:)|^\d{1,9}(?=[.)](?:\s|$))"
)
_HTML = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})

# Links, mentions and emoji are looked for in the finished page, where backslashes and entities are gone; what
# is code is left alone. A table is cut at every bar and code ends at a backtick: neither is part of a word.
_WORD = re.compile(r"[^\s`|]+")
_LIVE = re.compile(
    r"""
    @                                          # mentions, e-mail addresses, commits of users
    | :// | \b(?:https?|ftp|mailto|xmpp):\S     # any address, shortened ones too
    | www\.
    | [#!]\d | \bGH-\d                         # issues, merge requests
    | :[\w+-]+:                                # emoji
    | (?<![0-9a-z])[0-9a-f]{7,40}(?![0-9a-z])  # commits
    | \$                                       # formulas
    | [\w-]\.(?:[a-z]{2}|com|org|net|edu|gov|mil|int|biz|info|pro|web|xxx|aero|asia|coop|museum|name|shop
        |dev|app|xn--[a-z0-9-]+|рф)(?![\w])    # bare domains
    | //[\w-]+\.\w                             # addresses without a protocol
    """,
    re.IGNORECASE | re.VERBOSE,
)


@renderer("markdown", suffix=".md", doc="tables for a pull request or a job summary, the first rows of each")
def files(report: Report) -> Mapping[str, bytes]:
    """One Markdown file."""
    return {"report.md": markdown_text(report).encode()}


def markdown_text(report: Report) -> str:
    """The report as GitHub-flavoured Markdown; names are escaped, shortened and on one line."""
    incomplete = banner(report.failures)
    report = for_people(report)
    lines = [f"# {escaped(report.title)}", ""]
    lines += [f"> **{escaped(incomplete)}**", ""] if incomplete else []
    lines += summary_lines(report.summary) if report.summary is not None else []
    lines += [f"- {escaped(f'{name}: {text}')}" for name, text in meta_items(report.meta)]
    for result in report.results:
        lines += ["", f"## {escaped(heading(result))}"]
        if result.doc:
            lines += ["", escaped(result.doc)]
        if options := meta_items(result.meta):
            lines += ["", escaped(", ".join(f"{name}: {text}" for name, text in options))]
        for number, table in enumerate(compared(result).values()):
            # A section that begins with a table of its own name has its heading already.
            if number > 0 or table.schema.title != result.title:
                lines += ["", f"### {escaped(table.schema.title)}"]
            lines += ["", *_table(result, table)]
        if unlisted := details(result):
            lines += ["", escaped(unlisted)]
        if result.skips:
            lines += ["", "Not computed:", ""]
            lines += [f"- **{escaped(subjects)}**: {escaped(reason)}" for subjects, reason in skipped(result)]
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


def _table(result: Result, table: Table) -> list[str]:
    lines = [escaped(table.schema.doc), ""] if table.schema.doc else []
    if not len(table):
        return [*lines, "No rows."]
    part = cut(table, ROWS)
    if table.schema.kind == "entries":
        # A list: the name of an entry with its facts, and each of its texts as a paragraph.
        for entry in entries(part):
            mark = f"{entry.number}." if entry.number else "-"
            facts = escaped(" · ".join(map(str, entry.facts)))
            lines += [f"{mark} **{escaped(entry.name)}**{': ' if facts else ''}{facts}", ""]
            # Paragraphs belong to the entry when they stand below its first letter.
            margin = " " * (len(mark) + 1)
            for label, text in entry.prose:
                lines += [f"{margin}*{escaped(label)}*: {escaped(text)}", ""]
            for label, text in entry.folded:
                lines += [f"{margin}*{escaped(label)}*: {code(text)}", ""]
        lines.pop()
    else:
        cells = []
        for shown in part.columns:
            if shown.column.is_number:
                cells.append([escaped(text) if "(" in text else text for text in shown.texts])
            elif shown.column.prose:
                cells.append([escaped(shorten(text, _PROSE_WIDTH)) for text in shown.texts])
            else:
                cells.append(list(map(escaped, shortened_names(shown.texts, _NAME_WIDTH))))
        if part.depth is not None:
            cells[0] = [f"{'&emsp;' * depth}{text}" for text, depth in zip(cells[0], part.depth, strict=True)]
        lines.append(_row(escaped(shown.format.header) for shown in part.columns))
        lines.append(_row("---:" if shown.column.is_number else ":---" for shown in part.columns))
        lines += map(_row, zip(*cells, strict=True))
    note = more(result, part)
    return [*lines, "", escaped(note)] if note else lines


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def escaped(text: str) -> str:
    """`text` on one line, as it reads, with nothing in it that Markdown, HTML or GitHub acts on.

    Words that would become links, mentions, references, emoji or formulas are code; all else is escaped.
    """
    line = without_commands(one_line(text).strip())
    parts, end = [], 0
    for word in _WORD.finditer(line):
        if _LIVE.search(word[0]):
            # Punctuation around it belongs to the sentence.
            start, stop = word.span()
            start += word[0].startswith("(")
            code = line[start:stop].rstrip(",;.:")
            while code.endswith(")") and code.count(")") > code.count("("):
                code = code[:-1].rstrip(",;.:")
            parts += [_plain(line[end:start], end), f"`{code}`"]
            end = start + len(code)
    return "".join([*parts, _plain(line[end:], end)])


def code(text: str) -> str:
    """`text` on one line as code, which can be copied as it is; the fence is longer than any in it."""
    line = without_commands(one_line(text))
    fence = "`" * (max((len(run) for run in re.findall("`+", line)), default=0) + 1)
    pad = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{fence}{pad}{line}{pad}{fence}"


def _plain(text: str, start: int) -> str:
    """Text without live words; only at the start of a line do some signs mean something."""
    if not text:
        return ""
    before = "" if start == 0 else "x"
    # A number at the start would begin a list: the sign behind it is escaped, not the digits.
    marked = _SPECIAL.sub(
        lambda sign: f"{sign[0]}\\" if sign[0].isdecimal() else f"\\{sign[0]}", before + text
    )
    return marked[len(before) :].translate(_HTML)
