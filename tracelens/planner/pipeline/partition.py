"""The best partition of unequal layers into the chunks of a pipeline."""

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
_MOVES = 8
"""Moves that are simulated, of which the best is made."""


def best_partition(
    layers: LayerTimes,
    positions: Sequence[Sequence[int]],
    start: Sequence[Shares],
    quick: Callable[[Shares], int],
    makespan: Callable[[Shares], int],
) -> Shares:
    """Layers of each chunk, in model order, with the shortest pipeline phase: a local search.

    It starts from the partitions in `start` and the one with the fastest slowest chunk, which is optimal with
    one chunk per stage, and moves single layers off the slowest stage while that shortens the phase.

    Args:
        layers: their times.
        positions: position in the model of each chunk of each stage.
        start: partitions to start from.
        quick: simulates a partition with few micro-batches, ns.
        makespan: simulates a partition in full, ns.

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
    """The partition into `count` chunks with the shortest longest chunk: exact, by dynamic programming.

    The first and last chunk may be without layers if embedding or head take time.

    Args:
        cost: of each layer.
        ends: cost of embedding and head.
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
    # longest[i]: longest chunk of the best partition of the first i layers into the chunks so far.
    stop = np.arange(size + 1)
    longest = np.where(stop >= least[0], total[stop], _NEVER)
    previous_cut = np.zeros((count, size + 1), dtype=np.int64)
    for chunk in range(1, count):
        reached = total[stop] if chunk < count - 1 else np.append(total[stop[:-1]], total[-1])
        table = np.maximum(longest[None, :], reached[:, None] - total[stop][None, :])
        table[stop[:, None] - stop[None, :] < least[chunk]] = _NEVER
        previous_cut[chunk] = table.argmin(axis=1)
        longest = table.min(axis=1)
    cuts = [size]
    for chunk in range(count - 1, 0, -1):
        cuts.append(int(previous_cut[chunk, cuts[-1]]))
    return tuple(high - low for low, high in pairwise([0, *reversed(cuts)]))


def _improve(
    shares: Shares,
    cost: Int,
    ends: tuple[int, int],
    positions: Sequence[Sequence[int]],
    makespan: Callable[[Shares], int],
) -> Shares:
    """Move layers off the slowest stage while that shortens the phase."""
    best = makespan(shares), shares
    while True:
        moved = [(makespan(shares), shares) for shares in _moves(best[1], cost, ends, positions)]
        if not moved or min(moved)[0] >= best[0]:
            return best[1]
        best = min(moved)


def _moves(
    shares: Shares, cost: Int, ends: tuple[int, int], positions: Sequence[Sequence[int]]
) -> list[Shares]:
    """The most promising partitions with one layer moved off the slowest stage.

    The layers between the two chunks shift. Most promising is the least time on the slowest stage, then on
    the second slowest, and so on.
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
        _MOVES,
        candidates,
        key=lambda candidate: sorted(_loads(candidate, cost, ends, positions), reverse=True),
    )


def _loads(shares: Shares, cost: Int, ends: tuple[int, int], positions: Sequence[Sequence[int]]) -> list[int]:
    """Time per micro-batch on each stage."""
    total = np.concatenate(([0], np.cumsum(cost)))[np.concatenate(([0], np.cumsum(shares)))]
    of_chunk = np.diff(total)
    of_chunk[0] += ends[0]
    of_chunk[-1] += ends[1]
    return [int(of_chunk[list(stage_chunks)].sum()) for stage_chunks in positions]
