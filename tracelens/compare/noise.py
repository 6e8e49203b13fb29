"""Noise of a few steps and of a few runs: confidence intervals for ratios and differences.

**Steps of one run against steps of another** (`ratio`, `differences`; diff and ladder). A profile holds two
to ten steps, too few for resampling. At a nominal 1 %, a percentile bootstrap of the ratio of means has 6
to 9 % false positives with three steps per side and 17 % with two; a studentised one has no power, as its
resamples are often all equal. Student's t intervals hold their level from two steps on. Welch's is too
narrow when one side has few steps (up to 4 % at a nominal 1 % with 3 against 10 skewed steps), the pooled
one when the side with few steps is the noisy one; the wider of the two stays within 1.1 % at a nominal 1 %
for normal, log-normal, exponential and outlier-prone steps, equal or unequal in number.
tests/compare/diff/test_noise.py repeats these trials.

Steps are assumed independent: noise common to all steps of a run, such as another node or clock, is invisible
within one run; a limit's tolerance covers it.

**Several runs of a few steps against others** (`noise`; gate). The sample is the run. A run's mean is the
program's mean, plus noise that the whole run shares (another clock or node, the profiler's cost on that day:
standard deviation σ_b), plus the mean of n steps of noise σ_w:

    run mean ~ N(µ, σ_b² + σ_w² / n)          side mean: the mean over its R runs

Steps tell σ_w, several runs of a side and the history of a stored baseline tell σ_b. A gate mostly has one or
two runs, so neither is ever known well; Student's t alone says nothing from one run, and next to nothing from
two (a t quantile of 64 with one degree of freedom at 0.5 %). Both are therefore weighed with a prior: every
σ of a plausible range counts alike on a logarithmic scale (Jeffreys' prior, with which Student's t results as
soon as the data decide), below the range none, and above it ever less, as σ^-3, so that data can contradict.
The posterior is summed on a grid; the difference of the means is a mixture of normal distributions, and
interval ends are its quantiles. With no data at all the interval shows the widest plausible noise: an
estimate beyond that fails even with one step a side.

Ranges (thresholds.py), relative to the mean (of fractions: absolute), go by class of metric, from repeated
runs of eight programs: what GPUs compute has a σ_b of 0.03 to 0.12 %, and more only where the clock varies,
which slows down kernels of all classes alike; the step, what waits and its shares vary with the share of the
step in which the GPU computes nothing, by 3 % where that is small and by 13 % where the host decides; counts
and sizes hardly vary. What varies inside a run varies from run to run, too: the range of σ_b reaches from
half to twice what the steps of the runs show, of GPU work from a tenth to half of it.
benchmarks/gate_power.py draws runs and counts false alarms and power.

Sources: Welch, The generalization of Student's problem when several different population variances are
involved, Biometrika 34 (1947), for degrees of freedom and sides of unequal noise; the ratio's variance by the
delta method. Jeffreys, An invariant form for the prior probability in estimation problems, Proc. R. Soc. A
186 (1946); Box and Tiao, Bayesian Inference in Statistical Analysis (1973), ch. 5, for variance components
from few groups; Gelman, Prior distributions for variance parameters in hierarchical models, Bayesian Analysis
1 (2006), for tails; Tippett (1925) for ranges.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import erfc, exp, inf, log, pi, sqrt
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from tracelens.arrays import Float, Int
from tracelens.compare.thresholds import (
    BYTES_NOISE,
    COUNTED_NOISE,
    GPU_PART_NOISE,
    GPU_WORK_NOISE,
    PACE,
    PACE_NOISE,
    TRACED_NOISE,
    WAITING_NOISE,
    WAITING_SIGMA,
    WIDER_TAIL,
    Plausible,
    SigmaRange,
)
from tracelens.table import t_quantile


class Interval(NamedTuple):
    """An estimate and its confidence interval; without known noise, both ends are the estimate."""

    estimate: float  # from the means
    low: float  # the true value lies below with the probability of one tail
    high: float  # the true value lies above with the probability of one tail
    known: bool  # whether there are enough steps to estimate the noise


class StepSpread(NamedTuple):
    """Mean and variance of many rows, one value per step."""

    mean: Float
    variance: Float  # of each row, 0 with less than two steps; exactly 0 if all values are equal
    steps: int  # values per row

    @staticmethod
    def of(row: Int, values: Float, rows: int, steps: int) -> StepSpread:
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
        return StepSpread(mean, np.where(constant | (steps < 2), 0.0, variance), steps)

    def take(self, rows: Int) -> StepSpread:
        return StepSpread(self.mean[rows], self.variance[rows], self.steps)


_POINTS = 40  # of each σ
_BINS = 60  # of the mixture
_REACH = 30.0  # of the tails, times the range's high end


class PooledVariance(NamedTuple):
    """A variance and the degrees of freedom it was estimated with."""

    variance: float = 0.0
    freedom: float = 0.0

    @staticmethod
    def of(groups: Sequence[Float]) -> PooledVariance:
        """Pooled over groups, each around its own mean."""
        freedom = sum(len(group) - 1 for group in groups)
        squares = sum(float(((group - group.mean()) ** 2).sum()) for group in groups)
        return PooledVariance(squares / freedom if freedom else 0.0, freedom)

    def pooled(self, other: PooledVariance) -> PooledVariance:
        freedom = self.freedom + other.freedom
        squares = self.variance * self.freedom + other.variance * other.freedom
        return PooledVariance(squares / freedom if freedom else 0.0, freedom)


class Mixture(Struct, frozen=True):
    """Noise of an estimate: normal distributions around 0, with weights that add up to 1."""

    sigma: Float
    weight: Float

    def half_width(self, tail: float) -> float:
        """The x that the noise exceeds with probability `tail`, below 0.5."""
        parts = [(w / 2, s * sqrt(2)) for w, s in zip(self.weight.tolist(), self.sigma.tolist(), strict=True)]
        x, step = 0.0, inf
        # The tail is convex: Newton's steps from 0 never go too far, but by rounding.
        while step > 1e-15 * x:
            excess = sum(w * erfc(x / s) for w, s in parts) - tail
            density = sum(w * exp(-((x / s) ** 2)) / s for w, s in parts) * 2 / sqrt(pi)
            step = excess / density
            x += step
        return x


UNKNOWN = PooledVariance()


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
    half = 0.0
    if known and mean_c:
        var_b, var_c = (np.array([_variance(values)]) for values in (base / mean_b, candidate / mean_c))
        half = float(_half_widths(var_b, len(base), var_c, len(candidate), tail)[0])
    if not half:
        return Interval(estimate, estimate, estimate, known)
    middle = log(mean_c) - log(mean_b)
    low, high = (exp(min(max(middle + side * half, -700.0), 700.0)) for side in (-1, 1))
    return Interval(estimate, low, high, known)


def differences(base: StepSpread, candidate: StepSpread, tail: float) -> tuple[Float, Float]:
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


def _variance(values: Float) -> float:
    # Rounding of the mean would give equal values a variance.
    return 0.0 if (values == values[0]).all() else float(values.var(ddof=1))


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


GPU_WORK = ("computation.time", "memcpy.time", "moe.router.time", "moe.permute.time", "moe.experts.time",
            "moe.shared_expert.time")  # fmt: skip
"""Times of what GPUs compute and copy, which repeat from run to run."""
_WAITING = re.compile(
    r"comm|n?ccl|c10d|all_?(reduce|gather|to_?all)|reduce_?scatter|broadcast|send|recv|idle|"
    r"moe\.(time|dispatch|combine|compiled)",
    re.IGNORECASE,
)
"""Metrics, and names of ops and kernels, whose time is spent waiting for other ranks or for the host."""


def is_computed(op: str) -> bool:
    """Whether the work of an op computes, by its name, rather than waits for other ranks."""
    return not _WAITING.search(op)


def plausible(metric: str, unit: str, waiting: float | None = None, clock: float = 0.0) -> Plausible:
    """The plausible noise of a metric, whose name and unit tell the class of thresholds.py.

    `waiting` is the share of the step in which the GPU computes nothing, None if unknown, and `clock` by how
    much the clocks of the sides differ, relative.
    """
    name = metric.partition("].")[2] if metric.startswith("rank[") else metric
    limits = _of_class(name, unit)
    highest = limits.between.high
    if waiting is not None and name == PACE:
        highest = max(highest, WAITING_SIGMA * waiting**2)
    elif waiting is not None and limits is TRACED_NOISE:
        highest = WAITING_SIGMA * sqrt(max(waiting, 0.0))
    elif limits in (GPU_WORK_NOISE, GPU_PART_NOISE):
        highest = max(highest, clock)
    if highest == limits.between.high:
        return limits
    return limits._replace(between=SigmaRange(limits.between.low, max(highest, 2 * limits.between.low)))


def _of_class(name: str, unit: str) -> Plausible:
    if name == PACE:
        return PACE_NOISE
    if unit == "bytes":
        return BYTES_NOISE
    if unit == "count":
        return COUNTED_NOISE
    if unit == "fraction":
        return TRACED_NOISE
    if _WAITING.search(name):
        return WAITING_NOISE
    if name in GPU_WORK:
        return GPU_WORK_NOISE
    return GPU_PART_NOISE if name.startswith(("op[", "kernel[", "category[")) else TRACED_NOISE


def noise(
    base: Sequence[Float], candidate: Sequence[Float], limits: Plausible, history: PooledVariance = UNKNOWN
) -> Mixture:
    """Noise of the difference of the sides' means.

    `base` and `candidate` are the steps of each run, as relative as `limits`; `base` is empty for a
    difference from a known value. `history` is the spread of means of other runs of the program.
    """
    sides = [side for side in (base, candidate) if len(side)]
    runs = [run for side in sides for run in side]
    means = PooledVariance.of([np.array([run.mean() for run in side]) for side in sides]).pooled(history)
    within, per_step = _within(sides)
    inverse_steps = float(np.mean([1 / len(run) for run in runs]))
    per_run = sum(1 / len(side) for side in sides)

    # What varies inside a run varies from run to run, too: a flat prior from nearly nothing on would favor
    # the runs being alike.
    inside = sqrt(within.variance)
    carried = limits.carried
    between = SigmaRange(
        max(limits.between.low, carried.low * inside), max(limits.between.high, carried.high * inside)
    )
    sigma_b, weight_b = _prior(between, means, limits.falling)
    sigma_w, weight_w = _prior(limits.within, within, limits.falling)
    weight_w = weight_w * _likelihood(sigma_w**2, within)
    of_mean = sigma_b[:, None] ** 2 + sigma_w[None, :] ** 2 * inverse_steps
    weight = weight_b[:, None] * weight_w[None, :] * _likelihood(of_mean, means)
    variance = sigma_b[:, None] ** 2 * per_run + sigma_w[None, :] ** 2 * per_step
    # The mixture with fewer parts, each with the mean variance of those it stands for.
    variance, weight = variance.ravel(), weight.ravel()
    kept = weight > weight.max() * 1e-12
    variance, weight = variance[kept], weight[kept]
    log_variance = np.log(variance)
    edges = np.linspace(log_variance.min(), log_variance.max() + 1e-9, _BINS + 1)
    number = np.searchsorted(edges, log_variance, side="right") - 1
    total = np.bincount(number, weights=weight, minlength=_BINS)
    mean = np.bincount(number, weights=weight * variance, minlength=_BINS)
    used = total > 0
    return Mixture(np.sqrt(mean[used] / total[used]), total[used] / total.sum())


def _within(sides: Sequence[Sequence[Float]]) -> tuple[PooledVariance, float]:
    """Spread of steps in a run, and by which factor it enters the variance of the difference.

    Of the pooled spread and of each side's own the one counts that makes the interval wider: pooling hides
    that the side with few steps is the noisy one, and Welch's degrees of freedom are too many with few steps.
    """
    factors = [sum(1 / len(run) for run in side) / len(side) ** 2 for side in sides]
    of_side = [PooledVariance.of(side) for side in sides]
    pooled = PooledVariance.of([run for side in sides for run in side])
    total = sum(factors)
    if len(sides) < 2 or min(spread.freedom for spread in of_side) < 1:
        return pooled, total
    errors = [spread.variance * factor for spread, factor in zip(of_side, factors, strict=True)]
    if not any(errors):
        return pooled, total
    freedom = sum(errors) ** 2 / sum(
        error**2 / spread.freedom for error, spread in zip(errors, of_side, strict=True)
    )
    welch = PooledVariance(sum(errors) / total, freedom)
    wider = max(
        (pooled, welch), key=lambda spread: t_quantile(WIDER_TAIL, spread.freedom) ** 2 * spread.variance
    )
    return wider, total


def _prior(plausible_range: SigmaRange, seen: PooledVariance, falling: float) -> tuple[Float, Float]:
    """Grid of standard deviations and their prior weights; beyond the range as far as the data reach."""
    low, high = plausible_range
    if sqrt(seen.variance) > high:  # not plausible, but so it is: the data alone count, as for Student's t
        high = _REACH * sqrt(seen.variance)
    top = high * _REACH
    inside = np.geomspace(low, high, _POINTS)
    outside = np.geomspace(high, top, _POINTS)[1:]
    step_in, step_out = np.log(inside[1] / inside[0]), np.log(outside[1] / outside[0])
    weight = np.concatenate([np.full(len(inside), step_in), step_out * (high / outside) ** falling])
    return np.concatenate([inside, outside]), weight


def _likelihood(variance: Float, seen: PooledVariance) -> Float:
    """Likelihood of true variances, up to a factor, after one was estimated."""
    logarithm = -seen.freedom / 2 * (np.log(variance) + seen.variance / variance)
    best = float(logarithm.max())
    likelihood: Float = np.exp(logarithm - (best if best > -inf else 0.0))
    return likelihood
