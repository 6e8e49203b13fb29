"""How signals become findings: ranked, overlapping savings once, and nothing without a number."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.analysis.moe_traces import Model, recorded
from tests.builders import draw_run, records
from tracelens import analyze
from tracelens.cli.app import app
from tracelens.errors import UnknownName
from tracelens.findings import (
    DETECTORS,
    JOB,
    Detection,
    Detector,
    Outcome,
    Quantity,
    Remedy,
    TracePlatform,
    remedy,
)
from tracelens.findings.actions import CommandSource
from tracelens.findings.findings import NEEDS, SHOWN, RankDetections
from tracelens.table import Result, Skip, result
from tracelens.trace import union

MODULE = importlib.import_module("tracelens.findings.findings")
STEP_NS = 1000
NO_GRAPH = Skip("savings by replay", "no graph")


def detection(saving: float, *where: tuple[int, int], confidence: Any = "high") -> Detection:
    """A detection whose time is lost in these windows."""
    starts, ends = (np.array([edges[side] for edges in where], dtype=np.int64) for side in (0, 1))
    return Detection((Quantity("so many", 3.0, "count"),), saving, union(starts, ends), "seen", confidence)


def recording(rank: int) -> CommandSource:
    """A trace without steps and calls."""
    none = np.zeros(0, dtype=np.int64)
    return CommandSource(
        f"rank{rank}.json", 0, -1, (), none, False, union(none, none), (), {}, TracePlatform()
    )


def of_rank(name: str) -> Detector:
    """A detector; those named symptom... are symptoms."""
    return Detector(
        name,
        name.title(),
        f"the sign of {name}",
        (),
        lambda context: "unused",
        symptom=name.startswith("symptom"),
        remedies=(Remedy(f"mend {name}"),),
    )


def of_run(name: str, outcome: Mapping[int, Detection] | str) -> Detector:
    return Detector(
        name,
        name.title(),
        f"the sign of {name}",
        ("moe",),
        lambda results: outcome,
        remedies=(Remedy(f"mend {name}"),),
    )


@pytest.fixture
def ranked(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Findings of what each rank's detectors found, and of detectors that look at the whole run."""

    def rank(
        *ranks: Mapping[str, Outcome], whole: Mapping[str, Mapping[int, Detection] | str] | None = None
    ) -> Any:
        known = {name: of_rank(name) for rank in ranks for name in rank}
        known |= {name: of_run(name, outcomes) for name, outcomes in (whole or {}).items()}
        monkeypatch.setattr(MODULE, "DETECTORS", dict(sorted(known.items())))
        parts = [
            RankDetections(number, 10 * number, STEP_NS, dict(outcomes), recording(number))
            for number, outcomes in enumerate(ranks)
        ]
        nothing: dict[str, Any] = dict.fromkeys(NEEDS, result({}, []))
        return MODULE.findings.combine(parts, nothing | {"projector": NO_GRAPH})

    return rank


def test_the_largest_saving_comes_first(ranked: Any) -> None:
    result = ranked(
        {"small": detection(100, (0, 100)), "large": detection(300, (200, 600)), "none": "not there"}
    )
    assert records(
        result["findings"], "position", "finding", "saving_ns", "fraction_of_step", "additional_ns"
    ) == [
        (1, "Large", 300, 0.3, 300),
        (2, "Small", 100, 0.1, 100),
    ]
    assert records(result["findings"], "evidence", "remedy", "worst_rank", "ts_ns", "detector") == [
        ("seen", "mend large", 0, 200, "large"),
        ("seen", "mend small", 0, 0, "small"),
    ]
    assert result.skips == (NO_GRAPH,)


def test_time_that_two_are_about_counts_for_the_first(ranked: Any) -> None:
    # Half of the smaller one's 200 ns lie in the larger one's time, so half of its saving is left.
    result = ranked({"large": detection(150, (100, 400)), "small": detection(80, (0, 200))})
    assert records(result["findings"], "detector", "saving_ns", "additional_ns") == [
        ("large", 150, 150),
        ("small", 80, 40),
    ]


def test_what_adds_more_comes_before_what_saves_more(ranked: Any) -> None:
    result = ranked(
        {
            "first": detection(300, (0, 300)),
            "within": detection(200, (50, 250)),
            "beside": detection(50, (400, 500)),
            "partly": detection(90, (200, 500)),
        }
    )
    # partly: a third of its time is the first one's, so 60 are left; then beside has nothing left.
    assert records(result["findings"], "detector", "additional_ns") == [
        ("first", 300),
        ("partly", 60),
        ("within", 0),
        ("beside", 0),
    ]


def test_ranks_are_averaged_and_overlap_each_by_itself(ranked: Any) -> None:
    result = ranked(
        {"a": detection(100, (0, 200)), "b": detection(80, (100, 300))},
        {"a": "not here", "b": detection(60, (0, 100))},
    )
    # b saves (80 + 60) / 2, a (100 + 0) / 2; of a's time on rank 0 half is b's.
    columns = ("detector", "saving_ns", "additional_ns", "worst_rank", "evidence", "ts_ns")
    assert records(result["findings"], *columns) == [
        ("b", 70, 70, 0, "rank 0: seen", 100),
        ("a", 50, 25, 0, "rank 0: seen", 0),
    ]


