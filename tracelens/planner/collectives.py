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

That is `modeled_seconds`; `measured_time` is what was measured on the device (`tracelens.devices`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tracelens.devices import Measured, MessageTime, message_seconds

_PAIRS = ("send", "recv", "send_recv")

_FAR = 9.0
"""Standard deviations beyond which the normal distribution has nothing that counts."""

MESH_LINKS = 7
"""Links of a GPU in a fully connected node of eight, one to each other GPU."""

DEEPEP_CHUNK = 20
"""Tokens per RDMA message of DeepEP between nodes, as in most of its settings for 16 to 64 ranks.

DeepEP, deep_ep/buffer.py, get_dispatch_config and get_combine_config (20 to 32), 2025,
https://github.com/deepseek-ai/DeepEP.
"""


class LinkRates(NamedTuple):
    """Bandwidths of one rank, bytes/s."""

    links: float  # to all other ranks on its node together
    nic: float  # to other nodes
    # each pair of ranks on a node has its own link, so that a group uses only the links between its ranks;
    # otherwise there is a switch
    is_mesh: bool
    messages: float = math.inf  # that the NIC sends per second
    measured: Measured = Measured()  # on the device; for `measured_time`

    def among(self, near: int) -> float:
        """Bandwidth of a rank within a group of `near` ranks on its node, at least 2."""
        return self.links * self.share(near)

    def share(self, near: int) -> float:
        """Share of a rank's links that are between `near` ranks of its node."""
        return min(1.0, (near - 1) / MESH_LINKS) if self.is_mesh else 1.0

    def through_nic(self, size: float, messages: float) -> float:
        """Seconds that a NIC takes for these bytes in so many messages."""
        return max(size / self.nic, messages / self.messages)


def measured_time(
    collective: str, size: float, ranks: int, near: int, rates: LinkRates, skew: float = 1.0
) -> MessageTime | None:
    """Time with latency, measured on the device inside a node; None where that was not, or between nodes.

    The bus bandwidth is that among the nearest number of ranks; in a mesh it grows with the links between
    them. In an all-to-all of uneven parts the busiest rank has `size` bytes, `skew` times the mean.
    """
    is_pair = collective in _PAIRS
    if near < (2 if is_pair else ranks):
        return None
    among = 2 if is_pair else ranks
    known = message_seconds(rates.measured, "send_recv" if is_pair else collective, size, among, skew)
    if known is None or is_pair:
        return known
    return known._replace(seconds=known.seconds * rates.share(known.ranks) / rates.share(ranks))


def modeled_seconds(collective: str, size: float, ranks: int, near: int, rates: LinkRates) -> float:
    """Time by the bandwidths of links and NICs."""
    if collective in _PAIRS:
        return pair_seconds(size, near > 1, rates)
    if collective == "all_to_all":
        return all_to_all_seconds(size, ranks, near, rates)
    # An all-reduce is a reduce-scatter and an all-gather; a broadcast sends all bytes once.
    return (2 if collective == "all_reduce" else 1) * ring_seconds(size, ranks, near, rates)


def all_to_all_seconds(size: float, ranks: int, near: int, rates: LinkRates) -> float:
    """All-to-all in which each of `ranks`, `near` on one node, sends `size` bytes, itself included."""
    inside = size * (near - 1) / ranks / rates.among(near) if near > 1 else 0.0
    return max(inside, rates.through_nic(size * (ranks - near) / ranks, ranks - near))


def deepep_seconds(
    tokens: float, row: int, copies: tuple[float, float], ranks: int, near: int, rates: LinkRates
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


def ring_seconds(size: float, ranks: int, near: int, rates: LinkRates) -> float:
    """Ring all-gather or reduce-scatter of a full buffer of `size` bytes; `near` of `ranks` on one node."""
    inside = size * (ranks - 1) / ranks / rates.among(near) if near > 1 else 0.0
    return max(inside, size * (ranks - near) / ranks / near / rates.nic)


def pair_seconds(size: float, is_near: bool, rates: LinkRates) -> float:
    """Send from one rank to another, on the same node or not."""
    return size / (rates.among(2) if is_near else rates.nic)


def broadcast_seconds(size: float, nodes: int, near: int, rates: LinkRates) -> float:
    """Least time of a broadcast: each other rank takes in all bytes, each other node through its NICs."""
    inside = size / rates.among(near) if near > 1 else 0.0
    return max(inside, size / near / rates.nic if nodes > 1 else 0.0)


class StepLatency(NamedTuple):
    """Latency of one step of a collective, seconds: send, arrive, be noticed."""

    link_s: float
    nic_s: float


class AlphaBeta(NamedTuple):
    """A time that grows with message size: alpha + bytes x beta."""

    link_steps: int  # steps over links, one after the other, on the longest path
    nic_steps: int  # steps between nodes on that path
    alpha_s: float  # latency of all these steps
    beta_s: float  # seconds per byte of the busiest link or NIC

    def seconds(self, size: float) -> float:
        return self.alpha_s + size * self.beta_s

    @classmethod
    def of(cls, link_steps: int, nic_steps: int, steps: StepLatency, beta_s: float) -> AlphaBeta:
        return cls(link_steps, nic_steps, link_steps * steps.link_s + nic_steps * steps.nic_s, beta_s)


def ring_all_reduce(nodes: int, near: int, rates: LinkRates, steps: StepLatency) -> AlphaBeta:
    """All-reduce in rings over all n = nodes x near ranks, node by node.

    As many rings as use all links and all NICs share the buffer. In each, a rank passes a chunk of 1/n of its
    share to the next rank in 2 (n-1) steps, so a rank sends 2 (n-1)/n of the buffer over its links, and
    1/near of that through its NIC. A chunk goes around twice less two steps: those leave out two links where
    a node has three ranks or more, a link and a hop between nodes where it has two.
    """
    ranks = nodes * near
    passes = 2 * (ranks - 1)
    between = 0 if nodes == 1 else passes if near == 1 else 2 * nodes - (near == 2)
    passed = passes / ranks
    inside_s = passed / rates.among(near) if near > 1 else 0.0
    between_s = passed / near / rates.nic if nodes > 1 else 0.0
    return AlphaBeta.of(passes - between, between, steps, max(inside_s, between_s))


def one_shot_all_reduce(nodes: int, near: int, rates: LinkRates, steps: StepLatency) -> AlphaBeta:
    """All-reduce in one step: each rank sends the whole buffer to all others and adds up what arrives.

    near - 1 buffers leave over links, (nodes - 1) near through the NIC.
    """
    inside_s = (near - 1) / rates.among(near) if near > 1 else 0.0
    between_s = (nodes - 1) * near / rates.nic
    return AlphaBeta.of(int(nodes == 1), int(nodes > 1), steps, max(inside_s, between_s))


def two_shot_all_reduce(nodes: int, near: int, rates: LinkRates, steps: StepLatency) -> AlphaBeta:
    """All-reduce in two steps: a reduce-scatter and an all-gather, each directly between all ranks.

    In each step a rank sends 1/n of the buffer to each other rank: (near - 1)/n over links,
    (nodes - 1) near/n through the NIC, as in an all-to-all.
    """
    ranks = nodes * near
    beta_s = 2 * all_to_all_seconds(1.0, ranks, near, rates)
    return AlphaBeta.of(2 * (nodes == 1), 2 * (nodes > 1), steps, beta_s)


def hierarchical_all_reduce(nodes: int, near: int, rates: LinkRates, steps: StepLatency) -> AlphaBeta:
    """All-reduce in a reduce-scatter inside each node, an all-reduce between nodes and an all-gather inside.

    All steps are direct. Inside, a rank sends (near - 1)/near of the buffer in each of two steps. Its share
    of 1/near is then summed with the ranks of the same place on other nodes, all NICs at once, in two steps
    of (nodes - 1)/nodes of the share. The parts follow each other, so their times add up.
    """
    inside_s = 2 * (near - 1) / near / rates.among(near) if near > 1 else 0.0
    between_s = 2 * (nodes - 1) / nodes / near / rates.nic
    return AlphaBeta.of(2 * (near > 1), 2 * (nodes > 1), steps, inside_s + between_s)


def all_reduce_seconds(size: float, nodes: int, near: int, rates: LinkRates) -> float:
    """Least transfer time of an all-reduce: rings, two-shot, or a hierarchy whose parts overlap."""
    inside_s = 2 * (near - 1) / near / rates.among(near) if near > 1 else 0.0
    between_s = 2 * (nodes - 1) / nodes / near / rates.nic
    no_latency = StepLatency(0.0, 0.0)
    flat = (ring_all_reduce, two_shot_all_reduce)
    betas = [algorithm(nodes, near, rates, no_latency).beta_s for algorithm in flat]
    return size * min(max(inside_s, between_s), *betas)


def traffic_seconds(sent: Sequence[Sequence[float]], node_of: Sequence[int], rates: LinkRates) -> float:
    """Least time of an uneven all-to-all: that of the busiest link, NIC or rank.

    Args:
        sent: bytes from each rank (row) to each other (column); what stays on a rank costs nothing.
        node_of: node of each rank.
        rates: of one rank. In a mesh each pair has a link of 1/MESH_LINKS of `links`.
    """
    numbers = range(len(node_of))
    slowest = 0.0
    for rank in numbers:
        inside = [peer for peer in numbers if peer != rank and node_of[peer] == node_of[rank]]
        outside = [peer for peer in numbers if node_of[peer] != node_of[rank]]
        for near, far in (
            ([sent[rank][peer] for peer in inside], [sent[rank][peer] for peer in outside]),
            ([sent[peer][rank] for peer in inside], [sent[peer][rank] for peer in outside]),
        ):
            over_links = max(sum(near), MESH_LINKS * max(near, default=0.0) if rates.is_mesh else 0.0)
            slowest = max(slowest, over_links / rates.links if over_links else 0.0, sum(far) / rates.nic)
    return slowest
