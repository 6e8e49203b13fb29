"""Noise of a difference of two sides, each a few runs of a few steps.

The sample is the run. A run's mean is the program's mean, plus noise that the whole run shares (another clock
or node, the profiler's cost on that day: standard deviation σ_b), plus the mean of n steps of noise σ_w:

    run mean ~ N(µ, σ_b² + σ_w² / n)          side mean: the mean over its R runs

Steps tell σ_w, several runs of a side and the history of a stored baseline tell σ_b. A gate mostly has one or
two runs, so neither is ever known well; Student's t alone says nothing from one run, and next to nothing from
two (a t quantile of 64 with one degree of freedom at 0.5 %). Both are therefore weighed with a prior: every
σ of a plausible range counts alike on a logarithmic scale (Jeffreys' prior, with which Student's t results as
soon as the data decide), below the range none, and above it ever less, as σ^-3, so that data can contradict.
The posterior is summed on a grid; the difference of the means is a mixture of normal distributions, and
interval ends are its quantiles. With no data at all the interval shows the widest plausible noise: an
estimate beyond that fails even with one step a side.

Ranges, relative to the mean (of fractions: absolute), from repeated runs of one program on one H200:
without the profiler four runs lie 0.15 % apart, in their traces 3.3 %, because the profiler's cost varies
(a range of four is 2.06 σ, so σ_b is 0.1 % and 1.6 %); steps of recorded traces vary by 0.2 to 20 %. A
program that waits for its host is noisier by far: six runs of one with 96 blocking calls a step
(tests/compare/gate/recorded.py) have a σ_b of 10 % without the profiler, too, and the two parts of one run
differ by 2 to 30 %. So the range of σ_b reaches from half to twice what the runs show inside, at least.
benchmarks/gate_power.py draws runs and counts false alarms and power.

Sources: Jeffreys, An invariant form for the prior probability in estimation problems, Proc. R. Soc. A 186
(1946); Box and Tiao, Bayesian Inference in Statistical Analysis (1973), ch. 5, for variance components from
few groups; Gelman, Prior distributions for variance parameters in hierarchical models, Bayesian Analysis 1
(2006), for tails; Welch, Biometrika 34 (1947), for sides of unequal noise; Tippett (1925) for ranges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import erfc, inf, sqrt
from typing import NamedTuple

import numpy as np

from tracelens.arrays import Float
from tracelens.table import t_quantile


class Range(NamedTuple):
    """Plausible standard deviations, relative to the mean; of fractions absolute."""

    low: float
    high: float


class Plausible(NamedTuple):
    """Plausible noise of a kind of metric."""

    between: Range  # of runs of one program
    within: Range  # of the steps of a run


PACE = Plausible(Range(0.0005, 0.005), Range(0.0001, 0.005))
TRACED = Plausible(Range(0.002, 0.03), Range(0.002, 0.1))
COUNTED = Plausible(Range(0.00001, 0.003), Range(0.0001, 0.03))

_TAIL_POWER = 3
_POINTS = 40  # of each σ
_BINS = 60  # of the mixture
_REACH = 30.0  # of the tails, times the range's high end


def plausible(metric: str, unit: str) -> Plausible:
    """The plausible noise of a metric by its name and unit."""
    if metric.endswith("step.pace"):
        return PACE
    return TRACED if unit in ("ns", "fraction") else COUNTED


class Spread(NamedTuple):
    """A variance and the degrees of freedom it was estimated with."""

    variance: float = 0.0
    freedom: float = 0.0

    @staticmethod
    def of(groups: Sequence[Float]) -> Spread:
        """Pooled over groups, each around its own mean."""
        freedom = sum(len(group) - 1 for group in groups)
        squares = sum(float(((group - group.mean()) ** 2).sum()) for group in groups)
        return Spread(squares / freedom if freedom else 0.0, freedom)

    def pooled(self, other: Spread) -> Spread:
        freedom = self.freedom + other.freedom
        squares = self.variance * self.freedom + other.variance * other.freedom
        return Spread(squares / freedom if freedom else 0.0, freedom)


@dataclass(frozen=True)
class Mixture:
    """Noise of an estimate: normal distributions around 0, with weights that add up to 1."""

    sigma: Float
    weight: Float

    def half_width(self, tail: float) -> float:
        """The x that the noise exceeds with probability `tail`, below 0.5."""
        parts = [(w / 2, s * sqrt(2)) for w, s in zip(self.weight.tolist(), self.sigma.tolist(), strict=True)]
        low, high = 0.0, 50.0 * float(self.sigma.max())
        for _ in range(60):
            middle = (low + high) / 2
            if sum(w * erfc(middle / s) for w, s in parts) > tail:
                low = middle
            else:
                high = middle
        return high


UNKNOWN = Spread()


def noise(
    base: Sequence[Float], candidate: Sequence[Float], limits: Plausible, history: Spread = UNKNOWN
) -> Mixture:
    """Noise of the difference of the sides' means.

    Args:
        base: the steps of each run, as relative as `limits`; empty for a difference from a known value.
        candidate: likewise.
        limits: plausible noise.
        history: spread of means of other runs of the program.
    """
    sides = [side for side in (base, candidate) if len(side)]
    runs = [run for side in sides for run in side]
    means = Spread.of([np.array([run.mean() for run in side]) for side in sides]).pooled(history)
    within, per_step = _within(sides)
    inverse_steps = float(np.mean([1 / len(run) for run in runs]))
    per_run = sum(1 / len(side) for side in sides)

    # What varies inside a run varies from run to run, too: a flat prior from nearly nothing on would favor
    # the runs being alike.
    inside = sqrt(within.variance)
    between = Range(max(limits.between.low, inside / 2), max(limits.between.high, 2 * inside))
    sigma_b, weight_b = _prior(between, means)
    sigma_w, weight_w = _prior(limits.within, within)
    weight_w = weight_w * _likelihood(sigma_w**2, within)
    of_mean = sigma_b[:, None] ** 2 + sigma_w[None, :] ** 2 * inverse_steps
    weight = weight_b[:, None] * weight_w[None, :] * _likelihood(of_mean, means)
    variance = sigma_b[:, None] ** 2 * per_run + sigma_w[None, :] ** 2 * per_step
    return _binned(variance.ravel(), weight.ravel())


def _within(sides: Sequence[Sequence[Float]]) -> tuple[Spread, float]:
    """Spread of steps in a run, and by which factor it enters the variance of the difference.

    Of the pooled spread and of each side's own the one counts that makes the interval wider: pooling hides
    that the side with few steps is the noisy one, and Welch's degrees of freedom are too many with few steps.
    """
    factors = [sum(1 / len(run) for run in side) / len(side) ** 2 for side in sides]
    of_side = [Spread.of(side) for side in sides]
    pooled = Spread.of([run for side in sides for run in side])
    total = sum(factors)
    if len(sides) < 2 or min(spread.freedom for spread in of_side) < 1:
        return pooled, total
    errors = [spread.variance * factor for spread, factor in zip(of_side, factors, strict=True)]
    if not any(errors):
        return pooled, total
    freedom = sum(errors) ** 2 / sum(
        error**2 / spread.freedom for error, spread in zip(errors, of_side, strict=True)
    )
    welch = Spread(sum(errors) / total, freedom)
    wider = max((pooled, welch), key=lambda spread: t_quantile(0.005, spread.freedom) ** 2 * spread.variance)
    return wider, total


def _prior(plausible_range: Range, seen: Spread) -> tuple[Float, Float]:
    """Grid of standard deviations and their prior weights; beyond the range as far as the data reach."""
    low, high = plausible_range
    if sqrt(seen.variance) > high:  # not plausible, but so it is: the data alone count, as for Student's t
        high = _REACH * sqrt(seen.variance)
    top = high * _REACH
    inside = np.geomspace(low, high, _POINTS)
    outside = np.geomspace(high, top, _POINTS)[1:]
    step_in, step_out = np.log(inside[1] / inside[0]), np.log(outside[1] / outside[0])
    weight = np.concatenate([np.full(len(inside), step_in), step_out * (high / outside) ** _TAIL_POWER])
    return np.concatenate([inside, outside]), weight


def _likelihood(variance: Float, seen: Spread) -> Float:
    """Likelihood of true variances, up to a factor, after one was estimated."""
    logarithm = -seen.freedom / 2 * (np.log(variance) + seen.variance / variance)
    best = float(logarithm.max())
    likelihood: Float = np.exp(logarithm - (best if best > -inf else 0.0))
    return likelihood


def _binned(variance: Float, weight: Float) -> Mixture:
    """The mixture with fewer parts, each with the mean variance of those it stands for."""
    kept = weight > weight.max() * 1e-12
    variance, weight = variance[kept], weight[kept]
    log_variance = np.log(variance)
    edges = np.linspace(log_variance.min(), log_variance.max() + 1e-9, _BINS + 1)
    number = np.searchsorted(edges, log_variance, side="right") - 1
    total = np.bincount(number, weights=weight, minlength=_BINS)
    mean = np.bincount(number, weights=weight * variance, minlength=_BINS)
    used = total > 0
    return Mixture(np.sqrt(mean[used] / total[used]), total[used] / total.sum())
