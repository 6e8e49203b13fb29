"""Which ranks are waited for more than noise would have it.

Without a straggler, some rank is the last at each collective all the same. If it were any of them alike,
how often would so much waiting be laid to one rank? That is its chance. And equal devices are not equally
fast: one that is always the last, but by little, is no straggler either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tracelens.analysis.comm import SEND_RECV, MatchedCollective
from tracelens.analysis.stragglers.causes import SMALL_NS, Verdict
from tracelens.analysis.stragglers.segments import Segments
from tracelens.arrays import Bool, Float

RARE = 0.01
"""A chance below this is none."""

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
    """How one rank's caused waiting compares with noise.

    Attributes:
        chance: upper bound of the probability that any rank is laid as much to, were it for chance alone; -1
            where the waiting is too little for it to matter.
        fraction: of the recorded time, what each other rank waits for it in the mean.
        beyond: whether it is a straggler.
    """

    chance: float
    fraction: float
    beyond: bool


def noise(
    parts: Sequence[Segments], instances: Sequence[MatchedCollective], verdicts: Sequence[Verdict]
) -> Mapping[int, Noise]:
    """The noise of each rank that a verdict names.

    A receive waits for its sender in every schedule of a pipeline, so pairs do not count.

    Args:
        parts: of all ranks.
        instances: by one clock.
        verdicts: why the last rank of each was late.
    """
    collectives = [place for place, one in enumerate(instances) if one.collective != SEND_RECV]
    some = [instances[place].wait_ns for place in collectives]
    wait = np.array([sum(one.values()) for one in some], dtype=float)
    blamed = np.array([verdicts[place].rank for place in collectives], dtype=np.int64)
    spans = [int(part.edges[-1] - part.edges[0]) for part in parts if len(part.edges)]
    others = max(len(spans) - 1, 1)
    recorded = max(float(np.median(spans)) if spans else 0.0, 1.0) * others
    found = {}
    for rank in sorted({verdict.rank for verdict in verdicts}):
        there = np.array([rank in one for one in some], dtype=bool)
        here, his = wait[there], blamed[there] == rank
        odds = np.array([1 / len(one) for one in some], dtype=float)[there]
        # Collectives that overlap are waited for at the same time, but each counts.
        fraction = min(float(here[his].sum()) / recorded, 1.0)
        found[rank] = Noise(-1.0, fraction, False)
        if fraction >= ALIKE:
            found[rank] = _compared(here, his, odds, len(parts), ALIKE * recorded, fraction)
    return found


def _compared(wait: Float, his: Bool, odds: Float, ranks: int, enough: float, fraction: float) -> Noise:
    """The noise of one rank.

    Args:
        wait: of all collectives that it took part in.
        his: which of it is laid to the rank.
        odds: of each, that it is laid to one certain rank.
        ranks: that could be named.
        enough: waiting that is more than equal devices cause.
        fraction: as in Noise.
    """
    # Of a few collectives nobody can tell, so what is seen there counts.
    beyond = float(np.prod(odds[wait >= SMALL_NS])) * ranks >= RARE
    least = 1.0
    for scale in _SCALES:
        counted = np.minimum(wait, scale * wait.max())
        reached = float(counted[his].sum())
        chance = _chance(counted, odds, reached) * ranks * len(_SCALES)
        least = min(least, chance)
        beyond |= chance < RARE and reached >= enough
    return Noise(least, fraction, bool(beyond))


def _chance(wait: Float, odds: Float, reached: float) -> float:
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
        left, right = low + (high - low) / 3, high - (high - low) / 3
        if exponent(float(np.exp(left))) <= exponent(float(np.exp(right))):
            high = right
        else:
            low = left
    return float(np.exp(min(exponent(float(np.exp((low + high) / 2))), 0.0)))