def test_where_it_is_worst_is_told_since_that_ranks_first_event(ranked: Any) -> None:
    result = ranked({"a": detection(10, (5, 10))}, {"a": detection(90, (20, 30), (40, 90))})
    row = records(result["findings"], "worst_rank", "evidence", "ts_ns")[0]
    assert row == (1, "rank 1: seen", 30)  # its longest window begins at 40, its first event is at 10


def test_a_symptom_is_ranked_below_the_cause_of_most_of_its_time(ranked: Any) -> None:
    # 60 of the symptom's 100 ns are the cause's, so 40 are left.
    result = ranked({"symptom": detection(100, (0, 100)), "cause": detection(50, (40, 100))})
    columns = ("detector", "saving_ns", "additional_ns", "explained_by")
    assert records(result["findings"], *columns) == [("cause", 50, 50, ""), ("symptom", 100, 40, "cause")]
    assert "60%" in result["findings"]["evidence"][1]
    assert "Cause" in result["findings"]["evidence"][1]


def test_a_symptom_comes_first_where_no_cause_has_most_of_its_time(ranked: Any) -> None:
    # The causes claim their 400 and 300 ns first, although the symptom is ranked above them.
    symptom = detection(500, (0, 1000))
    result = ranked({"symptom": symptom, "a": detection(50, (0, 400)), "b": detection(20, (600, 900))})
    assert records(result["findings"], "detector", "additional_ns", "explained_by") == [
        ("symptom", 150, ""),
        ("a", 50, ""),
        ("b", 20, ""),
    ]


def test_a_cause_inside_another_one_stays_above_its_symptom(ranked: Any) -> None:
    where = {"outer": (0, 1000), "inner": (100, 200), "symptom": (100, 210)}
    savings = {"outer": 300, "inner": 30, "symptom": 90}
    result = ranked({name: detection(savings[name], edges) for name, edges in where.items()})
    assert records(result["findings"], "detector", "additional_ns", "explained_by") == [
        ("outer", 300, ""),
        ("inner", 0, ""),
        ("symptom", 0, "outer"),
    ]


def test_a_cause_explains_a_symptom_over_all_ranks(ranked: Any) -> None:
    # On rank 0 the cause has all of it, on rank 1, with five times as much, nothing.
    alone = {"symptom": detection(500, (0, 500)), "cause": "not here"}
    result = ranked({"symptom": detection(100, (0, 100)), "cause": detection(20, (0, 100))}, alone)
    assert records(result["findings"], "detector", "additional_ns", "explained_by") == [
        ("symptom", 250, ""),
        ("cause", 10, ""),
    ]


def test_causes_keep_their_order_among_themselves_and_no_cause_explains_a_cause(ranked: Any) -> None:
    result = ranked({"large": detection(300, (0, 300)), "small": detection(200, (0, 200))})
    assert records(result["findings"], "detector", "additional_ns", "explained_by") == [
        ("large", 300, ""),
        ("small", 0, ""),
    ]


def test_what_is_of_the_job_counts_as_it_is(ranked: Any) -> None:
    whole = {"job": {JOB: detection(40, (0, 50))}, "none": "no such thing"}
    result = ranked({"a": detection(60, (0, 70))}, {"a": "not here"}, whole=whole)
    columns = ("detector", "saving_ns", "additional_ns", "worst_rank", "ts_ns", "evidence")
    assert records(result["findings"], *columns) == [
        ("job", 40, 40, None, None, "seen"),
        ("a", 30, 30, 0, 0, "rank 0: seen"),
    ]


def test_signals_of_some_ranks_from_the_whole_run(ranked: Any) -> None:
    whole = {"late": {1: detection(40, (100, 200)), 3: detection(20, (0, 50))}}
    nothing = {"a": "not here"}
    result = ranked(nothing, nothing, nothing, nothing, whole=whole)
    assert records(result["findings"], "saving_ns", "worst_rank", "ts_ns") == [(15, 1, 90)]


def test_what_saves_next_to_nothing_is_no_finding(ranked: Any) -> None:
    border = SHOWN * STEP_NS
    result = ranked(
        {"at": detection(border, (0, 9)), "over": detection(border + 1, (0, 9)), "zero": detection(0)}
    )
    assert result["findings"]["detector"].tolist() == ["over"]
    verdicts = dict(records(result["checks"], "detector", "verdict"))
    assert verdicts == {"at": "below 0.5% of a step", "over": "finding", "zero": "below 0.5% of a step"}


def test_without_a_finding_there_is_a_reason(ranked: Any) -> None:
    result = ranked({"a": "not here"})
    assert not len(result["findings"])
    assert result.skips == (
        Skip("findings", "nothing costs more than 0.5% of a step; see `checks`"),
        NO_GRAPH,
    )


def test_a_saving_without_a_place_is_not_cut(ranked: Any) -> None:
    result = ranked({"a": detection(60), "b": detection(100, (0, 150))})
    assert records(result["findings"], "detector", "additional_ns", "ts_ns") == [
        ("b", 100, 0),
        ("a", 60, None),
    ]


