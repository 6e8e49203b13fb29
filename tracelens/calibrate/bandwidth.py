"""Achieved bandwidths: device memory, in order and not, and between host and device."""

from __future__ import annotations

from collections.abc import Sequence
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
    ones = partial(torch.ones, dtype=torch.bfloat16, device=watch.device)
    curves = []
    for name, times in (("copy", 2), ("triad", 3), ("concat", 2), ("scatter", 2)):
        rates = []
        for size in sizes:
            calls: list[Call] = []
            for _ in range(watch.buffers(times * size)):
                if name == "copy":
                    calls.append(partial(ones(size // 2).copy_, ones(size // 2)))
                elif name == "triad":
                    calls.append(
                        partial(torch.add, ones(size // 2), ones(size // 2), alpha=2, out=ones(size // 2))
                    )
                elif name == "concat":
                    # Of a head's 192 numbers 128 are a part of a wider tensor, and 64 are the same for all
                    # heads of a token.
                    heads = 16
                    tokens = max(1, size // (2 * heads * 192))
                    parts = [ones(tokens, heads, 256)[..., :128], ones(tokens, 1, 64).expand(-1, heads, -1)]
                    calls.append(partial(torch.cat, parts, dim=-1, out=ones(tokens, heads, 192)))
                else:  # four rows to each row of the result
                    width = 2048
                    rows = max(4, size // (2 * width))
                    out = torch.zeros(rows // 4, width, dtype=torch.bfloat16, device=watch.device)
                    index = torch.randperm(rows, device=watch.device) % (rows // 4)
                    calls.append(partial(out.index_add_, 0, index, ones(rows, width)))
            rates.append(times * size / watch.seconds(calls, name))
            del calls  # frees its buffers before the next are made
        curves.append(Bandwidth(name, tuple(times * size for size in sizes), tuple(rates)))
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
