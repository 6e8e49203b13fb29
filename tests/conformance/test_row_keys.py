"""What tables declare of their rows holds in real runs: keys, order, leading quantities."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tracelens
from tests.conformance.corpus import Case
from tracelens.analysis import ANALYZERS
from tracelens.table import Table

SAMPLES = Path(__file__).parents[2] / "sample_traces"
MOST_PAIRED = 0.01
"""Share of rows that may agree in the key with another one of their rank, such as calls of one op with the
same shapes of which some were launched before the recording."""


@pytest.fixture(params=["pipeline/interleaved", "serving/delayer_off", "serving/tbo_token", "faults/gc"])
def sample(request: pytest.FixtureRequest) -> Case:
    """A small run of several ranks."""
    path = SAMPLES / request.param
    return Case(request.param, path, tracelens.load(path))


def tables(case: Case) -> dict[str, Table]:
    """Every table with a rank, of all analyzers."""
    return {
        f"{name}.{table_name}": table
        for name, _ in ANALYZERS.items()
        for table_name, table in case.result(name).data.items()
        if "rank" in table.columns and not table.schema.drawn
    }


def wrong(name: str, table: Table) -> list[str]:
    """What of a table's declaration does not hold."""
    schema = table.schema
    unknown = {*(schema.key or ()), *filter(None, [schema.leading])} - set(schema.names)
    if unknown:
        return [f"{name}: no columns {sorted(unknown)}"]
    problems = []
    if schema.kind == "list" and schema.keys and len(table):
        notes = [name for name in ("note",) if name in table.columns]  # such as why arguments are unknown
        row, _ = table.group("rank", *schema.keys, *notes)
        paired = 1 - len(np.unique(row)) / len(table)
        if paired > MOST_PAIRED:
            problems.append(f"{name}: key {schema.keys} fits several rows of a rank ({paired:.1%} of rows)")
    if schema.descending:
        values = table.array(schema.leading).astype(float)
        same_rank = np.diff(table.array("rank")) == 0
        if (np.diff(values)[same_rank] > 0).any():
            problems.append(f"{name}: not in descending order of {schema.leading}")
    return problems


def test_declared_rows(case: Case) -> None:
    problems = [problem for name, table in tables(case).items() for problem in wrong(name, table)]
    assert not problems, "\n".join(problems)


def test_declared_rows_of_samples(sample: Case) -> None:
    problems = [problem for name, table in tables(sample).items() for problem in wrong(name, table)]
    assert not problems, "\n".join(problems)
