"""Fault injection: makes a rank late by hooks on its model, and by processes beside it.

What the host does comes before each layer's forward, so that the rank is late at the layer's all-to-all.
Hooks leave the model as it reads; without a fault there are none.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
import timeit
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tracelens.errors import TracelensError
from tracelens.workload.faults.faults import Fault
from tracelens.workload.faults.neighbour import READY
from tracelens.workload.model import Layer, Router
from tracelens.workload.train import Trainer

# Lists that live on, to begin with; a full collection looks at each.
_LIVING = 50_000
_TRIES = 3
# Of a core, a rank this much behind in priority gets a tenth beside one other process. 19 is the end.
_BEHIND, _LAST = 10, 19


@contextmanager
def inject_faults(trainer: Trainer, faults: Sequence[Fault]) -> Iterator[None]:
    """Injects these faults into the trainer's rank for the length of a block; all ranks pass the same ones.

    Raises:
        TracelensError: this machine cannot do one of them.
    """
    config, groups, device = trainer.config, trainer.groups, trainer.device
    over = config.layout.experts_over
    held = config.model.experts_count // over

    def skew(target: int, share: float, _: nn.Module, __: Any, output: tuple[Tensor, Tensor]) -> Any:
        """What a router returns, with a share of the tokens sent to the experts of rank `target`."""
        weight_TK, expert_TK = output
        T, K = expert_TK.shape
        index_NK = torch.arange(round(T * share) * K, device=expert_TK.device).view(-1, K)
        forced_NK = (index_NK % held + target * held).to(expert_TK.dtype)
        return weight_TK, torch.cat([forced_NK, expert_TK[len(forced_NK) :]])

    with ExitStack() as stack:
        for fault in faults:
            if fault.kind == "token_skew":
                # Of N ranks each is sent 1/N of the tokens where the routing is even. Of those that go
                # elsewhere a share q is sent there instead: 1/N + q (1 - 1/N) = factor / N, so
                # q = (factor - 1) / (N - 1).
                together = next(ranks for ranks in groups.layout.groups("ep") if groups.rank in ranks)
                if fault.rank in together:
                    hook = partial(skew, together.index(fault.rank), (fault.amount - 1) / (over - 1))
                    for module in trainer.model.modules():
                        if isinstance(module, Router):
                            stack.enter_context(module.register_forward_hook(hook))
            elif fault.rank == groups.rank and fault.kind == "slow_kernels":
                if device.type == "cuda":
                    where = f"cuda:{device.index}"
                elif not hasattr(os, "sched_setaffinity"):
                    raise TracelensError(f"--inject {fault} on a CPU needs Linux (CPU affinity)")
                else:
                    # The thread that computes stays on one core, on which others go first: of equal priority,
                    # a crowd on one core would drive what else runs on the machine to those of other ranks.
                    before = os.sched_getaffinity(0)
                    # Delayed ranks of one machine take a core each.
                    core = sorted(before)[fault.rank % len(before)]
                    os.sched_setaffinity(0, {core})
                    # It is not raised again at the end, which not every process may do.
                    priority = os.getpriority(os.PRIO_PROCESS, 0)
                    os.setpriority(os.PRIO_PROCESS, 0, min(priority + _BEHIND, _LAST))
                    stack.callback(os.sched_setaffinity, 0, before)
                    where = f"core:{core}"
                # Processes that compute there, and end with this one. They must find the package as this one
                # did, whatever the folder that they start in.
                command = [sys.executable, "-m", "tracelens.workload.faults.neighbour", where]
                environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
                for _ in range(int(fault.amount)):
                    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
                    stack.callback(process.communicate)
                    stack.callback(process.kill)
                    assert process.stdout is not None
                    if process.stdout.readline() != READY:
                        raise TracelensError(
                            f"--inject {fault}: could not start a competing process on {where}"
                        )
            elif fault.rank == groups.rank:
                if fault.kind == "gc":
                    # What is alive already would make every collection longer than requested.
                    gc.freeze()
                    stack.callback(gc.unfreeze)
                delay = HOST[fault.kind](fault.amount / 1e3)
                for module in trainer.model.modules():
                    if isinstance(module, Layer):
                        stack.enter_context(module.register_forward_pre_hook(delay))
        yield


Delay = Callable[[nn.Module, tuple[Tensor]], None]
"""Called before the forward of a layer, with the layer and its input."""


def sleeping(seconds: float) -> Delay:
    """The host does nothing."""
    return lambda _, __: time.sleep(seconds)


def reading(seconds: float) -> Delay:
    """The host reads one number after the other back from the device, as a log of activations would."""

    def read(_: nn.Module, inputs: tuple[Tensor]) -> None:
        first_number = inputs[0].detach()[(0,) * inputs[0].dim()]
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            first_number.item()

    return read


def collecting(seconds: float) -> Delay:
    """The host collects garbage, with so many objects alive that it takes that long."""
    heap: list[list[Any]] = []

    def collect(_: nn.Module, __: tuple[Tensor]) -> None:
        if not heap:
            # Lists that refer to each other, so many that one collection takes that long here.
            collection_s = 0.0
            while collection_s < seconds:
                heap.extend([heap] for _ in range(max(len(heap), _LIVING)))
                collection_s = min(timeit.repeat(gc.collect, number=1, repeat=_TRIES))
            # The last doubling may be too much.
            del heap[max(int(len(heap) * seconds / collection_s), 1) :]
        gc.collect()

    return collect


HOST: dict[str, Callable[[float], Delay]] = {
    "host_delay": sleeping,
    "blocking_call": reading,
    "gc": collecting,
}
"""What the host does before each layer, from seconds."""
