"""Figures of the speed of light."""

from __future__ import annotations

import pytest

from tests.rendering import sample_bounds
from tracelens.rendering.figures import figures


def test_each_resource_of_an_operation_is_a_bar() -> None:
    first, second = figures(sample_bounds.bounds(3))
    assert [trace["name"] for trace in first["data"]] == ["GEMM", "memory", "links", "without overlap"]
    assert first["data"][2]["x"] == [3, 6, 9]
    assert first["layout"]["xaxis"]["type"] == "log"
    assert len(second["layout"]["yaxis"]["ticktext"]) == 3


def test_algorithms_without_a_time_are_no_lines() -> None:
    one_node, two_nodes = figures(sample_bounds.all_reduce())
    assert [line["name"] for line in one_node["data"]] == ["ring", "one-shot", "two-shot"]
    assert [line["name"] for line in two_nodes["data"]] == ["ring", "one-shot", "two-shot", "hierarchical"]
    assert two_nodes["data"][3]["x"] == ["128 KiB", "1 MiB"]
    assert two_nodes["data"][3]["y"] == [12.6, 18.5]


def test_transfers_are_bound_and_excess() -> None:
    transfers, pairs = figures(sample_bounds.trace_bounds(2))
    bound, excess = transfers["data"]
    # Half of the links: the bound is as long as what is above it.
    assert bound["x"] == pytest.approx([0.2, 0.1])
    assert excess["x"] == pytest.approx([0.2, 0.1])
    gemm, collective, overlapped, serial = pairs["data"]
    assert gemm["x"] == overlapped["x"] == [200, 100]
    assert collective["x"] == [400, 200]
    assert serial["x"] == [300, 150]
