"""The figures of bubbles and simulated schedules."""

from __future__ import annotations

import numpy as np
import pytest

from tests.rendering.sample_projection import bubble, pipeline_schedule
from tracelens.rendering.figures import figures


def test_the_bubble_has_a_line_a_convention_and_points_beside_them() -> None:
    (drawn,) = figures(bubble(3))
    whole, ideal, published = drawn["data"]
    assert (whole["x"], ideal["x"], published["x"]) == ([1, 2, 3], [1, 2, 3], [1, 3])
    assert whole["text"] == ["48.4%", "31.9%", "23.8%"]
    assert ideal["y"] == pytest.approx([0.9375, 0.46875, 0.3125])
    assert "<script" not in str(published["customdata"])
    assert drawn["layout"]["title"]["text"].endswith("16 stages, 16 micro-batches")
    assert len(figures(bubble(published=False))[0]["data"]) == 2
    assert figures(bubble(1)) == []


def test_schedules_are_compared_and_then_drawn_one_by_one() -> None:
    titles = [figure["layout"]["title"]["text"] for figure in figures(pipeline_schedule(schedules=6))]
    assert titles[0].startswith("Makespan of each schedule")
    # Four of the six, each with what it holds.
    assert len(titles) == 1 + 2 * 4
    assert "bubble 20.0%" in titles[1]
    assert len(figures(pipeline_schedule(schedules=1))) == 2


def test_pairs_are_drawn_half_as_high_one_above_the_other() -> None:
    _, gantt, *_ = figures(pipeline_schedule(stages=2, micro_batches=3))
    bars = {trace["name"]: trace for trace in gantt["data"]}
    assert bars["forward"]["y"] == pytest.approx([0, -0.2, -0.2, 1, 0.8, 0.8])
    assert bars["forward"]["width"] == [0.8, 0.4, 0.4] * 2
    assert bars["backward"]["y"] == pytest.approx([0.2, 0.2, 0, 1.2, 1.2, 1])
    assert bars["backward"]["base"][:3] == [1, 2, 3]


def test_what_is_held_is_drawn_in_bytes_where_known() -> None:
    for size, title, most in ((-1, "chunks", 6), (2 * 2**30, "activations (GiB)", 12)):
        held = figures(pipeline_schedule(size=size))[2]
        assert title in held["layout"]["yaxis"]["title"]["text"]
        assert [trace["name"] for trace in held["data"]] == [f"stage {rank}" for rank in range(4)]
        assert max(held["data"][0]["y"]) == most


def test_many_stages_are_some_lines_and_some_rows() -> None:
    _, gantt, held, *_ = figures(pipeline_schedule(stages=64, micro_batches=20))
    assert "(48 of 64 stages)" in gantt["layout"]["title"]["text"]
    assert [trace["name"] for trace in held["data"]][::7] == ["stage 0", "stage 63"]
    _, gantt, *_ = figures(pipeline_schedule(stages=1, micro_batches=3000))
    assert "(the first 4,000 passes)" in gantt["layout"]["title"]["text"]
    _, gantt, *_ = figures(pipeline_schedule(stages=40, micro_batches=80))
    assert len(gantt["layout"]["yaxis"]["ticktext"]) == 40
    ends = np.concatenate([np.add(trace["base"], trace["x"]) for trace in gantt["data"]])
    assert gantt["layout"]["xaxis"]["range"][1] == pytest.approx(ends.max())
