"""Process groups of a rank, and which part of a parameter it holds."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tracelens.planner.config import Layout
from tracelens.workload.parallel.collectives import Group

GROUPS = {
    "pp": ("pp",),
    "tp": ("tp",),
    "cp": ("cp",),
    "ep": ("ep",),
    "edp": ("edp",),
    "sequence": ("cp", "tp"),
    "dense": ("dp", "cp"),
    "stage": ("dp", "cp", "tp"),
}
"""Dimensions in which the ranks of each group differ, as Layout.groups takes them."""


def description(name: str) -> str:
    """What a trace calls a group of GROUPS: by its dimensions, of which a reader knows what they are for."""
    return "_".join(GROUPS[name])


@dataclass(frozen=True)
class Groups:
    """The process groups that a rank is in; None for a group of one.

    Attributes:
        layout: the whole grid.
        rank: number of this rank.
        pp: ranks with the other stages of the same pipeline.
        tp: ranks that share dense matrices.
        cp: ranks that share sequences in attention.
        ep: ranks that share the experts.
        edp: ranks with the same experts.
        sequence: ranks with other tokens of the same sequences.
        dense: ranks with the same shards of dense matrices.
        stage: ranks of the same pipeline stage: with the same parameters where these are not sharded.
    """

    layout: Layout
    rank: int = 0
    pp: Group = None
    tp: Group = None
    cp: Group = None
    ep: Group = None
    edp: Group = None
    sequence: Group = None
    dense: Group = None
    stage: Group = None

    def coordinate(self, name: str) -> int:
        """This rank's coordinate in a dimension: pp, dp, cp, tp, ep or edp."""
        return self.layout.coordinates(self.rank)[name]


def make_groups(layout: Layout, rank: int) -> Groups:
    """The groups of a rank; every rank must call it, and torch.distributed must run if there are several."""
    groups: dict[str, Group] = {}
    for name, dimensions in GROUPS.items():
        for ranks in layout.groups(*dimensions):
            if len(ranks) > 1:
                group = dist.new_group(ranks, group_desc=description(name))
                if rank in ranks:
                    groups[name] = group
    return Groups(layout, rank, **groups)


def shard(
    parameter: nn.Parameter, replicas: str, dim: int = 0, part: int = 0, parts: int = 1
) -> nn.Parameter:
    """Note on a parameter which part of the whole it is, and who holds the same part.

    Args:
        parameter: of a module.
        replicas: name of the group of ranks that hold the same: "stage", "dense" or "edp".
        dim: that is cut.
        part: number of this rank's part.
        parts: that there are.
    """
    parameter.replicas, parameter.cut = replicas, (dim, part, parts)
    return parameter


def initialise(model: nn.Module, seed: int, std: float) -> None:
    """Fill all matrices with normal numbers that depend on the name of the parameter and not on the layout.

    Stacked weights of experts are drawn one by one, since a rank holds but some of them; norms keep their
    ones.
    """
    for name, parameter in model.named_parameters():
        if parameter.dim() < 2:
            continue
        dim, part, parts = getattr(parameter, "cut", (0, 0, 1))
        # Not getattr: every tensor has a method of that name.
        wide = vars(parameter).get("std", std)
        with torch.no_grad():
            if parameter.replicas == "edp":
                for index, expert in enumerate(parameter):
                    expert.copy_(
                        normal(expert.shape, f"{name}.{part * len(parameter) + index}", seed, expert) * wide
                    )
            else:
                shape = list(parameter.shape)
                shape[dim] *= parts
                full = normal(torch.Size(shape), name, seed, parameter) * wide
                parameter.copy_(full.chunk(parts, dim)[part])


def normal(shape: torch.Size, name: str, seed: int, like: Tensor) -> Tensor:
    """Normal numbers that depend on shape, name and seed alone, on the device of another tensor."""
    generator = torch.Generator(like.device).manual_seed(zlib.crc32(name.encode()) + seed)
    return torch.randn(shape, generator=generator, device=like.device)
