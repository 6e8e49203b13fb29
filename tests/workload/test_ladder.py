"""`tracelens workload ladder`: rungs by name, what is wrong with them, and two ranks that climb three."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.builders import records
from tracelens import diff, load
from tracelens.cli import run
from tracelens.errors import TracelensError
from tracelens.planner.config import Config, override, preset
from tracelens.workload import LadderRung, bundled, from_file, from_texts, plan_ladder

ROOT = Path(__file__).parents[2]


def anything(_: Config) -> str:
    """A machine that lacks nothing."""
    return ""


def tiny(*assignments: str) -> Config:
    return override(preset("tiny"), ["ranks=2", *assignments])


def test_the_bundled_ladder_fits_and_ends_with_all_it_can_keep() -> None:
    steps, left = plan_ladder(tiny(), bundled(), anything, strict=True)
    assert not left
    assert [step.rung.name for step in steps][:3] == ["baseline", "grouped_gemm", "fusion"]
    assert steps[0].config.toggles.changed() == {}
    assert steps[-1].config.toggles.changed() == {
        "experts": "grouped", "dispatch": "dedup", "sync_free": 3, "permute": "fused", "router": "fused",
        "loss": "fused", "overlap_shared": True, "fp8": "experts", "gc": "manual", "numa": "bind",
        "kernarg_pool": True, "graph": "step",
    }  # fmt: skip
    for one, after in pairwise(steps):
        assert one.config != after.config
        assert replace(after.config, toggles=one.config.toggles) == one.config
        assert after.rung.purpose


def test_a_rung_that_a_run_cannot_have_is_left_out_and_those_above_go_on() -> None:
    steps, left = plan_ladder(
        tiny("micro_batches=1"),
        bundled(),
        lambda config: "needs a GPU" if config.toggles.graph != "off" else "",
        strict=False,
    )
    assert [(one.rung.name, one.reason.partition(" ")[0]) for one in left] == [
        ("overlap_1f1b", "overlap_exchange=1f1b"), ("graph", "needs"),
    ]  # fmt: skip
    assert steps[-1].rung.name == "kernarg_pool"
    assert steps[-1].config.toggles.sync_free == 3


def test_ones_own_rungs_must_fit() -> None:
    with pytest.raises(TracelensError, match="rung 'late': sync_free=3"):
        plan_ladder(tiny(), from_texts(["late: sync_free=3"]), anything, strict=True)
    with pytest.raises(TracelensError, match="no rung above the baseline can run here: a: no such"):
        plan_ladder(
            tiny(),
            from_texts(["a: experts=grouped"]),
            lambda config: "no such thing" if config.toggles.changed() else "",
            strict=True,
        )


def test_rungs_as_text_begin_with_a_baseline() -> None:
    assert from_texts(["grouped: experts=grouped sync_free=2", "gc:gc=manual"]) == (
        LadderRung("baseline"),
        LadderRung("grouped", ("experts=grouped", "sync_free=2")),
        LadderRung("gc", ("gc=manual",)),
    )  # fmt: skip
    assert [rung.name for rung in from_texts(["plain:", "gc: gc=manual"])] == ["plain", "gc"]


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["experts=grouped"], "missing the name before a colon"),
        (["a b: gc=manual"], "rung 'a b': a name may only have letters, digits"),
        (["../a: gc=manual"], "a name may only have letters, digits"),
        (["a: expert=grouped"], "rung 'a': unknown toggle 'expert'; did you mean 'experts'?"),
        (["a: seq=64"], "rung 'a': unknown toggle 'seq'"),
        (["a: experts"], "rung 'a': 'experts' is not of the form toggle=value"),
        (["a: gc=manual", "a: gc=auto"], "rung 'a': two rungs have this name"),
        (["a:"], "a ladder needs a rung above its baseline"),
        (["baseline: gc=manual"], "rung 'baseline': two rungs have this name"),
    ],
)
def test_texts_that_are_no_rungs(texts: list[str], said: str) -> None:
    with pytest.raises(TracelensError) as error:
        from_texts(texts)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("rung = 3", "no [[rung]] tables"),
        ("[[rung]", "not TOML"),
        ("[[rung]]\nname = 'a'\ntoggles = 'gc=manual'", "has no key 'toggles'; known: name, adds, purpose"),
        ("[[rung]]\nname = 'a'\nadds = ['gc=manual']", "adds of a [[rung]] is not text"),
        ("[[rung]]\nname = 'a'\nadds = 'gcc=manual'", "ladder.toml: rung 'a': unknown toggle 'gcc'"),
    ],
)
def test_files_that_hold_no_rungs(content: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "ladder.toml").write_text(content)
    with pytest.raises(TracelensError) as error:
        from_file(tmp_path / "ladder.toml")
    assert said in str(error.value)
    with pytest.raises(TracelensError, match="no such file"):
        from_file(tmp_path / "none.toml")


OUT = "OUT"
"""Stands for a folder that is not there."""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "pass a new folder for the traces, or --from"),
        ([OUT, "--from", OUT], "pass a new folder for the traces, or --from"),
        (["--from", OUT], "no ladder.json, no rungs"),
        ([OUT, "--rung", "a: experts=group"], "rung 'a': unknown experts 'group'; did you mean 'grouped'?"),
        ([OUT, "--rung", "a: gc=manual", "--rungs", "x.toml"], "use --rung or --rungs, not both"),
        ([OUT, "--without", "fuson"], "unknown rung 'fuson'; did you mean 'fusion'?"),
        ([OUT, "--preset", "tinny"], "unknown preset 'tinny'; did you mean 'tiny'?"),
        ([OUT, "-o", "ladder.docx"], "no format is written as '.docx'"),
    ],
)
def test_what_is_wrong_is_told_before_anything_runs(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        run(["workload", "ladder", *(str(tmp_path / "out") if text == OUT else text for text in arguments)])
        == 2
    )
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.torch
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([OUT, "--timed", "0"], "timed steps must be at least 1, not 0"),
        ([OUT, "--device", "tpu"], "--device must be cuda or cpu, not tpu"),
        (
            [OUT, "--device", "cpu", "--rung", "a: experts=grouped sync_free=3 graph=step"],
            "no rung above the baseline can run here: a: graph=step needs a GPU",
        ),
    ],
)
def test_what_torch_must_be_there_to_tell(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        run(["workload", "ladder", *(str(tmp_path / "out") if text == OUT else text for text in arguments)])
        == 2
    )
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.torch
def test_an_older_ladder_and_a_launcher_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tracelens.workload.ladder_runner import Ladder

    (tmp_path / "ladder.json").write_text("{}")
    with pytest.raises(TracelensError, match="already has a ladder"):
        Ladder(tmp_path)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(TracelensError, match="run it without a launcher"):
        Ladder(tmp_path / "other")


@pytest.mark.torch
def test_what_a_machine_lacks_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from tracelens.workload import launch
    from tracelens.workload.ladder_runner import lacking

    lacks = lacking("cpu")
    assert lacks(tiny("experts=grouped", "sync_free=2")) == ""
    assert "graph=step needs a GPU" in lacks(tiny("experts=grouped", "sync_free=3", "graph=step"))
    assert "needs an AMD GPU" in lacks(tiny("kernarg_pool=on"))
    monkeypatch.setattr(launch, "SYSTEM", tmp_path)
    nodes = tmp_path / "devices" / "system" / "node"
    for number in (0, 1):
        (nodes / f"node{number}").mkdir(parents=True)
        said = lacks(tiny("numa=bind"))
        assert ("reports 1" in said) == (number == 0)


RUNGS = """
[[rung]]
name = "grouped"
adds = "experts=grouped"
purpose = "one launch"

