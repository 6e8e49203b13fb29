"""The figure of a memory projection: what its bars come to, and where devices end."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.rendering.sample_memory import PARTS, memory
from tracelens.rendering.figures import figures


def test_one_layout_is_drawn_by_pipeline_rank() -> None:
    (found,) = figures(memory(stages=3))
    bars = [trace for trace in found["data"] if trace["type"] == "bar"]
    assert len(bars) == len(PARTS)
    assert [bar["y"] for bar in bars] == [[size, 2 * size, 3 * size] for size in (10, 20, 30, 40)]
    assert found["layout"]["xaxis"]["ticktext"] == ["0", "1", "2"]
    assert found["layout"]["xaxis"]["title"]["text"] == "pipeline rank"
    sums = found["data"][-1]
    assert sums["text"] == ["100.0", "200.0", "300.0"]
    # What is small beside the highest bar has no room for its number.
    assert bars[0]["text"] == ["", "20.0", "30.0"]


def test_several_layouts_are_drawn_by_their_first_rank() -> None:
    (found,) = figures(memory(layouts=3, stages=2))
    bars = [trace for trace in found["data"] if trace["type"] == "bar"]
    assert [bar["y"] for bar in bars] == [[size] * 3 for size in (10, 20, 30, 40)]
    assert found["layout"]["title"]["text"] == "Memory of the fullest GPU, by layout"
    assert found["layout"]["xaxis"]["title"]["text"] == ""


def test_lines_are_at_what_devices_leave_for_training() -> None:
    (found,) = figures(memory(layouts=2, devices=2))
    assert [shape["y0"] for shape in found["layout"]["shapes"]] == [96, 196]
    assert [note["y"] for note in found["layout"]["annotations"]] == [96, 196]
    assert found["layout"]["annotations"][0]["text"].endswith("100.0 less 4.0 GiB")
    assert found["layout"]["yaxis"]["range"][1] == pytest.approx(196 * 1.08)
    assert figures(memory(devices=0))[0]["layout"]["shapes"] == []


def test_sums_are_in_decimal_gb_too_where_published_charts_count_so() -> None:
    (found,) = figures(replace(memory(stages=1), meta={"framework": "amd-guide"}))
    assert found["data"][-1]["text"] == ["100.0 (107.4 GB)"]
    assert found["layout"]["yaxis"]["title"]["text"] == "GiB"


def test_many_ranks_have_no_numbers() -> None:
    (found,) = figures(memory(stages=48))
    assert all(trace["type"] == "bar" and not any(trace["text"]) for trace in found["data"])
