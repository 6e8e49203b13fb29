"""The wide tables add up to what the analyzers say, on every trace of the corpus."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import tracelens
from tests.conformance.corpus import Case
from tests.session import totals
from tracelens.analysis import wide


@pytest.fixture
def run(small: Case) -> tracelens.Run:
    return tracelens.Run(small.run.traces)


@pytest.mark.parametrize("contract", totals.CONTRACTS, ids=lambda contract: contract.__name__)
def test_totals(run: tracelens.Run, contract: Callable[[tracelens.Run], None]) -> None:
    contract(run)


def test_totals_of_the_last_step(run: tracelens.Run) -> None:
    marked = [step for step in run.kernels()["step"].unique() if step.startswith("ProfilerStep")]
    if not marked:
        pytest.skip("no step marks")
    totals.as_in_breakdown(run, marked[-1])


def test_numbers_are_known_or_missing(run: tracelens.Run) -> None:
    for frame, schema in (
        (run.kernels(), wide.KERNELS),
        (run.ops(), wide.OPS),
        (run.collectives(), wide.COLLECTIVES),
    ):
        for column in schema.columns:
            if not column.is_number:
                continue
            values = frame[column.name]
            assert column.absent is not None or values.notna().all(), column.name
            if column.name not in ("device", "stream", "thread"):
                assert (values.dropna() >= 0).all(), column.name
