"""On which nodes the ranks of a recorded group are, and the least time of its collectives there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from tracelens.analysis.comm import SEND_RECV, AlignedRun, MatchedCollective, traffic_matrices
from tracelens.planner.bounds.platform import Platform
from tracelens.planner.collectives import (
    all_reduce_seconds,
    all_to_all_seconds,
    broadcast_seconds,
    pair_seconds,
    ring_seconds,
    traffic_seconds,
)
from tracelens.trace import collective_of

_STEPS = {"all_reduce": 2}
"""Least steps of a collective, where it is not one."""


class Place(NamedTuple):
    """A process group on its nodes.

    Attributes:
        ranks: of the group.
        nodes: number of nodes.
        near: fewest ranks of the group on one of them.
    """

    ranks: int
    nodes: int
    near: int


class LinkBound(NamedTuple):
    """Least time of a collective, seconds.

    Attributes:
        transfer_s: its bytes over the busiest link.
        latency_s: of its steps.
        between: whether the network is among its links.
    """

    transfer_s: float
    latency_s: float
    between: bool

    @property
    def limit(self) -> str:
        """What it waits for most: links, network, or latency where the steps take longer than the bytes."""
        if self.latency_s > self.transfer_s:
            return "latency"
        return "network" if self.between else "links"


def node_numbers(aligned: AlignedRun, platform: Platform) -> dict[int, int]:
    """Node of each rank: its host where the run has all ranks of its groups, else by the GPUs per node."""
    host = {clock.rank: clock.host for clock in aligned.clocks}
    grouped = {
        rank
        for communication in aligned.ranks
        for record in communication.records
        for rank in record.group_ranks
    }
    if grouped <= set(host):
        return host
    return {rank: rank // platform.gpus_per_node for rank in grouped | set(host)}


def place(collective: MatchedCollective, node_of: Mapping[int, int]) -> Place:
    """Where the group of a collective is."""
    record = collective.participants[0].record
    ranks = record.group_ranks or tuple(participant.rank for participant in collective.participants)
    if collective.collective == SEND_RECV:
        ranks = tuple(participant.rank for participant in collective.participants)
    on_node = Counter(node_of.get(rank, -1) for rank in ranks)
    return Place(len(ranks), len(on_node), min(on_node.values()))


def link_bound(
    collective: MatchedCollective, node_of: Mapping[int, int], platform: Platform
) -> LinkBound | None:
    """The least time of a collective on its links; None where its kind or size is not recorded.

    An all-to-all with recorded split sizes takes those; one without is taken as even.
    """
    size, kind = collective.bytes, collective_of(collective.collective)
    group = place(collective, node_of)
    if collective.collective == SEND_RECV:
        kind = "send_recv"
    if size <= 0 or group.ranks < 2 or kind in ("", "barrier"):
        return None
    transfer_s = _transfer_seconds(collective, kind, size, group, node_of, platform)
    step_ns = platform.link_step_ns if group.nodes == 1 else platform.nic_step_ns
    return LinkBound(transfer_s, _STEPS.get(kind, 1) * step_ns / 1e9, group.nodes > 1)


def _transfer_seconds(
    collective: MatchedCollective,
    kind: str,
    size: int,
    group: Place,
    node_of: Mapping[int, int],
    platform: Platform,
) -> float:
    rates = platform.rates()
    if kind == "send_recv":
        return pair_seconds(size, group.nodes == 1, rates)
    if kind == "all_to_all":
        matrices = traffic_matrices(collective)
        if matrices is None:
            return all_to_all_seconds(size, group.ranks, group.near, rates)
        ranks, sent, _ = matrices
        return traffic_seconds(sent.tolist(), [node_of[rank] for rank in ranks], rates)
    if kind == "all_reduce":
        return all_reduce_seconds(size, max(group.ranks // group.near, 1), group.near, rates)
    if kind == "broadcast":
        return broadcast_seconds(size, group.nodes, group.near, rates)
    return ring_seconds(size, group.ranks, group.near, rates)
