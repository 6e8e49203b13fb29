"""How long the bytes of a collective take over the links of a node and the NICs between nodes.

Of n ranks, m share a node. Each rank has its links to the others of its node and one NIC out of it, both work
at the same time, and the slower one counts. Of a message of b bytes, in the full buffer as nccl-tests counts
it:

- all-to-all: (m-1)/n of b over the links, (n-m)/n through the NIC;
- gather, scatter: by rings, (n-1)/n of b over the links of each rank, which passes all on that it lacks;
  what a node lacks, (n-m)/n of b, comes through the NICs of its m ranks, a ring through each;
- all-reduce: a scatter and a gather; broadcast: all bytes passed on once, as in a gather.
"""

from __future__ import annotations

from typing import NamedTuple

MESH_LINKS = 7
"""Links of a GPU in a fully connected node of eight, one to each other GPU."""


class Rates(NamedTuple):
    """Ways out of one rank, bytes/s.

    Attributes:
        links: to all other ranks of its node together.
        nic: to other nodes.
        is_mesh: whether each two ranks of a node have a link of their own, so that a group uses those between
            its ranks alone; else there is a switch.
    """

    links: float
    nic: float
    is_mesh: bool

    def among(self, near: int) -> float:
        """From a rank to the others of `near` in its node, at least 2."""
        return self.links * min(1.0, (near - 1) / MESH_LINKS) if self.is_mesh else self.links


def all_to_all_seconds(size: float, ranks: int, near: int, rates: Rates) -> float:
    """Each rank sends a part to each.

    Args:
        size: bytes that a rank sends, to itself included.
        ranks: of the group.
        near: of them on one node.
        rates: of each rank.
    """
    inside = size * (near - 1) / ranks / rates.among(near) if near > 1 else 0.0
    return max(inside, size * (ranks - near) / ranks / rates.nic)


def ring_seconds(size: float, ranks: int, near: int, rates: Rates) -> float:
    """Gather or scatter by rings.

    Args:
        size: bytes of the full buffer.
        ranks: of the group.
        near: of them on one node.
        rates: of each rank.
    """
    inside = size * (ranks - 1) / ranks / rates.among(near) if near > 1 else 0.0
    return max(inside, size * (ranks - near) / ranks / near / rates.nic)


def pair_seconds(size: float, is_near: bool, rates: Rates) -> float:
    """From one rank to another, on the same node or on another."""
    return size / (rates.among(2) if is_near else rates.nic)
