"""A directory of CSV files: one a table in full and in raw units, the skips, and what the columns mean."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping
from io import StringIO
from pathlib import Path
from typing import Any

import orjson

from tracelens.errors import TracelensError
from tracelens.outputs import FolderKind
from tracelens.rendering.formats.json import dumps
from tracelens.rendering.formats.sheet_text import clean, safe
from tracelens.rendering.renderer import renderer
from tracelens.rendering.tables import one_line
from tracelens.table import Report, Schema, Table

INDEX = "meta.json"


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
            file = _unique(f"{result.analyzer}.{name}", contents)
            contents[file] = _csv(table.schema.names, _columns(table))
            described[file] = _described(result.analyzer, name, table.schema)
    skips = [
        [safe(one_line(cell)) for cell in (result.analyzer, skip.subject, skip.reason)]
        for result in report.results
        for skip in result.skips
    ]
    contents["skips.csv"] = _csv(["analyzer", "subject", "reason"], zip(*skips, strict=True))
    about = {"title": report.title, "meta": dict(report.meta), "files": described}
    contents[INDEX] = dumps(about, indent=True)
    return contents


def _unique(name: str, taken: Mapping[str, bytes]) -> str:
    stem = re.sub(r"[^\w.-]", "_", name)
    used = {file.casefold() for file in taken} | {"skips.csv", INDEX}
    tries = (stem, *(f"{stem}_{number}" for number in range(2, len(taken) + 3)))
    return next(file for file in (f"{candidate}.csv" for candidate in tries) if file.casefold() not in used)


def _columns(table: Table) -> Iterable[list[Any]]:
    for column in table.schema.columns:
        cells = clean(table, column)
        yield ["true" if cell else "false" for cell in cells] if column.dtype == "bool" else cells


def _csv(names: list[str], columns: Iterable[Iterable[Any]]) -> bytes:
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(zip(*columns, strict=True))
    return text.getvalue().encode()


def _described(analyzer: str, name: str, schema: Schema) -> dict[str, Any]:
    columns = [
        {"name": column.name, "dtype": column.dtype, "unit": column.unit, "doc": column.doc}
        for column in schema.columns
    ]
    return {"analyzer": analyzer, "table": name, "title": schema.title, "doc": schema.doc, "columns": columns}
