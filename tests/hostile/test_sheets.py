"""CSV and XLSX: one line a row for every reader, no formula, no link."""

from __future__ import annotations

import csv
import io
import re
import unicodedata
import zipfile
from pathlib import Path
from xml.etree import ElementTree

import openpyxl
import pandas as pd
import pytest

from tests.hostile.conftest import Outputs
from tests.hostile.payloads import PAYLOADS
from tracelens.outputs import write_folder
from tracelens.rendering import RENDERERS, renderer
from tracelens.rendering.formats.csv import safe
from tracelens.table import Report

csv_files = RENDERERS.get("csv").files
xlsx_files = RENDERERS.get("xlsx").files


assert renderer  # the format registers itself


def is_formula(cell: object) -> bool:
    """Whether a spreadsheet may take a text for a formula, whatever it trims."""
    text = unicodedata.normalize("NFKC", str(cell)).strip().lstrip('"`;,|\ufeff \t')
    return text[:1] in tuple("=+-@")


def is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("payload", PAYLOADS, ids=range(len(PAYLOADS)))
def test_a_cell_is_one_line_and_no_formula(payload: str) -> None:
    cell = safe(payload)
    assert len(f"{cell}x".splitlines()) == 1
    assert not is_formula(cell)
    assert not any(is_formula(part) for part in cell.split(";"))
    assert not re.search(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\ud800-\udfff]", cell)


def test_every_reader_of_csv_sees_the_same_rows(tables: Report) -> None:
    contents = csv_files(tables)
    for result in tables.results:
        for name, table in result.exported.items():
            content = contents[f"{result.analyzer}.{name}.csv"]
            text, size = content.decode(), (len(table), len(table.schema.columns))
            assert len(text.splitlines()) == size[0] + 1
            assert len(list(io.TextIOWrapper(io.BytesIO(content), "utf-8"))) == size[0] + 1
            strict = list(csv.reader(io.StringIO(text, newline=""), strict=True))
            assert {len(row) for row in strict} == {size[1]}
            assert len(strict) == size[0] + 1
            for engine in ("c", "python"):
                assert pd.read_csv(io.BytesIO(content), engine=engine, keep_default_na=False).shape == size  # type: ignore[call-overload]
            assert not [
                cell for row in strict[1:] for cell in row if is_formula(cell) and not is_number(cell)
            ]
            # A reader that splits at semicolons gives quotes within a field no meaning.
            loose = [part for line in text.splitlines() for part in line.split(";")[1:]]
            assert not [part for part in loose if is_formula(part)]
            assert "\t" not in text


def test_csv_of_commands(outputs: Outputs) -> None:
    files = [
        path
        for name in ("report", "diff", "whatif")
        for path in (outputs.folder / f"{name}.csv").glob("*.csv")
    ]
    assert len(files) > 30
    for path in files:
        text = path.read_bytes().decode()
        rows = list(csv.reader(io.StringIO(text, newline=""), strict=True))
        assert len(text.splitlines()) == len(rows)
        assert {len(row) for row in rows} == {len(rows[0])}, path.name
        assert not [cell for row in rows for cell in row if is_formula(cell) and not is_number(cell)], (
            path.name
        )


def test_names_of_files_stay_in_their_folder(tables: Report, tmp_path: Path) -> None:
    first = tables.results[0]
    names = [payload for payload in PAYLOADS if len(payload) < 100]
    table = next(iter(first.data.values()))
    hostile = Report((type(first)(names[0], "x", dict.fromkeys(names, table)),))
    contents = csv_files(hostile)
    assert len(contents) == len(names) + 2
    from tracelens.rendering import RENDERERS

    kind = RENDERERS.get("csv").folder
    assert kind is not None
    write_folder(tmp_path / "out", contents, kind)
    assert {path.name for path in (tmp_path / "out").iterdir()} == set(contents)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def check_book(content: bytes) -> openpyxl.Workbook:
    """Parse a workbook and all of its parts; no formula, and links into the book only."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for name in archive.namelist():
            root = ElementTree.fromstring(archive.read(name))
            assert not [item for item in root.iter() if item.tag.endswith("}f")], name
            assert not [item for item in root.iter() if item.get("TargetMode") == "External"], name
    book = openpyxl.load_workbook(io.BytesIO(content))
    assert not list(book.defined_names.values())
    for sheet in book:
        assert not re.search(r"[\[\]:*?/\\\x00-\x1f]", sheet.title)
        for row in sheet.rows:
            for cell in row:
                assert cell.data_type != "f"
                assert cell.hyperlink is None or cell.hyperlink.target is None
                assert cell.data_type != "s" or is_number(cell.value) or not is_formula(cell.value)
    return book


def test_a_workbook_has_no_formula_and_no_link(tables: Report) -> None:
    # Half of the tables: the other half says the same, and writing cells takes time.
    part = Report(tables.results[::3], tables.title, tables.meta)
    book = check_book(xlsx_files(part)["report.xlsx"])
    sheets = iter(book.worksheets[1:])
    for result in part.results:
        for table in result.exported.values():
            sheet = next(sheets)
            assert (sheet.max_row, sheet.max_column) == (len(table) + 1, len(table.schema.columns))


@pytest.mark.parametrize("name", ["report", "diff", "whatif"])
def test_workbooks_of_commands(outputs: Outputs, name: str) -> None:
    check_book((outputs.folder / f"{name}.xlsx").read_bytes())
