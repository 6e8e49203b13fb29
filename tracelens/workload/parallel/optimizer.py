"""AdamW whose state is shared out over the ranks that hold the same parameters (ZeRO, arXiv:1910.02054).

Parameters that the same ranks hold lie in one flat buffer, and their gradients in another: `parameter.data`
and `parameter.grad` are views, into which autograd adds in place. A step sums the gradients over the ranks,
updates this rank's share of the buffer and gathers the shares of the others. Bytes a parameter, with S ranks
that share it: in bfloat16 2 for itself, 2 for its gradient, (4 main copy + 8 Adam) / S; without main copies
4 / S for Adam; in float32 4, 4 and 8 / S.

Gradients are summed in place, in one of three ways (`grad_reduce`):

    reduce_scatter   each rank gets the sum of its own share of the buffer
    all_reduce       each rank gets the whole sum
    hierarchical     reduce-scatter inside the node, all-reduce of that share across nodes between ranks with
                     the same place in their node, all-gather inside the node: as all_reduce, but only
                     1 / (ranks a node) of the buffer leaves the node

Where a node holds all ranks of a group, or each node but one, there is one level only, and hierarchical is
all_reduce.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tracelens.errors import TracelensError
from tracelens.planner.config import Config, ReductionName
from tracelens.recording import span
from tracelens.workload.parallel.collectives import (
    GROUPS,
    Group,
    Groups,
    all_gather_into,
    description,
    reduce_scatter_into,
)

# A cache line of the GPUs; GEMM kernels want 16 bytes at least.
ALIGNMENT_BYTES = 128


class FlatBuffer:
    """Parameters of the same replicas in one piece, and their gradients in another.

    `replicas` says which ranks hold them, one of REPLICAS. The parameters are of one dtype and device; their
    data and gradients become views.
    """

    def __init__(
        self, replicas: str, parameters: list[nn.Parameter], groups: Groups, reduction: list[Move]
    ) -> None:
        self.replicas, self.parameters, self.reduction = replicas, parameters, reduction
        team = _full_team(groups, replicas)
        self.gather = [] if team is None else [Move("all_gather", team, groups.rank)]
        part, parts = (0, 1) if team is None else (team.ranks.index(groups.rank), len(team.ranks))
        first = parameters[0]
        step = ALIGNMENT_BYTES // first.element_size()
        starts, end = [], 0
        for parameter in parameters:
            if (parameter.dtype, parameter.device) != (first.dtype, first.device):
                raise TracelensError(
                    f"parameters with the same replicas ({replicas}) must have one dtype and device: found "
                    f"{first.dtype} on {first.device} and {parameter.dtype} on {parameter.device}"
                )
            starts.append(end)
            end += _up(parameter.numel(), step)
        # All parameters, each at a multiple of ALIGNMENT_BYTES, zeros up to equal shares; gradients alike.
        self.data_N = first.new_zeros(_up(end, step * parts), requires_grad=False)
        self.grad_N = torch.zeros_like(self.data_N)
        # This rank's share of both, the gradients summed once their moves have run.
        self.data_n, self.grad_n = _share(self.data_N, part, parts), _share(self.grad_N, part, parts)
        self._pointers: list[tuple[int, int]] = []
        for parameter, start in zip(parameters, starts, strict=True):
            data, grad = (
                flat_N.narrow(0, start, parameter.numel()).view(parameter.shape)
                for flat_N in (self.data_N, self.grad_N)
            )
            data.copy_(parameter.detach())
            parameter.data, parameter.grad = data, grad
            self._pointers.append((data.data_ptr(), grad.data_ptr()))

    def check(self) -> None:
        """Raise TracelensError if a parameter or gradient is no longer a view of the buffers."""
        for number, (parameter, (data, grad)) in enumerate(zip(self.parameters, self._pointers, strict=True)):
            for view, tensor, pointer in (("data", parameter, data), ("grad", parameter.grad, grad)):
                if tensor is None or tensor.data_ptr() != pointer:
                    raise TracelensError(
                        f"parameter {number} of {self.replicas}, {tuple(parameter.shape)}: its {view} was "
                        f"{'dropped' if tensor is None else 'replaced'}, but must stay a view of the flat "
                        "buffer: clear gradients by ShardedAdamW.zero_grad(), move or convert the model "
                        "before creating the optimizer"
                    )


class ShardedAdamW:
    """torch's AdamW on a share of the parameters, as if one rank had the summed gradients of all.

    A loss is a sum over ranks, so gradients are summed and not averaged. Gradients travel in the dtype of the
    parameters. A parameter that no loss reached counts as one with a gradient of zero. With main copies the
    first step takes them from the parameters, so that these may be initialized later than the optimizer;
    each step holds the gradients of the share once more in float32 for a while.

    Args:
        parameters: of all chunks of this rank, marked by `parallel.shard`; in the same order on all ranks.
        config: learning rate, main copies, and how gradients are reduced.
        groups: of this rank. Every rank must make its optimizer at the same time.

    Raises:
        TracelensError: a parameter has no such mark, is given twice, or differs in dtype or device;
            hierarchical, and the ranks lie unevenly on nodes.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], config: Config, groups: Groups) -> None:
        marked: dict[str, list[nn.Parameter]] = {replicas: [] for replicas in REPLICAS}
        seen: set[int] = set()
        for number, parameter in enumerate(parameters):
            replicas = getattr(parameter, "replicas", None)
            if replicas not in marked:
                raise TracelensError(
                    f"parameter {number}, {tuple(parameter.shape)}, is marked {replicas!r}: mark with "
                    f"parallel.shard() which ranks hold the same values: {', '.join(REPLICAS)}"
                )
            if id(parameter) in seen:
                raise TracelensError(
                    f"parameter {number}, {tuple(parameter.shape)}, was passed before: pass it once"
                )
            seen.add(id(parameter))
            marked[replicas].append(parameter)
        reductions = make_reductions(config.toggles.grad_reduce, groups)
        self.buffers = [
            FlatBuffer(replicas, marked[replicas], groups, reductions[replicas])
            for replicas in REPLICAS
            if marked[replicas]
        ]
        if not self.buffers:
            raise TracelensError("the optimizer has no parameters: this rank holds nothing of the model")
        self._copied = [
            config.training.main_params and buffer.data_N.dtype == torch.bfloat16 for buffer in self.buffers
        ]
        self._main = [
            torch.empty_like(buffer.data_n, dtype=torch.float32) if copied else buffer.data_n
            for buffer, copied in zip(self.buffers, self._copied, strict=True)
        ]
        self.adamw = torch.optim.AdamW(
            self._main, lr=config.training.learning_rate, fused=self.buffers[0].data_N.is_cuda
        )
        self._started = self._summed = False

    def step(self) -> None:
        """Sum the gradients over replicas, update this rank's share, gather all parameters.

        Raises:
            TracelensError: a parameter or gradient was replaced, or `zero_grad` left out since the last step.
        """
        if self._summed:
            raise TracelensError(
                "these gradients are sums of the last step: call zero_grad() after each step"
            )
        for buffer in self.buffers:
            buffer.check()
        with span("grad_reduce"):
            for buffer in self.buffers:
                for move in buffer.reduction:
                    move.run(buffer.grad_N)
        with span("opt"), torch.no_grad():
            shares = list(zip(self.buffers, self._main, self._copied, strict=True))
            for buffer, main_n, copied in shares:
                if copied and not self._started:
                    main_n.copy_(buffer.data_n)
                main_n.grad = buffer.grad_n.float() if copied else buffer.grad_n
            self.adamw.step()
            for buffer, main_n, copied in shares:
                main_n.grad = None
                if copied:
                    buffer.data_n.copy_(main_n)
        with span("param_gather"):
            for buffer in self.buffers:
                for move in buffer.gather:
                    move.run(buffer.data_N)
        self._started = self._summed = True

    def zero_grad(self) -> None:
        for buffer in self.buffers:
            buffer.grad_N.zero_()
        self._summed = False

    @property
    def bytes(self) -> dict[str, int]:
        """What lies on this rank between steps, padding included; AdamW makes its part in the first step.

        Not counted: AdamW's step counters, 4 bytes a buffer.
        """
        main = sum(main_n.nbytes for main_n in self._main)
        buffers = sum(buffer.data_N.nbytes for buffer in self.buffers)
        copies = zip(self._main, self._copied, strict=True)
        return {
            "parameters": buffers,
            "gradients": buffers,
            "main_parameters": sum(main_n.nbytes for main_n, copied in copies if copied),
            "optimizer": 2 * main,
        }

    @property
    def messages(self) -> list[ReducedMessage]:
        """Collectives of a step in their order: what the trace must show."""
        moves = [("grad_reduce", buffer, move) for buffer in self.buffers for move in buffer.reduction]
        moves += [("param_gather", buffer, move) for buffer in self.buffers for move in buffer.gather]
        return [move.message(scope, buffer.data_N.nbytes) for scope, buffer, move in moves]


