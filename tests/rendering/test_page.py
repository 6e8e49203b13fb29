"""What the page says first: cards of findings, a line for each folded section."""

from __future__ import annotations

from typing import Any

import pytest

from tests.builders import aligned, draw
from tests.rendering import sample, sample_search
from tracelens import analyze
from tracelens.rendering import RENDERERS
from tracelens.rendering.tables import finding_cards, headline
from tracelens.table import Column, Report, Result, Summary, Tile
from tracelens.trace import make_run

files = RENDERERS.get("html").files


ACTIONS = ("evidence_command", "replay_command", "whatif_command", "location")
COLUMNS = (
    Column("position", "int64", "count"),
    Column("finding", "str"),
    Column("additional_ns", "int64", "ns"),
    Column("fraction_of_step", "float64", "fraction"),
    Column("saving_ns", "int64", "ns"),
    Column("low_ns", "int64", "ns"),
    Column("high_ns", "int64", "ns"),
    Column("basis", "category"),
    Column("confidence", "category"),
    Column("evidence", "str", prose=True),
    Column("remedy", "str", prose=True),
    Column("worst_rank", "int64"),
    Column("ts_ns", "int64", "ns"),
    Column("detector", "category"),
    *(Column(name, "str", folded=True) for name in ACTIONS),
)


def findings(**changes: Any) -> Result:
    """One finding: an expert loop that costs 41% of a step."""
    row = {
        "position": 1,
        "finding": "Expert loop",
        "additional_ns": 91_500_000,
        "fraction_of_step": 0.41,
        "saving_ns": 91_500_000,
        "low_ns": 37_100_000,
        "high_ns": 92_600_000,
        "basis": "replayed",
        "confidence": "medium",
        "evidence": "rank 0: 16 GEMMs (large: 758; small: 3) per layer; the loops take 35.1 ms/step",
        "remedy": "Use `grouped_mm`. Megatron-LM: --moe-grouped-gemm.",
        "worst_rank": 0,
        "ts_ns": 270_699_789,
        "detector": "expert_loop",
        "evidence_command": "tracelens analyze moe run --step 2",
        "replay_command": "tracelens replay run --finding expert_loop -o out",
        "whatif_command": "",
        "location": "rank 0, stream 7; in ui.perfetto.dev: Ctrl+Shift+P, Pan to timestamp, 4361018793322568",
    }
    data = {name: [value] for name, value in (row | changes).items()}
    return sample.result(
        "findings",
        "What to fix first",
        {"findings": sample.table("Findings", COLUMNS, data, kind="entries")},
    )


def test_a_card_says_what_is_saved_and_how_sure_that_is() -> None:
    (card,) = finding_cards(Report((findings(),)))
    assert (card.saving, card.share, card.confidence) == ("91.5 ms", 0.41, "medium")
    assert card.alone == "91.5 ms (37.1 to 92.6 ms)"
    assert (card.rank, card.ts_ns) == (0, 270_699_789)


def test_an_upper_bound_says_so_and_has_no_range() -> None:
    (card,) = finding_cards(Report((findings(basis="upper bound", low_ns=0),)))
    assert (card.saving, card.alone) == ("up to 91.5 ms", "up to 91.5 ms")


def test_what_adds_nothing_has_no_saving_of_its_own() -> None:
    (card,) = finding_cards(Report((findings(additional_ns=0, fraction_of_step=0.0),)))
    assert (card.saving, card.alone) == ("", "91.5 ms (37.1 to 92.6 ms)")


def test_times_of_a_card_have_one_unit() -> None:
    (card,) = finding_cards(Report((findings(additional_ns=752_000, saving_ns=29_600_000),)))
    assert card.saving == "0.75 ms"
    assert card.alone.startswith("29.6 ms")


def test_evidence_and_remedy_begin_with_their_first_sentence() -> None:
    (card,) = finding_cards(Report((findings(),)))
    assert card.evidence == "rank 0: 16 GEMMs (large: 758; small: 3) per layer"
    assert card.more_evidence == "the loops take 35.1 ms/step"
    assert (card.remedy, card.more_remedy) == ("Use `grouped_mm`.", "Megatron-LM: --moe-grouped-gemm.")


def test_buttons_copy_the_commands_that_there_are_and_the_position() -> None:
    (card,) = finding_cards(Report((findings(),)))
    assert [copied.text for copied in card.copied] == [
        "tracelens analyze moe run --step 2",
        "tracelens replay run --finding expert_loop -o out",
        "4361018793322568",
    ]


