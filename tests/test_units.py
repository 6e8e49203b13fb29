"""Amounts as text."""

from __future__ import annotations

import pytest

from tracelens.units import (
    amount,
    duration,
    gib,
    largest_scale,
    milliseconds,
    plural,
    scale_of,
    three_digits,
    times,
)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0, "ns", "0 µs"),
        (1234567, "ns", "1.235 ms"),
        (-2.5e9, "ns", "-2.5 s"),
        (3 * 2**30, "bytes", "3 GiB"),
        (12, "bytes", "12 B"),
        (0.3121, "fraction", "31.21%"),
        (1966, "count", "1,966"),
        (0.5, "count", "0.5"),
    ],
)
def test_amounts(value: float, unit: str, text: str) -> None:
    assert amount(value, unit) == text


@pytest.mark.parametrize(
    ("ns", "text"),
    [(2, "2 ns"), (1_500, "1.50 µs"), (-12_340_000, "-12.3 ms"), (1.234e9, "1.23 s"), (1e12, "1000 s")],
)
def test_durations_have_three_digits(ns: float, text: str) -> None:
    assert duration(ns) == text


def test_fixed_units() -> None:
    assert milliseconds(1_234_500_000) == "1,234.50 ms"
    assert milliseconds(-500_000, 3, "+") == "-0.500 ms"
    assert gib(3 * 2**29) == "1.5 GiB"


def test_columns_switch_later_than_single_values() -> None:
    assert (scale_of("ns", 2e9).name, largest_scale("ns", 2e9).name) == ("ms", "s")
    assert largest_scale("flops", 1.0).name == "MFLOP"


@pytest.mark.parametrize(
    ("value", "text"), [(18_234, "18,200"), (1_349_000, "1,350,000"), (67.52, "67.5"), (99.96, "100")]
)
def test_rates_have_three_digits(value: float, text: str) -> None:
    assert three_digits(value) == text


@pytest.mark.parametrize(
    ("count", "nouns", "often"),
    [
        (1, "1 call", "once"),
        (1.0, "1 call", "once"),
        (1.001, "1 call", "once"),
        (2, "2 calls", "2 times"),
        (0.25, "0.25 calls", "0.25 times"),
        (1234.5, "1,230 calls", "1,230 times"),
    ],
)
def test_counts_with_their_nouns(count: float, nouns: str, often: str) -> None:
    assert (plural(count, "call"), times(count)) == (nouns, often)


def test_whole_numbers_keep_their_digits() -> None:
    assert plural(1_234, "call") == "1,234 calls"
