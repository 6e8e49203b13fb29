"""Transfer times of collectives over the links of a node and the NICs between nodes.

m of n ranks share a node. Each rank has links to the others on its node and one NIC; both transfer at the
same time, and the slower one counts. For a message of b bytes (the full buffer, as in nccl-tests):

- all-to-all: (m-1)/n of b over the links, (n-m)/n through the NIC;
- all-gather, reduce-scatter: rings, (n-1)/n of b over the links of each rank; (n-m)/n of b enters a node
  through the NICs of its m ranks, one ring through each;
- all-reduce: a reduce-scatter and an all-gather; broadcast: all bytes once, as an all-gather.
"""

from __future__ import annotations

from typing import NamedTuple

MESH_LINKS = 7
"""Links of a GPU in a fully connected node of eight, one to each other GPU."""


class Rates(NamedTuple):
    """Bandwidths of one rank, bytes/s.

    Attributes:
        links: to all other ranks on its node together.
        nic: to other nodes.
        is_mesh: each pair of ranks on a node has its own link, so that a group uses only the links between
            its ranks; otherwise there is a switch.
    """

    links: float
    nic: float
    is_mesh: bool

    def among(self, near: int) -> float:
        """Bandwidth of a rank within a group of `near` ranks on its node, at least 2."""
        return self.links * min(1.0, (near - 1) / MESH_LINKS) if self.is_mesh else self.links


def all_to_all_seconds(size: float, ranks: int, near: int, rates: Rates) -> float:
    """All-to-all in which each of `ranks`, `near` on one node, sends `size` bytes, itself included."""
    inside = size * (near - 1) / ranks / rates.among(near) if near > 1 else 0.0
    return max(inside, size * (ranks - near) / ranks / rates.nic)


def ring_seconds(size: float, ranks: int, near: int, rates: Rates) -> float:
    """Ring all-gather or reduce-scatter of a full buffer of `size` bytes; `near` of `ranks` on one node."""
    inside = size * (ranks - 1) / ranks / rates.among(near) if near > 1 else 0.0
    return max(inside, size * (ranks - near) / ranks / near / rates.nic)


def pair_seconds(size: float, is_near: bool, rates: Rates) -> float:
    """Send from one rank to another, on the same node or not."""
    return size / (rates.among(2) if is_near else rates.nic)
