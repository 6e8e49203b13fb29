"""AdamW whose state is shared out over the ranks that hold the same parameters (ZeRO, arXiv:1910.02054).

Parameters that the same ranks hold lie in one flat buffer, and their gradients in another: `parameter.data`
and `parameter.grad` are views, into which autograd adds in place. A step sums the gradients over the ranks,
updates this rank's share of the buffer and gathers the shares of the others. Bytes a parameter, with S ranks
that share it: in bfloat16 2 for itself, 2 for its gradient, (4 main copy + 8 Adam) / S; without main copies
4 / S for Adam; in float32 4, 4 and 8 / S.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from tracelens.errors import TracelensError
from tracelens.planner.config import Config
from tracelens.recording import span
from tracelens.workload.parallel.groups import Groups
from tracelens.workload.parallel.reduction import REPLICAS, Message, Move, full_team, make_reductions, share

# A cache line of the GPUs; GEMM kernels want 16 bytes at least.
ALIGNMENT_BYTES = 128


class FlatBuffer:
    """Parameters of the same replicas in one piece, and their gradients in another.

    Args:
        replicas: which ranks hold them, one of REPLICAS.
        parameters: of one dtype and device; their data and gradients become views.
        groups: of this rank.
        reduction: how gradients are summed.

    Attributes:
        data_N: all parameters, each at a multiple of ALIGNMENT_BYTES, and zeros up to equal shares.
        grad_N: their gradients.
        data_n: this rank's share of the parameters.
        grad_n: its gradients, summed once the moves of `reduction` have run.
    """

    def __init__(
        self, replicas: str, parameters: list[nn.Parameter], groups: Groups, reduction: list[Move]
    ) -> None:
        self.replicas, self.parameters, self.reduction = replicas, parameters, reduction
        team = full_team(groups, replicas)
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
        self.data_N = first.new_zeros(_up(end, step * parts), requires_grad=False)
        self.grad_N = torch.zeros_like(self.data_N)
        self.data_n, self.grad_n = share(self.data_N, part, parts), share(self.grad_N, part, parts)
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

    Attributes:
        buffers: one for each of REPLICAS that has parameters.

    Raises:
        TracelensError: a parameter has no such mark, is given twice, or differs in dtype or device;
            hierarchical, and the ranks lie unevenly on nodes.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], config: Config, groups: Groups) -> None:
        marked = _by_replicas(parameters)
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
        with span("opt"):
            self._update()
        with span("param_gather"):
            for buffer in self.buffers:
                for move in buffer.gather:
                    move.run(buffer.data_N)
        self._started = self._summed = True

    @torch.no_grad()
    def _update(self) -> None:
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
    def messages(self) -> list[Message]:
        """Collectives of a step in their order: what the trace must show."""
        moves = [("grad_reduce", buffer, move) for buffer in self.buffers for move in buffer.reduction]
        moves += [("param_gather", buffer, move) for buffer in self.buffers for move in buffer.gather]
        return [move.message(scope, buffer.data_N.nbytes) for scope, buffer, move in moves]


def _by_replicas(parameters: Iterable[nn.Parameter]) -> dict[str, list[nn.Parameter]]:
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
    return marked


def _up(count: int, step: int) -> int:
    return -(-count // step) * step
