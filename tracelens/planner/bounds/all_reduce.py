"""Algorithms of an all-reduce by message size, and the sizes at which one overtakes another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from tracelens.planner.bounds.platform import Platform
from tracelens.planner.collectives import (
    AlphaBeta,
    Rates,
    Steps,
    hierarchical_all_reduce,
    one_shot_all_reduce,
    ring_all_reduce,
    two_shot_all_reduce,
)

SIZES = tuple(1 << exponent for exponent in range(17, 24))
"""128 KiB to 8 MiB, powers of two."""

ALGORITHMS: Mapping[str, Callable[[int, int, Rates, Steps], AlphaBeta]] = {
    "ring": ring_all_reduce,
    "one-shot": one_shot_all_reduce,
    "two-shot": two_shot_all_reduce,
    "hierarchical": hierarchical_all_reduce,
}


class Range(NamedTuple):
    """Message sizes for which one algorithm is the fastest; `to_bytes` is inf for the largest."""

    algorithm: str
    from_bytes: float
    to_bytes: float


def algorithms(platform: Platform, nodes: int) -> dict[str, AlphaBeta]:
    """Time of each algorithm on a number of nodes; one node has no hierarchy, one GPU nothing to reduce."""
    near = platform.gpus_per_node
    if nodes * near == 1:
        return {}
    return {
        name: algorithm(nodes, near, platform.rates(), platform.steps())
        for name, algorithm in ALGORITHMS.items()
        if name != "hierarchical" or (nodes > 1 and near > 1)
    }


def fastest(times: Mapping[str, AlphaBeta]) -> list[Range]:
    """The fastest algorithm by message size, from 0 up: the lower envelope of straight lines.

    Two lines alpha + beta x meet at x = (alpha2 - alpha1) / (beta1 - beta2); from the line that is lowest at
    0, the next is the one of smaller beta that it meets first. Equal lines go by their order.
    """
    name = min(times, key=lambda name: (times[name].alpha_s, times[name].beta_s))
    ranges: list[Range] = []
    start = 0.0
    while True:
        line = times[name]
        meets = [
            ((other.alpha_s - line.alpha_s) / (line.beta_s - other.beta_s), other.beta_s, following)
            for following, other in times.items()
            if other.beta_s < line.beta_s
        ]
        if not meets:
            return [*ranges, Range(name, start, float("inf"))]
        end, _, following = min(meets)
        end = max(end, start)
        if end > start:
            ranges.append(Range(name, start, end))
        name, start = following, end
