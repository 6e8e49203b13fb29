"""How long the passes of a schedule take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tracelens.arrays import Int
from tracelens.errors import TracelensError
from tracelens.planner.pipeline.schedule import BACKWARD, FORWARD, INPUT, WEIGHT, Slot

WEIGHT_SHARE = 0.5
"""Of a backward, its weight gradients: of a matrix product both gradients are one product of equal FLOPs."""


@dataclass(frozen=True)
class Times:
    """Times of all passes of one step, ns.

    Attributes:
        forward: one row a chunk of the model, one column a micro-batch.
        backward: likewise, both halves.
        weight: likewise, of the backward its weight gradients.
        forward_exchange: likewise, of the forward what ranks exchange (all-to-all) and nothing hides.
        backward_exchange: likewise, of the backward.
        forward_transit: of activations from one stage to the next.
        backward_transit: of gradients from one stage to the one before.
        gap: of each stage, from a pass to the next one that could begin.
    """

    forward: Int
    backward: Int
    weight: Int
    forward_exchange: Int
    backward_exchange: Int
    forward_transit: int
    backward_transit: int
    gap: tuple[int, ...]

    def reader(self) -> Callable[[Slot, tuple[int, ...]], int]:
        """A function (slot, place of the chunk of each of its passes) -> ns."""
        forward, backward = self.forward.tolist(), self.backward.tolist()
        exchanges = self.forward_exchange.tolist(), self.backward_exchange.tolist()
        of = {
            FORWARD: forward,
            BACKWARD: backward,
            INPUT: (self.backward - self.weight).tolist(),
            WEIGHT: self.weight.tolist(),
        }

        def duration(slot: Slot, places: tuple[int, ...]) -> int:
            if len(slot) == 1:
                ns: int = of[slot[0].phase][places[0]][slot[0].microbatch]
                return ns
            wholes, talks = [], []
            for one, place in zip(slot, places, strict=True):
                wholes.append(of[one.phase][place][one.microbatch])
                talks.append(exchanges[one.phase != FORWARD][place][one.microbatch])
            return overlapped(wholes, talks)

        return duration


def overlapped(wholes: Sequence[int], exchanges: Sequence[int]) -> int:
    """Least time of passes that run beside each other: of computation one at a time, of exchanges too.

    Args:
        wholes: ns of each pass alone.
        exchanges: of each, ns of its exchanges.
    """
    computed = sum(wholes) - sum(exchanges)
    return max(computed, sum(exchanges), *wholes)


class Costs(NamedTuple):
    """What is added to the passes.

    Attributes:
        forward_transit: ns of activations from one stage to the next.
        backward_transit: ns of gradients from one stage to the one before.
        gap: ns of each stage, from a pass to the next one that could begin; empty for none.
        weight_share: of a backward, its weight gradients.
    """

    forward_transit: int = 0
    backward_transit: int = 0
    gap: tuple[int, ...] = ()
    weight_share: float = WEIGHT_SHARE


FREE = Costs()


class ChunkTimes(NamedTuple):
    """Times of the chunks of a model in the order of the model, ns; one element a chunk.

    Attributes:
        forward: of a micro-batch.
        backward: of a micro-batch.
        forward_exchange: of the forward what ranks exchange and nothing hides.
        backward_exchange: of the backward likewise.
    """

    forward: Int
    backward: Int
    forward_exchange: Int
    backward_exchange: Int


def even(count: int, forward: int, backward: int, exchange_share: float = 0.0) -> ChunkTimes:
    """The same for each of `count` chunks; `exchange_share` of both is exchanged."""
    if min(forward, backward) < 0 or not 0 <= exchange_share <= 1:
        raise TracelensError("times must be at least 0, and the share of exchanges 0 to 1")
    ones = np.ones(count, dtype=np.int64)
    parts = (round(forward * exchange_share), round(backward * exchange_share))
    return ChunkTimes(*(ones * ns for ns in (forward, backward, *parts)))


def make_times(chunks: ChunkTimes, stages: int, microbatches: int, costs: Costs = FREE) -> Times:
    """Times of a step in which each micro-batch takes a chunk alike."""
    forward, backward, first, second = (np.tile(ns[:, None], (1, microbatches)) for ns in chunks)
    if not 0 <= costs.weight_share <= 1:
        raise TracelensError(f"the share of weight gradients must be 0 to 1, not {costs.weight_share}")
    weight = np.rint(backward * costs.weight_share).astype(np.int64)
    gap = costs.gap or (0,) * stages
    return Times(forward, backward, weight, first, second, costs.forward_transit, costs.backward_transit, gap)
