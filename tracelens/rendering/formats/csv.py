"""A directory of CSV files: one a table in full and in raw units, the skips, and what the columns mean.

What makes texts safe in CSV, where spreadsheets find formulas, is here for all formats of sheets.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Mapping
from io import StringIO
from pathlib import Path
from typing import Any

import orjson

from tracelens.errors import TracelensError
from tracelens.outputs import FolderKind
from tracelens.printable import visible
from tracelens.rendering.formats.json import dumps
from tracelens.rendering.renderer import renderer
from tracelens.rendering.tables import explained, one_line
from tracelens.table import Column, Report, Rows, Table

INDEX = "meta.json"

# Signs of other widths are the same to East Asian versions of spreadsheets.
_SIGNS = "=+\\-@\uff1d\uff0b\uff0d\uff20\ufe66\ufe62\ufe63\ufe6b"
_FORMULA = re.compile(rf"[\s\"'`;,|]*[{_SIGNS}]")
# Where the list separator is a semicolon, so is that of CSV, and quotes within a field mean nothing.
_LATER_FORMULA = re.compile(rf"(;[\s\"']*)(?=[{_SIGNS}])")


def listed(folder: Path) -> list[str]:
    """Names of the files that the `meta.json` of a directory lists.

    Raises:
        TracelensError: there is none, or it is none of ours.
    """
    try:
        about = orjson.loads((folder / INDEX).read_bytes())
        files = {
            name: (description["analyzer"], description["table"])
            for name, description in about["files"].items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        files = None
    if files is None or set(about) != {"title", "meta", "files"}:
        raise TracelensError(
            f"{folder / INDEX}: not written by tracelens; choose another -o, or move it away"
        )
    return [*files, "skips.csv"]


@renderer(
    "csv",
    suffix="",
    doc="a directory: <analyzer>.<table>.csv in full, skips.csv, meta.json",
    folder=FolderKind(INDEX, "table of a report", listed),
)
def files(report: Report) -> Mapping[str, bytes]:
    """File name to content; `meta.json` holds title, meta, and of every file its title, doc and columns.

    Text cells are as `safe` makes them, so every row is one line for every reader, and no cell a formula.
    An efficiency that needs its reason is the number with it: `8.53 (cached input: ...)`.
    """
    contents: dict[str, bytes] = {}
    described: dict[str, Any] = {}
    for result in report.results:
        for name, table in result.exported.items():
            stem = re.sub(r"[^\w.-]", "_", f"{result.analyzer}.{name}")
            used = {other.casefold() for other in contents} | {"skips.csv", INDEX}
            tries = (stem, *(f"{stem}_{number}" for number in range(2, len(contents) + 3)))
            file = next(f"{each}.csv" for each in tries if f"{each}.csv".casefold() not in used)
            columns = [
                ["true" if cell else "false" for cell in cells] if column.dtype == "bool" else cells
                for column in table.schema.columns
                for cells in (clean(table, column),)
            ]
            contents[file] = _csv(table.schema.names, columns)
            described[file] = {
                "analyzer": result.analyzer,
                "table": name,
                "title": table.schema.title,
                "doc": table.schema.doc,
                "columns": [
                    {"name": column.name, "dtype": column.dtype, "unit": column.unit, "doc": column.doc}
                    for column in table.schema.columns
                ],
            }
    skips = [
        [safe(one_line(cell)) for cell in (result.analyzer, skip.subject, skip.reason)]
        for result in report.results
        for skip in result.skips
    ]
    contents["skips.csv"] = _csv(["analyzer", "subject", "reason"], zip(*skips, strict=True))
    about = {"title": report.title, "meta": dict(report.meta), "files": described}
    contents[INDEX] = dumps(about, indent=True)
    return contents


def _csv(names: list[str], columns: Iterable[Iterable[Any]]) -> bytes:
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(zip(*columns, strict=True))
    return text.getvalue().encode()


def safe(text: str) -> str:
    r"""`text` that is one line and no formula, whatever reads the file (OWASP: CSV injection).

    - Controls, line ends, invisible and bidirectional characters are their escapes: `\r`, `\x00`, `\u2028`.
    - A text that begins with = + - or @, also in full width and behind blanks, quotes or separators, has a
      `'` before it; so has one of these signs behind a semicolon.

    >>> safe("=1+1"), safe("a\r@x"), safe("a;=x")
    ("'=1+1", 'a\\r@x', "a;'=x")
    """
    text = _LATER_FORMULA.sub(r"\1'", visible(text)) if ";" in text else visible(text)
    return f"'{text}" if _FORMULA.match(text) else text


def clean(
    table: Table,
    column: Column,
    safe_text: Callable[[str], str] = safe,
    rows: Rows = slice(None),
    number: str = "{}",
) -> list[Any]:
    """The cells of a column, texts made safe; each distinct text is looked at once. None is an empty cell.

    An efficiency that needs its reason beside it is a text, which begins with it in the format `number`.
    """
    cells = table.cells(column.name, rows)
    if not column.is_text:
        is_efficiency = column.unit == "efficiency"
        plain = ["" if cell is None else number.format(cell) for cell in cells] if is_efficiency else []
        texts = zip(cells, plain, explained(table, column, rows, plain), strict=True)
        return [cell if text == bare else safe_text(text) for cell, bare, text in texts] if plain else cells
    safe_of = {cell: safe_text(cell) for cell in set(cells)}
    return [safe_of[cell] for cell in cells]