CollectiveName = Literal["reduce_scatter", "all_reduce", "all_gather"]
REPLICAS = ("stage", "dense", "edp")
"""Groups that may hold the same parameters: what `parameter.replicas` says."""


@dataclass(frozen=True)
class ReducedMessage:
    """One collective of every step, as this rank takes part in it."""

    scope: str  # in which it stands in the trace
    collective: CollectiveName  # what it does
    group: str  # description of its process group
    ranks: tuple[int, ...]  # in the group
    bytes: int  # of the whole message: what goes in for a reduce-scatter, what comes out for an all-gather


@dataclass(frozen=True)
class Team:
    """Ranks joined by a process group."""

    name: str  # description of the group
    ranks: tuple[int, ...]  # of the group, ascending
    group: Group  # to communicate with


@dataclass(frozen=True)
class Move:
    """One collective on a flat buffer, or on a share of it."""

    # a reduce-scatter leaves its result in the rank's place of what it works on, where an all-gather finds
    # its input
    collective: CollectiveName
    team: Team  # who takes part
    rank: int  # this one
    part: int = 0  # number of the share that it works on
    parts: int = 1  # shares that the buffer is cut into

    def run(self, flat_N: Tensor) -> None:
        """Do it; N is a multiple of `parts` times the ranks."""
        part_n, group = _share(flat_N, self.part, self.parts), self.team.group
        share_m = _share(part_n, self.team.ranks.index(self.rank), len(self.team.ranks))
        if self.collective == "all_reduce":
            dist.all_reduce(part_n, group=group)
        elif self.collective == "reduce_scatter":
            reduce_scatter_into(share_m, part_n, group=group)
        else:
            all_gather_into(part_n, share_m, group=group)

    def message(self, scope: str, flat_bytes: int) -> ReducedMessage:
        """What it sends for a buffer of so many bytes."""
        return ReducedMessage(
            scope, self.collective, self.team.name, self.team.ranks, flat_bytes // self.parts
        )


