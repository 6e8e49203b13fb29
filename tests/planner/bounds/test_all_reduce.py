"""The fastest all-reduce by message size."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.devices import device
from tracelens.planner import AlphaBeta
from tracelens.planner.bounds import Platform, algorithms, bounds, fastest

LINES = st.dictionaries(
    st.sampled_from("abcde"),
    st.builds(
        lambda alpha, beta: AlphaBeta(1, 0, alpha / 10, beta / 10), st.integers(0, 50), st.integers(0, 50)
    ),
    min_size=1,
)


@given(LINES)
def test_ranges_cover_all_sizes_with_the_lowest_line(lines: dict[str, AlphaBeta]) -> None:
    ranges = fastest(lines)
    assert ranges[0].from_bytes == 0
    assert ranges[-1].to_bytes == float("inf")
    assert all(before.to_bytes == after.from_bytes for before, after in pairwise(ranges))
    for size in np.linspace(0, 120, 241).tolist():
        named = next(item for item in ranges if item.from_bytes <= size <= item.to_bytes)
        lowest = min(line.seconds(size) for line in lines.values())
        assert lines[named.algorithm].seconds(size) == pytest.approx(lowest)


def test_two_lines_meet_where_their_times_are_equal() -> None:
    lines = {"quick": AlphaBeta(1, 0, 2.0, 3.0), "wide": AlphaBeta(1, 0, 12.0, 1.0)}
    assert [(item.algorithm, item.from_bytes) for item in fastest(lines)] == [("quick", 0), ("wide", 5)]


def test_the_crossovers_of_eight_mi300x() -> None:
    """One-shot 1.9 us + x / 64 GB/s, two-shot 3.8 us + x / 256 GB/s: equal at 1.9 us / (3/256 s/GB)."""
    ranges = fastest(algorithms(Platform(device("mi300x")), 1))
    assert [item.algorithm for item in ranges] == ["one-shot", "two-shot"]
    assert ranges[1].from_bytes == pytest.approx(1.9e-6 * 256e9 / 3)


def test_the_table_holds_the_sizes_of_llm_inference() -> None:
    table = bounds(Platform(device("mi300x"), nodes=4))["all_reduce"]
    assert table["bytes"].tolist() == [1 << exponent for exponent in range(17, 24)] * 2
    assert table["gpus"].tolist() == [8] * 7 + [32] * 7
    on_nodes = table[table["nodes"] == 4]
    # Between nodes, the hierarchy beats flat rings at all of these sizes, most at the smallest.
    ratio = (on_nodes["ring_ns"] / on_nodes["hierarchical_ns"]).tolist()
    assert ratio == sorted(ratio, reverse=True)
    assert ratio[-1] > 1
    assert table[table["nodes"] == 1]["hierarchical_ns"].isna().all()


def test_one_gpu_has_nothing_to_reduce() -> None:
    result = bounds(Platform(device("mi300x"), nodes=1, gpus_per_node=1))
    assert "all_reduce" not in result.data
    between = bounds(Platform(device("mi300x"), nodes=2, gpus_per_node=1))
    assert set(between["algorithms"]["nodes"]) == {2}
