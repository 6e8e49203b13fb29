"""Which ranks are significant stragglers: late for one cause, more than the others are by chance.

Without a fault some rank is late, too, and for long: a host that is slow for 50 ms is last at ten
collectives. So collectives are no independent draws, and two tests that know runs stand in for counting
them. Both test what a rank lost anew (see delays.py), each kind of delay apart: a host that sleeps 8 ms in
each step does not stand out from hosts that launch with 10 ms of jitter, but it does where no other sleeps.

Recurrence (2 to 4 steps). What is wrong with a rank comes back at the same places of each step; noise falls
anywhere. Under the null hypothesis the series of delays of each rank and step might as well be that of
another rank, begun at another collective: exchangeable, and circularly shifted so that runs stay whole. The
p-value is the share of such draws, one for each step, that recur as much; times the ranks, for any of them
(Bonferroni). Two steps of R ranks with P collectives each reach 1 / (R P) at best: with two ranks they cannot
tell. A rank whose better steps are no worse than another's worse ones is not tested: it does not stand out.

Steps (3 and more). The mean over steps of what a rank lost more than the others, against what equal devices
lose, over its standard error: Student's t. Steps may be correlated, so the variance is that of a first-order
autoregression with correlation 1/2: (1 + r) / (1 - r) = 3 times as large. With 3 or 4 steps, either test
will do; recurrence has a fifth of the level.

The level of 1% is divided among kinds of delays by 1 / (number of delays): what is rare has less opportunity
to look like a fault. These weights do not look at which rank or step a delay is of, so the level holds.

With more than three steps the first is left out: what a rank lost there it may have lost before the recording
began. With more than three left, the interval of the effect must not include zero; of work it may, since its
amount changes from step to step.

tests/analysis/stragglers/test_false_alarms.py measures false alarms and power with autocorrelated delays.

Sources: circular shifts against autocorrelation: Harris, Nonsense correlations in neuroscience (2020); blocks
of dependent series: Kunsch, Ann. Stat. 17 (1989); variance of the mean of correlated steps: Bayley and
Hammersley, J. R. Stat. Soc. Suppl. 8 (1946); weighted p-values: Genovese, Roeder and Wasserman, Biometrika 93
(2006); as many draws as are needed: Besag and Clifford, Biometrika 78 (1991).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from tracelens.analysis.stragglers.delays import Delays
from tracelens.analysis.stragglers.medians import median_of_others
from tracelens.analysis.stragglers.segments import COMM, TIMES, WORK
from tracelens.arrays import Float
from tracelens.table import t_quantile, t_tail

ALPHA = 0.01
"""Significance level."""

ALIKE = 0.05
"""Equal devices lose less than this share of a step against each other, in the mean of all steps."""

SIGNIFICANT, NOISE, TOO_FEW, SMALL = "significant", "noise", "too few steps", "small"
UNTESTED = "not tested"

CONFIDENCE = 0.95

# Delays below this share of a step are not counted as such.
_TINY = 0.001
# Steps whose recurrence is tested, and ranks that are compared then: those with most delay.
_MOST_STEPS, _MOST_RANKS = 4, 32
_DRAWS, _CELLS = 40_000, 4_000_000
_FIRST, _ENOUGH = 1000, 100
# With more steps, the first is left out.
_FEW_STEPS = 3
# The variance of a mean of steps with a correlation of 1/2 from one to the next.
_CORRELATED = 3.0
_SEED = 23


class Effect(NamedTuple):
    """What one rank loses by one kind of delay, and whether chance explains it.

    Attributes:
        ns: mean of a step, beyond the median of the other ranks.
        low: lower end of its confidence interval; -1 as the upper end where one step shows none.
        high: upper end.
        p_value: of the test, for any rank and kind; -1 where it is too small to matter.
        verdict: SIGNIFICANT, NOISE, TOO_FEW (steps to tell) or SMALL.
    """

    ns: float
    low: float
    high: float
    p_value: float
    verdict: str


def effects(delays: Delays, step_ns: float) -> Mapping[tuple[int, int], Effect]:
    """The effect of each rank and kind (of TIMES) of delay.

    Args:
        delays: of all ranks.
        step_ns: length of a step.
    """
    # What a rank lost in the first step it may have lost before the recording began, or not yet.
    delays = delays.without_first() if len(delays.steps) > _FEW_STEPS else delays
    kinds = [kind for kind in range(len(TIMES)) if kind != COMM and (delays.ns[:, kind] > 0).any()]
    beyond = {kind: _beyond_others(delays.by_step(kind)) for kind in kinds}
    matters = [kind for kind in kinds if beyond[kind].mean(axis=1).max() >= ALIKE * step_ns]
    # A rank's delays at one collective after the other are many opportunities.
    opportunities = {kind: int((delays.ns[:, kind] > _TINY * step_ns).sum()) for kind in matters}
    total = sum(1 / count for count in opportunities.values())
    result = {}
    for kind in kinds:
        share = 1 / opportunities[kind] / total if kind in matters else 1.0
        for index, rank in enumerate(delays.ranks):
            result[rank, kind] = _effect(delays, kind, index, beyond[kind], step_ns, share)
    return result


def _beyond_others(by_step: Float) -> Float:
    """What each rank loses in each step beyond the median of the others."""
    return by_step - median_of_others(by_step)


def _effect(delays: Delays, kind: int, index: int, beyond: Float, step_ns: float, share: float) -> Effect:
    """The effect of one rank and kind.

    Args:
        delays: of all ranks.
        kind: of TIMES.
        index: of the rank.
        beyond: what each rank loses in each step beyond the others.
        step_ns: length of a step.
        share: of the level of significance, that of the kind.
    """
    lost = beyond[index]
    mean, low, high = float(lost.mean()), -1.0, -1.0
    steps, ranks = len(lost), len(delays.ranks)
    if steps > 1:
        freedom, variance = steps - 1, float(lost.var(ddof=1))
        if steps == 2:
            # Two steps of one rank tell little of how steps vary; those of all ranks do.
            freedom, variance = ranks, max(variance, float(beyond.var(axis=1, ddof=1).mean()))
        half = t_quantile((1 - CONFIDENCE) / 2, freedom) * float(np.sqrt(_CORRELATED * variance / steps))
        low, high = mean - half, mean + half
    if mean < ALIKE * step_ns:
        return Effect(mean, low, high, -1.0, SMALL)
    p_values = [1.0]
    stands_out = _stands_out(delays.by_step(kind), index)
    if 2 <= steps <= _MOST_STEPS and stands_out:
        # Neighboring steps are not quite independent: where there are two tests, this has less of the level.
        p_values.append(_recurrence(delays, kind, index) * (5 if steps > 2 else 1))
    if steps >= 3:
        p_values.append(_steps(lost, step_ns) * ranks * (1.25 if steps <= _MOST_STEPS else 1))
    p_value = min(min(p_values) / share, 1.0)
    # What recurs at some places of a step need not cost anything in the sum of its steps.
    if p_value < ALPHA and (steps <= _FEW_STEPS or low > 0 or kind == WORK):
        return Effect(mean, low, high, p_value, SIGNIFICANT)
    positions = int(delays.position.max()) + 1
    unable = steps == 1 or (steps == 2 and 1 / (ranks * positions) >= ALPHA)
    return Effect(mean, low, high, p_value, TOO_FEW if unable and stands_out else NOISE)


def _stands_out(by_step: Float, index: int) -> bool:
    """Whether the better half of a rank's steps is worse than the least of any other's worse half."""
    ordered = np.sort(by_step, axis=1)
    half = max(by_step.shape[1] // 2, 1)
    others = np.delete(ordered, index, axis=0)[:, -half]
    return bool(ordered[index, :half].mean() > others.max(initial=0))


def _error(lost: Float) -> float:
    """Standard error of the mean of correlated steps."""
    return float(np.sqrt(_CORRELATED * lost.var(ddof=1) / len(lost)))


def _steps(lost: Float, step_ns: float) -> float:
    """p-value of one rank's mean over steps, against what equal devices lose."""
    beyond = float(lost.mean()) - ALIKE * step_ns
    if beyond <= 0:
        return 1.0
    error = _error(lost)
    return t_tail(beyond / error, len(lost) - 1) if error > 0 else 0.0


