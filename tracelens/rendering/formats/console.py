"""Text for a terminal, plain or coloured: the first rows of every readable table, or only one screen."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from io import StringIO
from typing import TYPE_CHECKING, Literal

import numpy as np
from msgspec.structs import replace

from tracelens.guard import banner
from tracelens.printable import without_commands
from tracelens.rendering.renderer import renderer
from tracelens.rendering.tables import (
    ABSENT,
    ColumnFormat,
    Cut,
    ProseRow,
    ShownColumn,
    across_ranks,
    compared,
    cut,
    details,
    entries,
    for_people,
    heading,
    label,
    leading_column,
    meta_items,
    more,
    one_line,
    readable,
    shorten,
    shortened_names,
    size_column,
    skipped,
    tile_range,
    tile_value,
)
from tracelens.table import Report, Result, Summary, Tile, shortened
from tracelens.table import Table as Data
from tracelens.units import PERCENT

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

ROWS = 15  # of each table
LINES, NARROW_LINES = 25, 40  # of the first screen
WIDE = 120  # columns
_REASONS, _NAMES = 2, 8  # that it lists
_BRIEF_ROWS = 10
_FRAME_LINES = 3  # at least: an empty line, the title and the header
_FIRST = "findings"
"""Result whose table stands on the first screen; without it that of the first result."""

_COMMAND = re.compile(r"^(\s*)(?=::)")  # of GitHub Actions
_NAME, _TEXT = 44, 20  # columns that names and other texts keep in a narrow terminal
_GAP = 2
_DOT = " · "
_TILE_GAP, _MOST_TILES = 3, 3
_BESIDE = 60  # columns from which on sentences have their label beside them


@renderer("console", suffix=".txt", doc="plain text, as the terminal shows it")
def files(report: Report) -> Mapping[str, bytes]:
    """One text file, 160 columns wide, without color."""
    return {"report.txt": console_text(report, width=160).encode()}


def console_text(report: Report, *, width: int = 100, color: bool = False, rows: int | None = None) -> str:
    """The report as terminal text, `width` columns wide, with at most so many rows of each table."""
    incomplete = banner(report.failures)
    report = for_people(report)
    screen = _new_screen(width, color)
    if incomplete:
        screen.print(one_line(incomplete), style="bold red")
    if report.summary is not None:  # the answer first
        screen.print(one_line(report.summary.verdict), style="bold")
    screen.print(one_line(report.title), style="dim" if report.summary else "bold", soft_wrap=True)
    if report.summary is not None:
        screen.print()
        _print_tiles(screen, report.summary.tiles)
        screen.print()
    for name, text in meta_items(report.meta):
        screen.print(f"{name}: {text}", style="dim")
    for result in report.results:
        screen.print()
        screen.rule(one_line(heading(result)), align="left", characters="─", style="cyan")
        if result.doc:
            screen.print(one_line(result.doc), style="dim")
        if options := meta_items(result.meta):
            screen.print(", ".join(f"{name}: {text}" for name, text in options), style="dim")
        for number, data in enumerate(compared(result).values()):
            screen.print()
            # A section that begins with a table of its own name has its heading already.
            if number > 0 or data.schema.title != result.title:
                screen.print(one_line(data.schema.title), style="bold")
            if not len(data):
                screen.print("no rows", style="dim")
                continue
            part = cut(data, rows or ROWS)
            if data.schema.kind == "entries":
                if data.schema.doc:
                    screen.print(one_line(data.schema.doc), style="dim")
                _print_entries(screen, entries(part))
            else:
                _print_rows(screen, part, _sorted_by(data))
            if note := more(result, part):
                screen.print(note, style="dim")
        if unlisted := details(result):
            screen.print()
            screen.print(unlisted, style="dim")
        for subjects, reason in skipped(result):
            screen.print(f"Not computed: {subjects}: {reason}", style="yellow")
    if not report.results:
        screen.print("This report has no results.")
    return _screen_text(screen)


def brief(report: Report, summary: Summary, *, width: int = 100, color: bool = False) -> str:
    """The first screen of a report: verdict, tiles, the first rows of one table, and where the rest is.

    At most LINES lines, in terminals of 80 columns and more.
    """
    screen = _new_screen(width, color)
    if incomplete := banner(report.failures):
        screen.print(one_line(incomplete), style="bold red")
    screen.print(one_line(summary.verdict), style="bold")
    screen.print(shorten(one_line(report.title.partition(": ")[0]), width), style="dim")
    screen.print()
    _print_tiles(screen, summary.tiles)
    head = _screen_text(screen)

    screen = _new_screen(width, color)
    results = for_people(report).results
    command = "; one: tracelens analyze NAME PATH" if len(results) > 1 else ""
    count = f"All {len(results)} sections" if len(results) > 1 else "All tables"
    screen.print()
    screen.print(f"{count}: --full or -o report.html{command}", style="dim")
    tail = _screen_text(screen)

    first = next((result for result in report.results if result.analyzer == _FIRST), None)
    first = first or next((result for result in results if _first_table(result) is not None), None)
    if first is None:
        return head + tail
    free_lines = LINES - head.count("\n") - tail.count("\n")
    for rows in range(min(_BRIEF_ROWS, max(free_lines - _FRAME_LINES, 1)), 0, -1):
        table = _first_rows(first, rows, _new_screen(width, color))
        if table.count("\n") <= free_lines:
            break
    return head + table + tail


def answered(report: Report, sentence: str, *, width: int = 100, color: bool = False, table: str = "") -> str:
    """The screen of `tracelens analyze`: the answer, the table that proves it, and where the rest is.

    At most LINES lines from WIDE columns on, in narrower terminals of 80 columns and more NARROW_LINES.

    Args:
        report: one with one result.
        sentence: the answer.
        width: of the terminal.
        color: whether it shows colors.
        table: name of the table to show instead of the first one.
    """
    (result,) = report.results
    lines = LINES if width >= WIDE else NARROW_LINES
    screen = _new_screen(width, color)
    if incomplete := banner(report.failures):
        screen.print(one_line(incomplete), style="bold red")
    screen.print(sentence, style="bold")
    head = _screen_text(screen)

    tables = {name: data for name, data in compared(result).items() if len(data)}
    shown = {name: data for name, data in _tables(result).items() if name == table} or dict(
        [*tables.items()][:1]
    )
    screen = _new_screen(width, color)
    reasons = [
        f"Not computed: {subjects}: {reason}"
        for subjects, reason in skipped(result)
        if reason.lower() not in sentence.lower()  # said already
    ]
    for text in reasons[:_REASONS] if tables or len(reasons) > 1 else ():
        screen.print(shorten(one_line(text), width), style="yellow")
    others = [name for name in _tables(result) if name not in shown]
    more_tables = f"--table NAME ({shortened(others, _NAMES)}), " if others else ""
    screen.print(f"More: {more_tables}--full for definitions and all columns, --json", style="dim")
    tail = _screen_text(screen)
    free_lines = lines - head.count("\n") - tail.count("\n")
    body = ""
    for name, data in shown.items():
        # Below the rows is an empty line, too.
        most = min(max(free_lines - _FRAME_LINES - 1, 1), len(data)) if free_lines > 0 else 0
        for rows in range(most, 0, -1):
            body = _proof(result, name, data, rows, _new_screen(width, color))
            if body.count("\n") <= free_lines:
                break
    return head + body + tail


def _tables(result: Result) -> dict[str, Data]:
    """Every table of a result that has rows by the name that asks for it: as it is read, else as it is."""
    tables = {name: data for name, data in compared(result).items() if len(data)}
    fine = {name: data for name, data in result.exported.items() if len(data) and data.schema.detail}
    return tables | {name: across_ranks(data) or data for name, data in fine.items()}


def _sorted_by(data: Data) -> str:
    """The column that the rows are in order of, or that a table declares to lead with, "" for none."""
    if data.schema.kind == "tree":
        return size_column(data)
    leading = leading_column(data) if data.schema.leading else None
    return leading.name if leading else ""


def _proof(result: Result, name: str, data: Data, rows: int, screen: Console) -> str:
    """A table with so many rows of it, without sentences but the first row's."""
    screen.print()
    part = cut(replace(data, schema=replace(data.schema, brief=False)), rows)
    columns = [shown for shown in part.columns if not (shown.column.prose or shown.column.folded)]
    is_entries = data.schema.kind == "entries"
    if is_entries:
        columns = [c for c in _facts(columns, "worst_rank", "ts_ns") if {*c.texts} - {"", ABSENT}]
    title = data.schema.title + (f" ({len(data) - part.count:,} more rows)" if len(data) > part.count else "")
    sums = "covers" in result.meta and "step" not in data.columns
    covers = f", {result.meta['covers']}" if sums else ""
    screen.print(one_line(title + covers), style="bold")
    if columns:
        _print_rows(screen, replace(part, columns=columns), _sorted_by(data), is_brief=True)
    # What stands for the first row, of entries the last two sentences: the evidence, and what to do.
    prose = [shown for shown in part.columns if shown.column.prose and shown.texts[0].strip()]
    for shown in (prose[:1] + prose[1:][-1:]) if is_entries else prose[:1]:
        text = _of_first_row(shown)
        screen.print(text if is_entries else shorten(text, screen.width), style="dim")
    screen.print()
    return _screen_text(screen)


