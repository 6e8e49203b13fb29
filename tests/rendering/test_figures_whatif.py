"""The figures of a what-if: bars, whiskers and stacks say what the tables say."""

from __future__ import annotations

import pytest

from tests.rendering.sample_whatif import whatif
from tracelens.rendering.figures import figures


def test_bars_and_whiskers() -> None:
    measured, projected, labels = figures(whatif(scenarios=3))[0]["data"]
    assert measured["x"] == [80.0] * 3
    assert projected["x"] == [50.0, 51.0, 52.0]
    assert projected["error_x"]["arrayminus"] == [1.0] * 3
    assert projected["error_x"]["array"] == [2.0] * 3
    assert labels["text"][0] == "  50.000 ms, +60.0%"
    assert labels["x"] == [80.0] * 3


@pytest.mark.parametrize(("parts", "drawn"), [(6, 6), (12, 12), (30, 12)])
def test_the_parts_of_a_path_are_the_step(parts: int, drawn: int) -> None:
    stacked = figures(whatif(scenarios=3, parts=parts))[1]
    assert len(stacked["data"]) == drawn
    assert (stacked["data"][-1]["name"] == "rest") == (parts > 12)
    whole = [sum(ms) for ms in zip(*(trace["x"] for trace in stacked["data"]), strict=True)]
    assert whole == pytest.approx([80.0, 50.0, 51.0, 52.0], rel=1e-5)
    assert stacked["layout"]["yaxis"]["ticktext"][0] == "(measured)"


def test_many_scenarios_are_cut() -> None:
    steps, paths = figures(whatif(scenarios=100))
    assert len(steps["data"][1]["x"]) == 40
    assert len(paths["data"][0]["x"]) == 41
