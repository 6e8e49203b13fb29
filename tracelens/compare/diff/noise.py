"""How sure a change is: intervals for ratios, differences and means of a few noisy steps.

A profile holds two to ten steps, too few for resampling: with three steps on each side, at a nominal 1 %,
a percentile bootstrap of the ratio of means sees a change where there is none in 6 to 9 % of trials, with two
steps in 17 %; a studentised one has no power there, as its resamples are often all alike. Intervals from
Student's t hold their level from two steps on. Of the two kinds, Welch's is too narrow where one side has few
steps (up to 4 % at a nominal 1 % with 3 against 10 skewed ones), and the pooled one where the side with few
steps is the noisy one; so the wider of both is taken, with at most 1.1 % at a nominal 1 % for steps that are
normal, log-normal, exponential or have outliers, equal or unequal in number. tests/compare/diff/test_noise.py
repeats these trials.

Steps are taken to be independent: noise that lasts for all steps of a run, such as another node or clock, is
not seen in one run, and is what a limit's tolerance is for.

Sources: Welch, The generalization of Student's problem when several different population variances are
involved, Biometrika 34 (1947), for the degrees of freedom; the ratio's variance by the delta method.
"""

from __future__ import annotations

from functools import lru_cache
from math import exp, inf, log, sqrt
from typing import NamedTuple

import numpy as np

from tracelens.arrays import Float, Int

_GRID = np.linspace(0, np.pi / 2, 1 << 14)


class Interval(NamedTuple):
    """An estimate and its interval; both ends are the estimate where there is no noise, or it is not known.

    Attributes:
        estimate: from the means.
        low: the true value lies below with the probability of one tail.
        high: and above with the same.
        known: whether there are steps enough to tell the noise.
    """

    estimate: float
    low: float
    high: float
    known: bool


def ratio(base: Float, candidate: Float, tail: float) -> Interval:
    """Candidate's mean over base's mean, both at least 0.

    Args:
        base: one number a step.
        candidate: the same.
        tail: probability of each end, such as 0.005.

    Returns:
        its interval; nothing over nothing is 1, something over nothing is infinite.
    """
    known = min(len(base), len(candidate)) > 1
    mean_b, mean_c = float(base.mean()), float(candidate.mean())
    if mean_b == 0:
        if mean_c == 0:
            return Interval(1.0, 1.0, 1.0, known)
        sure = not known or absolute(candidate, tail).low > 0
        return Interval(inf, inf if sure else 0.0, inf, known)
    if mean_c == 0 or not known:
        return Interval(mean_c / mean_b, mean_c / mean_b, mean_c / mean_b, known)
    half = _half(_variance(base / mean_b), len(base), _variance(candidate / mean_c), len(candidate), tail)
    estimate = mean_c / mean_b
    if not half:
        return Interval(estimate, estimate, estimate, known)
    middle = log(mean_c) - log(mean_b)
    low, high = (exp(min(max(middle + side * half, -700.0), 700.0)) for side in (-1, 1))
    return Interval(estimate, low, high, known)


def difference(base: Float, candidate: Float, tail: float) -> Interval:
    """Candidate's mean minus base's mean; arguments as for `ratio`."""
    estimate = float(candidate.mean()) - float(base.mean())
    known = min(len(base), len(candidate)) > 1
    half = 0.0
    if known:
        half = _half(_variance(base), len(base), _variance(candidate), len(candidate), tail)
    return Interval(estimate, estimate - half, estimate + half, known)


class Spread(NamedTuple):
    """Mean and variance of many rows of numbers, one number a step.

    Attributes:
        mean: of each row.
        variance: of each row, 0 with less than two steps; exactly 0 where all numbers are equal.
        steps: how many numbers each row has.
    """

    mean: Float
    variance: Float
    steps: int

    @staticmethod
    def of(row: Int, values: Float, rows: int, steps: int) -> Spread:
        """From the numbers that are not 0.

        Args:
            row: of each number, ascending; at most one number a step.
            values: the numbers.
            rows: how many rows there are.
            steps: how many numbers each row has; those that are not given are 0.
        """
        count = np.bincount(row, minlength=rows)
        mean = np.bincount(row, weights=values, minlength=rows) / max(steps, 1)
        square = np.bincount(row, weights=(values - mean[row]) ** 2, minlength=rows)
        variance = (square + (steps - count) * mean**2) / max(steps - 1, 1)
        first = np.zeros(rows)
        first[row[::-1]] = values[::-1]
        differs = np.bincount(row, weights=values != first[row], minlength=rows) > 0
        # Equal numbers have a mean that is off by rounding, and so a variance; they are exact.
        constant = ~differs & ((count == steps) | (first == 0))
        return Spread(mean, np.where(constant | (steps < 2), 0.0, variance), steps)

    def take(self, rows: Int) -> Spread:
        return Spread(self.mean[rows], self.variance[rows], self.steps)


