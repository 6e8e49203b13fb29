"""Times of the passes of a schedule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tracelens.arrays import Int
from tracelens.errors import TracelensError
from tracelens.planner.pipeline.schedule import BACKWARD, FORWARD, INPUT, WEIGHT, Slot

WEIGHT_SHARE = 0.5
"""Share of weight gradients in a backward: both gradients of a GEMM take equal FLOPs."""


@dataclass(frozen=True)
class Times:
    """Times of all passes of one step, ns.

    Attributes:
        forward: (chunk of the model, micro-batch).
        backward: likewise, both halves.
        weight: likewise, the weight gradients of the backward.
        forward_comm: likewise, exposed communication (all-to-all) of the forward.
        backward_comm: likewise, of the backward.
        forward_transit: of activations to the next stage.
        backward_transit: of gradients to the previous stage.
        gap: of each stage, between a pass and the next one that is ready.
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
        """A function (slot, position in the model of the chunk of each of its passes) -> ns."""
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
    """Least time of overlapped passes: computation one at a time, communication one at a time."""
    computed = sum(pass_ns) - sum(comm_ns)
    return max(computed, sum(comm_ns), *pass_ns)


class Costs(NamedTuple):
    """Times of messages and gaps as in `Times`, and the share of weight gradients in a backward."""

    forward_transit: int = 0
    backward_transit: int = 0
    gap: tuple[int, ...] = ()
    weight_share: float = WEIGHT_SHARE


FREE = Costs()


class ChunkTimes(NamedTuple):
    """Times of a micro-batch in each chunk, in model order, ns; comm is exposed communication."""

    forward: Int
    backward: Int
    forward_comm: Int
    backward_comm: Int


def make_times(chunks: ChunkTimes, stages: int, microbatches: int, costs: Costs = FREE) -> Times:
    """Times of a step in which all micro-batches are alike."""
    forward, backward, first, second = (np.tile(ns[:, None], (1, microbatches)) for ns in chunks)
    if not 0 <= costs.weight_share <= 1:
        raise TracelensError(f"the share of weight gradients must be 0 to 1, not {costs.weight_share}")
    weight = np.rint(backward * costs.weight_share).astype(np.int64)
    gap = costs.gap or (0,) * stages
    return Times(forward, backward, weight, first, second, costs.forward_transit, costs.backward_transit, gap)
