"""Intervals: exact where there is no noise, and as often wrong as they say where there is.

The trials are seeded. `pytest -s` prints their figures.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.effort import THOROUGH, effort
from tracelens.arrays import Float
from tracelens.compare import Interval, StepSpread, differences, ratio
from tracelens.table import t_quantile

TRIALS = effort(800, 2000)
Draw = Callable[[np.random.Generator, int], np.ndarray]

NOISE: dict[str, Draw] = {
    "normal": lambda rng, count: rng.standard_normal(count),
    "lognormal": lambda rng, count: np.expm1(0.5 * rng.standard_normal(count)) * 2,
    "exponential": lambda rng, count: rng.exponential(size=count) - 1,
    "outliers": lambda rng, count: 0.3 * rng.standard_normal(count) + 4 * (rng.random(count) < 0.1),
}
"""Of about one standard deviation."""


def drawn(rng: np.random.Generator, kind: str, count: int, spread: float) -> np.ndarray:
    return np.maximum(1 + spread * NOISE[kind](rng, count), 1e-3)


def spread(values: Float) -> StepSpread:
    """Rows of numbers as a ledger gives them: without those that are 0."""
    row, step = np.nonzero(values)
    return StepSpread.of(row, values[row, step], *values.shape)


def difference(base: Float, candidate: Float, tail: float) -> Interval:
    """The interval of one row alone."""
    low, high = differences(spread(base[None]), spread(candidate[None]), tail)
    return Interval(candidate.mean() - base.mean(), low[0], high[0], min(len(base), len(candidate)) > 1)


@pytest.mark.parametrize(
    ("tail", "freedom", "value"),
    [
        (0.025, 1, 12.706),
        (0.025, 2, 4.3027),
        (0.05, 4, 2.1318),
        (0.005, 3, 5.8409),
        (0.001, 18, 3.6105),
        (0.0005, 4, 8.6103),
        (0.005, 30, 2.7500),
        (0.025, 100000, 1.9600),
    ],
)
def test_t_against_published_tables(tail: float, freedom: float, value: float) -> None:
    assert t_quantile(tail, freedom) == pytest.approx(value, rel=3e-4)


def test_welch_and_pooled_by_hand() -> None:
    base, candidate = np.array([9.0, 10, 11]), np.array([12.0, 12.5, 13])
    interval = difference(base, candidate, 0.005)
    # Welch: variances 1/3 and 1/12 of the means, 2.94 degrees of freedom; pooled: 0.625 * 2/3, 4.
    welch = np.sqrt(1 / 3 + 0.25 / 3) * t_quantile(0.005, (5 / 12) ** 2 / (1 / 18 + 1 / 288))
    pooled = np.sqrt(0.625 * 2 / 3) * t_quantile(0.005, 4)
    assert interval.estimate == 2.5
    assert interval.high - 2.5 == pytest.approx(max(welch, pooled))
    assert 2.5 - interval.low == pytest.approx(max(welch, pooled))


@pytest.mark.parametrize(
    ("base", "candidate", "want"),
    [
        ([3, 3, 3], [4, 4, 4], (4 / 3, 4 / 3, 4 / 3, True)),
        ([3], [4, 5], (1.5, 1.5, 1.5, False)),
        ([2, 4], [6], (2, 2, 2, False)),
        ([0, 0], [0, 0], (1, 1, 1, True)),
        ([0, 0], [5, 5], (np.inf, np.inf, np.inf, True)),
        ([0], [5], (np.inf, np.inf, np.inf, False)),
        ([0, 0, 0], [0, 0, 1], (np.inf, 0, np.inf, True)),
        ([5, 6], [0, 0], (0, 0, 0, True)),
    ],
)
def test_ratios_without_an_interval(
    base: list[float], candidate: list[float], want: tuple[float, ...]
) -> None:
    assert ratio(np.array(base, dtype=float), np.array(candidate, dtype=float), 0.005) == want


positive = st.lists(st.floats(1, 1e9), min_size=2, max_size=8).map(np.array)


@given(positive, positive, st.floats(0.01, 100))
def test_scaling_the_candidate_scales_the_ratio(
    base: np.ndarray, candidate: np.ndarray, factor: float
) -> None:
    plain, scaled = ratio(base, candidate, 0.005), ratio(base, factor * candidate, 0.005)
    assert scaled.estimate == pytest.approx(factor * plain.estimate)
    if plain.low > 1e-200 and plain.high < 1e200:
        assert scaled.low == pytest.approx(factor * plain.low, rel=1e-6)
        assert scaled.high == pytest.approx(factor * plain.high, rel=1e-6)


@given(positive, positive)
def test_the_estimate_is_inside_and_less_doubt_is_wider(base: np.ndarray, candidate: np.ndarray) -> None:
    for measure in (ratio, difference):
        narrow, wide = measure(base, candidate, 0.01), measure(base, candidate, 0.001)
        assert wide.low <= narrow.low <= narrow.estimate <= narrow.high <= wide.high


def percentile_bootstrap(
    rng: np.random.Generator, base: np.ndarray, candidate: np.ndarray, tail: float
) -> float:
    """Lower end of the ratio of means by resampling: what is not used, for comparison."""
    count = 400
    means = [rng.choice(side, (count, len(side))).mean(axis=1) for side in (base, candidate)]
    return float(np.quantile(means[1] / means[0], tail))


@pytest.mark.parametrize("steps", [(2, 2), (3, 3), (3, 10), (10, 3), (5, 5), (10, 10), (30, 5)], ids=str)
@pytest.mark.parametrize("kind", NOISE)
def test_false_alarms_are_as_rare_as_promised(kind: str, steps: tuple[int, int]) -> None:
    """Of two samples of the same noise, how often is the whole interval of the ratio above 1?"""
    rng = np.random.default_rng(7)
    alarms = 0
    for _ in range(TRIALS):
        base, candidate = (drawn(rng, kind, count, 0.05) for count in steps)
        alarms += ratio(base, candidate, 0.01).low > 1
    print(f"{kind} {steps}: {alarms / TRIALS:.2%} at a nominal 1%")
    assert alarms / TRIALS <= 0.01 + 3 * math.sqrt(0.01 * 0.99 / TRIALS)  # 1% and three standard errors
    is_small = max(steps) <= 3
    if is_small or THOROUGH:
        resampled = sum(
            percentile_bootstrap(rng, *(drawn(rng, kind, count, 0.05) for count in steps), 0.01) > 1
            for _ in range(200)
        )
        print(f"percentile bootstrap {resampled / 200:.1%}")
        assert resampled / 200 > 0.02 or not is_small


@pytest.mark.parametrize(("steps", "spread"), [(3, 0.0018), (5, 0.0045), (10, 0.0085), (20, 0.013)], ids=str)
def test_a_slow_down_of_3_percent_is_seen(steps: int, spread: float) -> None:
    """Against a limit of 1.01 with the tail that six rules leave to each."""
    rng = np.random.default_rng(11)
    caught = 0
    for _ in range(TRIALS):
        base, candidate = (drawn(rng, "normal", steps, spread) for _ in range(2))
        caught += ratio(base, 1.03 * candidate, 0.02 / 6).low > 1.01
    print(f"{steps} steps a side, spread {spread:.2%}: 3% slower caught in {caught / TRIALS:.1%}")
    assert caught / TRIALS >= 0.95


def _rows(count: int) -> st.SearchStrategy[list[list[float]]]:
    row = st.lists(st.floats(0, 1e6), min_size=count, max_size=count)
    return st.lists(row, min_size=1, max_size=4)


@given(st.integers(1, 5).flatmap(_rows), st.integers(1, 5), st.randoms(use_true_random=False))
def test_many_at_once_are_as_one_by_one(rows: list[list[float]], steps: int, random: Random) -> None:
    base = np.array(rows)
    cand = np.array([[random.uniform(0, 1e6) for _ in range(steps)] for _ in rows])
    low, high = differences(spread(base), spread(cand), 0.025)
    for row, (base_row, cand_row) in enumerate(zip(base, cand, strict=True)):
        interval = difference(base_row, cand_row, 0.025)
        assert low[row] == pytest.approx(interval.low, rel=1e-9, abs=1e-3)
        assert high[row] == pytest.approx(interval.high, rel=1e-9, abs=1e-3)
