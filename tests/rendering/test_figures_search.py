"""The figure of a search: a bar a layout, made of the parts of its step."""

from __future__ import annotations

from tests.rendering.sample_search import search
from tracelens.rendering.figures import figures


def test_each_device_has_a_bar_a_layout() -> None:
    first, second = figures(search())
    assert [trace["name"] for trace in first["data"]] == ["forward", "backward", "bubble"]
    assert [trace["x"] for trace in first["data"]] == [[3, 4, 5], [2, 3, 4], [1, 2, 3]]
    assert first["data"][0]["customdata"] == [0.5, round(4 / 9, 5), round(5 / 12, 5)]
    assert first["layout"]["yaxis"]["ticktext"][0].startswith("1: ")
    assert second["layout"]["title"]["text"] != first["layout"]["title"]["text"]


def test_what_does_not_fit_says_so() -> None:
    (drawn,) = figures(search(layouts=2, devices=1, fits=False))
    assert drawn["layout"]["title"]["text"].endswith("; none fits")
    assert all(text.startswith("does not fit: ") for text in drawn["layout"]["yaxis"]["ticktext"])


def test_only_the_first_layouts_are_drawn() -> None:
    drawn = figures(search(layouts=200, devices=20))
    assert len(drawn) == 6
    assert all(len(trace["y"]) == 30 for trace in drawn[0]["data"])
