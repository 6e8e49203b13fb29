"""`tracelens project pipeline` as a user meets it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tracelens.cli import run as run_cli
from tracelens.planner.pipeline import SCHEDULES

PLAIN = str(Path(__file__).parents[2] / "sample_traces" / "pipeline" / "plain")
PIPELINE = ["project", "pipeline"]
GIVEN = [*PIPELINE, "--pp", "4", "--micro-batches", "8", "--forward-ms", "2"]
MODEL = [*PIPELINE, "--model", "deepseek_v2_lite", "--device", "mi300x", "--pp", "4", "--gpus", "32"]


def tables(capfd: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert run_cli([*arguments, "--json"]) == 0
    out, err = capfd.readouterr()
    assert err == ""
    value = json.loads(out)
    assert value["analyzer"] == "pipeline_schedule"
    found: dict[str, Any] = value["tables"]
    return found


def test_given_times_are_printed(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_cli([*GIVEN, "--vpp", "2"]) == 0
    out, err = capfd.readouterr()
    assert err == ""
    # Backwards take twice as long: (8 x 2 + 3) x 3 ms.
    assert out.startswith("interleaved takes 57.0 ms")
    for text in ("interleaved", "Stages", "Partition", "Only in JSON, CSV and XLSX: Passes"):
        assert text in out


def test_all_schedules_are_those_that_the_chunks_allow(capfd: pytest.CaptureFixture[str]) -> None:
    for vpp, missing in (("1", {"interleaved", "interleaved-overlap"}), ("2", set())):
        rows = tables(capfd, *GIVEN, "--schedule", "all", "--vpp", vpp)["summary"]
        assert [row["schedule"] for row in rows] == [name for name in SCHEDULES if name not in missing]


def test_options_reach_the_simulation(capfd: pytest.CaptureFixture[str]) -> None:
    more = ["--backward-ms", "2", "--p2p-us", "500", "--activation-gb", "1.5"]
    (row,) = tables(capfd, *GIVEN, *more)["summary"]
    # Two messages a round trip over three stages, both ways, and waiting for each other in between.
    assert row["makespan_ns"] > (8 + 3) * 4_000_000 + 6 * 500_000 - 1
    assert row["peak_bytes"] == 4 * 1_500_000_000
    (row,) = tables(capfd, *GIVEN, "--schedule", "zb-h1", "--weight-share", "0")["summary"]
    whole = row["makespan_ns"]
    (row,) = tables(capfd, *GIVEN, "--schedule", "zb-h1")["summary"]
    assert row["makespan_ns"] < whole
    rows = tables(capfd, *GIVEN, "--layout", "3,4,4,3")["partition"]
    assert [row["layers"] for row in rows] == [3, 4, 4, 3]


def test_a_run_is_the_source_of_times(capfd: pytest.CaptureFixture[str]) -> None:
    found = tables(capfd, *PIPELINE, "--from", PLAIN)
    (row,) = found["summary"]
    assert row["schedule"] == "1f1b"
    assert row["makespan_ns"] == pytest.approx(106_994_487, rel=0.02)
    assert row["step_ns"] == pytest.approx(112_789_989, rel=0.02)
    assert [row["times"] for row in found["check"]] == ["each pass", "mean of chunk", "mean of equal layers"]
    rows = tables(capfd, *PIPELINE, "--from", PLAIN, "--vpp", "2")["summary"]
    assert [row["schedule"] for row in rows] == ["1f1b", "interleaved"]
    rows = tables(capfd, *PIPELINE, "--from", PLAIN, "--micro-batches", "16")["summary"]
    assert rows[0]["makespan_ns"] > 3 * row["makespan_ns"]


def test_the_heading_says_how_well_a_run_is_given_back(capfd: pytest.CaptureFixture[str]) -> None:
    for more, offset in ((["--step", "3"], "-1.2%"), (["--vpp", "2"], "-9.6%")):
        assert run_cli([*PIPELINE, "--from", PLAIN, *more]) == 0
        head = capfd.readouterr().out.partition("\n\n")[0]
        assert head.endswith(f"pipeline (simulation: {offset} off the recorded phase)")


def test_ranks_may_be_missing_where_asked(capfd: pytest.CaptureFixture[str]) -> None:
    four = Path(PLAIN).parents[1] / "ladder" / "ep4" / "00_baseline"
    some = [part for rank in (0, 2) for file in four.glob(f"rank{rank}.*") for part in ("--from", str(file))]
    for more, problem in (([], "--partial"), (["--partial"], "no complete pipeline")):
        assert run_cli([*PIPELINE, *some, *more]) == 2
        assert problem in capfd.readouterr().err


def test_a_better_cut_is_looked_for(capfd: pytest.CaptureFixture[str]) -> None:
    found = tables(capfd, *PIPELINE, "--from", PLAIN, "--best-partition")
    # The head lies on the second stage, the dense layer, which is the fastest, on the first.
    assert [row["layers"] for row in found["partition"]] == [3, 1]


def test_a_roofline_is_the_source_of_times(capfd: pytest.CaptureFixture[str]) -> None:
    found = tables(capfd, *MODEL, "--micro-batches", "16", "--ep", "8")
    assert [row["layers"] for row in found["partition"]] == [7, 7, 7, 6]
    again = tables(capfd, *MODEL, "--micro-batches", "16", "--ep", "8", "--set", "recompute_layer_ids=0,1,2")
    assert again["partition"][0]["backward_ns"] > found["partition"][0]["backward_ns"]
    assert 0 < again["summary"][0]["peak_bytes"] < found["summary"][0]["peak_bytes"]
    given = tables(capfd, *MODEL, "--micro-batches", "16", "--activation-gb", "1")["stages"]
    assert given[0]["peak_bytes"] == 4 * round(4e9 * 7 / 27)


def test_every_format_is_written(written: Callable[..., Path]) -> None:
    folder = written(*GIVEN, "--vpp", "2")
    assert "1f1b: each micro-batch on each stage" in (folder / "report.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([*PIPELINE], "give one source of times"),
        ([*GIVEN, "--from", PLAIN], "give one source of times"),
        ([*PIPELINE, "--forward-ms", "2", "--pp", "4"], "--pp and --micro-batches"),
        ([*GIVEN, "--schedule", "zbh1"], "did you mean 'zb-h1'"),
        ([*GIVEN, "--vpp", "2", "--turn", "3"], "each turn needs 4"),
        ([*GIVEN, "--best-partition"], "needs times of layers"),
        ([*GIVEN, "--forward-ms", "-1"], "must not be negative or both 0"),
        ([*GIVEN, "--p2p-us", "-1"], "--p2p-us"),
        ([*GIVEN, "--backward-ms", "nan"], "at most 1,000 s"),
        ([*GIVEN, "--forward-ms", "inf"], "at most 1,000 s"),
        ([*GIVEN, "--activation-gb", "1e30"], "at most 1,000 GB"),
        ([*GIVEN, "--weight-share", "2"], "--weight-share"),
        ([*GIVEN, "--layout", "0,0,0,0"], "1 to 1,000 layers, not 0"),
        ([*GIVEN, "--layout", "99999999999999999999,1,1,1"], "1 to 1,000 layers"),
        ([*GIVEN, "--pp", "2000"], "2,000 stages exceed"),
        ([*GIVEN, "--schedule", "gpipe", "--vpp", "2"], "none of the schedules has 2 chunks per stage"),
        ([*GIVEN, "--turn", "4"], "--turn is for interleaved schedules"),
        ([*MODEL, "--micro-batches", "8", "--set", "vpp=2"], "--set vpp: use --vpp instead"),
        ([*GIVEN, "--ep", "8"], "--ep goes with --model"),
        ([*GIVEN, "--step", "3"], "--step goes with --from"),
        ([*MODEL, "--micro-batches", "8", "--backward-ms", "3"], "--backward-ms goes with --forward-ms"),
        ([*MODEL, "--micro-batches", "8", "--layers", "3"], "leave --layers out"),
        ([*PIPELINE, "--from", PLAIN, "--step", "9"], "no step '9' (has: ProfilerStep#3)"),
        ([*GIVEN, "--activation-gb", "-1"], "--activation-gb"),
        ([*PIPELINE, "--model", "tiny", "--pp", "2", "--micro-batches", "4"], "needs --device"),
        ([*MODEL, "--micro-batches", "8", "--device", "mi300"], "did you mean"),
        ([*PIPELINE, "--from", "nothing-here"], "nothing-here"),
        ([*GIVEN, "-o", "p.doc"], "no format is written as '.doc'"),
    ],
)
def test_errors_are_one_line(arguments: list[str], problem: str, refused: Callable[..., str]) -> None:
    assert problem in refused(*arguments)