def _first_table(result: Result) -> Data | None:
    return next((table for table in readable(result).values() if len(table)), None)


def _first_rows(result: Result, rows: int, screen: Console) -> str:
    """The first rows of a result's first table, one line each; or why it has none.

    Of entries, a row is number, name, first time, first share, worst rank and confidence; what adds no time
    is left out, and below stands what to do about the first one.
    """
    screen.print()
    table = _first_table(result)
    if table is None:
        reason = next((str(skip.reason) for skip in result.skips), "nothing")
        screen.print(shorten(one_line(f"{result.title}: {reason}"), screen.width))
        return _screen_text(screen)
    shown = table
    if table.schema.kind == "entries":
        time = next((column.name for column in table.schema.columns if column.unit == "ns"), "")
        shown = table.take(np.flatnonzero(table.array(time))) if time and table.array(time).any() else table
    part = cut(shown, rows)
    columns = [shown for shown in part.columns if not (shown.column.prose or shown.column.folded)]
    if table.schema.kind == "entries":
        columns = [c for c in _facts(columns, "worst_rank") if {*c.texts} - {"", ABSENT}]
    hidden = len(table) - part.count
    screen.print(one_line(table.schema.title) + (f" ({hidden:,} more)" if hidden else ""), style="bold")
    _print_rows(screen, replace(part, columns=columns))
    prose = [shown for shown in part.columns if shown.column.prose]
    if table.schema.kind == "entries" and prose and prose[-1].texts[0].strip():
        screen.print(_of_first_row(prose[-1]), style="dim")
    return _screen_text(screen)


