"""`tracelens project whatif` as a user meets it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.builders import aligned, events, write
from tracelens.cli import run as run_cli

DRAWING = """
    step 0                       | --------------------
    launch                       |  a            b
    launch cudaStreamSynchronize |   ----------    --
    s7 first                     |    aaaaaaa
    s7 second                    |                 bbbbbb
"""


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "rank0.json", events(aligned(DRAWING)), rank=0)
    return "rank0.json"


def test_every_scenario_is_tried(trace: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["project", "whatif", trace, "--full"]) == 0
    out, err = capfd.readouterr()
    assert err == ""
    assert "tracelens project whatif" in out.splitlines()[1:4]
    for text in ("no_blocking", "launch_free", "identity", "Critical path", "no call in an MoE layer waits"):
        assert text in out


def test_json_is_one_object(trace: str, capfd: pytest.CaptureFixture[str]) -> None:
    given = ["--scenario", "no_blocking", "--scenario", "no_blocking+scale:first=0.5"]
    assert run_cli(["project", "whatif", trace, *given, "--json"]) == 0
    value = json.loads(capfd.readouterr().out)
    assert value["analyzer"] == "whatif"
    assert value["inputs"] == [trace]
    steps = {"base_ns": 22_000, "recorded_ns": 22_000, "host_time_factor": 1, "recorded_steps": 1}
    assert value["meta"] == {"step": "ProfilerStep#0", **steps}
    rows = {row["scenario"]: row for row in value["tables"]["whatif"]}
    assert rows["no_blocking"]["base_ns"] == 22_000
    assert rows["no_blocking"]["projected_ns"] == 16_000
    assert rows["no_blocking"]["high_ns"] == 16_000
    assert rows["no_blocking"]["low_ns"] < 16_000  # with half the host time
    # The first kernel is over at 6.5, the second one ready at 8.
    assert rows["no_blocking+scale:first=0.5"]["projected_ns"] == 14_000
    assert {row["scenario"] for row in value["tables"]["critical_path"]} == {"(measured)", *rows}


def test_the_step_without_the_profiler(trace: str, capfd: pytest.CaptureFixture[str]) -> None:
    given = ["project", "whatif", trace, "--scenario", "identity", "--unprofiled-step-ms"]
    assert run_cli([*given, "0.02"]) == 0
    assert " ".join(capfd.readouterr().out.split()).startswith(
        "20.0 µs a step without the profiler (20.6 µs in the replay), 22.0 µs with it; no clear gain. "
        "tracelens project whatif"
    )
    assert run_cli([*given, "0"]) == 2
    assert "must be a time in ms" in capfd.readouterr().err


def test_files_are_written(trace: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["project", "whatif", trace, "-o", "a.html", "-o", "a.md", "-o", "csv"]) == 0
    out, err = capfd.readouterr()
    assert out == ""
    assert err == "wrote a.html\nwrote a.md\nwrote csv\n"
    assert "throughput gain of each scenario" in (tmp_path / "a.html").read_text(encoding="utf-8")
    assert (tmp_path / "a.md").read_text(encoding="utf-8").startswith("# tracelens project whatif\n")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--scenario", "no_bloking"], "unknown scenario 'no_bloking'; did you mean 'no_blocking'?"),
        (["--scenario", "identity+balnced"], "unknown scenario 'balnced'; did you mean 'balanced'?"),
        (["--scenario", "scale:first=1e30"], "'1e30' is not a positive number (1e-09 to 1e+09)"),
        (["--scenario", "scale:first=1e9"], "a duration would exceed 1,000 s"),
        (["--scenario", "scale"], "scale needs an argument: scale:PATTERN=FACTOR"),
        (["--scenario", "scale:first=often"], "'often' is not a positive number"),
        (["--step", "3"], "no step '3' on all ranks (has: ProfilerStep#0)"),
        (["-o", "a.docx"], "a.docx"),
        (["--device", "abacus"], "abacus"),
    ],
)
def test_mistakes_are_one_line(trace: str, given: list[str], said: str, refused: Callable[..., str]) -> None:
    assert said in refused("project", "whatif", trace, *given)
