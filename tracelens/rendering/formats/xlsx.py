"""An Excel workbook: an index, then one sheet a table in raw units, formatted by unit."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from io import BytesIO
from typing import TYPE_CHECKING

from tracelens.errors import MissingExtra
from tracelens.guard import banner
from tracelens.rendering.formats.csv import clean, safe
from tracelens.rendering.renderer import renderer
from tracelens.rendering.tables import meta_items, one_line
from tracelens.table import Report, Result, Table

if TYPE_CHECKING:
    import xlsxwriter  # type: ignore[import-untyped]

MOST_ROWS = 1_048_575  # of a sheet, below the header
MOST_CHARACTERS = 32_767  # of a cell
_EXACT = 2**53  # Excel's numbers are doubles
_ILLEGAL = re.compile(r"[\[\]:*?/\\\x00-\x1f]")
_NUMBER = {
    "ns": "#,##0",
    "bytes": "#,##0",
    "count": "#,##0",
    "flops": "0.000E+00",
    "flops/s": "0.000E+00",
    "bytes/s": "0.000E+00",
    "flops/byte": "#,##0.0",
    "fraction": "0.0%",
    "ratio": "0.0%",
    "efficiency": "0.0%",
}


@renderer("xlsx", suffix=".xlsx", doc="an Excel workbook: an index and one sheet per table, in full")
def files(report: Report) -> Mapping[str, bytes]:
    """The workbook. Raises MissingExtra when xlsxwriter is not installed."""
    try:
        import xlsxwriter
    except ModuleNotFoundError as error:
        raise MissingExtra("Excel output", "xlsx") from error

    buffer = BytesIO()
    plain = {"strings_to_formulas": False, "strings_to_urls": False, "strings_to_numbers": False}
    with xlsxwriter.Workbook(buffer, {"constant_memory": True, **plain}) as book:
        # Without a fixed date the same report would give other bytes every second.
        book.set_properties({"title": text(report.title), "created": datetime(2000, 1, 1)})
        # Names of sheets are legal, 31 characters at most, unique whatever their case.
        used = {"index", "history"}  # ours, and one that Excel keeps for itself
        sheets: list[tuple[str, Result, Table]] = []
        for result in report.results:
            for name, table in result.exported.items():
                full_name = result.analyzer if name == result.analyzer else f"{result.analyzer}.{name}"
                base = _ILLEGAL.sub("_", full_name).strip("'") or "table"
                sheet_name = base[:31].rstrip("'")
                number = 1
                while sheet_name.casefold() in used:
                    number += 1
                    sheet_name = f"{base[: 30 - len(str(number))]}~{number}"
                used.add(sheet_name.casefold())
                sheets.append((sheet_name, result, table))
        _index(book, report, sheets)
        for sheet_name, _, table in sheets:
            sheet = book.add_worksheet(sheet_name)
            bold = book.add_format({"bold": True, "bottom": 1})
            sheet.freeze_panes(1, 0)
            rows = min(len(table), MOST_ROWS)
            columns = []
            for index, column in enumerate(table.schema.columns):
                cells = clean(table, column, text, slice(rows), "{:.1%}")
                content = max(map(len, cells[:200]), default=0) if column.is_text else 12
                sheet.set_column(index, index, min(max(content, len(column.name) + 3), 60))
                sheet.write_string(0, index, text(column.name), bold)
                number_format = _NUMBER.get(column.unit, "0" if column.dtype == "int64" else "#,##0.000")
                cell_format = book.add_format({"num_format": number_format}) if column.is_number else None
                columns.append((cell_format, cells))
            for row in range(rows):
                for index, (cell_format, cells) in enumerate(columns):
                    value = cells[row]
                    if value is None:
                        continue
                    if isinstance(value, bool):
                        sheet.write_boolean(row + 1, index, value)
                    elif isinstance(value, str):
                        sheet.write_string(row + 1, index, value)
                    elif abs(value) <= _EXACT:
                        sheet.write_number(row + 1, index, value, cell_format)
                    else:  # epoch nanoseconds and infinities, which a double or Excel cannot hold
                        sheet.write_string(row + 1, index, str(value))
            if rows:
                sheet.autofilter(0, 0, rows, len(table.schema.columns) - 1)
    return {"report.xlsx": buffer.getvalue()}


def text(value: str) -> str:
    """`value` as a cell takes it: safe as in CSV, which sheets are saved as, and no longer than it holds."""
    return safe(value)[:MOST_CHARACTERS]


def _index(book: xlsxwriter.Workbook, report: Report, sheets: list[tuple[str, Result, Table]]) -> None:
    """The first sheet: what the report says of itself, its tables, and what is missing."""
    sheet = book.add_worksheet("index")
    bold = book.add_format({"bold": True})
    sheet.set_column(0, 0, 32)
    sheet.set_column(1, 3, 40)
    incomplete = banner(report.failures)
    title = [(report.title,), (incomplete,)] if incomplete else [(report.title,)]
    lines: list[tuple[str, ...]] = [*title, *meta_items(report.meta), ()]
    lines.append(("sheet", "analyzer", "table", "content", "rows"))
    headings = {0, len(lines) - 1}
    links = range(len(lines), len(lines) + len(sheets))
    for target, result, table in sheets:
        shown = f"{len(table):,}"
        if len(table) > MOST_ROWS:
            shown = f"first {MOST_ROWS:,} of {len(table):,}; CSV and JSON hold all of them"
        lines.append((target, result.title, table.schema.title, table.schema.doc, shown))
    headings.add(len(lines) + 1)
    lines += [(), ("not computed", "analyzer", "reason")]
    for result in report.results:
        lines += [(one_line(skip.subject), result.title, one_line(skip.reason)) for skip in result.skips]
    for row, line in enumerate(lines):
        for column, cell in enumerate(line):
            if row in links and column == 0:
                target = cell.replace("'", "''")
                sheet.write_url(row, column, f"internal:'{target}'!A1", string=cell)
            else:
                sheet.write_string(row, column, text(cell), bold if row in headings else None)