@pytest.mark.parametrize(
    ("detector", "finding", "evidence", "row"),
    [
        ("expert_loop", "Expert loop", "16 GEMMs", ("moe-stages", "experts")),
        ("router", "Unfused router", "beside experts", ("moe-stages", "experts")),
        ("silent", "Nothing known", "nothing that the tables name", None),
    ],
)
def test_a_card_leads_to_the_row_that_it_names(
    detector: str, finding: str, evidence: str, row: tuple[str, str] | None
) -> None:
    result = findings(detector=detector, finding=finding, evidence=evidence)
    (card,) = finding_cards(Report((result, sample.moe())))
    assert card.section == "moe"
    assert card.row == row


def test_a_card_leads_nowhere_where_the_report_has_no_such_tables() -> None:
    (card,) = finding_cards(Report((findings(),)))
    assert (card.section, card.row) == ("", None)


@pytest.mark.parametrize(
    ("result", "fact"),
    [
        (sample.timeline(2), "computation 62%, exposed communication 13%, idle 24%"),
        (sample.collectives(3), "of the communication kernels' time is waiting"),
        (sample.ranking("kernels", "sum_ns"), "take half of the time"),
        (sample.findings(4, ("a", "b")), "4 entries, first: a"),
        (sample.breakdown(), "gemm "),
        (sample.diff(3), "-"),
        (sample_search.scaling(), " with EP 8: 1,000 tokens/s per GPU"),
    ],
)
def test_a_folded_section_says_its_most_telling_fact(result: Result, fact: str) -> None:
    assert fact in headline(result)
    assert len(headline(result)) <= 160


def test_a_ranking_says_how_few_names_take_half() -> None:
    columns = (
        Column("name", "str"),
        Column("sum_ns", "int64", "ns"),
        Column("fraction", "float64", "fraction"),
    )
    data = {
        "name": [f"kernel {n}" for n in range(20)],
        "sum_ns": [100, 90, *[10] * 18],
        "fraction": [0.05] * 20,
    }
    result = sample.result("brand_new", "New", {"kernels": sample.table("Kernels by name", columns, data)})
    assert headline(result) == "20 kernels, 2 take half of the time"


def test_what_does_not_divide_one_whole_has_no_shares() -> None:
    columns = (Column("scenario", "str"), Column("projected_ns", "int64", "ns"))
    data = {"scenario": ["graph", "grouped"], "projected_ns": [3, 19]}
    result = sample.result("whatif", "What if", {"whatif": sample.table("Scenarios", columns, data)})
    assert headline(result) == ""


def test_a_result_without_tables_says_why() -> None:
    result = sample.result("pipeline", "Pipeline", {}, skips=sample.timeline().skips)
    assert headline(result).startswith("the trace has no ProfilerStep")


def page(*results: Result, summary: Summary | None = None) -> str:
    return files(Report(results, title="Run", summary=summary))["report.html"].decode()


def test_tiles_lead_to_their_sections_and_say_what_is_unknown() -> None:
    tiles = (
        Tile("step", "Step time", 58.4e6, "ns", 57e6, 60e6, "2 steps", "timeline"),
        Tile("memory", "Peak memory", None, "bytes", note="record with `profile_memory=True`"),
        Tile("gone", "Elsewhere", 1.0, "count", section="nowhere"),
    )
    text = page(sample.timeline(), summary=Summary("58.4 ms a step.", tiles))
    assert '<p class="verdict">58.4 ms a step.' in text
    assert '<a href="#timeline">Step time</a>' in text
    assert "57 to 60 ms" in text
    assert "<code>profile_memory=True</code>" in text
    assert text.count('class="unknown"') == 1
    assert "#nowhere" not in text


def test_an_unpaired_backtick_is_text() -> None:
    text = page(sample.timeline(), summary=Summary("a ` b"))
    assert '<p class="verdict">a ` b' in text


def test_the_first_section_is_open_where_nothing_is_ranked() -> None:
    assert page(sample.timeline(), sample.idle()).count('<details class="section" open>') == 1
    assert '<details class="section" open>' not in page(findings(), sample.timeline())


def test_findings_stand_once_in_the_page() -> None:
    text = page(findings(), sample.timeline())
    assert text.count('id="findings"') == 1
    assert text.index('id="findings"') < text.index('id="timeline"')


def test_steps_of_serving_are_counted_where_only_one_rank_labels_them() -> None:
    trace = draw(
        aligned("""
        scope step[DECODE bs=4] | --- ---
        launch                  | a   b
        s7 gemm                 |  a   b
    """)
    )
    result = analyze(make_run([trace]), "serving")
    assert result["summary"]["steps"].isna().tolist() == [True]
    assert headline(result) == "SGLang: 2 steps"
