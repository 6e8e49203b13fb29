"""Replays on several streams in the order of the program.

A graph's branches run beside each other on streams of the driver's choice, so that order of start is not the
order in which the program launched them. Each stream keeps that order, and a branch is a contiguous piece of
the program: following the template, its next node is the next one of some stream.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tracelens.arrays import Bool, Int

MOST_DISORDER = 0.15
"""By how much of the graph its nodes may run earlier or later than the program launched them, on average."""

LOOKAHEAD = 3
"""Nodes of a stream that may stand before the one that is looked for and have no partner."""


class Merged(NamedTuple):
    """Positions of a replay's nodes in the order of the program.

    Attributes:
        order: all positions.
        unsure: of each position, whether another stream could stand in its place.
    """

    order: Int
    unsure: Bool


def merged(weight: NDArray[np.int8], stream: Int, start: Int, end: Int) -> Merged:
    """Follow a template through the streams.

    Args:
        weight: of each pair (template node, node of the replay), see alignment.Weights.
        stream: of each node of the replay, in order of start.
        start: of each, ns.
        end: of each, ns.
    """
    queues = [np.flatnonzero(stream == number).tolist() for number in np.unique(stream).tolist()]
    head = [0] * len(queues)
    order: list[int] = []
    run: list[int] = []
    ties: list[tuple[int, int]] = []
    last = -1
    for node in range(len(weight)):
        fits = _fitting(weight[node], queues, head)
        if not fits:
            continue
        nearest = min(ahead for ahead, *_ in fits)
        heaviest = max(heavy for ahead, _, heavy, _ in fits if ahead == nearest)
        equal = [fit for fit in fits if fit[0] == nearest and fit[2] == heaviest]
        ahead, queue, _, pick = min(equal, key=lambda fit: (fit[1] != last, start[fit[3]]))
        ties += [(pick, other) for *_, other in equal if _overlap(pick, other, start, end)]
        order += queues[queue][head[queue] : head[queue] + ahead + 1]
        run += [run[-1] + (queue != last) if run else 0] * (ahead + 1)
        head[queue] += ahead + 1
        last = queue
    for positions, first in zip(queues, head, strict=True):
        order += positions[first:]
        run += [run[-1] + 1 if run else 0] * (len(positions) - first)
    run_of = np.empty(len(stream), dtype=np.int64)
    run_of[order] = run
    tied = {int(run_of[position]) for tie in ties for position in tie}
    found = np.array(order, dtype=np.int64)
    if np.abs(found - np.arange(len(found))).mean() > MOST_DISORDER * len(found):
        return Merged(found, np.ones(len(found), dtype=bool))
    return Merged(found, np.isin(run_of, list(tied)))


def _fitting(
    weight: NDArray[np.int8], queues: list[list[int]], head: list[int]
) -> list[tuple[int, int, int, int]]:
    """(nodes to pass, stream, weight, position) of each stream's next node that may be the template's."""
    fits = []
    for queue, (positions, first) in enumerate(zip(queues, head, strict=True)):
        for ahead, position in enumerate(positions[first : first + LOOKAHEAD]):
            if weight[position] > 0:
                fits.append((ahead, queue, int(weight[position]), position))
                break
    return fits


def _overlap(position: int, other: int, start: Int, end: Int) -> bool:
    return position != other and bool(start[position] < end[other] and start[other] < end[position])
