"""Collectives that autograd knows, started and finished apart, so that other work can lie in between.

    pending = start(x, collective)    # on its way
    ...                               # work that hides it
    y = finish(pending)

In the backward pass the roles change: the gradient is on its way from the backward of `finish` to that of
`start`, and the backward of what lay in between hides it. Dimension 0 is what is split and joined.

`Groups` holds the process groups of a rank, and knows which part of a parameter the rank has.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Function

from tracelens.planner.config import Layout

Group = Any
"""A torch.distributed.ProcessGroup, or None for a group of one rank."""
# torch 2.13 renamed both and warns of the old names.
all_gather_into: Callable[..., Any] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_into: Callable[..., Any] = (
    getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
)


@dataclass(frozen=True)
class AllToAll:
    """Rows to every rank of the group."""

    group: Group  # ranks
    send: list[int] | None = None  # rows for each rank, in their order; None for equal shares
    receive: list[int] | None = None  # rows from each rank; None for equal shares

    @property
    def transposed(self) -> AllToAll:
        return AllToAll(self.group, self.receive, self.send)

    def launch(self, x: Tensor) -> tuple[Tensor, Any]:
        rows = x.shape[0] if self.receive is None else sum(self.receive)
        y = x.new_empty(rows, *x.shape[1:])
        work = dist.all_to_all_single(
            y, x.contiguous(), self.receive, self.send, group=self.group, async_op=True
        )
        return y, work


@dataclass(frozen=True)
class AllGather:
    """The tensors of all ranks, joined."""

    group: Group

    @property
    def transposed(self) -> ReduceScatter:
        return ReduceScatter(self.group)

    def launch(self, x: Tensor) -> tuple[Tensor, Any]:
        y = x.new_empty(x.shape[0] * self.group.size(), *x.shape[1:])
        return y, all_gather_into(y, x.contiguous(), group=self.group, async_op=True)


@dataclass(frozen=True)
class ReduceScatter:
    """This rank's part of the sum over all ranks."""

    group: Group

    @property
    def transposed(self) -> AllGather:
        return AllGather(self.group)

    def launch(self, x: Tensor) -> tuple[Tensor, Any]:
        y = x.new_empty(x.shape[0] // self.group.size(), *x.shape[1:])
        return y, reduce_scatter_into(y, x.contiguous(), group=self.group, async_op=True)


Collective = AllToAll | AllGather | ReduceScatter
"""`launch` returns the result and the handle to wait for it by; `transposed` brings the gradients back."""


@dataclass
class Pending:
    """A tensor on its way."""

    y: Tensor  # what arrives; not to be read before `finish`
    collective: Collective | None  # how it travels; None where a group of one rank has nobody to talk to
    work: Any = None  # handle of the collective in flight, of the result or of its gradient
    grad: Tensor | None = None  # gradient on its way back

    def enter(self, change: Callable[[Any], Any]) -> None:
        """Enter a region of the trace (Region.enter): what arrives is its input, as any other tensor."""
        self.y = change(self.y)


class Waiting:
    """What is called before a wait for a collective: `overlap` lets another micro-batch run there."""

    before: Callable[[], None] = type(None)  # does nothing: there is no other micro-batch to go on with


class _Start(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, pending: Pending) -> Tensor:
        ctx.pending = pending
        assert pending.collective is not None
        y, pending.work = pending.collective.launch(x)
        # Gloo fills y on a thread of its own, which autograd would take for a change in place of what a
        # region of the trace has a view of by then: an alias with a version of its own is not touched.
        return y.data

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor, None]:
        pending = ctx.pending
        Waiting.before()
        pending.work.wait()
        gradient, pending.work = pending.grad, None
        # The graph outlives its backward; the gradient need not.
        del pending.grad
        return gradient, None


class _Finish(Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, pending: Pending) -> Tensor:
        ctx.pending = pending
        Waiting.before()
        pending.work.wait()
        pending.work = None
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        pending = ctx.pending
        pending.grad, pending.work = pending.collective.transposed.launch(gradients[0])
        # Autograd wants a gradient of y's shape; that of x is the one on its way.
        return gradients[0], None


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


@dataclass(frozen=True)
class Groups:
    """The process groups that a rank is in; None for a group of one."""

    layout: Layout  # the whole grid
    rank: int = 0  # number of this rank
    pp: Group = None  # ranks with the other stages of the same pipeline
    tp: Group = None  # ranks that share dense matrices
    cp: Group = None  # ranks that share sequences in attention
    ep: Group = None  # ranks that share the experts
    edp: Group = None  # ranks with the same experts
    sequence: Group = None  # ranks with other tokens of the same sequences
    dense: Group = None  # ranks with the same shards of dense matrices
    # ranks of the same pipeline stage: with the same parameters where these are not sharded
    stage: Group = None

    def coordinate(self, name: str) -> int:
        """This rank's coordinate in a dimension: pp, dp, cp, tp, ep or edp."""
        return self.layout.coordinates(self.rank)[name]


def start(x: Tensor, collective: Collective) -> Pending:
    """Send x on its way; with a group of None it stays where it is."""
    if collective.group is None:
        return Pending(x, None)
    pending = Pending(x, collective)
    pending.y = _Start.apply(x, pending)
    return pending


def finish(pending: Pending) -> Tensor:
    """What has arrived."""
    y = pending.y
    # Its history holds `pending`: with the reverse, only the garbage collector would free it.
    del pending.y
    return y if pending.collective is None else _Finish.apply(y, pending)


def run_collective(x: Tensor, collective: Collective) -> Tensor:
    """Start and finish in one."""
    return finish(start(x, collective))


def all_reduce(x: Tensor, group: Group) -> Tensor:
    """The sum over the group's ranks, outside of autograd."""
    if group is None:
        return x
    x = x.clone()
    dist.all_reduce(x, group=group)
    return x


def host(*tensors: Tensor) -> list[list[int]]:
    """Values of device tensors, one list each: one copy, for which the host waits."""
    flat = iter(torch.cat([tensor.flatten() for tensor in tensors]).tolist())
    return [list(islice(flat, tensor.numel())) for tensor in tensors]


def description(name: str) -> str:
    """What a trace calls a group of GROUPS: by its dimensions, of which a reader knows what they are for."""
    return "_".join(GROUPS[name])


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
    """Note on a parameter that it is `part` of `parts` along `dim`, and who holds the same part.

    `replicas` is the name of the group of these ranks: "stage", "dense" or "edp".
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
