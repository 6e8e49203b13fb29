"""Delays of simulated runs: noise in runs of collectives, and faults on top of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import NDArray

from tracelens.analysis.stragglers.causes import Delays
from tracelens.analysis.stragglers.segments import LATE, TIMES, median_of_others

Array = NDArray[np.float64]

POSITIONS = 18
"""Collectives of a step, as in the recordings of faults."""

STEP_NS = 1e6
"""Length of a simulated step."""


def correlated(random: np.random.Generator, ranks: int, count: int, correlation: float) -> Array:
    """A first-order autoregression for each rank, with unit variance."""
    series = random.standard_normal((ranks, count))
    for index in range(1, count):
        series[:, index] = correlation * series[:, index - 1] + np.sqrt(1 - correlation**2) * series[:, index]
    return series


def jitter(random: np.random.Generator, ranks: int, count: int, correlation: float) -> Array:
    """Some delay at every second collective."""
    return np.maximum(correlated(random, ranks, count, correlation), 0)


def heavy_tails(random: np.random.Generator, ranks: int, count: int, correlation: float) -> Array:
    """Log-normal delays."""
    return np.exp(1.5 * correlated(random, ranks, count, correlation))


def regimes(random: np.random.Generator, ranks: int, count: int, correlation: float) -> Array:
    """A rank is slow for a fifth of the time, many collectives in a row."""
    slow = correlated(random, ranks, count, correlation) > 0.84
    return slow * random.exponential(size=(ranks, count))


def rare(random: np.random.Generator, ranks: int, count: int, correlation: float) -> Array:
    """Long delays, about one in three steps of a rank, which have nothing to do with each other."""
    return (random.random((ranks, count)) < 0.3 / POSITIONS) * random.pareto(2, (ranks, count))


def uneven(random: np.random.Generator, ranks: int, count: int, correlation: float) -> Array:
    """Regimes, in which a rank loses ten times as much at some collectives as at others."""
    weight = np.where(np.arange(count) % POSITIONS % 6 == 5, 10.0, 1.0)
    return regimes(random, ranks, count, correlation) * weight


Noise = Callable[[np.random.Generator, int, int, float], Array]
NOISES: tuple[Noise, ...] = (jitter, heavy_tails, regimes, rare, uneven)


@cache
def _mean(noise: Noise, correlation: float) -> float:
    """Of the kind of noise, not of one run."""
    return float(noise(np.random.default_rng(1), 500, 20 * POSITIONS, correlation).mean())


def simulated(
    noise: Noise,
    seed: int,
    ranks: int,
    steps: int,
    correlation: float,
    level: float,
    fault: Array | None = None,
) -> Delays:
    """The delays of a run.

    Args:
        noise: how much longer each rank takes to each collective.
        seed: of the random numbers.
        ranks: of the run.
        steps: of the run.
        correlation: of the noise, from one collective to the next.
        level: mean noise of a rank, of a step.
        fault: ns by step and position that rank 0 takes longer.
    """
    random = np.random.default_rng(seed)
    count = steps * POSITIONS
    mean = _mean(noise, correlation) * POSITIONS
    longer = noise(random, ranks, count, correlation) * (level * STEP_NS / mean)
    if fault is not None:
        longer[0] += np.asarray(fault).reshape(-1)
    delay = np.maximum(longer - median_of_others(longer), 0)
    ns = np.zeros((ranks * count, len(TIMES)))
    ns[:, LATE] = delay.reshape(-1)
    typical_ns = np.full(count, STEP_NS / POSITIONS)
    if noise is uneven:
        typical_ns *= np.where(np.arange(count) % POSITIONS % 6 == 5, 4.0, 0.4)
    return Delays(
        range(ranks),
        [str(step) for step in range(steps)],
        np.repeat(np.arange(ranks), count),
        np.tile(np.repeat(np.arange(steps), POSITIONS), ranks),
        np.tile(np.arange(POSITIONS), ranks * steps),
        ns,
        np.tile(typical_ns, ranks),
    )