[[rung]]
name = "sync_free"
adds = "sync_free=2 permute=fused"
"""


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-W", "ignore", "-m", "tracelens", "workload", "ladder"]
    return subprocess.run(
        [*program, "--device", "cpu", *arguments],
        capture_output=True, text=True, check=False, timeout=600,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


@pytest.fixture(scope="module")
def climbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], str]:
    """The folder of a ladder on two CPU ranks, what it printed as JSON, and what it said."""
    folder = tmp_path_factory.mktemp("ladder")
    (folder / "rungs.toml").write_text(RUNGS)
    done = command(
        str(folder / "out"), "--ranks", "2", "--timed", "3", "--recorded", "2", "--scrub", "--json",
        "--rungs", str(folder / "rungs.toml"), "-o", str(folder / "ladder.md"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout), done.stderr


@pytest.mark.rare
@pytest.mark.torch
@pytest.mark.slow
def test_each_rung_has_its_traces_and_its_numbers(climbed: tuple[Path, dict[str, Any], str]) -> None:
    folder, found, said = climbed
    told = json.loads((folder / "out" / "ladder.json").read_text())
    assert [rung["folder"] for rung in told["rungs"]] == ["00_baseline", "01_grouped", "02_sync_free"]
    assert [rung["toggles"] for rung in told["rungs"]] == [
        {}, {"experts": "grouped"}, {"experts": "grouped", "sync_free": 2, "permute": "fused"},
    ]  # fmt: skip
    for rung in told["rungs"]:
        names = sorted(path.name for path in (folder / "out" / rung["folder"]).iterdir())
        assert {"rank0.json.gz", "rank1.json.gz", "run.json"} <= {*names}
        assert len(rung["timed_ms"]) == 3
        assert rung["peak_bytes"] is None
        sidecar = json.loads((folder / "out" / rung["folder"] / "run.json").read_text())
        assert len(sidecar["window"]["recorded"]) == 2
        assert {key: sidecar["config"]["toggles"][key] for key in rung["toggles"]} == rung["toggles"]
    # The same weights and data in each rung.
    assert all(rung["loss"] == pytest.approx(told["rungs"][0]["loss"], rel=1e-4) for rung in told["rungs"])
    for row, rung in zip(found["tables"]["rungs"], told["rungs"], strict=True):
        assert row["tokens_per_s"] == pytest.approx(256 / rung["typical_ms"] * 1e3, rel=1e-3)
    assert "1 grouped: experts=grouped" in said
    assert "without the profiler over 2 rungs" in (folder / "ladder.md").read_text()


@pytest.mark.rare
@pytest.mark.torch
@pytest.mark.slow
def test_the_whole_gain_is_accounted_for(climbed: tuple[Path, dict[str, Any], str]) -> None:
    folder, found, _ = climbed
    traced = [row["traced_ns"] for row in found["tables"]["rungs"]]
    for level in ("category", "cause", "stage"):
        moved = [0, 0, 0]
        for row in found["tables"]["waterfall"]:
            moved[row["rung"]] += row["delta_ns"] * (row["level"] == level)
        assert moved == [0, traced[1] - traced[0], traced[2] - traced[1]]
        total = [row["delta_ns"] for row in found["tables"]["total"] if row["level"] == level]
        assert sum(total) == traced[2] - traced[0] == found["meta"]["delta_ns"]
    calls = [row["calls"] for row in found["tables"]["changed"]]
    assert "aten::_grouped_mm" in calls[0]
    # The same account as `tracelens diff` gives of the two folders.
    report = diff(load(folder / "out" / "00_baseline"), load(folder / "out" / "01_grouped"))
    table = report["diff"]["waterfall"]
    mine = [
        (row["name"], row["delta_ns"])
        for row in found["tables"]["waterfall"]
        if row["rung"] == 1 and row["level"] == "cause"
    ]
    assert mine == records(table[table["level"] == "cause"], "name", "delta_ns")


@pytest.mark.rare
@pytest.mark.torch
@pytest.mark.slow
def test_the_report_is_made_again_without_torch(
    climbed: tuple[Path, dict[str, Any], str], tmp_path: Path
) -> None:
    folder, found, _ = climbed
    (tmp_path / "torch.py").write_text("raise AssertionError('torch is not needed here')\n")
    done = subprocess.run(
        [sys.executable, "-m", "tracelens", "workload", "ladder", "--from", str(folder / "out"), "--json"],
        capture_output=True, text=True, check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == found


@pytest.mark.rare
@pytest.mark.torch
@pytest.mark.slow
def test_the_gate_fails_when_rungs_are_turned_off(climbed: tuple[Path, dict[str, Any], str]) -> None:
    folder, *_ = climbed
    last, baseline = (str(folder / "out" / name) for name in ("02_sync_free", "00_baseline"))
    grouped = str(folder / "out" / "01_grouped")
    assert run(["gate", last, baseline]) == 1
    for before in (baseline, grouped):
        assert run(["gate", last, before, "--rule", "moe.blocking_calls<=1.0"]) == 1
    assert run(["gate", last, last]) == 0


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.rare
def test_a_rung_that_fails_is_named_and_those_below_are_kept(tmp_path: Path) -> None:
    out = tmp_path / "out"
    rungs = ("--rung", "manual: gc=manual", "--rung", "deep: dispatch=deepep")
    done = command(str(out), "--timed", "1", "--recorded", "1", *rungs)
    assert done.returncode == 2
    assert "tracelens: rung 'deep' failed: rank 0: dispatch=deepep takes dtype=bfloat16" in done.stderr
    assert f"the rungs below are kept: --from {out}" in done.stderr
    assert "Traceback" not in done.stderr.partition("tracelens: rung")[2]
    assert [rung["name"] for rung in json.loads((out / "ladder.json").read_text())["rungs"]] == [
        "baseline", "manual",
    ]  # fmt: skip
    assert run(["workload", "ladder", "--from", str(out), "-o", str(tmp_path / "ladder.md")]) == 0
    assert "without the profiler over 1 rung" in (tmp_path / "ladder.md").read_text()


@pytest.mark.torch
def test_an_error_of_a_rung_is_one_line_and_the_rest_is_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch", reason="the workload needs torch")
    from tracelens.workload import ladder_runner as runner

    def broken(*_: object, **__: object) -> None:
        os.environ["LEFT_BEHIND"] = "1"
        raise torch.multiprocessing.ProcessRaisedException("Traceback:\n  deep\nValueError: too deep\n", 0, 1)

    def ended(*_: object, **__: object) -> None:
        raise torch.multiprocessing.ProcessExitedException(
            "process 0 terminated with signal SIGKILL", 0, 1, -9
        )

    steps, left = plan_ladder(tiny(), from_texts(["a: gc=manual"]), anything, strict=True)
    said: list[str] = []
    for run_job, reason in ((broken, "ValueError: too deep; full error in"), (ended, "signal SIGKILL")):
        monkeypatch.setattr(runner, "run_job", run_job)
        with pytest.raises(TracelensError, match=f"rung 'baseline' failed: .*{reason}"):
            runner.run_ladder(
                runner.Ladder(tmp_path, "cpu"), steps, left, preset="tiny", progress=said.append
            )
    assert "  deep" in (tmp_path / "00_baseline" / "error.txt").read_text()
    assert said == ["0 baseline: nothing added"] * 2
    assert "LEFT_BEHIND" not in os.environ
    assert not (tmp_path / "ladder.json").exists()
