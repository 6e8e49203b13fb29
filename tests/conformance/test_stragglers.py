"""Runs of Megatron on eight GPUs, one rank of which was made late in a known way: who, and why."""

from __future__ import annotations

from functools import cache

import pytest

from tests.builders import records
from tests.reference.traces import FOLDERS
from tracelens import analyze, load
from tracelens.table import Result

FOLDER = FOLDERS["foreign"] / "nvidia-h200-megatron" / "faults"
pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="no foreign traces")

FAULTS = {
    "host_delay": (5, "silent_host"),
    "gc": (2, "silent_host"),
    "slow_kernels": (4, "extra_work"),
}
"""The rank and what is wrong with it."""

NAMING = ("stragglers", "stragglers_load", "stragglers_unexplained")


@cache
def result(name: str, analyzer: str) -> Result:
    return analyze(load(FOLDER / name), analyzer)


@pytest.mark.parametrize("name", FAULTS)
def test_the_faulty_rank_is_named_for_its_cause_and_nobody_else(name: str) -> None:
    columns = ("rank", "cause", "significance")
    significant = {
        row for row in records(result(name, "stragglers")["causes"], *columns) if row[2] == "significant"
    }
    assert significant == {(*FAULTS[name], "significant")}
    table = records(result(name, "stragglers")["stragglers"], "rank", "cause", "significant", "p_value")
    (row,) = [row for row in table if row[2]]
    assert row[:2] == FAULTS[name]
    assert 0 < row[3] < 0.01


def test_of_equal_ranks_nobody_is_named() -> None:
    assert not result("control", "stragglers")["stragglers"]["significant"].any()
    assert not set(result("control", "findings")["findings"]["detector"]) & set(NAMING)


@pytest.mark.parametrize("name", FAULTS)
def test_findings_name_the_rank(name: str) -> None:
    table = result(name, "findings")["findings"]
    naming = table[table["detector"].isin(NAMING)]
    (row,) = records(naming, "detector", "evidence", "confidence", "upper_bound")
    assert row[0] == "stragglers"
    assert f"most for rank {FAULTS[name][0]} (100%)" in row[1]
    assert FAULTS[name][1].replace("_", " ") in row[1]
    # Kernels that wait for those of another stream without an event: the graph does not know why they wait.
    unexplained = "the run's dependency graph does not explain the step" if name == "slow_kernels" else ""
    assert row[2:] == ("low" if unexplained else "medium", unexplained)


def test_extra_work_is_named() -> None:
    evidence = dict(records(result("slow_kernels", "stragglers")["stragglers"], "rank", "evidence"))[4]
    assert (
        "12 extra aten::mm bf16[8192,8192] bf16[8192,8192] per step on stream 99, which no other" in evidence
    )


@pytest.mark.parametrize(("name", "ms"), [("host_delay", 8.2), ("gc", 270.0), ("slow_kernels", 16.7)])
def test_the_effect_of_a_step(name: str, ms: float) -> None:
    """What the rank slept, collected or computed: holes of 8.2 and 270 ms, 12 GEMMs of 1.39 ms."""
    columns = ("rank", "cause", "excess_ns", "excess_low_ns", "excess_high_ns")
    rows = records(result(name, "stragglers")["causes"], *columns)
    (effect, low, high) = next(row[2:] for row in rows if row[:2] == FAULTS[name])
    # Some of what it slept the GPU was still busy with.
    assert effect == pytest.approx(ms * 1e6, rel=0.2)
    assert low < effect < high
