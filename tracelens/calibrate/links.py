"""Achieved rates of messages among the ranks of `torchrun`, by size."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from statistics import median

import torch
import torch.distributed as dist

from tracelens.calibrate.gemms import Failure
from tracelens.calibrate.timing import Stopwatch
from tracelens.devices import Bandwidth

_WARM_UP, _REPETITIONS, _MESSAGES = 3, 9, 5


def ranks() -> tuple[int, int, int]:
    """Number of this rank, of all ranks, and of those on this node, as torchrun sets them."""
    return tuple(int(os.environ.get(name, value)) for name, value in _VARIABLES)  # type: ignore[return-value]


_VARIABLES = (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_WORLD_SIZE", "1"))


def link_bandwidths(watch: Stopwatch, sizes: Sequence[int]) -> tuple[list[Bandwidth], list[Failure]]:
    """Of all-reduce, all-to-all and messages to the next rank; needs an initialized process group.

    Rates are of bytes that have to leave a GPU: a rank of n keeps 1/n of an all-to-all, and an all-reduce
    sends each byte 2 (n-1)/n times.
    """
    _, count, on_node = ranks()
    sent_share = (count - 1) / count
    kinds: dict[str, tuple[Callable[[torch.Tensor], Callable[[], object]], float]] = {
        "all_reduce": (_all_reduce, 2 * sent_share),
        "all_to_all": (_all_to_all, sent_share),
        "send_recv": (_send_recv, 1.0),
    }
    curves, failures = [], []
    for name, (make, share) in kinds.items():
        rates = []
        try:
            for size in sizes:
                buffer = torch.ones(size // 4, device=watch.device)
                rates.append(size * share / _seconds(watch, make(buffer)))
        except RuntimeError as error:
            failures.append(Failure(name, str(error).strip().partition("\n")[0]))
            continue
        curves.append(Bandwidth(name, tuple(sizes), tuple(rates), count, min(count, on_node)))
    return curves, failures


def _all_reduce(buffer: torch.Tensor) -> Callable[[], object]:
    return lambda: dist.all_reduce(buffer)


def _all_to_all(buffer: torch.Tensor) -> Callable[[], object]:
    received = torch.empty_like(buffer)
    return lambda: dist.all_to_all_single(received, buffer)


def _send_recv(buffer: torch.Tensor) -> Callable[[], object]:
    """To the rank half of the ranks away, so that on several nodes it is on another one."""
    rank, count, _ = ranks()
    received = torch.empty_like(buffer)

    def call() -> None:
        ops = [
            dist.P2POp(dist.isend, buffer, (rank + count // 2) % count),
            dist.P2POp(dist.irecv, received, (rank - count // 2) % count),
        ]
        for work in dist.batch_isend_irecv(ops):
            work.wait()

    return call


def _seconds(watch: Stopwatch, call: Callable[[], object]) -> float:
    """Median time of a message on the slowest rank."""
    seconds = []
    for _ in range(_WARM_UP + _REPETITIONS):
        dist.barrier()
        watch.wait()
        begin = time.perf_counter()
        for _ in range(_MESSAGES):
            call()
        watch.wait()
        seconds.append((time.perf_counter() - begin) / _MESSAGES)
    slowest = torch.tensor(median(seconds[_WARM_UP:]), device=watch.device)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return float(slowest)
