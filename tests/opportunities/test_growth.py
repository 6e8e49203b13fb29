"""What grows from step to step."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

import tracelens
from tests.builders import draw_run
from tracelens.opportunities.growth import GROWTH_CHANCE, growth_of


def test_a_line_is_found_as_it_is() -> None:
    growth = growth_of([100.0, 103.0, 106.0, 109.0, 112.0])
    assert growth is not None
    assert growth == pytest.approx((100.0, 112.0, 3.0, 5))


def test_one_step_out_of_line_does_not_bend_it() -> None:
    growth = growth_of([100.0 + 3 * step + (500 if step == 11 else 0) for step in range(12)])
    assert growth is not None
    assert growth.each == pytest.approx(3.0, rel=0.1)


@pytest.mark.parametrize("count", [4, 5, 6, pytest.param(7, marks=pytest.mark.slow)])
def test_chance_is_the_share_of_all_orders(count: int) -> None:
    """Of all orders of values that grow enough, as many are told to grow as the threshold says, at most."""
    orders = list(permutations([100.0 + 10 * value for value in range(count)]))
    told = [order for order in orders if growth_of(order) is not None]
    assert len(told) <= GROWTH_CHANCE * len(orders)
    falls = [sum(a > b for at, a in enumerate(order) for b in order[at:]) for order in orders]
    most = max(
        (n for n in set(falls) if sum(f <= n for f in falls) <= GROWTH_CHANCE * len(orders)), default=-1
    )
    assert len(told) == sum(f <= most for f in falls)


@pytest.mark.parametrize(
    "values",
    [
        [],
        [100.0],
        [100.0] * 9,
        [100.0 + 0.1 * step for step in range(9)],  # by less than matters
        [112.0 - 3 * step for step in range(9)],
        [float(step) for step in range(9)],  # from nothing
    ],
)
def test_what_does_not_grow(values: list[float]) -> None:
    assert growth_of(values) is None


def test_long_recordings_are_compared_by_evenly_spread_steps() -> None:
    growth = growth_of([1000.0 + step for step in range(3000)])
    assert growth is not None
    assert growth == pytest.approx((1000.0, 3999.0, 1.0, 3000), rel=0.01)


def steps(lengths: list[int]) -> str:
    """Steps of so many columns, of which the GPU works all but the last."""
    begin, rows = 0, []
    for number, length in enumerate(lengths, start=1):
        rows.append(f"step {number} | {' ' * begin}{'-' * length}")
        rows.append(f"s7 k   | {' ' * begin}{'=' * (length - 1)}")
        begin += length
    return "\n".join(rows)


def facts(text: str) -> list[Any]:
    result = tracelens.analyze(draw_run(text, ns_per_char=100_000), "findings")
    return result["facts"]["detector"].tolist()


def test_growing_steps_stand_beside_the_savings() -> None:
    run = draw_run(steps([10, 20, 22, 24, 26, 28, 30]), ns_per_char=100_000)
    result = tracelens.analyze(run, "findings")
    assert "growing_steps" in result["facts"]["detector"].tolist()
    assert "growing_steps" not in result["findings"]["detector"].tolist()
    measured = result["measurements"].set_index(["detector", "measure"])["value"]
    assert measured["growing_steps", "growth per step"] == pytest.approx(200_000)
    assert measured["growing_steps", "first"] == pytest.approx(2_000_000)
    assert measured["growing_steps", "steps"] == 6


def test_steady_steps_do_not() -> None:
    assert "growing_steps" not in facts(steps([30, 22, 20, 23, 21, 22, 20]))
