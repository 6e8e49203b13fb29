"""Declared tables: what fits, what is refused, and how a table becomes a DataFrame."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tracelens.errors import SchemaError
from tracelens.table import Coded, Column, Report, Result, Schema, Skip

SCHEMA = Schema(
    "numbers",
    (
        Column("rank", "int64"),
        Column("share", "float64", "fraction"),
        Column("name", "category"),
        Column("text", "str"),
        Column("good", "bool"),
    ),
)


def data(**changed: Any) -> dict[str, Any]:
    """Two rows that fit, with some columns changed."""
    fitting = {
        "rank": np.array([0, 1]),
        "share": np.array([0.25, 0.75]),
        "name": ["a", "b"],
        "text": ["x", ""],
        "good": np.array([True, False]),
    }
    return fitting | changed


def test_a_table_has_the_declared_columns_in_order() -> None:
    table = SCHEMA.table(dict(reversed(data().items())))
    assert len(table) == 2
    frame = table.frame
    assert list(frame.columns) == SCHEMA.names
    assert [str(dtype) for dtype in frame.dtypes] == ["int64", "float64", "category", "str", "bool"]
    assert frame["name"].tolist() == ["a", "b"]


def test_the_frame_is_made_once() -> None:
    table = SCHEMA.table(data())
    assert table.frame is table.frame


def test_integers_of_any_width_become_int64() -> None:
    table = SCHEMA.table(data(rank=np.array([0, 1], dtype=np.int8), share=[1, 0]))
    assert table.array("rank").dtype == np.int64
    assert table.array("share").dtype == np.float64


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"rank": np.array([0.5, 1.0])}, "rank is declared int64 but holds floats"),
        ({"share": np.array([0.5, np.nan])}, "share has missing values"),
        ({"rank": np.array([0])}, "differ in length"),
        ({"name": ["a"]}, "differ in length"),
        ({"extra": [1, 2]}, "missing or undeclared: extra"),
    ],
)
def test_what_does_not_fit_is_refused(changed: dict[str, Any], problem: str) -> None:
    with pytest.raises(SchemaError, match=problem):
        SCHEMA.table(data(**changed))


def test_a_missing_column_is_named() -> None:
    columns = data()
    del columns["text"], columns["good"]
    with pytest.raises(SchemaError, match="missing or undeclared: good, text"):
        SCHEMA.table(columns)


def test_numbers_that_int64_does_not_hold_are_refused() -> None:
    with pytest.raises(SchemaError):
        SCHEMA.table(data(rank=np.array([0, 2**63], dtype=np.uint64)))


def test_missing_texts_are_refused() -> None:
    with pytest.raises(SchemaError):
        SCHEMA.table(data(text=["x", None]))


def test_coded_texts() -> None:
    coded = Coded(np.array([1, 0], dtype=np.int8), ["a", "b", "not used"])
    table = SCHEMA.table(data(name=coded, text=coded))
    assert table.frame["name"].tolist() == ["b", "a"]
    assert table.frame["text"].tolist() == ["b", "a"]
    assert [str(table.frame[column].dtype) for column in ("name", "text")] == ["category", "str"]
    assert table.texts("name") == ["b", "a"]
    assert table.texts("name", slice(1, 2)) == ["a"]
    assert table.texts("name", np.array([1, 1, 0])) == ["a", "a", "b"]
    assert SCHEMA.table(data()).texts("name", [1]) == ["b"]


def test_an_empty_table() -> None:
    nothing = {"rank": [], "share": [], "name": [], "text": [], "good": []}
    frame = SCHEMA.table(nothing).frame
    assert len(frame) == 0
    assert [str(frame[column].dtype) for column in ("rank", "share", "text", "good")] == [
        "int64",
        "float64",
        "str",
        "bool",
    ]


def test_a_result_gives_its_tables_and_reasons() -> None:
    result = Result("idle", "Idle", {"numbers": SCHEMA.table(data())}, skips=(Skip("gaps", "no kernels"),))
    assert result["numbers"]["rank"].tolist() == [0, 1]
    assert list(result.tables) == ["numbers"]
    assert result.schemas == {"numbers": SCHEMA}
    with pytest.raises(SchemaError, match=r"idle: no table 'gaps' \(has: numbers\) gaps: no kernels"):
        result["gaps"]


def test_a_report_gives_its_results() -> None:
    result = Result("idle", "Idle", {})
    assert Report((result,))["idle"] is result
    with pytest.raises(SchemaError, match=r"no result of 'ops' \(has: idle\)"):
        Report((result,))["ops"]
