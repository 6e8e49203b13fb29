"""`tracelens diff` as a user meets it, and `tracelens.diff` beneath it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import tracelens
from tests.builders import draw, events, write
from tracelens.cli import run as run_cli
from tracelens.errors import TracelensError
from tracelens.trace import make_run

SAMPLES = Path(__file__).parents[2] / "sample_traces"
LOOP, GROUPED = str(SAMPLES / "one_gpu/loop/rank0.json.gz"), str(SAMPLES / "one_gpu/grouped/rank0.json.gz")
CONTROL, LATE = str(SAMPLES / "faults" / "control"), str(SAMPLES / "faults" / "host_delay")


def test_the_first_screen_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["diff", LOOP, GROUPED]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert len(lines) <= 25
    assert lines[1] == "tracelens diff"
    assert lines[0].startswith("45% faster: 71.1 ms to 39.4 ms a recorded step; idle -31.2 ms")
    assert "Waterfall by cause" in lines


def test_a_comparison_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["diff", LOOP, GROUPED, "--full"]) == 0
    out, err = capfd.readouterr()
    assert err == ""
    assert "\ntracelens diff: 71.131 ms to 39.383 ms per step (-44.6%)\n" in out
    for text in (
        "Waterfall by cause",
        "experts: loop to grouped GEMM",
        "exchanged",
        "Kernels side by side",
    ):
        assert text in out
    assert "tracelens analyze diff" not in out


def test_json_is_one_object(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["diff", LOOP, GROUPED, "--json"]) == 0
    out, err = capfd.readouterr()
    assert err == ""
    value = json.loads(out)
    assert list(value) == ["schema_version", "analyzer", "version", "inputs", "tables", "skips", "meta"]
    assert value["analyzer"] == "diff"
    assert value["inputs"] == [LOOP, GROUPED]
    assert value["meta"]["inputs"] == {"base": [LOOP], "cand": [GROUPED]}
    assert value["meta"]["devices"]["cand"] == ["NVIDIA H200"]
    assert list(value["tables"]) == ["waterfall", "changes", "substitutions", "icicle"]
    delta = value["meta"]["cand_ns"] - value["meta"]["base_ns"]
    assert value["meta"]["delta_ns"] == delta
    rows = value["tables"]["waterfall"]
    for level in {row["level"] for row in rows}:
        assert sum(row["delta_ns"] for row in rows if row["level"] == level) == delta
    assert {"rank", "base_rank", "base_ts_ns"} & set(value["tables"]["changes"][0]) == {
        "base_rank",
        "base_ts_ns",
    }


def test_every_format_is_written(written: Callable[..., Path]) -> None:
    folder = written("diff", LOOP, GROUPED)
    assert (folder / "csv" / "diff.waterfall.csv").exists()
    assert list(json.loads((folder / "report.json").read_text())["results"]) == ["diff"]
    page = (folder / "report.html").read_text()
    assert 'id="diff-waterfall-cause"' in page
    assert 'id="diff-changes"' in page


def test_sides_are_directories_of_ranks_or_patterns(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["diff", CONTROL, f"{LATE}/rank*.json.zst", "--json"]) == 0
    value = json.loads(capfd.readouterr().out)
    assert value["meta"]["ranks"] == {"base": [0, 1], "cand": [0, 1]}
    assert len(value["inputs"]) == 4
    cause = {row["name"]: row["delta_ns"] for row in value["tables"]["waterfall"] if row["level"] == "cause"}
    # One rank is late, and so the other waits.
    most = sorted(cause, key=cause.__getitem__)[-2:]
    assert set(most) == {"idle: silent host", "waiting for other ranks"}


def test_one_step_of_both(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["diff", LOOP, GROUPED, "--json"]) == 0
    whole = json.loads(capfd.readouterr().out)
    assert run_cli(["diff", LOOP, GROUPED, "--step", "3", "--json"]) == 0
    value = json.loads(capfd.readouterr().out)
    assert value["meta"]["options"] == {"step": "3"}
    assert [skip["subject"] for skip in value["skips"]] == ["noise"]
    assert value["meta"]["base_ns"] != whole["meta"]["base_ns"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere.json", GROUPED], "tracelens: nowhere.json: no such file or directory"),
        ([LOOP], "tracelens diff: Missing argument 'CAND'"),
        (
            [LOOP, GROUPED, "--step", "9"],
            f"tracelens: {LOOP}: no step '9' (has: ProfilerStep#3, ProfilerStep#4)",
        ),
        ([LOOP, GROUPED, "-o", "d.docx"], "no format is written as '.docx'"),
        ([LOOP, str(SAMPLES / "one_gpu" / "*" / "*.gz")], "is rank 0, and so is"),
        ([LOOP, "IDLE"], "no GPU work, no step time to compare"),
    ],
)
def test_errors_are_one_line_and_exit_2(
    arguments: list[str], said: str, tmp_path: Path, refused: Callable[..., str]
) -> None:
    idle = tmp_path / "idle.json"
    write(idle, events("launch | ---"))
    assert said in refused("diff", *(str(idle) if word == "IDLE" else word for word in arguments))


def test_help_teaches_by_example(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["diff", "--help"]) == 0
    assert capfd.readouterr().out.count("tracelens diff") > 2


def test_the_public_api(tmp_path: Path) -> None:
    assert "diff" in tracelens.__all__
    said: list[str] = []
    report = tracelens.diff(tracelens.load(LOOP), tracelens.load(GROUPED), progress=said.append)
    assert said == ["comparing the runs"]
    assert [result.analyzer for result in report.results] == ["diff"]
    assert report["diff"]["waterfall"].groupby("level")["delta_ns"].sum().nunique() == 1
    assert report.meta["inputs"] == {"base": [LOOP], "cand": [GROUPED]}
    tracelens.render(report, tmp_path / "diff.md")
    assert "### Waterfall by op" in (tmp_path / "diff.md").read_text()


def test_a_run_against_itself_has_no_difference() -> None:
    run = tracelens.load(GROUPED)
    report = tracelens.diff(run, run)
    assert report.title.endswith("(+0.0%)")
    assert (report["diff"]["waterfall"]["delta_ns"] == 0).all()


DRAWING = """
    step 1      | ----------
    step 2      |           ----------
    op aten::mm |  --        --
    launch      |  a         b
    s7 gemm     |   aaa       bbb
