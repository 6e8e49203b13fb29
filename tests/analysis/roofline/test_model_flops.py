"""The sum over a trace's ops against the closed forms that a run of the workload leaves beside it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tracelens
from tracelens.table import Result

FOLDER = Path(__file__).parents[3] / "sample_traces" / "one_gpu"


@pytest.fixture(scope="module", params=["loop", "grouped"])
def sample(request: pytest.FixtureRequest) -> tuple[Path, Result]:
    path = FOLDER / request.param
    return path, tracelens.analyze(tracelens.load(path), "roofline")


def test_model_flops(sample: tuple[Path, Result]) -> None:
    path, result = sample
    steps = json.loads((path / "run.json").read_text())["facts"]["expected"]
    assert len(steps) == 2
    expected = sum(sum(scope.values()) for step in steps for scope in step["flops"].values())
    assert result["utilisation"]["flops"].sum() == pytest.approx(expected, rel=1e-3)


def test_utilisation_is_of_the_recorded_steps(sample: tuple[Path, Result]) -> None:
    _, result = sample
    table = result["utilisation"]
    peak = 989.4e12  # bf16 of the H200 that the samples were recorded on
    busy = table[table["flops"] > 0]
    expected = busy["flops"] / (busy["dur_ns"] / 1e9) / peak
    # The router's softmax runs in fp32, but its product in bf16: one peak for all.
    assert busy["mfu"].tolist() == pytest.approx(expected.tolist(), rel=1e-3)
    assert (table["hfu"] >= table["mfu"]).all()
