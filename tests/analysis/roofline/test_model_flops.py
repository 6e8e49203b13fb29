"""The sum over a trace's ops against the closed forms that a run of the workload leaves beside it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tracelens
from tracelens.table import Result

SAMPLES = Path(__file__).parents[3] / "sample_traces"
FOLDER = SAMPLES / "one_gpu"


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


def test_buffers_for_the_worst_case_count_by_the_rows_in_groups() -> None:
    """Four ranks that wait for no sizes: of buffers of 524,288 rows each computes about 131,072."""
    path = SAMPLES / "ladder_large" / "ep4" / "05_sync_free_3"
    steps = json.loads((path / "run.json").read_text())["facts"]["expected"]
    expected = {
        (step["rank"], step["step"]): sum(sum(one.values()) for one in step["flops"].values())
        for step in steps
    }
    table = tracelens.analyze(tracelens.load(path), "roofline")["utilisation"]
    assert len(table) == len(expected) == 8
    assert table["flops"].tolist() == pytest.approx([expected[key] for key in sorted(expected)], rel=5e-3)


def test_without_the_rows_in_groups_the_mfu_is_not_known() -> None:
    """The same of an earlier recording, which has no values beside it."""
    path = SAMPLES / "ladder" / "ep4" / "05_sync_free_3"
    result = tracelens.analyze(tracelens.load(path), "roofline")
    assert result["utilisation"]["mfu"].isna().all()
    assert sum("MFU" in skip.subject for skip in result.skips) == 4


def test_utilisation_is_of_the_recorded_steps(sample: tuple[Path, Result]) -> None:
    _, result = sample
    table = result["utilisation"]
    peak = 989.4e12  # bf16 of the H200 that the samples were recorded on
    busy = table[table["flops"] > 0]
    expected = busy["flops"] / (busy["dur_ns"] / 1e9) / peak
    # The router's softmax runs in fp32, but its product in bf16: one peak for all.
    assert busy["mfu"].tolist() == pytest.approx(expected.tolist(), rel=1e-3)
    assert (table["hfu"] >= table["mfu"]).all()