"""


@pytest.mark.parametrize(("device", "unlike"), [("NVIDIA H100", True), ("NVIDIA H200", False)])
def test_what_a_gate_refuses_is_warned_of_first(tmp_path: Path, device: str, unlike: bool) -> None:
    for name, gpu in (("base.json", "NVIDIA H200"), ("cand.json", device)):
        properties = [{"id": 0, "name": gpu}]
        write(tmp_path / name, events(DRAWING), deviceProperties=properties)
    report = tracelens.diff(tmp_path / "base.json", tmp_path / "cand.json")
    assert report.summary is not None
    first = report["diff"].skips[0].subject if report["diff"].skips else ""
    assert (first == "same device on both sides") == unlike
    assert ("NVIDIA H200 against NVIDIA H100" in report.summary.verdict) == unlike
    if unlike:
        with pytest.raises(TracelensError, match="device"):
            tracelens.gate(tmp_path / "base.json", tmp_path / "cand.json")


@pytest.mark.parametrize("factor", [1, 1.05, 2])
def test_the_step_is_judged_as_the_gate_judges_it(factor: float) -> None:
    base, cand = (make_run([draw(DRAWING, ns_per_char=int(ns))]) for ns in (1000, 1000 * factor))
    outcomes = tracelens.gate(base, cand).outcomes
    status = next(outcome.status for outcome in outcomes if outcome.metric == "step.time")
    word = {"pass": "within", "fail": "beyond", "inconclusive": "unclear"}[status]
    assert tracelens.diff(base, cand)["diff"].meta["step_noise"] == word
    assert tracelens.diff(cand, base)["diff"].meta["step_noise"] == word
