"""Units, headers and names as people see them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.rendering.tables import (
    ABSENT,
    column_formats,
    format_for,
    label,
    meta_items,
    one_line,
    rounded,
    shorten,
)
from tracelens.table import Column, Schema
from tracelens.table.schema import Dtype
from tracelens.units import Unit


@pytest.mark.parametrize(
    ("name", "dtype", "unit", "values", "header", "texts"),
    [
        ("dur_ns", "int64", "ns", [1_500, 999_999], "time (µs)", ["1.50", "1,000.00"]),
        ("dur_ns", "int64", "ns", [1_500, 412_345_678], "time (ms)", ["0.002", "412.346"]),
        ("sum_ns", "int64", "ns", [-20_000_000_000, 5], "sum (s)", ["-20.000", "0.000"]),
        ("read_bytes", "int64", "bytes", [None, 3 * 2**30], "read (GiB)", [ABSENT, "3.00"]),
        ("bytes", "int64", "bytes", [12], "size (B)", ["12"]),
        ("achieved_flops_per_s", "float64", "flops/s", [6.39e14], "achieved (TFLOP/s)", ["639.0"]),
        ("flops", "float64", "flops", [2.5e12], "work (TFLOP)", ["2.50"]),
        ("bytes_per_s", "float64", "bytes/s", [5.3e12], "bandwidth (TB/s)", ["5.30"]),
        ("flops_per_byte", "float64", "flops/byte", [240.04], "intensity (FLOP/B)", ["240.0"]),
        ("fraction", "float64", "fraction", [0.621, 0.0], "fraction", ["62.1%", "0.0%"]),
        ("busy_fraction", "float64", "fraction", [0.0123], "busy fraction", ["1.23%"]),
        ("count", "int64", "count", [1_234_567, None], "count", ["1,234,567", ABSENT]),
        ("delta_count", "int64", "count", [5, -1], "delta count", ["5", "-1"]),
        ("balance", "int64", "count", [-2, -1], "balance", ["-2", "-1"]),
        ("ratio", "float64", "", [1.0, float("inf")], "ratio", ["1.000", "inf"]),
        ("ok", "bool", "", [True, False], "ok", ["yes", "no"]),
        ("name", "category", "", ["a\nb", "a\nb"], "name", ["a b", "a b"]),
        ("dur_ns", "int64", "ns", [], "time (µs)", []),
    ],
)
def test_column(
    name: str, dtype: Dtype, unit: Unit, values: list[object], header: str, texts: list[str]
) -> None:
    numbers = None if dtype == "category" else np.array([v for v in values if v is not None], dtype)
    how = format_for(Column(name, dtype, unit), numbers)
    assert how.header == header
    assert how.texts(values) == texts


def test_the_unit_of_a_cut_is_that_of_the_whole_column() -> None:
    how = format_for(Column("dur_ns", "int64", "ns"), np.array([1_000_000_000, 5_000]))
    assert (how.header, how.texts([5_000])) == ("time (ms)", ["0.005"])


def test_label_keeps_a_suffix_that_is_no_unit() -> None:
    assert label(Column("tokens_per_s", "float64")) == "tokens per s"
    assert label(Column("ts_ns", "int64", "ns")) == "start"


@pytest.mark.parametrize(
    ("unit", "low", "high", "text"),
    [
        ("ns", 412e6, 421e6, "412 – 421 ms"),
        ("ns", 4.12e6, 4.12e6, "4.12 ms"),
        ("ns", 150, 150, "0.15 µs"),
        ("bytes", 2**30, 2**31, "1.00 – 2.00 GiB"),
        ("fraction", 0.5, 0.624, "50.0% – 62.4%"),
    ],
)
def test_rounded(unit: Unit, low: float, high: float, text: str) -> None:
    assert rounded(Column("x", "float64", unit), low, high) == text


def test_meta_items() -> None:
    meta = {
        "step_ns": 12_300_000,
        "ranks": 8,
        "inputs": ["a", "b"],
        "ok": True,
        "none": None,
        "map": {"a": 1},
        "coverage": 0.0028,
        "reasons_given": 0.9972,
    }
    assert meta_items(meta) == [
        ("step", "12.300 ms"),
        ("ranks", "8"),
        ("inputs", "a, b"),
        ("ok", "yes"),
        ("none", "–"),
        ("map", "a: 1"),
        ("coverage", "0.28%"),
        ("reasons given", "99.7%"),
    ]


@given(st.text(st.characters(exclude_categories=[])))
def test_one_line_is_safe_for_terminals_and_files(text: str) -> None:
    line = one_line(text)
    assert len(line.splitlines()) <= 1
    assert not any(ord(letter) < 32 or 127 <= ord(letter) < 160 for letter in line)
    line.encode()


@given(st.text(), st.integers(3, 40))
def test_shorten_keeps_both_ends(text: str, width: int) -> None:
    short = shorten(text, width)
    assert len(short) == min(len(text), width)
    if len(text) > width:
        head, _, tail = short.partition("…")
        assert text.startswith(head)
        assert text.endswith(short[len(head) + 1 :] if "…" not in head else tail)


@pytest.mark.parametrize(
    ("column", "values", "expected"),
    [
        (Column("spread", "float64", "fraction"), [0.00004, 0.0], ["0.004%", "0.000%"]),
        (Column("spread", "float64", "fraction"), [0.0042, 0.0], ["0.42%", "0.00%"]),
        (Column("flops", "int64", "flops"), [64, 1], ["0.0001", "0.0000"]),
        (Column("dur_ns", "int64", "ns"), [3, 0], ["0.003", "0.000"]),
        (Column("mean", "float64"), [1e-12, 0.0], ["0.000000", "0.000000"]),
        (Column("mean", "float64"), [0.0, 0.0], ["0.000", "0.000"]),
    ],
)
def test_no_column_shows_only_zeros_for_what_is_more(
    column: Column, values: list[float], expected: list[str]
) -> None:
    assert format_for(column, np.array(values)).texts(values) == expected


def test_statistics_of_one_time_have_one_unit() -> None:
    names = ("dur_median_ns", "dur_min_ns", "dur_max_ns")
    schema = Schema("T", tuple(Column(name, "int64", "ns") for name in names))
    table = schema.from_rows([(20_000_000, 1_000, 90_000_000)])
    assert {fmt.unit for fmt in column_formats(table).values()} == {"ms"}


def test_facts_of_an_entry_have_one_unit_but_for_times_of_day() -> None:
    names = ("saving_ns", "low_ns", "ts_ns")
    schema = Schema("T", tuple(Column(name, "int64", "ns") for name in names), kind="entries")
    table = schema.from_rows([(20_000_000, 1_000, 90_000_000_000)])
    assert [fmt.unit for fmt in column_formats(table).values()] == ["ms", "ms", "s"]
