"""Confidence intervals for ratios, differences and means of a few noisy steps.

A profile holds two to ten steps, too few for resampling. At a nominal 1 %, a percentile bootstrap of the
ratio of means has 6 to 9 % false positives with three steps per side and 17 % with two; a studentised one has
no power, as its resamples are often all equal. Student's t intervals hold their level from two steps on.
Welch's is too narrow when one side has few steps (up to 4 % at a nominal 1 % with 3 against 10 skewed steps),
the pooled one when the side with few steps is the noisy one; the wider of the two stays within 1.1 % at a
nominal 1 % for normal, log-normal, exponential and outlier-prone steps, equal or unequal in number.
tests/compare/diff/test_noise.py repeats these trials.

Steps are assumed independent: noise common to all steps of a run, such as another node or clock, is invisible
within one run; a limit's tolerance covers it.

Sources: Welch, The generalization of Student's problem when several different population variances are
involved, Biometrika 34 (1947), for the degrees of freedom; the ratio's variance by the delta method.
"""

from __future__ import annotations

from math import exp, inf, log, sqrt
from typing import NamedTuple

import numpy as np

from tracelens.arrays import Float, Int
from tracelens.table import t_quantile


class Interval(NamedTuple):
    """An estimate and its confidence interval; without known noise, both ends are the estimate."""

    estimate: float  # from the means
    low: float  # the true value lies below with the probability of one tail
    high: float  # the true value lies above with the probability of one tail
    known: bool  # whether there are enough steps to estimate the noise


def ratio(base: Float, candidate: Float, tail: float) -> Interval:
    """Candidate's mean over base's mean, both at least 0, of one value per step; 0 / 0 is 1, x / 0 infinite.

    `tail` is the probability of each end, such as 0.005.
    """
    known = min(len(base), len(candidate)) > 1
    mean_b, mean_c = float(base.mean()), float(candidate.mean())
    if mean_b == 0:
        if mean_c == 0:
            return Interval(1.0, 1.0, 1.0, known)
        sure = not known or absolute(candidate, tail).low > 0
        return Interval(inf, inf if sure else 0.0, inf, known)
    estimate = mean_c / mean_b
    half = _half_width(base / mean_b, candidate / mean_c, tail) if known and mean_c else 0.0
    if not half:
        return Interval(estimate, estimate, estimate, known)
    middle = log(mean_c) - log(mean_b)
    low, high = (exp(min(max(middle + side * half, -700.0), 700.0)) for side in (-1, 1))
    return Interval(estimate, low, high, known)


def difference(base: Float, candidate: Float, tail: float) -> Interval:
    """Candidate's mean minus base's mean; arguments as for `ratio`."""
    estimate = float(candidate.mean()) - float(base.mean())
    known = min(len(base), len(candidate)) > 1
    half = _half_width(base, candidate, tail) if known else 0.0
    return Interval(estimate, estimate - half, estimate + half, known)


class Spread(NamedTuple):
    """Mean and variance of many rows, one value per step."""

    mean: Float
    variance: Float  # of each row, 0 with less than two steps; exactly 0 if all values are equal
    steps: int  # values per row

    @staticmethod
    def of(row: Int, values: Float, rows: int, steps: int) -> Spread:
        """From the nonzero values, in ascending order of their row; the missing ones of the steps are 0."""
        count = np.bincount(row, minlength=rows)
        mean = np.bincount(row, weights=values, minlength=rows) / max(steps, 1)
        square = np.bincount(row, weights=(values - mean[row]) ** 2, minlength=rows)
        variance = (square + (steps - count) * mean**2) / max(steps - 1, 1)
        first = np.zeros(rows)
        first[row[::-1]] = values[::-1]
        differs = np.bincount(row, weights=values != first[row], minlength=rows) > 0
        # Rounding of the mean would give equal values a variance.
        constant = ~differs & ((count == steps) | (first == 0))
        return Spread(mean, np.where(constant | (steps < 2), 0.0, variance), steps)

    def take(self, rows: Int) -> Spread:
        return Spread(self.mean[rows], self.variance[rows], self.steps)


def differences(base: Spread, candidate: Spread, tail: float) -> tuple[Float, Float]:
    """`difference` for many at once: low and high end of each row's interval.

    Both are the estimate if the noise is unknown.
    """
    estimate = candidate.mean - base.mean
    if min(base.steps, candidate.steps) < 2:
        return estimate, estimate
    half = _half_widths(base.variance, base.steps, candidate.variance, candidate.steps, tail)
    return estimate - half, estimate + half


def absolute(candidate: Float, tail: float) -> Interval:
    """The candidate's mean; arguments as for `ratio`."""
    estimate, count = float(candidate.mean()), len(candidate)
    half = sqrt(_variance(candidate) / count) * t_quantile(tail, count - 1) if count > 1 else 0.0
    return Interval(estimate, estimate - half, estimate + half, count > 1)


def varies(*sides: Float) -> bool:
    """Whether there is noise to estimate: several steps on each side, not all equal."""
    return min(map(len, sides)) > 1 and any(_variance(side) for side in sides)


def _variance(values: Float) -> float:
    # Rounding of the mean would give equal values a variance.
    return 0.0 if (values == values[0]).all() else float(values.var(ddof=1))


def _half_width(base: Float, candidate: Float, tail: float) -> float:
    variances = np.array([[_variance(base)], [_variance(candidate)]])
    return float(_half_widths(variances[0], len(base), variances[1], len(candidate), tail)[0])


def _half_widths(var_b: Float, n_b: int, var_c: Float, n_c: int, tail: float) -> Float:
    """Half the width of the wider of Welch's and the pooled interval; 0 without variance."""
    error_b, error_c = var_b / n_b, var_c / n_c
    total = error_b + error_c
    share = np.divide(error_b, total, out=np.ones_like(total), where=total > 0)
    freedom, index = np.unique(
        np.round(1 / (share**2 / (n_b - 1) + (1 - share) ** 2 / (n_c - 1)), 2), return_inverse=True
    )
    welch = np.array([t_quantile(tail, degrees) for degrees in freedom.tolist()])[index] * np.sqrt(total)
    pooled = ((n_b - 1) * var_b + (n_c - 1) * var_c) / (n_b + n_c - 2)
    pooled_half = t_quantile(tail, n_b + n_c - 2) * np.sqrt(pooled * (1 / n_b + 1 / n_c))
    half: Float = np.maximum(welch, pooled_half)
    return half
