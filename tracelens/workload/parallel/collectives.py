"""Collectives that autograd knows, started and finished apart, so that other work can lie in between.

    pending = start(x, collective)    # on its way
    ...                               # work that hides it
    y = finish(pending)

In the backward pass the roles change: the gradient is on its way from the backward of `finish` to that of
`start`, and the backward of what lay in between hides it. Dimension 0 is what is split and joined.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function

Group = Any
"""A torch.distributed.ProcessGroup, or None for a group of one rank."""

# torch 2.13 renamed both and warns of the old names.
all_gather_into: Callable[..., Any] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_into: Callable[..., Any] = (
    getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
)


@dataclass(frozen=True)
class AllToAll:
    """Rows to every rank of the group.

    Attributes:
        group: ranks.
        send: rows for each rank, in their order; None for equal shares.
        receive: rows from each rank; None for equal shares.
    """

    group: Group
    send: list[int] | None = None
    receive: list[int] | None = None

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
    """A tensor on its way.

    Attributes:
        y: what arrives; not to be read before `finish`.
        collective: how it travels; None where a group of one rank has nobody to talk to.
        work: handle of the collective in flight, of the result or of its gradient.
        grad: gradient on its way back.
    """

    y: Tensor
    collective: Collective | None
    work: Any = None
    grad: Tensor | None = None

    def enter(self, change: Callable[[Any], Any]) -> None:
        """Enter a region of the trace (Region.enter): what arrives is its input, as any other tensor."""
        self.y = change(self.y)


def _nothing() -> None:
    """No other micro-batch to go on with."""


class Waiting:
    """What is called before a wait for a collective: `overlap` lets another micro-batch run there."""

    before: Callable[[], None] = staticmethod(_nothing)


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
