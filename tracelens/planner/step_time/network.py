"""Times of messages: bytes over link and NIC bandwidth, plus a latency; consecutive ranks share a node.

Messages to other nodes also take the message rate of the NIC; see `planner.collectives`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache

from tracelens.arrays import Int
from tracelens.devices import Device
from tracelens.errors import TracelensError
from tracelens.planner.collectives import (
    Rates,
    all_to_all_seconds,
    deepep_seconds,
    pair_seconds,
    ring_seconds,
)
from tracelens.planner.config import Layout, Model
from tracelens.planner.distinct import Spread, balanced_spread, routed_spread
from tracelens.planner.expected import Collective
from tracelens.planner.step_time.machine import Machine

_REDUCTIONS = ("all_gather", "reduce_scatter")


@dataclass(frozen=True)
class Network:
    """The network of the ranks of a layout."""

    layout: Layout
    device: Device
    machine: Machine

    @property
    def node(self) -> int:
        return self.layout.node or self.machine.node

    def nanoseconds(self, collective: Collective, group: str, ranks: int, sent: int, received: int) -> float:
        """Time of one message.

        Args:
            collective: its kind.
            group: name of the process group, as in `tracelens.planner.expected.Message`.
            ranks: size of the group.
            sent: bytes of the send buffer.
            received: bytes of the receive buffer.

        Raises:
            TracelensError: the message takes links of unknown bandwidth.
        """
        if ranks == 1:
            return 0.0
        near = self.neighbours(group, ranks)
        rates = self._rates(near)
        if collective in ("send", "recv"):
            seconds = pair_seconds(max(sent, received), near > 1, rates)
        elif collective == "all_to_all":
            seconds = all_to_all_seconds(max(sent, received), ranks, near, rates)
        elif collective in _REDUCTIONS:
            seconds = ring_seconds(max(sent, received), ranks, near, rates)
        else:
            # An all-reduce is a reduce-scatter and an all-gather; a broadcast sends all bytes once.
            times = 2 if collective == "all_reduce" else 1
            seconds = times * ring_seconds(sent, ranks, near, rates)
        return self._latency(near, ranks) + seconds * 1e9

    def deepep_nanoseconds(self, tokens: float, row: int, spread: Spread, ranks: int) -> float:
        """Time of DeepEP's dispatch or combine of `tokens` of `row` bytes each on a rank.

        Raises:
            TracelensError: it takes links of unknown bandwidth.
        """
        if ranks == 1:
            return 0.0
        near = self.neighbours("ep", ranks)
        copies = (spread.ranks, spread.nodes)
        seconds = deepep_seconds(tokens, row, copies, ranks, near, self._rates(near))
        return self._latency(near, ranks) + seconds * 1e9

    def spread(self, model: Model, expert_ids_TK: Int | None = None) -> Spread:
        """Distinct ranks and nodes of a token's experts, of a recorded routing or else balanced."""
        ranks = self.layout.experts_over
        near = self.neighbours("ep", ranks) if ranks > 1 else 1
        if expert_ids_TK is None:
            return balanced_spread(model, ranks, near)
        return routed_spread(expert_ids_TK, model, ranks, near)

    def _latency(self, near: int, ranks: int) -> int:
        return self.machine.link_latency_ns if near == ranks else self.machine.nic_latency_ns

    def neighbours(self, group: str, ranks: int) -> int:
        """Fewest ranks of a group that share a node."""
        if group == "dp_node":
            return ranks
        if group == "dp_across":
            return 1
        if group == "pp":
            return ranks if self.layout.ranks <= self.node else 1
        return _fewest(self._stride(group), ranks, self.node, self.layout.stage_ranks)

    def _stride(self, group: str) -> int:
        """Distance between consecutive ranks of a group."""
        layout = self.layout
        return {"cp": layout.tp, "dp_cp": layout.tp, "edp": layout.experts_over}.get(group, 1)

    def _rates(self, near: int) -> Rates:
        rates = self.machine.rates(self.device)
        if near > 1 and not rates.links:
            raise TracelensError(
                f"the link rate of {self.device.name} is unknown: add gpu_link_bytes_per_s to a device file"
            )
        return rates


@lru_cache(maxsize=4096)
def _fewest(stride: int, count: int, node: int, stage: int) -> int:
    """Fewest ranks of a group on one node, over the groups of the first stage."""
    if stage % node == 0 and node % stride == 0 and (stride * count) % node == 0:
        return node // stride
    if node % (stride * count) == 0:
        return count
    span = stride * count
    # The placement of blocks on nodes repeats after `node` blocks.
    blocks = range(0, min(stage // span, node) * span, span)
    firsts = (block + first for block in blocks for first in range(min(stride, node)))
    ranks_on_node = (Counter(rank // node for rank in range(first, first + span, stride)) for first in firsts)
    return min(min(counts.values()) for counts in ranks_on_node)
