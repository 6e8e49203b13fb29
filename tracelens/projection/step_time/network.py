"""How long a message takes: bytes over the rate of links and NICs, and a latency.

Ranks are numbered so that those of a node follow each other, and a node's ranks leave it through a NIC each.
All-to-all goes to each other rank at once; rings of gathers and reductions go around a node's links and, in
parallel over its ranks, through its NICs. The slower of both counts, since they work at the same time.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache

from tracelens.config.layout import Layout
from tracelens.devices import Device
from tracelens.errors import TracelensError
from tracelens.expected.message import Collective
from tracelens.projection.step_time.machine import MESH_LINKS, Machine

_REDUCTIONS = ("all_gather", "reduce_scatter")


@dataclass(frozen=True)
class Network:
    """The links of the ranks of a layout.

    Attributes:
        layout: of the run.
        device: each rank's.
        machine: what is assumed.
    """

    layout: Layout
    device: Device
    machine: Machine

    @property
    def node(self) -> int:
        """Ranks of a node."""
        return self.layout.node or self.machine.node

    def nanoseconds(self, collective: Collective, group: str, ranks: int, sent: int, received: int) -> float:
        """Time of one message.

        Args:
            collective: how it is exchanged.
            group: name of the process group, as in `tracelens.expected.Message`.
            ranks: of the group.
            sent: bytes of the buffer that a rank gives.
            received: bytes of the buffer that it gets.

        Raises:
            TracelensError: the device's link rate is not known and the message takes it.
        """
        if ranks == 1:
            return 0.0
        near = self.neighbours(group, ranks)
        latency = self.machine.link_latency_ns if near == ranks else self.machine.nic_latency_ns
        if collective in ("send", "recv"):
            seconds = self._pair(max(sent, received), near)
        elif collective in ("all_to_all", "deepep"):
            seconds = self._exchange(max(sent, received), ranks, near)
        elif collective in _REDUCTIONS:
            seconds = self._ring(max(sent, received), ranks, near)
        else:
            # An all-reduce is a reduce-scatter and an all-gather; a broadcast passes all bytes on once.
            times = 2 if collective == "all_reduce" else 1
            seconds = times * self._ring(sent, ranks, near)
        return latency + seconds * 1e9

    def neighbours(self, group: str, ranks: int) -> int:
        """Ranks of a group that share a node, where they are fewest."""
        if group == "dp_node":
            return ranks
        if group == "dp_across":
            return 1
        if group == "pp":
            return ranks if self.layout.ranks <= self.node else 1
        return _fewest(self._stride(group), ranks, self.node, self.layout.stage_ranks)

    def _stride(self, group: str) -> int:
        """Distance between neighbouring ranks of a group."""
        layout = self.layout
        return {"cp": layout.tp, "dp_cp": layout.tp, "edp": layout.experts_over}.get(group, 1)

    def _exchange(self, size: int, ranks: int, near: int) -> float:
        inside = size * (near - 1) / ranks / self._links(near) if near > 1 else 0.0
        return max(inside, size * (ranks - near) / ranks / self.machine.nic_bytes_per_s)

    def _ring(self, size: int, ranks: int, near: int) -> float:
        inside = size * (ranks - 1) / ranks / self._links(near) if near > 1 else 0.0
        return max(inside, size * (ranks - near) / ranks / near / self.machine.nic_bytes_per_s)

    def _pair(self, size: int, near: int) -> float:
        return size / (self._links(2) if near > 1 else self.machine.nic_bytes_per_s)

    def _links(self, near: int) -> float:
        """Bytes/s from a rank to the others of so many in its node."""
        rate = self.device.gpu_link_bytes_per_s * self.machine.link_efficiency
        if not rate:
            raise TracelensError(
                f"the link rate of {self.device.name} is not known: add gpu_link_bytes_per_s to a device file"
            )
        return rate * min(1.0, (near - 1) / MESH_LINKS) if self.machine.is_mesh(self.device) else rate


@lru_cache(maxsize=4096)
def _fewest(stride: int, count: int, node: int, stage: int) -> int:
    """Least number of a group's ranks on one node, over the groups of the first stage."""
    if stage % node == 0 and node % stride == 0 and (stride * count) % node == 0:
        return node // stride
    if node % (stride * count) == 0:
        return count
    span = stride * count
    # Blocks lie alike on the nodes again after so many as there are ranks in a node.
    blocks = range(0, min(stage // span, node) * span, span)
    firsts = (block + first for block in blocks for first in range(min(stride, node)))
    members = (Counter(rank // node for rank in range(first, first + span, stride)) for first in firsts)
    return min(min(counts.values()) for counts in members)
