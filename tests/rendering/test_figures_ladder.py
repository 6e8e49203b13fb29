"""The figures of a ladder: what they add up to, and what they leave out."""

from __future__ import annotations

from typing import Any

import pytest

from tests.rendering.sample_ladder import ladder
from tracelens.rendering.figures import Figure, figures


def segments(figure: Figure, level: int) -> list[tuple[float, float, float]]:
    """(row, start, length) of all parts of a level; the first two traces are the steps and their labels."""
    button = figure["layout"]["updatemenus"][0]["buttons"][level]["args"][0]["visible"]
    chosen = [trace for trace, shown in zip(figure["data"], button, strict=True) if shown][2:]
    return [one for trace in chosen for one in zip(trace["y"], trace["base"], trace["x"], strict=True)]


def test_the_parts_of_a_rung_lead_from_one_step_to_the_next() -> None:
    _, waterfall, _ = figures(ladder(rungs=5, parts=4))
    steps = [
        base + x
        for base, x in zip([waterfall["data"][0]["base"]] * 5, waterfall["data"][0]["x"], strict=True)
    ]
    for level in (0, 1):
        drawn = segments(waterfall, level)
        for rung in range(1, 5):
            saved = [one for one in drawn if rung - 0.5 < one[0] < rung]
            lost = [one for one in drawn if rung < one[0] < rung + 0.5]
            assert saved
            assert bool(lost) == (level == 0)
            lowest = steps[rung - 1] - sum(length for _, _, length in saved)
            assert min(start for _, start, _ in saved) == pytest.approx(lowest)
            assert lowest + sum(length for _, _, length in lost) == pytest.approx(steps[rung])


def test_the_make_up_of_a_step_is_the_step() -> None:
    *_, make_up = figures(ladder(rungs=3, parts=30))
    assert len(make_up["data"]) == 10
    assert make_up["data"][-1]["name"] == "rest"
    whole = [sum(parts) for parts in zip(*(trace["x"] for trace in make_up["data"]), strict=True)]
    assert whole == pytest.approx([635.0, 634.1, 633.2])


def values(figure: Figure) -> list[Any]:
    return [trace["name"] for trace in figure["data"]]


def test_memory_stands_beside_throughput_where_it_was_measured() -> None:
    assert values(figures(ladder())[0]) == ["throughput", "peak memory"]
    assert values(figures(ladder(peak=-1))[0]) == ["throughput"]


def test_without_timed_steps_there_is_the_way_of_the_traces() -> None:
    titles = [figure["layout"]["title"]["text"] for figure in figures(ladder(speedup=-1))]
    assert [title.partition(" ")[0] for title in titles] == ["From", "Traced"]
