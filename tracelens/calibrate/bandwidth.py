"""Achieved bandwidths: device memory, in order and not, host and device, and the ranks of `torchrun`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median

import torch
import torch.distributed as dist

from tracelens.calibrate.gemms import FailedMeasurement
from tracelens.calibrate.timing import Call, Stopwatch
from tracelens.devices import Bandwidth

_WARM_UP, _REPETITIONS, _MESSAGES = 3, 9, 5

_VARIABLES = (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_WORLD_SIZE", "1"))


def memory_bandwidths(watch: Stopwatch, sizes: Sequence[int]) -> list[Bandwidth]:
    """By all bytes that are moved, for buffers of these sizes.

    - copy: one read, one write.
    - triad: a = b + 2 c: two reads, one write.
    - concat: heads from parts of two tensors, as where rotary positions are a part of a head.
    - scatter: rows added to rows in random order, as outputs of experts are combined: reads, and as many
      additions in memory.
    """
    kinds: dict[str, tuple[Callable[[Stopwatch, int], list[Call]], int]] = {
        "copy": (_copies, 2), "triad": (_triads, 3), "concat": (_concats, 2), "scatter": (_scatters, 2),
    }  # fmt: skip
    curves = []
    for name, (calls, times) in kinds.items():
        rates = tuple(times * size / watch.seconds(calls(watch, size), name) for size in sizes)
        curves.append(Bandwidth(name, tuple(times * size for size in sizes), rates))
    return curves


def transfer_bandwidths(watch: Stopwatch, sizes: Sequence[int]) -> list[Bandwidth]:
    """From and to page-locked memory of the host."""
    to_device, to_host = [], []
    for size in sizes:
        host = torch.ones(size // 4, pin_memory=watch.device.type == "cuda")
        on_device = torch.ones(size // 4, device=watch.device)

        upload = partial(on_device.copy_, host, non_blocking=True)
        download = partial(host.copy_, on_device, non_blocking=True)
        to_device.append(size / watch.seconds([upload], "to_device", capture=False))
        to_host.append(size / watch.seconds([download], "to_host", capture=False))
    return [
        Bandwidth("to_device", tuple(sizes), tuple(to_device)),
        Bandwidth("to_host", tuple(sizes), tuple(to_host)),
    ]


def _copies(watch: Stopwatch, size: int) -> list[Call]:
    calls: list[Call] = []
    for _ in range(watch.buffers(2 * size)):
        a, b = (torch.ones(size // 2, dtype=torch.bfloat16, device=watch.device) for _ in range(2))
        calls.append(partial(a.copy_, b))
    return calls


def _triads(watch: Stopwatch, size: int) -> list[Call]:
    calls: list[Call] = []
    for _ in range(watch.buffers(3 * size)):
        a, b, c = (torch.ones(size // 2, dtype=torch.bfloat16, device=watch.device) for _ in range(3))
        calls.append(partial(torch.add, b, c, alpha=2, out=a))
    return calls


def _concats(watch: Stopwatch, size: int, heads: int = 16) -> list[Call]:
    """Of heads of 192 numbers: 128 are a part of a wider tensor, 64 are the same for all heads of a token."""
    tokens = max(1, size // (2 * heads * 192))
    calls: list[Call] = []
    for _ in range(watch.buffers(2 * size)):
        keys_and_values = torch.ones(tokens, heads, 256, dtype=torch.bfloat16, device=watch.device)
        rotary = torch.ones(tokens, 1, 64, dtype=torch.bfloat16, device=watch.device).expand(-1, heads, -1)
        out = torch.ones(tokens, heads, 192, dtype=torch.bfloat16, device=watch.device)
        calls.append(partial(torch.cat, [keys_and_values[..., :128], rotary], dim=-1, out=out))
    return calls


def _scatters(watch: Stopwatch, size: int, width: int = 2048) -> list[Call]:
    """Of four rows to each row of the result."""
    rows = max(4, size // (2 * width))
    calls: list[Call] = []
    for _ in range(watch.buffers(2 * size)):
        source = torch.ones(rows, width, dtype=torch.bfloat16, device=watch.device)
        out = torch.zeros(rows // 4, width, dtype=torch.bfloat16, device=watch.device)
        index = torch.randperm(rows, device=watch.device) % (rows // 4)
        calls.append(partial(out.index_add_, 0, index, source))
    return calls


def ranks() -> tuple[int, int, int]:
    """Number of this rank, of all ranks, and of those on this node, as torchrun sets them."""
    return tuple(int(os.environ.get(name, value)) for name, value in _VARIABLES)  # type: ignore[return-value]


def link_bandwidths(
    watch: Stopwatch, sizes: Sequence[int]
) -> tuple[list[Bandwidth], list[FailedMeasurement]]:
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
            failures.append(FailedMeasurement(name, str(error).strip().partition("\n")[0]))
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
