"""Contracts of the wide tables on sample traces; tests/conformance has those on the corpus."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

import tracelens
from tests.session import totals

SAMPLES = Path(__file__).parents[2] / "sample_traces"
NAMES = (
    "one_gpu/grouped",
    "pipeline/interleaved",
    "cpu/tiny",
    pytest.param("ladder/ep4/08_graph", marks=pytest.mark.slow),
    pytest.param("serving/tbo_token", marks=pytest.mark.slow),
)


@cache
def sample(name: str) -> tracelens.Run:
    return tracelens.load(SAMPLES / name)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("contract", totals.CONTRACTS, ids=lambda contract: contract.__name__)
def test_totals(name: str, contract: Callable[[tracelens.Run], None]) -> None:
    contract(sample(name))


@pytest.mark.parametrize("name", ["one_gpu/grouped", "pipeline/interleaved"])
def test_totals_of_a_step(name: str) -> None:
    run = sample(name)
    marked = [step for step in run.kernels()["step"].unique() if step.startswith("ProfilerStep")]
    assert marked
    for step in marked:
        totals.as_in_breakdown(run, step)
