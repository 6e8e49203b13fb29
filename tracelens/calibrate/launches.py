"""Host time per kernel: of short kernels back to back, and of eager ops without and with autograd."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch

from tracelens.calibrate.timing import Stopwatch
from tracelens.devices import LaunchCost

_REPETITIONS = 7
_CHAINS = 2  # the first ones warm up


def launch_cost(watch: Stopwatch, ops: int) -> LaunchCost:
    """Per kernel, with `ops` ops in a chain.

    The chain is of small products of two tensors, the gradients of which are two products more. Its kernels are
    shorter than their launches, so that the host is never held up by a full queue.
    """
    x = torch.ones(64, 64, device=watch.device)
    weights = [torch.ones(64, 64, device=watch.device, requires_grad=True) for _ in range(ops)]

    def chain() -> torch.Tensor:
        y = x
        for weight in weights:
            y = y * weight
        return y

    def in_place() -> None:
        for _ in range(ops):
            x.mul_(1.0)

    with torch.no_grad():
        op_s = _host_seconds(watch, chain)
        kernel_s = _total_seconds(watch, in_place)
    forward_s, backward_s = [], []
    for _ in range(_REPETITIONS + _CHAINS):
        watch.wait()
        begin = time.perf_counter()
        y = chain()
        middle = time.perf_counter()
        # Without accumulation, so that each op has the two kernels of its gradients only. The first input needs
        # no gradient: one kernel less.
        torch.autograd.grad(y, weights, y.detach())
        backward_s.append(time.perf_counter() - middle)
        forward_s.append(middle - begin)
    per_op = 1e9 / ops
    return LaunchCost(
        kernel_ns=kernel_s * per_op,
        op_ns=op_s * per_op,
        forward_ns=median(forward_s[_CHAINS:]) * per_op,
        backward_ns=median(backward_s[_CHAINS:]) * 1e9 / (2 * ops - 1),
    )


def _host_seconds(watch: Stopwatch, run: Callable[[], object]) -> float:
    """Until the host is done."""
    seconds = []
    for _ in range(_REPETITIONS + _CHAINS):
        watch.wait()
        begin = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - begin)
    return median(seconds[_CHAINS:])


def _total_seconds(watch: Stopwatch, run: Callable[[], object]) -> float:
    """Until the device is done."""
    seconds = []
    for _ in range(_REPETITIONS + _CHAINS):
        watch.wait()
        begin = time.perf_counter()
        run()
        watch.wait()
        seconds.append(time.perf_counter() - begin)
    return median(seconds[_CHAINS:])
