"""An efficiency beyond what the hardware allows stands with its reason in the same cell, in every format."""

from __future__ import annotations

import csv
import io
import json
import re
import zipfile

import pytest

from tests.rendering import sample
from tracelens.rendering import RENDERERS
from tracelens.rendering.formats import console_text
from tracelens.table import Column, Report, Result, Schema

CACHED = "cached input: <all> of it fits in the 50 MiB cache"
COLUMNS = (
    Column("name", "str"),
    Column("efficiency", "float64", "efficiency", absent=-1),
    Column("note", "str", prose=True),
)
ROWS = [("gather", 8.53, f"{CACHED}; upper bound"), ("gemm", 0.7, "measured"), ("unknown", -1.0, "")]
BEYOND = "beyond the peak: cached input, another device, or less work than counted"


def report(columns: tuple[Column, ...] = COLUMNS, rows: list[tuple[object, ...]] = ROWS) -> Report:
    table = Schema("Efficiencies", columns).from_rows(rows)
    return Report((Result("roofline", "Roofline", {"roofline": table}),))


def shown(name: str, of: Report) -> dict[str, bytes]:
    return dict(RENDERERS.get(name).files(of))


def test_html() -> None:
    (page,) = shown("html", report()).values()
    cells = re.findall(r"<td class=[^>]*data-v=([^ ]*)[^>]*>([^<]*)</td>", page.decode())
    reason = CACHED.replace("<", "&lt;").replace(">", "&gt;")
    assert cells == [("8.53", f"853.0% ({reason})"), ("0.7", "70.0%")]
    assert "<td class=f data-v>–</td>" in page.decode()


def test_markdown() -> None:
    (text,) = shown("markdown", report()).values()
    cells = [line.split(" | ")[1] for line in text.decode().splitlines() if line.startswith("| ")]
    assert cells[2:] == [f"853.0% ({CACHED.replace('<', '&lt;').replace('>', '&gt;')})", "70.0%", "–"]


def test_csv() -> None:
    content = shown("csv", report())["roofline.roofline.csv"].decode()
    cells = [row["efficiency"] for row in csv.DictReader(io.StringIO(content))]
    assert cells == [f"8.53 ({CACHED})", "0.7", ""]


def test_xlsx() -> None:
    pytest.importorskip("xlsxwriter")
    (book,) = shown("xlsx", report()).values()
    sheet = zipfile.ZipFile(io.BytesIO(book)).read("xl/worksheets/sheet2.xml").decode()
    assert f"<t>853.0% ({CACHED.replace('<', '&lt;').replace('>', '&gt;')})</t>" in sheet
    assert "<v>0.7</v>" in sheet


def test_json_keeps_the_number_beside_its_note() -> None:
    (text,) = shown("json", report()).values()
    rows = json.loads(text)["results"]["roofline"]["tables"]["roofline"]
    assert rows[0] == {"name": "gather", "efficiency": 8.53, "note": f"{CACHED}; upper bound"}


@pytest.mark.parametrize("width", [60, 100, 200])
def test_console(width: int) -> None:
    lines = console_text(report(), width=width).splitlines()
    assert any("853.0%" in line for line in lines)
    # In a narrow terminal the reason takes several lines of its column.
    words = " ".join(lines).split()
    assert [word for word in f"({CACHED})".split() if word not in words] == []


def test_tables_without_notes_have_a_reason_too() -> None:
    rows: list[tuple[object, ...]] = [("gather", 1.06), ("gemm", 1.05)]
    (text,) = shown("markdown", report(COLUMNS[:2], rows)).values()
    assert f"106.0% ({BEYOND})" in text.decode()
    assert "105.0% |" in text.decode()


def test_hostile_notes_stay_in_their_cell() -> None:
    for nasty in sample.NASTY:
        of = report(rows=[("gather", 2.0, nasty)])
        for name, _ in RENDERERS.items():
            assert shown(name, of)
        (page,) = shown("html", of).values()
        assert sample.SCRIPT.encode() not in page
        content = shown("csv", of)["roofline.roofline.csv"].decode()
        assert len(list(csv.reader(io.StringIO(content)))) == 2
