"""The summaries of recorded runs: every number is that of a section; the terminal's form fits a screen."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tracelens.rendering.formats import brief
from tracelens.session import report_files
from tracelens.table import Report, Tile

SAMPLES = Path(__file__).parents[2] / "sample_traces"
RUNS = (
    "cpu/tiny",
    "faults/slow_kernels",
    "ladder/ep4/00_baseline",
    "ladder/ep4/08_graph",
    "one_gpu/loop",
    "pipeline/interleaved",
    "serving/delayer_off",
    "toggles/graph_step",
)


@pytest.fixture(scope="module", params=RUNS)
def report(request: pytest.FixtureRequest) -> Report:
    return report_files(SAMPLES / request.param)


def tiles(report: Report) -> dict[str, Tile]:
    assert report.summary is not None
    return {tile.name: tile for tile in report.summary.tiles}


@pytest.mark.parametrize("width", [80, 100])
def test_the_terminal_shows_at_most_a_screen(report: Report, width: int) -> None:
    assert report.summary is not None
    lines = brief(report, report.summary, width=width).splitlines()
    assert len(lines) <= 25
    assert max(map(len, lines)) <= width


def of_the_step(report: Report, table: pd.DataFrame) -> pd.DataFrame:
    """Rows of the step that findings replay."""
    step = report["findings"].meta["step"]
    return table if step == "all steps" else table[table["step"].astype(str) == step]


def test_shares_are_those_of_the_step_that_findings_replay(report: Report) -> None:
    steps = of_the_step(report, report["steps"]["steps"]).groupby("rank").sum(numeric_only=True)
    for name, column in (("idle", "idle_ns"), ("exposed_communication", "exposed_comm_ns")):
        if name in tiles(report):
            share = steps[column] / steps["dur_ns"]
            tile = tiles(report)[name]
            assert tile.value == pytest.approx(share.mean())
            if len(share) > 1:
                assert (tile.low, tile.high) == pytest.approx((share.min(), share.max()))


def test_the_step_is_the_one_that_findings_replay(report: Report) -> None:
    findings = report["findings"]
    if findings.meta["step"] == "all steps":
        pytest.skip("serving steps are replayed together")
    assert tiles(report)["step_time"].value == pytest.approx(findings.meta["base_ns"], rel=0.01)


def test_the_idle_time_is_that_of_its_causes(report: Report) -> None:
    steps = report["steps"]["steps"]
    if steps["step"].nunique() != report["timeline"]["steps"]["step"].nunique():
        pytest.skip("work outside of whole steps")
    by_cause = report["idle"]["causes"]["dur_ns"].sum()
    assert by_cause == pytest.approx(steps["idle_ns"].sum(), rel=0.01)


def test_utilisation_is_that_of_the_roofline(report: Report) -> None:
    tile = tiles(report).get("mfu")
    if tile is None or tile.value is None:
        pytest.skip("no utilisation")
    rows = report["roofline"]["utilisation"].merge(
        report["steps"]["steps"][["rank", "step"]], on=["rank", "step"]
    )
    by_rank = (
        of_the_step(report, rows)
        .groupby("rank")[["mfu", "dur_ns"]]
        .apply(lambda each: np.average(each["mfu"], weights=each["dur_ns"]))
    )
    assert tile.value == pytest.approx(by_rank.mean())


def test_waiting_is_that_of_the_picture(report: Report) -> None:
    tile = tiles(report).get("waiting_for_ranks")
    if tile is None or tile.value is None:
        pytest.skip("one rank")
    states, steps = report["step_timeline"]["states"], of_the_step(report, report["step_timeline"]["steps"])
    waiting, whole = Counter[int](), Counter[int]()
    for step in steps.itertuples():
        for piece in states.itertuples():
            begin, end = (
                max(piece.ts_ns, step.ts_ns),
                min(piece.ts_ns + piece.dur_ns, step.ts_ns + step.dur_ns),
            )
            whole[piece.rank] += max(end - begin, 0)
            waiting[piece.rank] += max(end - begin, 0) * (piece.state == "waiting")
    assert tile.value == pytest.approx(np.mean([waiting[rank] / whole[rank] for rank in whole]), abs=1e-3)
    exposed = tiles(report)["exposed_communication"].value
    assert exposed is not None
    assert tile.value <= exposed + 1e-3
