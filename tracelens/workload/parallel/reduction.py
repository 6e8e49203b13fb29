"""Gradients summed over the ranks that hold the same parameters: a few moves on one flat buffer, in place.

    reduce_scatter   each rank gets the sum of its own share of the buffer
    all_reduce       each rank gets the whole sum
    hierarchical     reduce-scatter inside the node, all-reduce of that share across nodes between ranks with
                     the same place in their node, all-gather inside the node: as all_reduce, but only
                     1 / (ranks a node) of the buffer leaves the node

Where a node holds all ranks of a group, or each node but one, there is one level only, and hierarchical is
all_reduce.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

import torch.distributed as dist
from torch import Tensor

from tracelens.errors import TracelensError
from tracelens.planner.config import ReductionName
from tracelens.workload.parallel.collectives import Group, all_gather_into, reduce_scatter_into
from tracelens.workload.parallel.groups import GROUPS, Groups, description

CollectiveName = Literal["reduce_scatter", "all_reduce", "all_gather"]

REPLICAS = ("stage", "dense", "edp")
"""Groups that may hold the same parameters: what `parameter.replicas` says."""


@dataclass(frozen=True)
class Message:
    """One collective of every step, as this rank takes part in it.

    Attributes:
        scope: in which it stands in the trace.
        collective: what it does.
        group: description of its process group.
        ranks: in the group.
        bytes: of the whole message: what goes in for a reduce-scatter, what comes out for an all-gather.
    """

    scope: str
    collective: CollectiveName
    group: str
    ranks: tuple[int, ...]
    bytes: int


@dataclass(frozen=True)
class Team:
    """Ranks joined by a process group.

    Attributes:
        name: description of the group.
        ranks: of the group, ascending.
        group: to communicate with.
    """

    name: str
    ranks: tuple[int, ...]
    group: Group


@dataclass(frozen=True)
class Move:
    """One collective on a flat buffer, or on a share of it.

    Attributes:
        collective: a reduce-scatter leaves its result in the rank's place of what it works on, where an
            all-gather finds its input.
        team: who takes part.
        rank: this one.
        part: number of the share that it works on.
        parts: shares that the buffer is cut into.
    """

    collective: CollectiveName
    team: Team
    rank: int
    part: int = 0
    parts: int = 1

    def run(self, flat_N: Tensor) -> None:
        """Do it; N is a multiple of `parts` times the ranks."""
        part_n, group = share(flat_N, self.part, self.parts), self.team.group
        share_m = share(part_n, self.team.ranks.index(self.rank), len(self.team.ranks))
        if self.collective == "all_reduce":
            dist.all_reduce(part_n, group=group)
        elif self.collective == "reduce_scatter":
            reduce_scatter_into(share_m, part_n, group=group)
        else:
            all_gather_into(part_n, share_m, group=group)

    def message(self, scope: str, flat_bytes: int) -> Message:
        """What it sends for a buffer of so many bytes."""
        return Message(scope, self.collective, self.team.name, self.team.ranks, flat_bytes // self.parts)


def share(flat_N: Tensor, part: int, parts: int) -> Tensor:
    """One of so many equal shares, as a view."""
    size = flat_N.numel() // parts
    return flat_N.narrow(0, part * size, size)


def by_node(ranks: Sequence[int], node: int) -> list[tuple[int, ...]]:
    """Ranks of a group, ascending, by node of so many ranks.

    Raises:
        TracelensError: one node holds more of them than another.
    """
    nodes = [tuple(on_node) for _, on_node in groupby(ranks, lambda rank: rank // node)]
    if len(sizes := sorted(set(map(len, nodes)))) > 1:
        raise TracelensError(
            f"grad_reduce=hierarchical: ranks {', '.join(map(str, ranks))} hold the same parameters, but "
            f"some nodes of {node} have {sizes[0]} of them, others {sizes[-1]}: choose a layout or node size "
            "that spreads them evenly, or another grad_reduce"
        )
    return nodes


def full_team(groups: Groups, replicas: str) -> Team | None:
    """All ranks with the same parameters as this one; None if there are no others."""
    group = getattr(groups, replicas)
    if group is None:
        return None
    return Team(description(replicas), tuple(sorted(dist.get_process_group_ranks(group))), group)


def make_reductions(kind: ReductionName, groups: Groups) -> dict[str, list[Move]]:
    """For each of REPLICAS the moves that sum gradients over it; no moves where there is one rank.

    Every rank must call it at the same time if `kind` is hierarchical, which makes process groups.

    Raises:
        TracelensError: hierarchical, and the ranks of a group lie unevenly on nodes.
    """
    levels = _make_levels(groups) if kind == "hierarchical" else {}
    moves: dict[str, list[Move]] = {}
    for replicas in REPLICAS:
        team = full_team(groups, replicas)
        if team is None:
            moves[replicas] = []
        elif replicas in levels:
            inside, across = levels[replicas]
            part, parts = inside.ranks.index(groups.rank), len(inside.ranks)
            moves[replicas] = [
                Move("reduce_scatter", inside, groups.rank),
                Move("all_reduce", across, groups.rank, part, parts),
                Move("all_gather", inside, groups.rank),
            ]
        else:
            flat: CollectiveName = "reduce_scatter" if kind == "reduce_scatter" else "all_reduce"
            moves[replicas] = [Move(flat, team, groups.rank)]
    return moves


def _make_levels(groups: Groups) -> dict[str, tuple[Team, Team]]:
    """For each of REPLICAS with two levels this rank's node and its counterparts on the others."""
    layout, levels = groups.layout, {}
    # Two of REPLICAS are often the same ranks; they need no communicators of their own.
    made: dict[tuple[int, ...], Team] = {}

    def team(name: str, ranks: tuple[int, ...]) -> Team:
        if ranks not in made:
            made[ranks] = Team(name, ranks, dist.new_group(list(ranks), group_desc=name))
        return made[ranks]

    cut = {
        replicas: [by_node(ranks, layout.node or layout.ranks) for ranks in layout.groups(*GROUPS[replicas])]
        for replicas in REPLICAS
    }
    for replicas, all_nodes in cut.items():
        for nodes in all_nodes:
            if len(nodes) == 1 or len(nodes[0]) == 1:
                continue
            inside = [team("dp_node", ranks) for ranks in nodes]
            across = [team("dp_across", ranks) for ranks in zip(*nodes, strict=True)]
            for node in inside:
                if groups.rank in node.ranks:
                    levels[replicas] = (node, across[node.ranks.index(groups.rank)])
    return levels
