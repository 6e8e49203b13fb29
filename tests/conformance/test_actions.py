"""The commands that findings print: each runs as it stands, and shows the numbers of its finding."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from typer.testing import CliRunner

import tracelens
from tracelens.cli.app import app
from tracelens.table import Result

SAMPLE_TRACES = Path(__file__).parents[2] / "sample_traces"
SAMPLES = (
    "cpu/tiny",
    "faults/gc",
    "ladder/ep4/00_baseline",
    "one_gpu/loop",
    "pipeline/plain",
    "serving/delayer_off",
    "toggles/exchange",
)
"""One run of each group."""


@cache
def findings(name: str, step: str = "") -> Result:
    return tracelens.analyze(tracelens.load(SAMPLE_TRACES / name), "findings", step=step or None)


def output(command: str) -> Any:
    """What a printed command writes as JSON."""
    program, *words = shlex.split(command)
    assert program == "tracelens"
    result = CliRunner().invoke(app, [*words, "--json"])
    assert result.exit_code == 0, f"{command}\n{result.output}"
    return json.loads(result.stdout)


def table(command: str, name: str) -> pd.DataFrame:
    return pd.DataFrame(output(command)["tables"][name])


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.rare] * (name != "ladder/ep4/00_baseline")) for name in SAMPLES],
)
def test_each_command_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = findings(name)["findings"]
    for command in result["evidence_command"].unique():  # of several findings
        assert output(command)["tables"], command
    for row in result.itertuples():
        if row.replay_command:
            assert output(row.replay_command)["tables"]["scripts"], row.replay_command
            assert list(Path(f"replay_{row.detector}").glob("*.py"))
        if row.whatif_command:
            (projected,) = output(row.whatif_command)["tables"]["whatif"]
            assert projected["base_ns"] - projected["projected_ns"] == row.saving_ns, row.whatif_command


def idle(cause: str) -> Callable[[pd.DataFrame, int], float]:
    def total(table: pd.DataFrame, rank: int) -> float:
        return float(table[(table["rank"] == rank) & (table["cause"] == cause)]["dur_ns"].sum())

    return total


def stage(name: str) -> Callable[[pd.DataFrame, int], float]:
    def total(table: pd.DataFrame, rank: int) -> float:
        of_stage = table[(table["rank"] == rank) & (table["stage"] == name)]
        return float(of_stage[["forward_ns", "backward_ns", "recompute_ns"]].sum().sum())

    return total


def blocking(table: pd.DataFrame, rank: int) -> float:
    return float(table[table["rank"] == rank]["blocking_count"].sum())


def exposed(*names: str) -> Callable[[pd.DataFrame, int], float]:
    def total(table: pd.DataFrame, rank: int) -> float:
        of_names = table[(table["rank"] == rank) & table["collective"].isin(names)]
        return float(of_names["exposed_ns"].sum())

    return total


NUMBERS: dict[str, tuple[str, str, Callable[[pd.DataFrame, int], float]]] = {
    "cpu_ops": ("GPU idle per step", "causes", idle("CPU ops")),
    "silent_host": ("GPU idle per step", "causes", idle("silent host")),
    "permute_unfused": ("time per step", "stages", stage("permute")),
    "moe_blocking_calls": ("calls per layer and micro-batch", "stages", blocking),
    "exposed_all_to_all": ("exposed per step", "overlap", exposed("all_to_all", "all_to_allv")),
    "exposed_token_gather": (
        "exposed per step",
        "overlap",
        exposed("_allgather_base", "_reduce_scatter_base"),
    ),
}
"""Detector to one of its measures, and the same number in a table of the analyzer that shows its evidence."""


@pytest.mark.parametrize("name", ["one_gpu/loop", "serving/delayer_off", "faults/token_skew"])
def test_the_evidence_has_the_numbers_of_the_finding_in_its_step(name: str) -> None:
    rows = findings(name)["findings"]
    rows = rows[rows["detector"].isin(NUMBERS)]
    assert len(rows)
    for finding in rows.itertuples():
        measure, table_name, number = NUMBERS[finding.detector]
        measured = findings(name, shlex.split(finding.evidence_command)[-1])["measurements"]
        of_detector = measured[(measured["detector"] == finding.detector) & (measured["measure"] == measure)]
        assert len(of_detector)
        shown = table(finding.evidence_command, table_name)
        for row in of_detector.itertuples():
            assert number(shown, row.rank) == pytest.approx(row.value, rel=0.002), (finding, row.rank)


def test_savings_without_the_profiler_are_those_of_the_command_that_findings_print(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = tracelens.load(SAMPLE_TRACES / "one_gpu/loop")
    result = tracelens.analyze(run, "findings", unprofiled_step_ms=55)
    assert result.meta["base_ns"] == pytest.approx(55e6, rel=1e-4)
    first = next(result["findings"].itertuples())
    assert "--unprofiled-step-ms 55" in first.whatif_command
    (projected,) = output(first.whatif_command)["tables"]["whatif"]
    assert projected["base_ns"] - projected["projected_ns"] == first.saving_ns