def differences(base: Spread, candidate: Spread, tail: float) -> tuple[Float, Float]:
    """`difference` for many at once.

    Args:
        base: rows.
        candidate: the same rows, its own steps.
        tail: probability of each end.

    Returns:
        low and high end of each row's interval; both are the estimate where the noise is not known.
    """
    count_b, count_c = base.steps, candidate.steps
    estimate = candidate.mean - base.mean
    if min(count_b, count_c) < 2:
        return estimate, estimate
    own_b, own_c = (side.variance / side.steps for side in (base, candidate))
    total = own_b + own_c
    noisy = total > 0
    freedom = np.ones(len(total))
    weight = own_b**2 / (count_b - 1) + own_c**2 / (count_c - 1)
    np.divide(total**2, weight, out=freedom, where=noisy & (weight > 0))
    steps, place = np.unique(np.round(freedom, 2), return_inverse=True)
    quantile = np.array([t_quantile(tail, float(one)) for one in steps])[place]
    pooled = ((count_b - 1) * own_b * count_b + (count_c - 1) * own_c * count_c) / (count_b + count_c - 2)
    other = t_quantile(tail, count_b + count_c - 2) * np.sqrt(pooled * (1 / count_b + 1 / count_c))
    half = np.where(noisy, np.maximum(quantile * np.sqrt(total), other), 0.0)
    return estimate - half, estimate + half


def absolute(candidate: Float, tail: float) -> Interval:
    """The candidate's mean; arguments as for `ratio`."""
    estimate, count = float(candidate.mean()), len(candidate)
    half = sqrt(_variance(candidate) / count) * t_quantile(tail, count - 1) if count > 1 else 0.0
    return Interval(estimate, estimate - half, estimate + half, count > 1)


def varies(*sides: Float) -> bool:
    """Whether there is noise to be told: several steps on each side, and not all alike."""
    return min(map(len, sides)) > 1 and any(_variance(side) for side in sides)


def _variance(values: Float) -> float:
    # Equal numbers have a mean that is off by rounding, and so a variance; they are exact.
    return 0.0 if (values == values[0]).all() else float(values.var(ddof=1))


def _half(var_b: float, n_b: int, var_c: float, n_c: int, tail: float) -> float:
    """Half the width of the wider one of Welch's and the pooled interval."""
    own_b, own_c = var_b / n_b, var_c / n_c
    if own_b + own_c == 0:
        return 0.0
    share = own_b / (own_b + own_c)
    freedom = 1 / (share**2 / (n_b - 1) + (1 - share) ** 2 / (n_c - 1))
    welch = t_quantile(tail, freedom) * sqrt(own_b + own_c)
    together = ((n_b - 1) * var_b + (n_c - 1) * var_c) / (n_b + n_c - 2)
    return max(welch, t_quantile(tail, n_b + n_c - 2) * sqrt(together * (1 / n_b + 1 / n_c)))


def t_quantile(tail: float, freedom: float) -> float:
    """The value that Student's t exceeds with this probability.

    With t = sqrt(freedom) / tan(u) the density is sin(u) to the power of freedom - 1, which is summed up
    over u from 0, the far end of the tail.

    Args:
        tail: probability, below 0.5.
        freedom: degrees of freedom, at least 1; to the hundredth.
    """
    return _t_quantile(tail, round(freedom, 2))


@lru_cache(maxsize=4096)
def _t_quantile(tail: float, freedom: float) -> float:
    density = np.sin(_GRID) ** (freedom - 1)
    area = np.concatenate(([0.0], np.cumsum(density[1:] + density[:-1])))
    return sqrt(freedom) / float(np.tan(np.interp(tail, area / (2 * area[-1]), _GRID)))
