"""docs/verdicts.md: the first finding of each run, the same in headline, list, card and every format."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.reference.headlines import check_headline
from tests.reference.traces import FOLDERS
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
    return f"{row.finding}: {row.fraction_of_step:.0%}, {row.confidence} confidence"


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
    check_headline(reported[1])
