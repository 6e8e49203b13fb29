"""JSON, CSV and XLSX read back: everything is there, as numbers, and nothing is a formula."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import openpyxl
import pandas as pd
import pytest

from tests.rendering import sample
from tracelens.errors import MissingExtra
from tracelens.rendering import RENDERERS
from tracelens.rendering.formats import csv, one_result, xlsx
from tracelens.table import Column, Report, Result, Schema

json_files = RENDERERS.get("json").files


def test_one_result_is_the_contract_of_the_command_line() -> None:
    meta = {"version": "1.2", "inputs": ["a.json", "b.json"], "device": "mi355x"}
    found = json.loads(one_result(sample.timeline(2, 3), meta))
    assert list(found) == ["schema_version", "analyzer", "version", "inputs", "tables", "skips", "meta"]
    assert (found["analyzer"], found["version"], found["inputs"]) == ("timeline", "1.2", ["a.json", "b.json"])
    assert found["meta"] == {"device": "mi355x", "scope": "all", "step_ns": 103_086_419}
    row = found["tables"]["timeline"][0]
    assert row == {"rank": 0, "metric": "total", "dur_ns": 412_345_678, "fraction_of_total": 1.0}
    assert type(row["dur_ns"]) is int
    assert len(found["tables"]["strip"]) == 24
    assert [set(skip) for skip in found["skips"]] == [{"subject", "reason"}]


def test_a_report_is_the_contract_of_the_command_line() -> None:
    table = Schema("What", (Column("what", "str"),)).table({"what": ["idle"]})
    first = Result("findings", "What to fix first", {"findings": table})
    report = Report((first, sample.timeline(), sample.unknown()), meta={"version": "1"})
    found = json.loads(json_files(report)["report.json"])
    assert list(found) == ["schema_version", "results", "findings", "meta"]
    assert list(found["results"]) == ["findings", "timeline", "brand_new"]
    assert {"tables", "skips"} <= set(found["results"]["timeline"])
    assert (found["findings"], found["meta"]) == ([{"what": "idle"}], {"version": "1"})
    assert json.loads(json_files(sample.empty())["report.json"]) == {
        "schema_version": 1,
        "results": {},
        "findings": [],
        "meta": {},
    }


def test_json_keeps_integers_and_says_null_for_infinity() -> None:
    rows = json.loads(one_result(sample.unknown(), {}))["tables"]["a_table_with_a_name_longer_than_31"]
    assert [row["big"] for row in rows[:3]] == [2**63 - 1, -(2**63), 2**53 + 1]
    assert rows[2]["ratio"] is None
    assert rows[7]["what"] == "\x1b[31mred\x07 bell \ufffd surrogate"


def test_csv_reads_back(tmp_path: Path) -> None:
    report = sample.report()
    files = csv.files(report)
    for result in report.results:
        for name, table in result.data.items():
            content = io.BytesIO(files[f"{result.analyzer}.{name}.csv"])
            back = pd.read_csv(content, keep_default_na=False, lineterminator="\n")
            assert list(back.columns) == table.schema.names
            assert len(back) == len(table)
            for column in table.schema.columns:
                mine = ["" if cell is None else cell for cell in table.cells(column.name)]
                if column.is_text:
                    mine = [csv.safe(cell) for cell in mine]
                if len(table):
                    theirs = back[column.name].tolist()
                    if "" in mine and not column.is_text:  # a column with a hole is read as texts
                        theirs = [cell and float(cell) for cell in theirs]
                    assert theirs == mine, f"{name}.{column.name}"
    described = json.loads(files["meta.json"])
    assert described["files"]["ops.ops.csv"]["columns"][4]["unit"] == "ns"
    assert set(described["files"]) | {"skips.csv", "meta.json"} == set(files)


@pytest.mark.parametrize("sign", "=+-@\uff1d\uff0b\uff0d\uff20")
@pytest.mark.parametrize("before", ["", " ", "\u3000", '"', "' ", ";", ", "])
def test_csv_has_no_formulas(sign: str, before: str) -> None:
    assert csv.safe(f"{before}{sign}1+1").startswith("'")
    assert csv.safe(f"1{sign}1") == f"1{sign}1"
    assert csv.safe(f"a;{sign}1") == f"a;'{sign}1"


@pytest.mark.parametrize("char", "\t\n\r\0\v\f\x1b\x85\u2028\u2029\u202e\u200b\ud800")
def test_csv_shows_what_cannot_be_seen(char: str) -> None:
    cell = csv.safe(f"a{char}=b")
    assert cell.isprintable()
    assert cell.encode().decode("unicode_escape") == f"a{char}=b"


def test_csv_names_are_files_and_unique() -> None:
    tables = dict.fromkeys(("../a", "a/b", "A_b", "a_b"), sample.idle().data["causes"])
    result = sample.Result("x", "X", tables)
    names = [name.casefold() for name in csv.files(Report((result,)))]
    assert len(set(names)) == len(names) == 6
    assert not any("/" in name for name in names)


@pytest.fixture(scope="module")
def book() -> openpyxl.Workbook:
    return openpyxl.load_workbook(io.BytesIO(xlsx.files(sample.report())["report.xlsx"]))


def test_xlsx_holds_every_table_and_no_formula(book: openpyxl.Workbook) -> None:
    names = book.sheetnames
    assert names[0] == "index"
    assert all(len(name) <= 31 for name in names)
    assert len({name.casefold() for name in names}) == len(names) == 15
    for sheet in book:
        assert not [cell.coordinate for row in sheet.rows for cell in row if cell.data_type == "f"]
    sheet = book["ops"]
    assert [cell.value for cell in sheet[1]] == sample.ranking("ops", "dur_ns").schemas["ops"].names
    assert sheet.freeze_panes == "A2"
    assert sheet["B4"].value == f"'{sample.FORMULA}"
    assert sheet["E2"].value == 90_000_000
    assert (sheet["E2"].number_format, sheet["I2"].number_format) == ("#,##0", "0.0%")
    assert sheet["J2"].value is True


def test_xlsx_index_links_and_lists_skips(book: openpyxl.Workbook) -> None:
    cells = [[cell.value for cell in row] for row in book["index"].rows]
    assert ["timeline", "Timeline", "GPU time", "Exposed is what computation does not hide.", "12"] in cells
    assert any(row[0] == sample.IMAGE and row[2].startswith("no | pipe") for row in cells)
    link = next(cell for row in book["index"].rows for cell in row if cell.value == "ops")
    assert link.hyperlink.location == "'ops'!A1"


def test_xlsx_keeps_large_integers_exact_and_cells_legal(book: openpyxl.Workbook) -> None:
    sheet = next(sheet for sheet in book if sheet.title.startswith("brand_new"))
    assert [sheet.cell(row, 2).value for row in (2, 3, 4, 5)] == [
        str(2**63 - 1),
        str(-(2**63)),
        str(2**53 + 1),
        0,
    ]
    assert sheet["C4"].value == "inf"
    assert sheet["A9"].value == r"\x1b[31mred\x07 bell \ud800 surrogate"
    assert len(xlsx.text("x" * 40_000)) == 32_767


def test_xlsx_is_cut_with_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xlsx, "MOST_ROWS", 10)
    book = openpyxl.load_workbook(io.BytesIO(xlsx.files(sample.report())["report.xlsx"]))
    assert book["ops"].max_row == 11
    rows = [row[4].value for row in book["index"].rows]
    assert "first 10 of 30; CSV and JSON hold all of them" in rows


def test_xlsx_names_the_extra_when_the_library_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xlsxwriter", None)
    with pytest.raises(MissingExtra, match=r"pip install 'tracelens-moe\[xlsx\]'"):
        xlsx.files(sample.report())
