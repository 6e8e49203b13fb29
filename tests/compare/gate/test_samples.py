"""Sides from traces and from saved reports."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

import tracelens
from tests.builders import draw, draw_run
from tests.compare.gate.gate_sides import side
from tracelens.compare.gate import Samples, from_result, read_saved
from tracelens.compare.gate.runs import from_saved
from tracelens.errors import TracelensError
from tracelens.rendering.formats import one_result
from tracelens.trace import PacePart, Run, make_run

FIRST = """
    step 1      | ----------
    step 2      |           ----------
    op aten::mm |  --        --
    launch      |  a         b
    s7 gemm     |   aaa       bbbb
"""
SECOND = """
    step 1      | ----------
    step 2      |           ----------
    step 3      |                     -----
    op aten::mm |  --
    launch      |  a
    launch      |            b          c
    s7 gemm     |   aaa
    s7 fill     |             bb         cc
"""


def of(run: Run) -> Samples:
    return from_result(tracelens.analyze(run, "steps"), "run", "1")


def test_one_row_a_rank_and_the_steps_that_all_have() -> None:
    samples = of(draw_run(FIRST, SECOND))
    assert samples.ranks == (0, 1)
    assert samples.steps == ("ProfilerStep#1", "ProfilerStep#2")
    # An op without work in a step took none of its time.
    assert samples.values["op[aten::mm].time"].tolist() == [[3000, 4000], [3000, 0]]
    assert samples.each_step("op[aten::mm].time").tolist() == [3000, 2000]
    assert samples.units["op[aten::mm].time"] == "ns"
    assert samples.find("op[aten::mm]") == "op[aten::mm].time"
    assert samples.find("memory.peak") is None
    assert "profile_memory=True" in samples.why_not("memory.peak")
    assert "no MoE layer" in samples.why_not("moe.router.time")
    assert samples.why_not("step.time") == ""


def test_a_metric_of_some_ranks_is_the_mean_of_those() -> None:
    run = side(ranks=(0, 1), metrics={"moe.time": [[np.nan, np.nan], [4, 6]], "step.time": [[1, 1], [3, 3]]})
    assert run.each_step("moe.time").tolist() == [4, 6]
    assert run.each_step("step.time").tolist() == [2, 2]
    assert run.only([0]).find("moe.time") is None


def test_ranks_without_a_step_in_common() -> None:
    other = FIRST.replace("step 1", "step 8").replace("step 2", "step 9")
    with pytest.raises(TracelensError, match="run: its 2 ranks have no common step"):
        of(draw_run(FIRST, other))


def test_a_run_without_gpu_work() -> None:
    with pytest.raises(TracelensError, match=r"run: no step with GPU work: .*ProfilerActivity\.CUDA"):
        of(make_run([draw("launch | --")]))


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "base.json"
    tracelens.render(tracelens.report(draw_run(FIRST, SECOND), ["timeline", "steps"]), path)
    return path


def same(first: Samples, second: Samples) -> bool:
    return first.values.keys() == second.values.keys() and all(
        np.array_equal(rows, second.values[name]) for name, rows in first.values.items()
    )


def test_a_saved_report_is_as_good_as_the_traces(saved: Path, tmp_path: Path) -> None:
    live = of(draw_run(FIRST, SECOND))
    samples = read_saved(str(saved))
    assert samples is not None
    assert same(samples, live)
    assert (samples.ranks, samples.steps, samples.units) == (live.ranks, live.steps, live.units)
    assert (samples.version, samples.scope, samples.lacking) == (tracelens.__version__, "all", live.lacking)
    zipped = tmp_path / "base.json.gz"
    zipped.write_bytes(
        gzip.compress(b"\xef\xbb\xbf" + json.dumps(json.loads(saved.read_bytes()), indent=1).encode())
    )
    assert same(read_saved(str(zipped)), live)  # type: ignore[arg-type]


def test_the_result_of_the_analyzer_alone_is_a_baseline_too(tmp_path: Path) -> None:
    run = draw_run(FIRST, SECOND)
    path = tmp_path / "steps.json"
    path.write_bytes(one_result(tracelens.analyze(run, "steps", scope="linked"), {"version": "7"}))
    samples = read_saved(str(path))
    assert samples is not None
    assert (samples.version, samples.scope) == ("7", "linked")
    assert same(samples, from_result(tracelens.analyze(run, "steps", scope="linked"), "run", "1"))


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"schemaVersion": 1, "traceEvents": []}', "\x1f\x8b"])
def test_other_files_are_left_to_the_parsers(tmp_path: Path, content: str) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(content.encode("latin-1"))
    assert read_saved(str(path)) is None
    assert read_saved(str(tmp_path)) is None
    assert read_saved(str(tmp_path / "missing.json")) is None
    assert read_saved("-") is None


ROW = {"rank": 0, "step": "1", "metric": "step.time", "value": 5.0, "unit": "ns"}


def report_of(rows: Any) -> dict[str, Any]:
    return {"results": {"steps": {"tables": {"metrics": rows}}}, "meta": {"version": "0.1"}}


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"results": {}}, "a report without the table steps.metrics; write it again: tracelens report"),
        (
            {"results": {"steps": {"tables": {}}}, "meta": {"version": "0.0.9"}},
            "written by tracelens 0.0.9, without",
        ),
        ({"results": [1]}, "without the table"),
        ({"analyzer": "ops", "tables": {"ops": []}}, "a result of 'ops' without the table"),
        (report_of([]), "no step with GPU work"),
        (report_of([{"rank": 0}]), "the table steps.metrics is damaged"),
        (report_of([ROW | {"value": None}]), "damaged"),
        (report_of([ROW | {"value": -1}]), "damaged"),
        (report_of([7]), "damaged"),
    ],
)
def test_reports_that_are_no_baseline(document: Any, said: str) -> None:
    with pytest.raises(TracelensError) as caught:
        from_saved(document, "old.json")
    assert str(caught.value).startswith("old.json: ")
    assert said in str(caught.value)


def test_a_report_that_was_cut_off(saved: Path) -> None:
    saved.write_bytes(saved.read_bytes()[:-100])
    with pytest.raises(TracelensError, match=r"base\.json: begins like a report but is not JSON"):
        read_saved(str(saved))


def test_the_pace_has_a_value_for_each_part_of_the_loop_and_the_steps_stay_as_they_are() -> None:
    """On the ranks that timed every part; rank 1 has no "after"."""
    parts = (PacePart("before", 2, 8, 80_000), PacePart("after", 15, 6, 78_000))
    first, second = draw_run(FIRST, FIRST).traces
    paced = make_run(
        [
            replace(first, meta=replace(first.meta, pace=parts)),
            replace(second, meta=replace(second.meta, pace=parts[:1])),
        ]
    )
    result = tracelens.analyze(paced, "steps")
    for samples in (
        from_result(result, "run", "1"),
        from_saved(json.loads(one_result(result, {"version": "1"})), "run"),
    ):
        assert samples.steps == ("ProfilerStep#1", "ProfilerStep#2")
        assert samples.each_step("step.pace").tolist() == [10_000, 13_000]
        assert samples.each_step("step.time").tolist() == [10_000, 10_000]
        assert samples.each_step("op[aten::mm].time").tolist() == [3000, 4000]
        assert samples.units["step.pace"] == "ns"
    without = from_result(tracelens.analyze(make_run([first]), "steps"), "run", "1")
    assert without.find("step.pace") is None
    assert "pace_steps=20" in without.why_not("step.pace")
