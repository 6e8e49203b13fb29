"""Transfer times of collectives over the links of a node and the NICs between nodes.

m of n ranks share a node. Each rank has links to the others on its node and one NIC; both transfer at the
same time, and the slower one counts. A NIC takes the longer of its bytes at its bandwidth and its messages at
its message rate. For a message of b bytes (the full buffer, as in nccl-tests):

- all-to-all: (m-1)/n of b over the links, (n-m)/n through the NIC as n-m messages;
- DeepEP: a token once per distinct node through the NIC, to the rank with the sender's place on that node,
  and from there over the links to the distinct ranks of the node. Of k nodes, (k-1)/k of the copies for
  nodes leave the sender's node, and (m-1)/m of those for ranks take a link;
- all-gather, reduce-scatter: rings, (n-1)/n of b over the links of each rank; (n-m)/n of b enters a node
  through the NICs of its m ranks, one ring through each;
- all-reduce: a reduce-scatter and an all-gather; broadcast: all bytes once, as an all-gather.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

_FAR = 9.0
"""Standard deviations beyond which the normal distribution has nothing that counts."""

MESH_LINKS = 7
"""Links of a GPU in a fully connected node of eight, one to each other GPU."""

DEEPEP_CHUNK = 20
"""Tokens per RDMA message of DeepEP between nodes, as in most of its settings for 16 to 64 ranks.

DeepEP, deep_ep/buffer.py, get_dispatch_config and get_combine_config (20 to 32), 2025,
https://github.com/deepseek-ai/DeepEP.
"""


class Rates(NamedTuple):
    """Bandwidths of one rank, bytes/s.

    Attributes:
        links: to all other ranks on its node together.
        nic: to other nodes.
        is_mesh: each pair of ranks on a node has its own link, so that a group uses only the links between
            its ranks; otherwise there is a switch.
        messages: that the NIC sends per second.
    """

    links: float
    nic: float
    is_mesh: bool
    messages: float = math.inf

    def among(self, near: int) -> float:
        """Bandwidth of a rank within a group of `near` ranks on its node, at least 2."""
        return self.links * min(1.0, (near - 1) / MESH_LINKS) if self.is_mesh else self.links

    def through_nic(self, size: float, messages: float) -> float:
        """Seconds that a NIC takes for these bytes in so many messages."""
        return max(size / self.nic, messages / self.messages)


def all_to_all_seconds(size: float, ranks: int, near: int, rates: Rates) -> float:
    """All-to-all in which each of `ranks`, `near` on one node, sends `size` bytes, itself included."""
    inside = size * (near - 1) / ranks / rates.among(near) if near > 1 else 0.0
    return max(inside, rates.through_nic(size * (ranks - near) / ranks, ranks - near))


def deepep_seconds(
    tokens: float, row: int, copies: tuple[float, float], ranks: int, near: int, rates: Rates
) -> float:
    """DeepEP's dispatch, or combine in the opposite direction, of one rank.

    Args:
        tokens: of a rank.
        row: bytes of a token.
        copies: distinct ranks and distinct nodes of a token, on average.
        ranks: of the group.
        near: of these, ranks on one node.
        rates: bandwidths of a rank.
    """
    to_ranks, to_nodes = (tokens * count for count in copies)
    inside = to_ranks * row * (near - 1) / near / rates.among(near) if near > 1 else 0.0
    leaving = to_nodes * (ranks - near) / ranks
    return max(inside, rates.through_nic(leaving * row, leaving / DEEPEP_CHUNK))


def expected_maximum(count: int) -> float:
    """Expected maximum of `count` draws from the standard normal distribution.

    The integral of x n phi(x) Phi(x)^(n-1) (Tippett, Biometrika 17, 1925), by parts.
    """
    x = np.linspace(-_FAR, _FAR, 4_001)
    below = np.array([0.5 * (1 + math.erf(bound / math.sqrt(2))) for bound in x.tolist()])
    return float(_FAR - np.trapezoid(below**count, x))


def ring_seconds(size: float, ranks: int, near: int, rates: Rates) -> float:
    """Ring all-gather or reduce-scatter of a full buffer of `size` bytes; `near` of `ranks` on one node."""
    inside = size * (ranks - 1) / ranks / rates.among(near) if near > 1 else 0.0
    return max(inside, size * (ranks - near) / ranks / near / rates.nic)


def pair_seconds(size: float, is_near: bool, rates: Rates) -> float:
    """Send from one rank to another, on the same node or not."""
    return size / (rates.among(2) if is_near else rates.nic)
