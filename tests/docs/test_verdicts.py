"""docs/verdicts.md: the first finding of each run, the same in headline, list, card and every format."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.reference.traces import FOLDERS
from tracelens.rendering import RENDERERS
from tracelens.rendering.tables import finding_cards
from tracelens.session import report_files
from tracelens.table import Report

PAGE = Path(__file__).parents[2] / "docs" / "verdicts.md"
ROW = re.compile(r"^\| `(?P<run>[^`]+)` \| (?P<said>.*?) ?\| (?P<why>.*) \|$", re.MULTILINE)
QUICK = ("sample_traces/one_gpu/loop", "sample_traces/faults/slow_kernels")
RUNS = [
    pytest.param(match["run"], marks=[] if match["run"] in QUICK else [pytest.mark.slow])
    for match in ROW.finditer(PAGE.read_text(encoding="utf-8"))
]


def first_finding(report: Report) -> str:
    """Name, size and confidence of the first row."""
    row = next(report["findings"]["findings"].itertuples())
    return f"{row.finding}: {row.fraction:.0%}, {row.confidence} confidence"


@pytest.fixture(scope="module", params=RUNS)
def reported(request: pytest.FixtureRequest) -> tuple[str, Report]:
    name = str(request.param)
    folder, _, rest = name.partition("/")
    path = FOLDERS[folder] / rest
    if not path.exists():
        pytest.skip(f"{folder} is not here")
    return name, report_files(str(path))


def test_the_page_says_what_the_report_says(reported: tuple[str, Report]) -> None:
    name, report = reported
    page = PAGE.read_text(encoding="utf-8")
    said = first_finding(report)
    made = ROW.sub(
        lambda row: f"| `{row['run']}` | {said} | {row['why']} |" if row["run"] == name else row[0], page
    )
    if os.environ.get("UPDATE_GOLD"):
        PAGE.write_text(made, encoding="utf-8")
    assert made == PAGE.read_text(encoding="utf-8"), "docs/verdicts.md differs; if meant, UPDATE_GOLD=1"


def test_headline_and_card_are_of_the_first_row(reported: tuple[str, Report]) -> None:
    _, report = reported
    assert report.summary is not None
    row = next(report["findings"]["findings"].itertuples())
    saved = row.additional_ns / report["findings"].meta["base_ns"]
    left_ms = (report["findings"].meta["base_ns"] - row.additional_ns) / 1e6
    numbers = [float(text) for text in re.findall(r"about (\d+(?:\.\d+)?)", report.summary.verdict)]
    assert any(
        number == pytest.approx(value, rel=0.06)
        for number in numbers
        for value in (100 * saved, left_ms, 1e3 * left_ms)
    )
    card, *_ = finding_cards(report)
    assert (card.number, card.name, card.confidence) == (1, row.finding, row.confidence)
    for name in ("console", "markdown"):
        (text,) = RENDERERS.get(name).files(report).values()
        assert report.summary.verdict.split(";")[0][:30].encode() in text
        found = [text.find(other[:12].encode()) for other in report["findings"]["findings"]["finding"]]
        assert found[0] == min(place for place in found if place >= 0)