def _of_first_row(shown: ShownColumn) -> str:
    """A sentence of the first row: 'First row's remedy: ...'."""
    return f"First row's {label(shown.column)}: {one_line(shown.texts[0])}"


def _facts(columns: list[ShownColumn], *others: str) -> list[ShownColumn]:
    """Of entries number, name, first time and share, columns of these names, and confidence."""

    def first(unit: str) -> ShownColumn | None:
        return next((shown for shown in columns if shown.column.unit == unit), None)

    def called(name: str) -> ShownColumn | None:
        return next((shown for shown in columns if shown.column.name == name), None)

    number = columns[0] if columns[0].column.unit == "count" else None
    name = next((shown for shown in columns if shown.column.is_text), None)
    if name:
        # What follows a colon explains the name.
        name = name._replace(texts=[text.partition(": ")[0] for text in name.texts])
    facts = (number, name, first("ns"), first("fraction"), *map(called, others), called("confidence"))
    return [shown for shown in facts if shown]


def _new_screen(width: int, color: bool) -> Console:
    """A terminal of this width that keeps what is printed on it."""
    from rich.console import Console

    # `_environ` and the explicit settings keep the output the same whatever terminal it is made for.
    return Console(
        file=StringIO(),
        width=width,
        force_terminal=color,
        color_system="standard" if color else None,
        legacy_windows=False,
        markup=False,
        highlight=False,
        emoji=False,
        _environ={},
    )


