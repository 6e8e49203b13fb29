"""`--captures` and `--twin` of commands with two sides."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.builders import aligned, events, write
from tests.read.test_graphs import REPLAY, TWIN, capture
from tracelens.cli import run as run_cli

STEP = "    step 1 | ------------\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A graphed run twice, the same program without graphs, and captures that name other ops."""
    for name, text in (("base", REPLAY), ("cand", REPLAY), ("eager", TWIN)):
        (tmp_path / name).mkdir()
        write(tmp_path / name / "rank0.json", events(aligned(STEP + text)), rank=0)
    capture(tmp_path / "first.json", "first")
    capture(tmp_path / "second.json", "second")
    return tmp_path


def ops(document: str) -> dict[str, set[str]]:
    """Ops of GPU work on each side of a diff in JSON."""
    rows = json.loads(document)["tables"]["waterfall"]
    named = [row for row in rows if row["level"] == "op" and row["name"] != "(idle)"]
    return {side: {row["name"] for row in named if row[f"{side}_count"]} for side in ("base", "cand")}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), ("(no op)", "(no op)")),
        (("--captures", "first.json"), ("aten::first", "aten::first")),
        (("--captures", "first.json", "--captures", "second.json"), ("aten::first", "aten::second")),
        (("--twin", "eager/rank0.json"), ("aten::twin", "aten::twin")),
    ],
)
def test_sources_of_a_diff(
    options: tuple[str, ...],
    expected: tuple[str, str],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    assert run_cli(["diff", "base", "cand", *options, "--json"]) == 0
    known = ops(capfd.readouterr().out)
    assert [name for side in ("base", "cand") for name in known[side]] == [*expected]


def test_the_other_side_is_the_twin(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    assert run_cli(["diff", "eager", "cand", "--json"]) == 0
    assert ops(capfd.readouterr().out) == {"base": {"aten::twin"}, "cand": {"aten::twin"}}


@pytest.mark.parametrize("command", ["diff", "gate"])
def test_three_sources_are_too_many(command: str, folder: Path, refused: Callable[..., str]) -> None:
    paths = [str(folder / name) for name in ("base", "cand")]
    options = [part for _ in range(3) for part in ("--captures", str(folder / "first.json"))]
    assert "captures: 3 paths" in refused(command, *paths, *options)


def test_the_gate_reads_captures_that_are_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, refused: Callable[..., str]
) -> None:
    monkeypatch.chdir(folder)
    assert "no-such" in refused("gate", "base", "cand", "--captures", "no-such")
    assert run_cli(["gate", "base", "cand", "--captures", "first.json", "--rule", "step.time<=1.5"]) in (0, 3)
