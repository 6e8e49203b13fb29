"""Results whose every text column holds every payload: of all tables of the package, and of figures."""

from __future__ import annotations

import gc
import importlib
import pkgutil
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
from msgspec.structs import replace

import tracelens
from tests.effort import effort
from tests.hostile.payloads import PAYLOADS, SHORT
from tests.rendering import (
    sample,
    sample_bounds,
    sample_ladder,
    sample_memory,
    sample_projection,
    sample_search,
    sample_whatif,
)
from tracelens.table import Column, Report, Result, Schema, Skip, Table

WITH_TABLES = ("analysis", "findings", "compare", "what_if", "planner", "reproducers")
EVERY = effort(20, 1)
# What figures look for; replaced as well, they draw nothing.
STRUCTURE = {"level", "kind", "metric", "direction", "phase", "side", "part", "bound", "status", "stage"}


@cache
def schemas() -> tuple[Schema, ...]:
    """The schema of every table that some part of the package declares."""
    for part in WITH_TABLES:
        package = importlib.import_module(f"tracelens.{part}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if "_worker" not in module.name and "templates" not in module.name:
                importlib.import_module(module.name)
    gc.unfreeze()  # what collecting the tests made, which is not listed otherwise
    found = [item for item in gc.get_objects() if type(item) is Schema]
    gc.freeze()
    return tuple({(schema.title, *schema.names): schema for schema in found}.values())


def filled(schema: Schema, payloads: Sequence[str]) -> Table:
    """A row for each payload, which stands in every text column of it."""
    return schema.table(
        {column.name: cells(column, payloads, 17 * at) for at, column in enumerate(schema.columns)}
    )


def cells(column: Column, payloads: Sequence[str], shift: int) -> Any:
    # Formats for people show the first rows only: each column begins with others.
    if column.dtype in ("str", "category"):
        return [*payloads[shift % len(payloads) :], *payloads[: shift % len(payloads)]]
    numbers = np.arange(len(payloads))
    if column.name == "parent":
        return numbers - 1
    if column.unit == "fraction":
        return numbers / len(payloads)
    return (numbers % 2 == 0) if column.dtype == "bool" else numbers.astype(column.dtype)


def every_table(per_result: int = 8) -> Report:
    """All tables; titles, sentences, skips and meta hold payloads too.

    Very long texts are in one table in EVERY: in all of them they say nothing more, and take long.
    """
    tables = [filled(schema, SHORT if at % EVERY else PAYLOADS) for at, schema in enumerate(schemas())]
    results = []
    for number, start in enumerate(range(0, len(tables), per_result)):
        part = tables[start : start + per_result]
        payload = PAYLOADS[number % len(PAYLOADS)]
        results.append(
            Result(
                f"part_{number}",
                payload,
                {f"t{place}": table for place, table in enumerate(part)},
                doc=payload,
                skips=tuple(Skip(one, one) for one in PAYLOADS[number::7]),
                meta={f"k{place}": one for place, one in enumerate(PAYLOADS[number::5])},
            )
        )
    return Report(
        tuple(results), title=PAYLOADS[0], meta={"inputs": list(PAYLOADS[:40]), "x": {"y": PAYLOADS[1]}}
    )


def poisoned(result: Result, shift: int) -> Result:
    """A result whose texts are payloads, but for those by which figures know what to draw."""

    def texts(table: Table, name: str) -> list[str]:
        place = {
            text: PAYLOADS[(at + shift) % len(PAYLOADS)]
            for at, text in enumerate(dict.fromkeys(table.texts(name)))
        }
        return [place[text] for text in table.texts(name)]

    data = {}
    for key, table in result.data.items():
        columns = dict(table.columns)
        for column in table.schema.columns:
            if column.dtype in ("str", "category") and column.name not in STRUCTURE:
                columns[column.name] = texts(table, column.name)
        data[key] = Table(table.schema, columns)
    return replace(result, data=data)


def drawn() -> Iterator[Result]:
    """Results with figures, by the samples of the renderers' tests."""
    yield from sample.report().results
    yield from (sample.pipeline(), sample.serving(), sample.overlap(), sample.launches(), sample.moe())
    yield sample_ladder.ladder()
    yield sample_memory.memory()
    yield from (sample_projection.bubble(), sample_projection.pipeline_schedule())
    yield from (sample_search.search(), sample_whatif.whatif())
    yield from (sample_bounds.bounds(), sample_bounds.trace_bounds())


def every_figure() -> Report:
    """A report with all kinds of figures, of which payloads are the names."""
    named: dict[str, Result] = {}
    for number, result in enumerate(drawn()):
        named.setdefault(result.analyzer, poisoned(result, 11 * number))
    return Report(tuple(named.values()), title=PAYLOADS[2], meta={"version": tracelens.__version__})
