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
from typing import Any

import torch
from torch import Tensor, nn

from tracelens.errors import TracelensError
from tracelens.workload.faults.faults import Fault
from tracelens.workload.faults.neighbour import READY
from tracelens.workload.model import Layer, Router
from tracelens.workload.parallel import Groups
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
    with ExitStack() as stack:
        for fault in faults:
            is_target = fault.rank == trainer.groups.rank
            if fault.kind == "token_skew":
                _skew_routing(trainer, fault, stack)
            elif is_target and fault.kind == "slow_kernels":
                stack.enter_context(_shared(trainer.device, fault))
            elif is_target:
                if fault.kind == "gc":
                    # What is alive already would make every collection longer than requested.
                    gc.freeze()
                    stack.callback(gc.unfreeze)
                _delay_layers(trainer.model, HOST[fault.kind](fault.amount / 1e3), stack)
        yield


Delay = Callable[[Tensor], None]


def _delay_layers(model: nn.Module, delay: Delay, stack: ExitStack) -> None:
    """Call `delay` with the input of each layer before its forward, until the stack is closed."""

    def before(_: nn.Module, inputs: tuple[Tensor]) -> None:
        delay(inputs[0])

    for module in model.modules():
        if isinstance(module, Layer):
            stack.enter_context(module.register_forward_pre_hook(before))


def sleeping(seconds: float) -> Delay:
    """The host does nothing."""
    return lambda _: time.sleep(seconds)


def reading(seconds: float) -> Delay:
    """The host reads one number after the other back from the device, as a log of activations would."""

    def read(x: Tensor) -> None:
        first_number = x.detach()[(0,) * x.dim()]
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            first_number.item()

    return read


def collecting(seconds: float) -> Delay:
    """The host collects garbage, with so many objects alive that it takes that long."""
    heap: list[list[Any]] = []

    def collect(_: Tensor) -> None:
        if not heap:
            heap.extend(_heap(seconds))
        gc.collect()

    return collect


def _heap(seconds: float) -> list[list[Any]]:
    """Lists that refer to each other, so many that one collection takes that long here."""
    heap: list[list[Any]] = []
    while True:
        heap.extend([heap] for _ in range(max(len(heap), _LIVING)))
        collection_s = min(timeit.repeat(gc.collect, number=1, repeat=_TRIES))
        if collection_s >= seconds:
            # The last doubling may be too much.
            del heap[max(int(len(heap) * seconds / collection_s), 1) :]
            return heap


HOST: dict[str, Callable[[float], Delay]] = {
    "host_delay": sleeping,
    "blocking_call": reading,
    "gc": collecting,
}
"""What the host does before each layer, from seconds."""


def _skew_routing(trainer: Trainer, fault: Fault, stack: ExitStack) -> None:
    """Let routers send more tokens to the experts of one rank, until the stack is closed.

    Of N ranks each is sent 1/N of the tokens where the routing is even. Of those that go elsewhere a share q
    is sent there instead: 1/N + q (1 - 1/N) = factor / N, so q = (factor - 1) / (N - 1).
    """
    config, groups = trainer.config, trainer.groups
    over, target = config.layout.experts_over, _expert_rank(groups, fault.rank)
    if target < 0:
        return
    share = (fault.amount - 1) / (over - 1)
    held = config.model.experts_count // over

    def skew(_: nn.Module, __: Any, output: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        weight_TK, expert_TK = output
        T, K = expert_TK.shape
        index_NK = torch.arange(round(T * share) * K, device=expert_TK.device).view(-1, K)
        forced_NK = (index_NK % held + target * held).to(expert_TK.dtype)
        return weight_TK, torch.cat([forced_NK, expert_TK[len(forced_NK) :]])

    for module in trainer.model.modules():
        if isinstance(module, Router):
            stack.enter_context(module.register_forward_hook(skew))


def _expert_rank(groups: Groups, rank: int) -> int:
    """Index of a rank among those that share experts with this one, -1 where it does not."""
    together = next(ranks for ranks in groups.layout.groups("ep") if groups.rank in ranks)
    return together.index(rank) if rank in together else -1


@contextmanager
def _shared(device: torch.device, fault: Fault) -> Iterator[None]:
    """Other processes compute on this rank's GPU; without one, on the one core that it then stays on."""
    with ExitStack() as stack:
        if device.type == "cuda":
            where = f"cuda:{device.index}"
        else:
            where = f"core:{stack.enter_context(_one_core(fault))}"
        for _ in range(int(fault.amount)):
            stack.enter_context(_neighbour(where, fault))
        yield


@contextmanager
def _one_core(fault: Fault) -> Iterator[int]:
    """The thread that computes stays on one core, on which others go first; the core.

    Of equal priority, a crowd on one core would drive what else runs on the machine to those of other ranks.
    """
    if not hasattr(os, "sched_setaffinity"):
        raise TracelensError(f"--inject {fault} on a CPU needs Linux (CPU affinity)")
    before = os.sched_getaffinity(0)
    # Delayed ranks of one machine take a core each.
    core = sorted(before)[fault.rank % len(before)]
    os.sched_setaffinity(0, {core})
    os.setpriority(os.PRIO_PROCESS, 0, min(os.getpriority(os.PRIO_PROCESS, 0) + _BEHIND, _LAST))
    try:
        # The priority cannot be raised again without being allowed to.
        yield core
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def _neighbour(where: str, fault: Fault) -> Iterator[None]:
    """A process that computes there, and ends with this one."""
    command = [sys.executable, "-m", "tracelens.workload.faults.neighbour", where]
    # It must find the package as this process did, whatever the folder that it starts in.
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
    try:
        assert process.stdout is not None
        if process.stdout.readline() != READY:
            raise TracelensError(f"--inject {fault}: could not start a competing process on {where}")
        yield
    finally:
        process.kill()
        process.communicate()