def _recurrence(delays: Delays, kind: int, index: int) -> float:
    """p-value of one rank's recurring delays, for any of the ranks."""
    total = delays.by_step(kind).sum(axis=1)
    order = np.argsort(-total, kind="stable")[:_MOST_RANKS]
    pool = np.append(order[order != index][: _MOST_RANKS - 1], index)
    series = delays.by_position(kind, pool)
    observed = float(_recurring(series[-1][None])[0])
    if observed <= 0:
        return 1.0
    ranks, steps, positions = series.shape
    draw = _every_pair if steps == 2 and (ranks * positions) ** 2 <= _CELLS else _at_random
    # Sums in another order differ by rounding.
    reached, drawn = draw(series, observed * (1 - 1e-9))
    return float(min(reached / drawn * ranks, 1.0))


def _recurring(series: Float) -> Float:
    """What recurs in more than half of the steps: by place their smaller half, summed over the places.

    Args:
        series: by draw, step and position.
    """
    steps = series.shape[1]
    half = steps // 2
    result: Float = np.sort(series, axis=1)[:, :half].mean(axis=1).sum(axis=1)
    return result


def _every_pair(series: Float, observed: float) -> tuple[float, float]:
    """How many of all draws for two steps recur as much, and their number."""
    ranks, _, positions = series.shape
    first, second = series[:, 0], series[:, 1]
    reached = 0
    for shift in range(positions):
        rolled = np.roll(second, shift, axis=1)
        reached += int((np.minimum(first[:, None], rolled[None]).sum(axis=2) >= observed).sum())
    return float(reached), float(ranks**2 * positions)


def _at_random(series: Float, observed: float) -> tuple[float, float]:
    """The same of random draws, until enough of them recur as much; what was observed is one of them."""
    ranks, steps, positions = series.shape
    random = np.random.default_rng(_SEED)
    drawn, reached = 0, 1
    while drawn < _DRAWS and reached < _ENOUGH:
        # The first few thousand settle what is far from significant.
        count = min(max(drawn, _FIRST), max(_CELLS // (steps * positions), 1), _DRAWS - drawn)
        rank = random.integers(ranks, size=(count, steps, 1))
        cycle_position = (
            random.integers(positions, size=(count, steps, 1)) + np.arange(positions)
        ) % positions
        reached += int(
            (_recurring(series[rank, np.arange(steps)[:, None], cycle_position]) >= observed).sum()
        )
        drawn += count
    return float(reached), float(drawn + 1)
