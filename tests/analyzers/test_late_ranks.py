"""Real runs of four GPUs whose last rank was made late in a known way (sample_traces/late_rank)."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

import tracelens
from tests.builders import records
from tracelens.schema import Result

FOLDER = Path(__file__).parents[2] / "sample_traces" / "late_rank"
FAULTS = [
    name for name in tomllib.loads((FOLDER / "MANIFEST.toml").read_text())["faults"] if name != "control"
]


def stragglers(fault: str) -> Result:
    return tracelens.analyze(tracelens.load(FOLDER / fault), "stragglers")


@pytest.mark.parametrize("fault", FAULTS)
def test_the_late_rank_is_named_with_its_cause(fault: str) -> None:
    """It comes first, and most of what all ranks waited for is laid to that cause."""
    rank, wait, cause, fraction = records(
        stragglers(fault)["stragglers"], "rank", "caused_wait_ns", "cause", "cause_fraction"
    )[0]
    assert (rank, cause) == (3, fault)
    assert fraction > 0.9
    others = stragglers(fault)["stragglers"]["caused_wait_ns"].sum() - wait
    assert others < 0.1 * wait


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("token_load", "24,576 rows against 16,384 in aten::mm"),
        ("slow_kernels", "times as long for equal work"),
        ("late_launch", "in <built-in function sleep>"),
        ("blocking_call", "cudaStreamSynchronize"),
        ("garbage_collection", "garbage collection"),
    ],
)
def test_the_evidence_says_where_to_look(fault: str, said: str) -> None:
    assert said in stragglers(fault)["stragglers"]["evidence"][0]


def test_without_a_fault_nobody_is_waited_for_long() -> None:
    """Under half a millisecond in all, of three steps; the mildest fault costs more than fifty times that."""
    control = stragglers("control")["stragglers"]["caused_wait_ns"].sum()
    assert control < 1_000_000
    assert all(stragglers(fault)["stragglers"]["caused_wait_ns"].sum() > 25_000_000 for fault in FAULTS)