def _screen_text(screen: Console) -> str:
    """What was printed on a screen, harmless to terminals and CI runners."""
    assert isinstance(screen.file, StringIO)
    lines = [line.rstrip() for line in screen.file.getvalue().split("\n")[:-1]]
    # A line that begins with `::error::` is a command to a CI runner: it becomes `\\::error::`.
    lines = [_COMMAND.sub(r"\1\\", line) if "::" in line else line for line in lines]
    return "".join(f"{without_commands(line)}\n" for line in lines)


def _print_tiles(screen: Console, tiles: Sequence[Tile]) -> None:
    """Headline numbers with their ranges, two or three a line; what is not known in a line at the end."""
    from rich.table import Table
    from rich.text import Text

    known = [tile for tile in tiles if tile.text or tile.value is not None]
    cells = [
        [Text.assemble((f"{one_line(tile.label)} ", "dim"), (one_line(tile_value(tile)), "bold"), spread)
         for tile in known
         for spread in (f" ({tile_range(tile)})" if with_range and tile_range(tile) else "",)]
        for with_range in (True, False)
    ]  # fmt: skip
    if known:
        wide, narrow = (_abreast(screen, each) for each in cells)
        # Ranges give way where without them more than one tile fits on a line.
        shown = cells[wide == 1 < narrow]
        columns = min(_abreast(screen, shown), _MOST_TILES)
        grid = Table.grid(padding=(0, _TILE_GAP, 0, 0))
        for start in range(0, len(shown), columns):
            row = shown[start : start + columns]
            grid.add_row(*row, *[""] * (columns - len(row)))
        screen.print(grid)
    unknown = [f"{tile.label} ({tile.note})" for tile in tiles if tile not in known]
    if unknown:
        screen.print(one_line(f"Not known: {'; '.join(unknown)}"), style="dim")


