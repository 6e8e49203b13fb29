"""How often the test names a rank without a fault, and with one: on simulated delays that come in runs."""

from __future__ import annotations

import numpy as np
import pytest

from tests.analysis.stragglers.noise import NOISES, POSITIONS, STEP_NS, Noise, rare, regimes, simulated
from tests.effort import effort
from tracelens.analysis.stragglers import NOISE, SIGNIFICANT, TOO_FEW
from tracelens.analysis.stragglers.segments import LATE
from tracelens.analysis.stragglers.stragglers import ALPHA, effects

RUNS = effort(25, 60)
NOISY = 0.4
"""Mean noise of a rank, of a step: far beyond what would matter."""


def named(noise: Noise, seed: int, ranks: int, steps: int, correlation: float, **options: object) -> set[int]:
    """The ranks that are named."""
    delays = simulated(noise, seed, ranks, steps, correlation, **{"level": NOISY, **options})  # type: ignore[arg-type]
    found = effects(delays, STEP_NS)
    return {rank for (rank, _), effect in found.items() if effect.verdict == SIGNIFICANT}


@pytest.mark.parametrize("steps", [2, 3, 4, 8, 16])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_false_alarms(ranks: int, steps: int) -> None:
    """At a nominal 1% at most 2% of the runs name anybody, whatever the noise."""
    alarms = [
        bool(named(noise, 1000 * steps + seed, ranks, steps, correlation))
        for noise in NOISES
        for correlation in ((0.5, 0.9) if noise is not rare else (0.0,))
        for seed in range(RUNS)
    ]
    assert len(alarms) == 9 * RUNS
    assert np.mean(alarms) <= 2 * ALPHA


def fault(steps: int, share: float, places: int = 1, spread: float = 0.1) -> np.ndarray:
    """A delay of so much of a step, at these many places of each, now a little shorter and now longer."""
    random = np.random.default_rng(5)
    ns = np.zeros((steps, POSITIONS))
    ns[:, np.linspace(0, POSITIONS - 1, places).astype(int)] = share * STEP_NS / places
    return ns * (1 + spread * random.uniform(-1, 1, (steps, 1)))


@pytest.mark.parametrize(("ranks", "steps"), [(8, 2), (4, 3), (2, 4), (8, 4), (4, 8), (2, 16)])
@pytest.mark.parametrize("places", [1, 4])
def test_power(ranks: int, steps: int, places: int) -> None:
    """A rank that loses a fifth of each step, among ranks that lose a fiftieth of it by chance."""
    found = [
        named(regimes, seed, ranks, steps, 0.9, level=0.02, fault=fault(steps, 0.2, places))
        for seed in range(20)
    ]
    # Two ranks with four steps have three to be tested by: the first is left out.
    assert np.mean([ranks_named == {0} for ranks_named in found]) >= (
        0.75 if (ranks, steps) == (2, 4) else 0.9
    )


@pytest.mark.parametrize(("ranks", "steps"), [(2, 1), (8, 1), (2, 2), (4, 2)])
def test_too_few_steps_cannot_tell(ranks: int, steps: int) -> None:
    delays = simulated(regimes, 1, ranks, steps, 0.9, 0.01, fault(steps, 0.5))
    effect = effects(delays, STEP_NS)[0, LATE]
    assert effect.verdict == TOO_FEW
    assert effect.ns == pytest.approx(0.5 * STEP_NS, rel=0.15)


def test_one_long_delay_of_many_steps_is_chance() -> None:
    once = np.zeros((6, POSITIONS))
    once[3, 5] = 5 * STEP_NS
    delays = simulated(regimes, 1, 8, 6, 0.9, 0.01, once)
    effect = effects(delays, STEP_NS)[0, LATE]
    assert effect.ns > 0.5 * STEP_NS
    assert effect.verdict == NOISE
    assert effect.low < 0 < effect.ns < effect.high


def test_the_interval_holds() -> None:
    """It has the true effect in it, about as often as it says."""
    inside = []
    for seed in range(60):
        effect = effects(simulated(regimes, seed, 4, 6, 0.9, 0.05, fault(6, 0.2, spread=0)), STEP_NS)[0, LATE]
        inside.append(effect.low <= 0.2 * STEP_NS <= effect.high)
    assert np.mean(inside) >= 0.93
