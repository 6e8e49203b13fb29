"""The first screen of a report in a terminal."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.rendering import sample
from tracelens.guard import Failure
from tracelens.rendering.formats import brief, console_text, markdown_text
from tracelens.rendering.formats.console import LINES
from tracelens.rendering.tables import tile_range
from tracelens.table import Report, Result, Skip, Summary, Tile

MS = 1_000_000
TILES = (
    Tile("step_time", "Step time", 58.4 * MS, "ns", 57.1 * MS, 60.2 * MS, "median of 3 steps", "steps"),
    Tile("mfu", "MFU", 0.0648, "fraction", 0.06, 0.07),
    Tile("tokens_per_s", "Tokens/s", 140_234, ""),
    Tile("idle", "Idle", 0.363, "fraction"),
    Tile("peak_memory", "Peak memory", None, "bytes", note="no memory events"),
    Tile("trust", "Recording", None, "", text="complete"),
)
SUMMARY = Summary("58.4 ms a step on 4 x H200; 38% of the time goes to waiting for the host.", TILES)


def lines(*results: Result, summary: Summary = SUMMARY, width: int = 100) -> list[str]:
    return brief(Report(results), summary, width=width).splitlines()


@pytest.mark.parametrize("width", [80, 100, 160])
@pytest.mark.parametrize("ranks", [1, 8, 64])
def test_it_fits_a_screen(width: int, ranks: int) -> None:
    long = replace(SUMMARY, verdict=" ".join([SUMMARY.verdict] * 3))
    results = [sample.findings(40), sample.timeline(ranks), sample.collectives(ranks), sample.serving(ranks)]
    shown = lines(*results, summary=long, width=width)
    assert len(shown) <= LINES
    assert max(map(len, shown)) <= width


def test_the_verdict_comes_first_and_the_way_to_the_rest_last() -> None:
    shown = lines(sample.findings(), sample.idle())
    assert shown[:2] == [SUMMARY.verdict, "tracelens report"]
    assert shown[-1] == "All 2 sections: --full or -o report.html; one: tracelens analyze NAME PATH"


def test_findings_that_add_nothing_to_those_above_are_counted_only() -> None:
    result = sample.findings(6)
    table = result.data["findings"]
    time = next(column.name for column in table.schema.columns if column.unit == "ns")
    saved = table.array(time).copy()
    saved[4:] = 0
    columns = dict(table.columns) | {time: saved}
    shown = lines(replace(result, data={"findings": table.schema.table(columns)}))
    assert "What to fix (2 more)" in shown
    assert [line.split()[0] for line in shown[3:] if line.strip()[:1].isdigit()] == ["1", "2", "3", "4"]


def test_tiles_stand_beside_each_other_and_unknown_ones_say_why() -> None:
    shown = lines(sample.findings())
    assert shown[3] == "Step time 58.4 ms (57.1 to 60.2 ms)   MFU 6.5% (6.0 to 7.0%)"
    assert "Not known: Peak memory (no memory events)" in shown
    assert not any("Peak memory –" in line for line in shown)


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [(0.9 * MS, 1.2 * MS, "900 µs to 1.2 ms"), (MS, 2 * MS, "1 to 2 ms"), (MS, MS, "1 ms"), (None, None, "")],
)
def test_the_unit_of_a_range_is_written_once(low: float | None, high: float | None, text: str) -> None:
    assert tile_range(Tile("x", "X", 1.0, "ns", low, high)) == text


def test_narrow_terminals_leave_ranges_out_before_they_stack_tiles() -> None:
    shown = lines(sample.findings(), width=50)
    assert "Step time 58.4 ms    MFU 6.5%" in shown


def test_findings_are_a_line_each_wherever_they_stand() -> None:
    found = sample.findings(3, ("Expert loop: one by one", "b", "c"))
    shown = lines(sample.idle(), found)
    row, *remedy = [line for line in shown if "Expert loop" in line]
    assert [line[: line.index(":")] for line in remedy] == ["First row's remedy"]
    assert "one by one" not in row
    assert len([line for line in shown if line.lstrip().startswith(("1 ", "2 ", "3 "))]) == 3


def test_a_report_without_findings_shows_its_first_table_and_the_number_of_further_rows() -> None:
    shown = lines(sample.ranking("ops", "dur_ns", rows=30))
    (heading,) = [line for line in shown if "more)" in line]
    assert heading.endswith("(21 more)")


def test_no_findings_say_why() -> None:
    none = Result(
        "findings", "What to fix first", {}, skips=(Skip("findings", "nothing costs more than 0.5%"),)
    )
    assert "What to fix first: nothing costs more than 0.5%" in lines(none, sample.idle())


def test_what_failed_is_said_before_the_verdict() -> None:
    failed = replace(sample.idle(), skips=(Skip("idle", Failure.of("idle", ValueError("a bug"))),))
    shown = lines(sample.findings(), failed)
    assert shown.index(SUMMARY.verdict) > 0


def test_the_full_report_begins_with_the_verdict_and_the_tiles() -> None:
    text = console_text(Report((sample.idle(),), summary=SUMMARY))
    assert text.splitlines()[0] == SUMMARY.verdict
    assert "Tokens/s 140,234" in text


def test_markdown_begins_with_the_verdict_and_all_tiles() -> None:
    shown = markdown_text(Report((sample.idle(),), summary=SUMMARY)).splitlines()
    assert shown[2] == f"**{SUMMARY.verdict}**"
    assert "| Step time | 58.4 ms | 57.1 to 60.2 ms | median of 3 steps |" in shown
    assert "| Peak memory | – |  | no memory events |" in shown


def test_escape_sequences_do_not_reach_the_terminal() -> None:
    tiles = (Tile("x", "a\x1b[2J", None, "", text="b\x1b]0;c\x07"),)
    text = brief(Report((sample.idle(),)), Summary("d\x1b[2Je\nf", tiles))
    assert "\x1b" not in text
