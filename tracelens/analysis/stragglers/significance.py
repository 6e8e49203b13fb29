"""Which ranks are significant stragglers.

Without a straggler, some rank is still last at each collective. Under the null hypothesis that each rank
is last equally often, the p-value bounds the probability that as much waiting is attributed to one rank.
Equal devices differ in speed, too: a rank that is always last by little is no straggler.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tracelens.analysis.comm import SEND_RECV, MatchedCollective
from tracelens.analysis.stragglers.causes import SMALL_NS, Verdict
from tracelens.analysis.stragglers.segments import Segments
from tracelens.arrays import Bool, Float

ALPHA = 0.01
"""Significance level."""

ALIKE = 0.08
"""Equal devices and hosts make each other wait for less than this share of the time.

In six recordings of H200 without a fault, one rank was waited for 0.4 to 5.0% of it: 2.9% in the mean, with a
standard deviation of 1.8.
"""

_SCALES = (1.0, 0.1, 0.01)
"""Of the longest wait: so much of each counts at most. What is rare and long would hide what is frequent."""

_STEPS = 40
_STEEPEST = 1e6


class Noise(NamedTuple):
    """Significance of one rank's caused waiting.

    Attributes:
        p_value: upper bound of the probability of as much waiting for any rank under the null hypothesis; -1
            where the waiting is too little to matter.
        fraction: of the recorded time, mean waiting of another rank for it.
        beyond: whether it is a straggler.
    """

    p_value: float
    fraction: float
    beyond: bool


def noise(
    parts: Sequence[Segments], matched: Sequence[MatchedCollective], verdicts: Sequence[Verdict]
) -> Mapping[int, Noise]:
    """The significance of each rank that a verdict names.

    A receive waits for its sender in every schedule of a pipeline, so pairs do not count.

    Args:
        parts: of all ranks.
        matched: by one clock.
        verdicts: why the last rank of each was late.
    """
    collectives = [index for index, collective in enumerate(matched) if collective.collective != SEND_RECV]
    wait_by_rank = [matched[index].wait_ns for index in collectives]
    wait = np.array([sum(waits.values()) for waits in wait_by_rank], dtype=float)
    blamed = np.array([verdicts[index].rank for index in collectives], dtype=np.int64)
    spans = [int(part.edges[-1] - part.edges[0]) for part in parts if len(part.edges)]
    other_count = max(len(spans) - 1, 1)
    recorded = max(float(np.median(spans)) if spans else 0.0, 1.0) * other_count
    noise_of = {}
    for rank in sorted({verdict.rank for verdict in verdicts}):
        took_part = np.array([rank in waits for waits in wait_by_rank], dtype=bool)
        rank_wait, is_blamed = wait[took_part], blamed[took_part] == rank
        odds = np.array([1 / len(waits) for waits in wait_by_rank], dtype=float)[took_part]
        # Collectives that overlap are waited for at the same time, but each counts.
        fraction = min(float(rank_wait[is_blamed].sum()) / recorded, 1.0)
        noise_of[rank] = Noise(-1.0, fraction, False)
        if fraction >= ALIKE:
            noise_of[rank] = _compared(rank_wait, is_blamed, odds, len(parts), ALIKE * recorded, fraction)
    return noise_of


def _compared(wait: Float, is_blamed: Bool, odds: Float, ranks: int, enough: float, fraction: float) -> Noise:
    """The significance of one rank.

    Args:
        wait: of all collectives that it took part in.
        is_blamed: which of it is laid to the rank.
        odds: of each, that it is laid to one certain rank.
        ranks: that could be named.
        enough: waiting that is more than equal devices cause.
        fraction: as in Noise.
    """
    # Too few collectives to test: what is seen there counts.
    beyond = float(np.prod(odds[wait >= SMALL_NS])) * ranks >= ALPHA
    smallest = 1.0
    for scale in _SCALES:
        counted = np.minimum(wait, scale * wait.max())
        reached = float(counted[is_blamed].sum())
        p_value = _tail_bound(counted, odds, reached) * ranks * len(_SCALES)
        smallest = min(smallest, p_value)
        beyond |= p_value < ALPHA and reached >= enough
    return Noise(smallest, fraction, bool(beyond))


def _tail_bound(wait: Float, odds: Float, reached: float) -> float:
    """Bound of the probability that a sum of waits, each counting with its odds, reaches so much.

    The least of exp(-s c) * product(1 - p + p exp(s w)) over s > 0 (Chernoff, Ann. Math. Stat. 23, 1952).
    """
    largest = float(wait.max(initial=0))
    if largest <= 0 or reached <= float((wait * odds).sum()):
        return 1.0
    scaled, goal = wait / largest, reached / largest
    miss, hit = np.log1p(-np.minimum(odds, 1 - 1e-12)), np.log(odds)

    def exponent(steepness: float) -> float:
        return float(np.logaddexp(miss, hit + steepness * scaled).sum()) - steepness * goal

    # Convex in the steepness, so with one valley on a logarithmic scale, too.
    low, high = np.log(1e-3), np.log(_STEEPEST)
    for _ in range(_STEPS):
        low_third, high_third = low + (high - low) / 3, high - (high - low) / 3
        if exponent(float(np.exp(low_third))) <= exponent(float(np.exp(high_third))):
            high = high_third
        else:
            low = low_third
    return float(np.exp(min(exponent(float(np.exp((low + high) / 2))), 0.0)))
