"""What is not known is NA, null, empty or a dash, whoever reads it: on traces in which things are missing."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import zstandard

import tracelens
from tests.contracts.test_analyzers import SIGNED
from tests.effort import effort
from tracelens.analysis import in_order
from tracelens.rendering import RENDERERS
from tracelens.rendering.tables import ABSENT, across_ranks, cut, readable
from tracelens.table import Column, Report, Result, Schema, Table

SAMPLES = Path(__file__).parents[2] / "sample_traces"


class Hole(NamedTuple):
    """What a recording lacks."""

    sample: str
    header: tuple[str, ...] = ()  # keys of the file
    arguments: tuple[str, ...] = ()  # keys of events
    categories: tuple[str, ...] = ()  # of events
    names: tuple[str, ...] = ()  # that events begin with


HOLES = {
    "shapes": Hole(
        "pipeline/plain",
        arguments=("Input Dims", "Input type", "Concrete Inputs", "Input Strides", "bytes", "grid", "block"),
    ),
    "steps": Hole("pipeline/plain", header=("tracelens", "trace_id"), names=("ProfilerStep",)),
    "device and links": Hole(
        "pipeline/plain",
        header=("deviceProperties",),
        arguments=("device", "stream", "correlation", "External id", "Sequence number"),
    ),
    "groups": Hole(
        "pipeline/plain",
        header=("distributedInfo",),
        arguments=("Collective name", "Group size", "Process Group Ranks", "In msg nelems", "Out msg nelems"),
    ),
    "calls": Hole("serving/tbo_request", categories=("cuda_runtime", "cuda_driver", "python_function")),
}


def punched(hole: Hole, folder: Path) -> Report:
    """The report on a sample of which something was not recorded."""
    for file in sorted((SAMPLES / hole.sample).glob("rank*.zst")):
        with zstandard.ZstdDecompressor().stream_reader(file.read_bytes()) as stream:
            content: dict[str, Any] = json.loads(stream.read())
        for key in hole.header:
            content.pop(key, None)
        events = [
            event
            for event in content["traceEvents"]
            if event.get("cat") not in hole.categories and not str(event.get("name")).startswith(hole.names)
        ]
        for event in events:
            for key in hole.arguments:
                event.get("args", {}).pop(key, None)
        content["traceEvents"] = events
        (folder / f"{file.name.partition('.')[0]}.json").write_text(json.dumps(content))
    return tracelens.report_files(folder)


SELDOM = ("steps", "device and links", "groups")
"""Holes that few recordings have: their tests are slow."""


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=pytest.mark.slow if name in SELDOM else ()) for name in HOLES],
)
def report(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Report:
    return punched(HOLES[request.param], tmp_path_factory.mktemp("holes"))


def columns(report: Report) -> Iterator[tuple[Result, str, Table, Column]]:
    """Every column of numbers that formats show."""
    for result in report.results:
        for name, table in result.exported.items():
            for column in table.schema.columns:
                if column.is_number:
                    yield result, name, table, column


def test_frames_have_na(report: Report) -> None:
    unknown = 0
    frames = {(result.analyzer, name): result[name] for result in report.results for name in result.exported}
    for result, name, table, column in columns(report):
        values = frames[result.analyzer, name][column.name]
        assert values.isna().tolist() == table.unknown(column.name).tolist()
        is_amount = column.name in SIGNED or (values.dropna() >= 0).all()
        assert is_amount, f"{result.analyzer}.{name}.{column.name}"
        unknown += int(values.isna().sum())
    assert unknown > 20
    assert {result.analyzer for result in report.results} == {item.name for item in in_order()}


def negative(value: Any) -> Iterator[float]:
    """Numbers below 0 anywhere in metadata."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from negative(item)
    elif isinstance(value, int | float) and value < 0:
        yield value


def test_metadata_has_none(report: Report) -> None:
    for meta in (report.meta, *(result.meta for result in report.results)):
        assert list(negative(meta)) == []


def test_json_has_null_and_comes_back(report: Report) -> None:
    (text,) = RENDERERS.get("json").files(report).values()
    back = json.loads(text)["results"]
    for result, name, table, column in columns(report):
        rows = back[result.analyzer]["tables"][name]
        assert [row[column.name] for row in rows] == table.cells(column.name)


def test_sheets_have_empty_cells(report: Report) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    files = RENDERERS.get("csv").files(report)
    (content,) = RENDERERS.get("xlsx").files(report).values()
    book = openpyxl.load_workbook(io.BytesIO(content), read_only=True)
    for result in report.results:
        for name, table in result.exported.items():
            lines = list(csv.DictReader(io.StringIO(files[f"{result.analyzer}.{name}.csv"].decode())))
            sheet = result.analyzer if name == result.analyzer else f"{result.analyzer}.{name}"
            cells = list(book[sheet[:31]].values)[1:] if len(table) < effort(100, 1000) else []
            for place, column in enumerate(table.schema.columns):
                if not column.is_number:
                    continue
                unknown = table.unknown(column.name).tolist()
                assert [line[column.name] == "" for line in lines] == unknown
                # A row of openpyxl ends where its last cells are empty.
                assert not cells or [row[place : place + 1] in ((), (None,)) for row in cells] == unknown


def test_people_see_a_dash(report: Report) -> None:
    for result in report.results:
        for whole in readable(result).values():
            for table in filter(None, (whole, across_ranks(whole))):
                for shown in cut(table, 40).columns:
                    unknown = [cell is None for cell in shown.cells]
                    assert [text == ABSENT for text in shown.texts] == unknown or shown.column.is_text


def test_what_is_not_known_is_left_out_of_a_mean() -> None:
    schema = Schema("T", (Column("rank", "int64"), Column("p_value", "float64", absent=-1)))
    frame = schema.from_rows([(0, 0.5), (1, -1.0)]).frame
    assert (frame["p_value"].mean(), frame.query("p_value < 0.6")["rank"].tolist()) == (0.5, [0])
