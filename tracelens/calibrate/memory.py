"""Achieved bandwidths: device memory, in order and not, and between host and device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from tracelens.calibrate.timing import Call, Stopwatch
from tracelens.devices import Bandwidth


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
