"""Rows of tables chosen, appended, grouped and summed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tracelens.errors import SchemaError
from tracelens.table import Coded, Column, Schema, Table

CALLS = Schema(
    "calls",
    (
        Column("rank", "int64"),
        Column("name", "category"),
        Column("op", "str"),
        Column("dur_ns", "int64", "ns"),
    ),
)
ROWS = [(1, "b", "x", 10), (0, "a", "x", 20), (1, "a", "y", 30), (1, "b", "x", 5)]


@pytest.fixture(params=["lists", "coded"])
def calls(request: pytest.FixtureRequest) -> Table:
    """The same rows with names as a list, and by a dictionary in another order with an unused text."""
    table = CALLS.from_rows(ROWS)
    if request.param == "lists":
        return table
    names = Coded(np.array([1, 2, 2, 1], np.int8), ["unused", "b", "a"])
    return CALLS.table({**table.columns, "name": names})


def rows(table: Table) -> list[tuple[Any, ...]]:
    return list(zip(*(table.values(name) for name in table.schema.names), strict=True))


def test_tables_from_rows() -> None:
    mappings = [dict(zip(CALLS.names, row, strict=True)) for row in ROWS]
    assert rows(CALLS.from_rows(mappings)) == rows(CALLS.from_rows(ROWS)) == ROWS
    assert rows(CALLS.from_rows([])) == []
    with pytest.raises(ValueError, match="zip"):
        CALLS.from_rows([(1, "b", "x")])


def test_rows_by_number_slice_and_mask(calls: Table) -> None:
    assert rows(calls.take([2, 0])) == [ROWS[2], ROWS[0]]
    assert rows(calls.take(slice(2))) == ROWS[:2]
    assert rows(calls.take(calls.array("dur_ns") > 10)) == ROWS[1:3]
    assert rows(calls.take(calls.coded("name").equals("b"))) == [ROWS[0], ROWS[3]]
    assert rows(calls.take(calls.coded("name").equals("unused"))) == []
    assert calls.texts("name", np.array([True, False, True, False])) == ["b", "a"]


def test_each_text_once_in_order_of_its_first_row(calls: Table) -> None:
    assert [*calls.distinct_texts("name")] == ["b", "a"]
    assert [*calls.take([1, 0]).distinct_texts("name")] == ["a", "b"]
    assert [*calls.take([]).distinct_texts("name")] == []


def test_tables_one_below_the_other(calls: Table) -> None:
    assert rows(CALLS.concat([calls.columns, CALLS.from_rows(ROWS[:2]).columns])) == ROWS + ROWS[:2]
    assert rows(CALLS.concat([calls.columns])) == ROWS
    assert rows(CALLS.concat([])) == []


def test_small_codes_have_room_for_a_larger_dictionary() -> None:
    names = [f"name {number}" for number in range(100)]
    parts = [Coded(np.arange(100, dtype=np.int8), [f"{part} {name}" for name in names]) for part in range(3)]
    joined = Coded.concat(parts)
    assert joined.texts() == [text for part in parts for text in part.texts()]


def test_equal_texts_have_one_code() -> None:
    assert Coded.merged(np.array([2, 0, 1]), ["a", "b", "a"]).texts() == ["a", "a", "b"]
    assert Coded.of(["b", "a", "b"]).values == ["b", "a"]
    assert Coded.used(np.array([3, 1, 3]), ["a", "b", "c", "d"]).values == ["b", "d"]


def test_rows_that_agree(calls: Table) -> None:
    group, (names, ranks) = calls.group("name", "rank")
    assert [(names[index], ranks[index]) for index in group] == [("b", 1), ("a", 0), ("a", 1), ("b", 1)]
    assert len(names) == 3


def test_sums_by_two_columns(calls: Table) -> None:
    assert calls.pivot("name", "rank", "dur_ns").columns == [1, 0]
    by_name = calls.pivot("name", "rank", "dur_ns", [0, 1, 2]).by_row()
    assert {name: sums.tolist() for name, sums in by_name.items()} == {"b": [0, 15, 0], "a": [20, 30, 0]}
    by_pair = calls.pivot("rank", ("name", "op"), "dur_ns")
    assert by_pair.columns == [("b", "x"), ("a", "x"), ("a", "y")]
    assert by_pair.values.tolist() == [[15, 0, 30], [0, 20, 0]]
    assert calls.pivot("name", "rank", "dur_ns", [0]).values.tolist() == [[0], [20]]


def test_a_kind_has_its_columns() -> None:
    with pytest.raises(SchemaError, match="a tree table has node and parent"):
        Schema("calls", (Column("node", "int64"),), kind="tree")
    with pytest.raises(SchemaError, match="a levels table has level"):
        Schema("calls", (Column("name", "str"),), kind="levels")
