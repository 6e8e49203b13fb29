"""Every table has a declared schema, and every column of every schema says what it holds."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace

import tracelens
from tests.builders import aligned, draw
from tests.contracts.test_analyzers import CASES, NAMES, ORDINARY, result_of
from tracelens import reproducers, what_if
from tracelens.analysis import ANALYZERS, in_order
from tracelens.compare import diff, gate, ladder
from tracelens.planner import BUBBLE_TABLES, memory, pipeline, published, scaling, search
from tracelens.planner import bounds as planner_bounds
from tracelens.table import Result, Schema, Table
from tracelens.trace import PacePart, Run, make_run

SAMPLES = Path(__file__).parents[2] / "sample_traces"
FOLDERS = (
    "cpu/tiny",
    "one_gpu/grouped",
    "ladder/ep4/04_sync_free_2",
    "pipeline/plain",
    "serving/tbo_request",
)
NEEDED = {"torch", "triton", "distributed", "pyarrow", "duckdb", "xlsxwriter"}
"""Packages of the extras, which need not be there."""


def _damaged() -> Run:
    """A recording of which events were dropped, and whose loop was timed without the profiler."""
    trace = draw(aligned(ORDINARY), ns_per_char=5000)
    meta = replace(trace.meta, dropped={"unreadable": 1}, pace=(PacePart("before", 0, 5, 1_000_000),))
    return make_run([replace(trace, meta=meta)])


@pytest.fixture(scope="module")
def tables() -> dict[tuple[str, str], list[Table]]:
    """The tables of all analyzers on sample traces and drawn ones."""
    reports = [tracelens.report_files(SAMPLES / folder) for folder in FOLDERS]
    results = [result for report in (*reports, tracelens.report(_damaged())) for result in report.results]
    results += [result_of(name, case) for name in NAMES for case in CASES]
    by_name: dict[tuple[str, str], list[Table]] = {}
    for result in results:
        for name, table in result.data.items():
            by_name.setdefault((result.analyzer, name), []).append(table)
    return by_name


def test_every_table_of_an_analyzer_is_declared(tables: Mapping[tuple[str, str], list[Table]]) -> None:
    for (analyzer, name), same in tables.items():
        declared = ANALYZERS.get(analyzer).tables
        assert all(table.schema == declared.get(name) for table in same), f"{analyzer}.{name}"


def test_every_declared_table_occurs(tables: Mapping[tuple[str, str], list[Table]]) -> None:
    filled = {key for key, same in tables.items() if any(map(len, same))}
    declared = {(item.name, name) for item in in_order() for name in item.tables}
    assert declared == filled


def test_an_analyzer_without_declared_tables_still_works() -> None:
    """As plugins have them."""
    item = replace(ANALYZERS.get("kernels"), tables={})
    assert item(_damaged()).data["kernels"].schema == ANALYZERS.get("kernels").tables["kernels"]


def _run(folder: str) -> Run:
    return tracelens.load(SAMPLES / folder)


def _gate(_: Path) -> Result:
    verdict = tracelens.gate(_run("one_gpu/loop"), _run("one_gpu/grouped"), ["step.time<=0.1"])
    return gate.report(verdict).results[0]


def _ladder(_: Path) -> Result:
    whole = ladder.read(SAMPLES / "ladder/ep4")
    first_two = replace(whole, rungs=whole.rungs[:2])
    return ladder.ladder(first_two, (tracelens.load(rung.folder) for rung in first_two.rungs))


OTHERS: list[tuple[str, Callable[[Path], Result], Mapping[str, Schema]]] = [
    ("diff", lambda _: tracelens.diff(_run("one_gpu/loop"), _run("one_gpu/grouped"))["diff"], diff.TABLES),
    ("gate", _gate, gate.TABLES),
    ("ladder", _ladder, ladder.TABLES),
    ("whatif", lambda _: tracelens.whatif(_run("cpu/tiny"), ["balanced"]), what_if.TABLES),
    ("replay", lambda folder: tracelens.replay(_run("one_gpu/loop"), folder, top=1), reproducers.TABLES),
    ("bounds", lambda _: tracelens.project_bounds(), planner_bounds.TABLES),
    (
        "trace bounds",
        lambda _: tracelens.project_bounds(_run("toggles/tensor")),
        planner_bounds.TRACE_TABLES,
    ),
    ("bubble", lambda _: tracelens.project_bubble(16, 33_554_432, 64), BUBBLE_TABLES),
    ("memory", lambda _: tracelens.project_memory("moe_1t", gpus=64, ep=32, devices="mi355x"), memory.TABLES),
    ("published", lambda _: tracelens.project_published([6, 10]), published.TABLES),
    ("schedule", lambda _: tracelens.project_pipeline(_run("pipeline/plain")), pipeline.TABLES),
    (
        "scaling",
        lambda _: tracelens.project_scaling("moe_2t", 1024, "mi300x", ep=(8, 64)),
        scaling.TABLES,
    ),
    ("search", lambda _: tracelens.search_layouts("moe_1t", 768, "mi355x", pp=24), search.TABLES),
]


@pytest.mark.parametrize(("make", "declared"), [pytest.param(*rest, id=name) for name, *rest in OTHERS])
def test_other_results_declare_their_tables(
    make: Callable[[Path], Result], declared: Mapping[str, Schema], tmp_path: Path
) -> None:
    result = make(tmp_path / "new")
    assert result.data
    assert {name: table.schema for name, table in result.data.items()}.items() <= declared.items()


def _schemas() -> Iterator[tuple[str, Schema]]:
    """Every schema of the package, with the module that holds it."""
    for module in pkgutil.walk_packages(tracelens.__path__, "tracelens."):
        if module.name.endswith("__main__"):
            continue
        try:
            content = vars(importlib.import_module(module.name))
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in NEEDED:
                raise
            continue
        for value in content.values():
            if isinstance(value, Schema):
                yield module.name, value


def test_every_column_says_what_it_holds() -> None:
    schemas = list(_schemas())
    assert len({id(schema) for _, schema in schemas}) > 100
    silent = {
        f"{module}: {schema.title}: {column.name}"
        for module, schema in schemas
        for column in schema.columns
        if not column.doc.strip() or column.doc.replace(" ", "_") == column.name
    }
    assert not silent, "\n".join(sorted(silent))
