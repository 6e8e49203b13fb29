"""Achieved bandwidths: device memory, and between host and device."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tracelens.calibrate.timing import Call, Stopwatch
from tracelens.devices import Bandwidth


def memory_bandwidths(watch: Stopwatch, sizes: Sequence[int]) -> list[Bandwidth]:
    """Of a copy (one read, one write) and a triad a = b + 2 c (two reads, one write), by all bytes moved."""
    copies, triads = [], []
    for size in sizes:
        copies.append(2 * size / watch.seconds(_copies(watch, size), "copy"))
        triads.append(3 * size / watch.seconds(_triads(watch, size), "triad"))
    return [
        Bandwidth("copy", tuple(2 * size for size in sizes), tuple(copies)),
        Bandwidth("triad", tuple(3 * size for size in sizes), tuple(triads)),
    ]


def transfer_bandwidths(watch: Stopwatch, sizes: Sequence[int]) -> list[Bandwidth]:
    """From and to page-locked memory of the host."""
    to_device, to_host = [], []
    for size in sizes:
        host = torch.ones(size // 4, pin_memory=watch.device.type == "cuda")
        on_device = torch.ones(size // 4, device=watch.device)

        def upload(host: torch.Tensor = host, on_device: torch.Tensor = on_device) -> None:
            on_device.copy_(host, non_blocking=True)

        def download(host: torch.Tensor = host, on_device: torch.Tensor = on_device) -> None:
            host.copy_(on_device, non_blocking=True)

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
        calls.append(lambda a=a, b=b: a.copy_(b))
    return calls


def _triads(watch: Stopwatch, size: int) -> list[Call]:
    calls: list[Call] = []
    for _ in range(watch.buffers(3 * size)):
        a, b, c = (torch.ones(size // 2, dtype=torch.bfloat16, device=watch.device) for _ in range(3))
        calls.append(lambda a=a, b=b, c=c: torch.add(b, c, alpha=2, out=a))
    return calls
