"""Plain or coloured text for a terminal: the first rows of every readable table, fitted to its width."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from io import StringIO
from typing import TYPE_CHECKING, Literal

from tracelens.guard import banner
from tracelens.printable import without_commands
from tracelens.rendering.renderer import renderer
from tracelens.rendering.tables import (
    ColumnFormat,
    Cut,
    Entry,
    compared,
    cut,
    details,
    entries,
    for_people,
    meta_items,
    more,
    one_line,
    shortened_names,
    skipped,
    tile_range,
    tile_value,
)
from tracelens.table import Report, Result, Tile
from tracelens.table import Table as Data
from tracelens.units import PERCENT

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

ROWS = 15
_COMMAND = re.compile(r"^(\s*)(?=::)")  # of GitHub Actions
_NAME, _TEXT = 44, 20  # what names and other texts keep in a narrow terminal
_GAP = 2
_DOT = " · "
_TILE_GAP, _MOST_TILES = 3, 3
_BESIDE = 60  # columns from which on sentences have their label beside them


@renderer("console", suffix=".txt", doc="plain text, as the terminal shows it")
def files(report: Report) -> Mapping[str, bytes]:
    """One text file, 160 columns wide, without color."""
    return {"report.txt": console(report, width=160).encode()}


def console(report: Report, *, width: int = 100, color: bool = False, rows: int | None = None) -> str:
    """The report as terminal text.

    Args:
        report: any report.
        width: of the terminal, in columns.
        color: with ANSI colours.
        rows: of each table, at most; None for the usual number.
    """
    incomplete = banner(report.failures)
    report = for_people(report)
    screen = new_screen(width, color)
    screen.print(one_line(report.title), style="bold", soft_wrap=True)
    if incomplete:
        screen.print(one_line(incomplete), style="bold red")
    if report.summary is not None:
        screen.print(one_line(report.summary.verdict))
        screen.print()
        print_tiles(screen, report.summary.tiles)
        screen.print()
    for name, text in meta_items(report.meta):
        screen.print(f"{name}: {text}", style="dim")
    for result in report.results:
        _result(screen, result, rows or ROWS)
    if not report.results:
        screen.print("This report has no results.")
    return screen_text(screen)


def new_screen(width: int, color: bool) -> Console:
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


def screen_text(screen: Console) -> str:
    """What was printed on a screen, harmless to terminals and CI runners."""
    assert isinstance(screen.file, StringIO)
    return "".join(f"{inert(line.rstrip())}\n" for line in screen.file.getvalue().split("\n")[:-1])


def print_tiles(screen: Console, tiles: Sequence[Tile]) -> None:
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
    """How many cells fit beside each other."""
    widest = max(cell.cell_len for cell in cells)
    return max((screen.width + _TILE_GAP) // (widest + _TILE_GAP), 1)


def inert(line: str) -> str:
    r"""A line in which no CI runner reads a command: `::error::` at its start becomes `\::error::`."""
    return without_commands(_COMMAND.sub(r"\1\\", line) if "::" in line else line)


def _result(screen: Console, result: Result, rows: int) -> None:
    screen.print()
    screen.rule(one_line(result.title), align="left", characters="─", style="cyan")
    if result.doc:
        screen.print(one_line(result.doc), style="dim")
    options = meta_items(result.meta)
    if options:
        screen.print(", ".join(f"{name}: {text}" for name, text in options), style="dim")
    for number, data in enumerate(compared(result).values()):
        # A section that begins with a table of its own name has its heading already.
        heading = number > 0 or data.schema.title != result.title
        _table(screen, result, data, rows, heading=heading)
    if details(result):
        screen.print()
        screen.print(details(result), style="dim")
    for subjects, reason in skipped(result):
        screen.print(f"Not computed: {subjects}: {reason}", style="yellow")


def _table(screen: Console, result: Result, data: Data, rows: int, *, heading: bool) -> None:
    screen.print()
    if heading:
        screen.print(one_line(data.schema.title), style="bold")
    if not len(data):
        screen.print("no rows", style="dim")
        return
    part = cut(data, rows)
    if data.schema.kind == "entries":
        _entries(screen, data.schema.doc, entries(part))
    else:
        print_rows(screen, part)
    if more(result, part):
        screen.print(more(result, part), style="dim")


def _entries(screen: Console, doc: str, shown_entries: list[Entry]) -> None:
    """Names with their facts, and sentences below them at the full width, an empty line apart."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    if doc:
        screen.print(one_line(doc), style="dim")
    number_width = max(len(entry.number) for entry in shown_entries)
    inner = screen.width - (number_width + _GAP if number_width else 0)
    beside = inner >= _BESIDE
    for entry in shown_entries:
        prose = Table.grid(padding=(0, _GAP, 0, 0))
        if beside:
            prose.add_column(style="dim", no_wrap=True)
        prose.add_column(overflow="fold")
        for label, text in entry.prose:
            prose.add_row(*((label, text) if beside else (f"{label}: {text}",)))
        facts = _flowing([str(fact) for fact in entry.facts], inner)
        block = Table.grid(padding=(0, _GAP, 0, 0))
        if number_width:
            block.add_column(width=number_width, justify="right", style="bold")
        block.add_column(overflow="fold", width=inner)
        body = Group(Text(entry.name, "bold"), *(Text(line, "cyan") for line in facts), prose)
        block.add_row(*((entry.number, body) if number_width else (body,)))
        screen.print()
        screen.print(block)
        margin = " " * (number_width + _GAP if number_width else 0)
        for label, text in entry.folded:
            # What a terminal wraps is copied as one line; line breaks of ours would be copied, too.
            screen.print(Text.assemble(margin, (f"{label}  ", "dim"), text), soft_wrap=True)


def _flowing(facts: list[str], width: int) -> list[str]:
    """Facts in as few lines as they need; a line breaks between facts only, if they fit."""
    from rich.cells import cell_len

    lines: list[str] = []
    for fact in facts:
        if lines and cell_len(lines[-1]) + cell_len(fact) + len(_DOT) <= width:
            lines[-1] += f"{_DOT}{fact}"
        else:
            lines.append(fact)
    return lines


def print_rows(screen: Console, part: Cut) -> None:
    """The rows of a table, fitted to the width."""
    from rich.table import Table

    formats = [shown.format for shown in part.columns]
    columns = [shown.texts for shown in part.columns]
    if part.depth is not None:
        columns[0] = [
            f"{'  ' * min(depth, 8)}{text}" for text, depth in zip(columns[0], part.depth, strict=True)
        ]
    widths = _fit(formats, columns, screen.width)
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
    if hidden:
        screen.print(f"not shown: {', '.join(hidden)}", style="dim")


def _fit(formats: list[ColumnFormat], columns: list[list[str]], width: int) -> dict[int, int]:
    """Width by index of every column that fits: numbers are never cut, names give way to a minimum.

    The names on the left, the first quantity and the first percentage go before the other columns, which are
    left out from the right.
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
    first = _first(formats)
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


def _first(formats: list[ColumnFormat]) -> list[int]:
    """Index of the columns that no table should lack."""
    names = next((index for index, fmt in enumerate(formats) if fmt.unit), len(formats))
    first = [index for index, fmt in enumerate(formats[:names]) if not fmt.column.is_number]
    first += [index for index, fmt in enumerate(formats) if fmt.unit][:1]
    return first + [index for index, fmt in enumerate(formats) if fmt.column.unit in PERCENT][:1]
