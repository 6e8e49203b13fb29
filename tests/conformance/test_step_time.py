"""Projected step times against measured ones: all runs in one table, docs/step-time-truth.md."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import tracelens
from tests.conformance.step_time.table import (
    MEASURED,
    PROJECTED,
    RECORDED,
    Run,
    document,
    earlier_runs,
    new_runs,
)
from tests.reference.traces import path_of

DOCUMENT = Path(__file__).parents[2] / "docs" / "step-time-truth.md"
TABLES = "## Projected first"
AFTER = "\n## Misses"
CLOSE = 0.25
measured_here = pytest.mark.skipif(not MEASURED, reason="step_time/measured.toml: not measured yet")


@pytest.fixture(scope="module")
def runs() -> list[Run]:
    return [*new_runs(), *earlier_runs()]


def test_three_in_four_projections_are_within_a_quarter(runs: list[Run]) -> None:
    errors = {run.name: run.error for run in runs if not run.fixes_host}
    assert len(errors) >= 40
    close = [name for name, error in errors.items() if abs(error) <= CLOSE]
    assert len(close) >= 0.75 * len(errors), sorted(set(errors) - set(close))
    assert f"Of {len(errors)} runs, {len(errors) - len(close)} are more than 25% off" in DOCUMENT.read_text()


def test_megatron_core_is_among_them(runs: list[Run]) -> None:
    errors = [run.error for run in runs if run.name.startswith("Megatron-core") and not run.fixes_host]
    assert sum(abs(error) <= CLOSE for error in errors) >= 2


@measured_here
def test_what_was_written_down_before_the_measurement_was_close() -> None:
    """Whatever became of the estimator since."""
    errors = {name: PROJECTED[name]["step_ms"] / run.measured_ms - 1 for name, run in _by_name().items()}
    assert len(errors) >= 12
    assert sum(abs(error) <= CLOSE for error in errors.values()) >= 0.8 * len(errors), errors


@measured_here
def test_the_peak_of_each_new_run_is_the_projected_one() -> None:
    for name in _by_name():
        assert PROJECTED[name]["peak_bytes"] == pytest.approx(MEASURED[name]["peak_bytes"], rel=0.02), name


def _by_name() -> dict[str, Run]:
    return {run.name: run for run in new_runs()}


@pytest.mark.parametrize(
    "item", [item for item in RECORDED["run"] if item.get("profiled")], ids=lambda x: x["name"]
)
def test_recorded_steps_are_those_of_the_traces(item: dict[str, str]) -> None:
    steps = tracelens.analyze(tracelens.load(path_of(item["traces"])), "steps")["steps"]
    slowest_ms = steps.groupby("step", observed=True)["dur_ns"].max() / 1e6
    assert item["step_ms"] == pytest.approx(slowest_ms.median(), rel=1e-3)


def test_the_page_has_this_table(runs: list[Run]) -> None:
    before, _, rest = DOCUMENT.read_text(encoding="utf-8").partition(TABLES)
    now = document(runs)
    if os.environ.get("UPDATE_GOLD"):
        DOCUMENT.write_text(before + now + AFTER + rest.partition(AFTER)[2], encoding="utf-8")
    else:
        assert TABLES + rest.partition(AFTER)[0] == now
