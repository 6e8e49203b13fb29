"""Text in the cells of spreadsheets: CSV and XLSX."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from tracelens.printable import visible
from tracelens.rendering.tables import explained
from tracelens.table import Column, Rows, Table

# Signs of other widths are the same to East Asian versions of spreadsheets.
_SIGNS = "=+\\-@\uff1d\uff0b\uff0d\uff20\ufe66\ufe62\ufe63\ufe6b"
_FORMULA = re.compile(rf"[\s\"'`;,|]*[{_SIGNS}]")
# Where the list separator is a semicolon, so is that of CSV, and quotes within a field mean nothing.
_LATER_FORMULA = re.compile(rf"(;[\s\"']*)(?=[{_SIGNS}])")


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
    """The cells of a column, texts made safe; each distinct text is looked at once.

    An efficiency that needs its reason beside it is a text, which begins with it in the format `number`.
    """
    cells = table.values(column.name, rows)
    if not column.is_text:
        plain = list(map(number.format, cells)) if column.unit == "efficiency" else []
        texts = zip(cells, plain, explained(table, column, rows, plain), strict=True)
        return [cell if text == bare else safe_text(text) for cell, bare, text in texts] if plain else cells
    safe_of = {cell: safe_text(cell) for cell in set(cells)}
    return [safe_of[cell] for cell in cells]
