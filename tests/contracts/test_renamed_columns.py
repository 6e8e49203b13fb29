"""Tables and columns that had other names before JSON carried a `schema_version`."""

from pathlib import Path

import pytest

import tracelens
from tracelens.planner.memory.tables import MEMORY, RANKS
from tracelens.planner.pipeline.tables import PARTITION
from tracelens.planner.search.tables import ASSUMED, LAYOUTS, PARTS
from tracelens.table import Report, Schema

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "sample_traces"

TABLES = {
    "collectives": {"instances": "collectives", "members": "participants"},
    "findings": {"signals": "measurements", "checked": "checks"},
}
"""Analyzer to old and new names of its tables."""

COLUMNS = {
    "input.losses": {"what": "problem"},
    "collectives.clocks": {"instances": "collectives"},
    "collectives.fit": {"instances": "collectives"},
    "collectives.participants": {"own_ts_ns": "local_ts_ns"},
    "stragglers.stragglers": {"chance": "p_value", "beyond_noise": "significant"},
    "stragglers.lost": {"own_ts_ns": "local_ts_ns"},
    "pipeline.bubble": {"beside_ns": "overlapped_ns"},
    "pipeline.waits": {"own_ts_ns": "local_ts_ns"},
    "roofline.coverage": {"how": "status"},
    "findings.findings": {"place": "position", "at_ns": "ts_ns"},
}
"""Table of an analyzer to old and new names of its columns."""

PLANNED: list[tuple[Schema, dict[str, str]]] = [
    (MEMORY, {"holds": "contents"}),
    (RANKS, {"moment": "peak_phase"}),
    (PARTITION, {"place": "position"}),
    (
        LAYOUTS,
        {
            "place": "position",
            "left_bytes": "free_bytes",
            "computing": "compute_fraction",
            "exchanging": "comm_fraction",
        },
    ),
    (PARTS, {"place": "position"}),
    (ASSUMED, {"about": "note"}),
]

DIFF = {
    "changes": {"where": "location", "base_at_ns": "base_ts_ns", "cand_at_ns": "cand_ts_ns"},
}


@pytest.fixture(scope="module")
def report() -> Report:
    return tracelens.report_files(SAMPLES / "pipeline" / "plain")


def test_tables(report: Report) -> None:
    for name, renamed in TABLES.items():
        tables = set(report[name].data)
        assert not tables & set(renamed)
        assert set(renamed.values()) <= tables


def test_columns(report: Report) -> None:
    for table, renamed in COLUMNS.items():
        name, _, key = table.partition(".")
        if key in report[name].data:
            check(report[name].data[key].schema, renamed)
    checked = [table for table in COLUMNS if table.split(".")[1] in report[table.split(".")[0]].data]
    assert len(checked) >= len(COLUMNS) - 2


@pytest.mark.parametrize(("schema", "renamed"), PLANNED, ids=lambda value: getattr(value, "title", ""))
def test_columns_of_projections(schema: Schema, renamed: dict[str, str]) -> None:
    check(schema, renamed)


def test_columns_of_a_diff() -> None:
    run = tracelens.load(SAMPLES / "one_gpu" / "grouped")
    report = tracelens.diff(run, run)
    for key, renamed in DIFF.items():
        check(report["diff"].data[key].schema, renamed)


def check(schema: Schema, renamed: dict[str, str]) -> None:
    names = set(schema.names)
    assert not names & set(renamed), schema.title
    assert set(renamed.values()) <= names, schema.title
