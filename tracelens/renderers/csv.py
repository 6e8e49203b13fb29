"""A directory of CSV files: one a table in full and in raw units, the skips, and what the columns mean."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping
from io import StringIO
from typing import Any

from tracelens.renderers import renderer
from tracelens.renderers._format import encodable, is_text, values
from tracelens.renderers.json import dumps
from tracelens.schema import Report, Schema, Table

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


@renderer("csv", suffix="", doc="a directory: <analyzer>.<table>.csv in full, skips.csv, meta.json")
def files(report: Report) -> Mapping[str, bytes]:
    """File name to content; `meta.json` holds title, meta, and of every file its title, doc and columns.

    A text cell that a spreadsheet would take for a formula is prefixed with a single quote.
    """
    contents: dict[str, bytes] = {}
    described: dict[str, Any] = {}
    for result in report.results:
        for name, table in result.data.items():
            file = _unique(f"{result.analyzer}.{name}", contents)
            contents[file] = _csv(table.schema.names, _columns(table))
            described[file] = _described(result.analyzer, name, table.schema)
    skips = [
        [safe(cell) for cell in (result.analyzer, skip.subject, skip.reason)]
        for result in report.results
        for skip in result.skips
    ]
    contents["skips.csv"] = _csv(["analyzer", "subject", "reason"], zip(*skips, strict=True))
    about = {"title": report.title, "meta": dict(report.meta), "files": described}
    contents["meta.json"] = dumps(about, indent=True)
    return contents


def safe(text: str) -> str:
    """`text` that no spreadsheet takes for a formula (OWASP: CSV injection)."""
    return encodable(f"'{text}" if text.startswith(_FORMULA) else text)


def _unique(name: str, taken: Mapping[str, bytes]) -> str:
    stem = re.sub(r"[^\w.-]", "_", name)
    used = {file.casefold() for file in taken} | {"skips.csv", "meta.json"}
    tries = (stem, *(f"{stem}_{number}" for number in range(2, len(taken) + 3)))
    return next(file for file in (f"{item}.csv" for item in tries) if file.casefold() not in used)


def _columns(table: Table) -> Iterable[list[Any]]:
    for column in table.schema.columns:
        cells = values(table, column)
        if is_text(column):
            cache = {cell: safe(cell) for cell in set(cells)}
            yield [cache[cell] for cell in cells]
        else:
            yield ["true" if cell else "false" for cell in cells] if column.dtype == "bool" else cells


def _csv(names: list[str], columns: Iterable[Iterable[Any]]) -> bytes:
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(zip(*columns, strict=True))
    return text.getvalue().encode()


def _described(analyzer: str, name: str, schema: Schema) -> dict[str, Any]:
    columns = [
        {"name": item.name, "dtype": item.dtype, "unit": item.unit, "doc": item.doc}
        for item in schema.columns
    ]
    return {"analyzer": analyzer, "table": name, "title": schema.title, "doc": schema.doc, "columns": columns}