def _up(count: int, step: int) -> int:
    return -(-count // step) * step


def _share(flat_N: Tensor, part: int, parts: int) -> Tensor:
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


def _full_team(groups: Groups, replicas: str) -> Team | None:
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
    # With two levels this rank's node and its counterparts on the others.
    levels: dict[str, tuple[Team, Team]] = {}
    if kind == "hierarchical":
        layout = groups.layout
        # Two of REPLICAS are often the same ranks; they need no communicators of their own.
        made: dict[tuple[int, ...], Team] = {}

        def make_team(name: str, ranks: tuple[int, ...]) -> Team:
            if ranks not in made:
                made[ranks] = Team(name, ranks, dist.new_group(list(ranks), group_desc=name))
            return made[ranks]

        # Whether all can be cut is known before the first group is made.
        cut = {
            replicas: [
                by_node(ranks, layout.node or layout.ranks) for ranks in layout.groups(*GROUPS[replicas])
            ]
            for replicas in REPLICAS
        }
        for replicas, all_nodes in cut.items():
            for nodes in all_nodes:
                if len(nodes) == 1 or len(nodes[0]) == 1:
                    continue
                insides = [make_team("dp_node", ranks) for ranks in nodes]
                acrosses = [make_team("dp_across", ranks) for ranks in zip(*nodes, strict=True)]
                for node in insides:
                    if groups.rank in node.ranks:
                        levels[replicas] = (node, acrosses[node.ranks.index(groups.rank)])
    moves: dict[str, list[Move]] = {}
    for replicas in REPLICAS:
        team = _full_team(groups, replicas)
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
