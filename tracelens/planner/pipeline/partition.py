"""The best cut of unequal layers into the chunks of a pipeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import nsmallest
from itertools import pairwise

import numpy as np

from tracelens.arrays import Int
from tracelens.errors import TracelensError
from tracelens.planner.step_time import LayerTimes

Shares = tuple[int, ...]

_NEVER = np.iinfo(np.int64).max // 4
_TRIED = 8
"""Moves that are simulated before the best of them is made."""


def best_partition(
    layers: LayerTimes,
    positions: Sequence[Sequence[int]],
    start: Sequence[Shares],
    quick: Callable[[Shares], int],
    makespan: Callable[[Shares], int],
) -> Shares:
    """Layers of each chunk with the shortest phase that was found.

    With one chunk a stage no cut has a faster slowest stage: that one is exact. From it, and from the cuts in
    `start`, single layers of the slowest stage then go to other stages as long as that makes the simulated
    phase shorter. Of cuts with the same phase the first one is kept.

    Args:
        layers: their times.
        positions: of each stage, the places of its chunks in the model.
        start: other cuts to begin from.
        quick: simulates a cut with as many micro-batches as there is time for, ns.
        makespan: simulates a cut with all of them, ns.

    Returns:
        layers of each chunk in the order of the model.

    Raises:
        TracelensError: fewer layers than chunks.
    """
    cost = layers.forward + layers.backward
    ends = sum(layers.embedding), sum(layers.head)
    count = sum(map(len, positions))
    cuts = (*start, shortest(cost, ends, count))
    improved = (_improve(cut, cost, ends, positions, quick) for cut in cuts)
    return min(dict.fromkeys((*cuts, *improved)), key=makespan)


def shortest(cost: Int, ends: tuple[int, int], count: int) -> Shares:
    """The cut of a row of layers into `count` chunks whose longest chunk is shortest: exact.

    The first and the last chunk may have no layer where they have something else to do.

    Args:
        cost: of each layer.
        ends: what comes before the first layer and behind the last one.
        count: of chunks.

    Raises:
        TracelensError: fewer layers than chunks.
    """
    size = len(cost)
    least = [1] * count
    least[0], least[-1] = int(ends[0] == 0), int(ends[1] == 0)
    if size < count:
        raise TracelensError(f"{size} layers are too few for {count} chunks (pp x vpp)")
    total = np.concatenate(([0], np.cumsum(cost))) + ends[0]
    total = np.append(total, total[-1] + ends[1])  # the last chunk ends behind the head
    # longest[i]: of the best cut of the first i layers into the chunks so far.
    stop = np.arange(size + 1)
    longest = np.where(stop >= least[0], total[stop], _NEVER)
    came = np.zeros((count, size + 1), dtype=np.int64)
    for chunk in range(1, count):
        reached = total[stop] if chunk < count - 1 else np.append(total[stop[:-1]], total[-1])
        table = np.maximum(longest[None, :], reached[:, None] - total[stop][None, :])
        table[stop[:, None] - stop[None, :] < least[chunk]] = _NEVER
        came[chunk] = table.argmin(axis=1)
        longest = table.min(axis=1)
    cuts = [size]
    for chunk in range(count - 1, 0, -1):
        cuts.append(int(came[chunk, cuts[-1]]))
    return tuple(high - low for low, high in pairwise([0, *reversed(cuts)]))


def _improve(
    shares: Shares,
    cost: Int,
    ends: tuple[int, int],
    positions: Sequence[Sequence[int]],
    makespan: Callable[[Shares], int],
) -> Shares:
    """Move layers off the slowest stage while the phase gets shorter."""
    best = makespan(shares), shares
    while True:
        tried = [(makespan(moved), moved) for moved in _moves(best[1], cost, ends, positions)]
        if not tried or min(tried)[0] >= best[0]:
            return best[1]
        best = min(tried)


def _moves(
    shares: Shares, cost: Int, ends: tuple[int, int], positions: Sequence[Sequence[int]]
) -> list[Shares]:
    """The most promising cuts in which the slowest stage has a layer less and another stage one more.

    The layers between the two chunks move up. Most promising are those with the least time on the slowest
    stage, then on the one after it, and so on.
    """
    last = len(shares) - 1
    loads = _loads(shares, cost, ends, positions)
    slowest = max(range(len(positions)), key=lambda stage: loads[stage])
    candidates = []
    for chunk in positions[slowest]:
        least = int(not (ends[0] if chunk == 0 else ends[1] if chunk == last else 0))
        if shares[chunk] <= least:
            continue
        for target in range(last + 1):
            if target not in positions[slowest]:
                moved = list(shares)
                moved[chunk] -= 1
                moved[target] += 1
                candidates.append(tuple(moved))
    return nsmallest(
        _TRIED,
        candidates,
        key=lambda candidate: sorted(_loads(candidate, cost, ends, positions), reverse=True),
    )


def _loads(shares: Shares, cost: Int, ends: tuple[int, int], positions: Sequence[Sequence[int]]) -> list[int]:
    """Time of a micro-batch on each stage."""
    total = np.concatenate(([0], np.cumsum(cost)))[np.concatenate(([0], np.cumsum(shares)))]
    of_chunk = np.diff(total)
    of_chunk[0] += ends[0]
    of_chunk[-1] += ends[1]
    return [int(of_chunk[list(stage_chunks)].sum()) for stage_chunks in positions]
