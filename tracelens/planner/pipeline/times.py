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
"""Share of weight gradients in a backward: both gradients of a GEMM are GEMMs of equal FLOPs."""


@dataclass(frozen=True)
class Times:
    """Times of all passes of one step, ns.

    Attributes:
        forward: one row a chunk of the model, one column a micro-batch.
        backward: likewise, both halves.
        weight: likewise, of the backward its weight gradients.
        forward_comm: likewise, exposed communication (all-to-all) in the forward.
        backward_comm: likewise, in the backward.
        forward_transit: of activations from one stage to the next.
        backward_transit: of gradients from one stage to the one before.
        gap: of each stage, from a pass to the next one that could begin.
    """

    forward: Int
    backward: Int
    weight: Int
    forward_comm: Int
    backward_comm: Int
    forward_transit: int
    backward_transit: int
    gap: tuple[int, ...]

    def reader(self) -> Callable[[Slot, tuple[int, ...]], int]:
        """A function (slot, place of the chunk of each of its passes) -> ns."""
        forward, backward = self.forward.tolist(), self.backward.tolist()
        comm = self.forward_comm.tolist(), self.backward_comm.tolist()
        ns_of = {
            FORWARD: forward,
            BACKWARD: backward,
            INPUT: (self.backward - self.weight).tolist(),
            WEIGHT: self.weight.tolist(),
        }

        def duration(slot: Slot, positions: tuple[int, ...]) -> int:
            if len(slot) == 1:
                ns: int = ns_of[slot[0].phase][positions[0]][slot[0].microbatch]
                return ns
            pass_ns, comm_ns = [], []
            for pass_, position in zip(slot, positions, strict=True):
                pass_ns.append(ns_of[pass_.phase][position][pass_.microbatch])
                comm_ns.append(comm[pass_.phase != FORWARD][position][pass_.microbatch])
            return overlapped(pass_ns, comm_ns)

        return duration


def overlapped(pass_ns: Sequence[int], comm_ns: Sequence[int]) -> int:
    """Least time of overlapped passes: computation one at a time, communication one at a time.

    Args:
        pass_ns: ns of each pass alone.
        comm_ns: communication of each, ns.
    """
    computed = sum(pass_ns) - sum(comm_ns)
    return max(computed, sum(comm_ns), *pass_ns)


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
        forward_comm: exposed communication of the forward.
        backward_comm: exposed communication of the backward.
    """

    forward: Int
    backward: Int
    forward_comm: Int
    backward_comm: Int


def even(count: int, forward: int, backward: int, comm_share: float = 0.0) -> ChunkTimes:
    """Equal times for `count` chunks; `comm_share` of both is exposed communication."""
    if min(forward, backward) < 0 or not 0 <= comm_share <= 1:
        raise TracelensError("times must be at least 0, and the share of communication 0 to 1")
    ones = np.ones(count, dtype=np.int64)
    parts = (round(forward * comm_share), round(backward * comm_share))
    return ChunkTimes(*(ones * ns for ns in (forward, backward, *parts)))


def make_times(chunks: ChunkTimes, stages: int, microbatches: int, costs: Costs = FREE) -> Times:
    """Times of a step in which each micro-batch takes a chunk alike."""
    forward, backward, first, second = (np.tile(ns[:, None], (1, microbatches)) for ns in chunks)
    if not 0 <= costs.weight_share <= 1:
        raise TracelensError(f"the share of weight gradients must be 0 to 1, not {costs.weight_share}")
    weight = np.rint(backward * costs.weight_share).astype(np.int64)
    gap = costs.gap or (0,) * stages
    return Times(forward, backward, weight, first, second, costs.forward_transit, costs.backward_transit, gap)