def _abreast(screen: Console, cells: Sequence[Text]) -> int:
    widest = max(cell.cell_len for cell in cells)
    return max((screen.width + _TILE_GAP) // (widest + _TILE_GAP), 1)


def _print_entries(screen: Console, shown_entries: list[ProseRow]) -> None:
    """Names with their facts, and sentences below them at the full width, an empty line apart."""
    from rich.cells import cell_len
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    number_width = max(len(entry.number) for entry in shown_entries)
    inner = screen.width - (number_width + _GAP if number_width else 0)
    beside = inner >= _BESIDE
    for entry in shown_entries:
        prose = Table.grid(padding=(0, _GAP, 0, 0))
        if beside:
            prose.add_column(style="dim", no_wrap=True)
        prose.add_column(overflow="fold")
        for name, text in entry.prose:
            prose.add_row(*((name, text) if beside else (f"{name}: {text}",)))
        # Facts in as few lines as they need; a line breaks between facts only, if they fit.
        lines: list[str] = []
        for fact in map(str, entry.facts):
            if lines and cell_len(lines[-1]) + cell_len(fact) + len(_DOT) <= inner:
                lines[-1] += f"{_DOT}{fact}"
            else:
                lines.append(fact)
        block = Table.grid(padding=(0, _GAP, 0, 0))
        if number_width:
            block.add_column(width=number_width, justify="right", style="bold")
        block.add_column(overflow="fold", width=inner)
        body = Group(Text(entry.name, "bold"), *(Text(line, "cyan") for line in lines), prose)
        block.add_row(*((entry.number, body) if number_width else (body,)))
        screen.print()
        screen.print(block)
        margin = " " * (number_width + _GAP if number_width else 0)
        for name, text in entry.folded:
            # What a terminal wraps is copied as one line; line breaks of ours would be copied, too.
            screen.print(Text.assemble(margin, (f"{name}  ", "dim"), text), soft_wrap=True)


def _print_rows(screen: Console, part: Cut, leading: str = "", *, is_brief: bool = False) -> None:
    """The rows of a table, fitted to the width; of the columns the `leading` one is always there."""
    from rich.table import Table

    formats = [shown.format for shown in part.columns]
    columns = [shown.texts for shown in part.columns]
    if part.depth is not None:
        columns[0] = [
            f"{'  ' * min(depth, 8)}{text}" for text, depth in zip(columns[0], part.depth, strict=True)
        ]
    widths = _fit(formats, columns, screen.width, leading)
    table = Table(box=None, padding=(0, _GAP, 0, 0), show_edge=False, header_style="dim")
    # Over sentences of several lines, the other cells stand beside the first one.
    upright: Literal["top", "bottom"] = (
        "top" if any(_wraps(formats[index], columns[index]) for index in widths) else "bottom"
    )
    for index, width in widths.items():
        side: Literal["left", "right"] = "right" if formats[index].column.is_number else "left"
        table.add_column(formats[index].header, width=width, justify=side, vertical=upright, overflow="fold")
    cells = [
        columns[index] if _wraps(formats[index], columns[index]) else shortened_names(columns[index], width)
        for index, width in widths.items()
    ]
    for row in zip(*cells, strict=True):
        table.add_row(*row)
    screen.print(table)
    hidden = [fmt.header for index, fmt in enumerate(formats) if index not in widths]
    if hidden and not is_brief:
        screen.print(f"not shown: {', '.join(hidden)}", style="dim")


def _fit(
    formats: list[ColumnFormat], columns: list[list[str]], width: int, leading: str = ""
) -> dict[int, int]:
    """Width by index of every column that fits: numbers are never cut, names give way to a minimum.

    The leading column, the names on the left, the first quantity and the first percentage go before the other
    columns, which are left out from the right.
    """
    from rich.cells import cell_len

    full: list[int] = []
    least: list[int] = []
    for fmt, cells in zip(formats, columns, strict=True):
        heading = max(map(cell_len, fmt.header.split()), default=1)
        full.append(max([heading, *map(cell_len, cells)]))
        name = _NAME if fmt.column.name == "name" else _TEXT
        is_whole = fmt.column.is_number and not _wraps(fmt, cells)
        least.append(full[-1] if is_whole else max(heading, min(full[-1], name)))
    names = next((index for index, fmt in enumerate(formats) if fmt.unit), len(formats))
    first = [index for index, fmt in enumerate(formats) if fmt.column.name == leading]
    first += [index for index, fmt in enumerate(formats[:names]) if not fmt.column.is_number]
    first += [index for index, fmt in enumerate(formats) if fmt.unit][:1]
    first += [index for index, fmt in enumerate(formats) if fmt.column.unit in PERCENT][:1]
    widths: dict[int, int] = {}
    free = width
    for index in dict.fromkeys((*first, *range(len(formats)))):
        if widths and least[index] + _GAP > free:
            continue
        widths[index] = min(least[index], width)
        free -= least[index] + _GAP
    for index in widths:
        wider = min(full[index] - widths[index], max(free, 0))
        widths[index] += wider
        free -= wider
    return dict(sorted(widths.items()))


def _wraps(fmt: ColumnFormat, cells: list[str]) -> bool:
    """Whether the cells may take several lines: sentences, and efficiencies with their reasons."""
    return fmt.column.prose or (fmt.column.unit == "efficiency" and any("(" in cell for cell in cells))