def test_an_estimate_is_no_longer_than_the_time_it_is_about_or_the_step(ranked: Any) -> None:
    result = ranked({"within": detection(500, (0, 300)), "endless": detection(5000, (300, 4000))})
    assert records(result["findings"], "detector", "saving_ns", "additional_ns", "low_ns", "high_ns") == [
        ("endless", 1000, 1000, 0, 1000),
        ("within", 300, 0, 0, 300),
    ]


def test_without_a_graph_estimates_are_upper_bounds_of_low_confidence(ranked: Any) -> None:
    result = ranked({"a": detection(60, (0, 90), confidence="high")})
    columns = ("basis", "scenario", "confidence", "upper_bound")
    assert records(result["findings"], *columns) == [("upper bound", "", "low", MODULE.NO_SCENARIO)]


def test_what_was_measured_and_what_was_looked_for(ranked: Any) -> None:
    result = ranked(
        {"a": detection(60, (0, 90)), "b": "no sign"},
        {"a": detection(40, (0, 90)), "b": "nor here"},
        whole={"c": "too few ranks"},
    )
    assert records(result["measurements"]) == [
        (0, "", "step", 1000.0, "ns"),
        (1, "", "step", 1000.0, "ns"),
        (0, "a", "so many", 3.0, "count"),
        (0, "a", "estimate", 60.0, "ns"),
        (1, "a", "so many", 3.0, "count"),
        (1, "a", "estimate", 40.0, "ns"),
    ]
    assert records(result["checks"]) == [
        ("a", "the sign of a", 2, 50, 50, "upper bound", "", "finding"),
        ("b", "the sign of b", 0, 0, 0, "", "", "no sign; nor here"),
        ("c", "the sign of c", 0, 0, 0, "", "", "too few ranks"),
    ]


# The real detectors


def test_findings_make_the_results_that_detectors_need() -> None:
    needed = {name for _, item in DETECTORS.items() for name in item.needs}
    assert needed <= set(NEEDS)


def test_every_detector_says_what_it_looks_for_and_what_to_do() -> None:
    for name, item in DETECTORS.items():
        assert item.title, name
        assert remedy(item, TracePlatform()).endswith("."), name
        assert item.doc.endswith("."), name


@pytest.fixture(scope="module")
def report() -> Result:
    model = Model(ranks=2, exchange="all_to_all", rows=lambda rank, *_: [2 + 3 * rank, 1, 2, 4], layers=3)
    return analyze(recorded(model)[0], "findings", device="mi300x")


def test_no_finding_without_numbers(report: Result) -> None:
    table, measured = report["findings"], report["measurements"]
    assert len(table) >= 4
    assert table["position"].tolist() == list(range(1, len(table) + 1))
    assert (table["saving_ns"] > 0).all()
    assert (table["additional_ns"] <= table["saving_ns"]).all()
    assert (table["additional_ns"].diff().dropna() <= 0).all()
    for row in table.itertuples():
        assert any(sign.isdigit() for sign in row.evidence.removeprefix(f"rank {row.worst_rank}: "))
        of_detector = measured[measured["detector"] == row.detector]
        assert len(of_detector[of_detector["measure"] != "estimate"]) > 0
        if row.basis == "replayed":
            assert row.scenario
            continue
        estimate = of_detector[of_detector["measure"] == "estimate"]["value"].sum() / (
            1 if row.worst_rank == JOB else 2
        )
        assert row.saving_ns <= round(estimate)


def test_every_detector_gives_a_verdict(report: Result) -> None:
    checked = report["checks"]
    assert checked["detector"].tolist() == [name for name, _ in DETECTORS.items()]
    assert (checked["verdict"].str.len() > 0).all()
    shown = set(checked[checked["verdict"] == "finding"]["detector"])
    assert shown == set(report["findings"]["detector"])


def test_a_device_that_is_not_known_is_an_error() -> None:
    run = draw_run("s7 gemm | ---")
    with pytest.raises(UnknownName, match="nosuch"):
        analyze(run, "findings", device="nosuch")


def test_a_trace_of_an_unknown_device_has_findings() -> None:
    run, _ = recorded(Model(rows=lambda *_: [1, 2, 3, 4, 1, 2, 3, 0]))
    report = analyze(run, "findings")
    assert len(report["findings"]) > 0
    checked = report["checks"].set_index("detector")
    assert checked.loc["expert_loop", "ranks"] == 1


def test_a_report_has_the_findings(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    sample = Path(__file__).parents[2] / "sample_traces" / "one_gpu/loop/rank0.json.gz"
    options = ("--only", "findings", "-o", str(path))
    assert CliRunner().invoke(app, ["report", str(sample), *options]).exit_code == 0
    report = json.loads(path.read_text(encoding="utf-8"))
    table = report["results"]["findings"]["tables"]["findings"]
    assert report["findings"] == table
    assert {"finding", "saving_ns", "additional_ns", "confidence", "evidence", "remedy"} <= set(table[0])
