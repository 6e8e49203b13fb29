"""Whether a GPU reaches what `slow_kernels` says it does: calls as torch runs them, compiled, and the need.

    python -m benchmarks.slow_kernels        # needs torch and a GPU of which tracelens has measurements

Each call moves bytes in a way that eager kernels are slow at. The need is what the finding compares with: the
bytes at the rate that was measured on the device for as many (`tracelens.devices.memory_rate`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tracelens.devices import match, memory_rate

Call = tuple[Callable[..., Any], tuple[torch.Tensor, ...], int]
"""A function, its arguments, and the bytes that it has to read and write."""
REPEATS = 20


def calls() -> dict[str, Call]:
    """The calls by name; sizes are those of recorded runs."""

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)

    heads, angles = random(4096, 12, 16, 128), random(4096, 1, 1, 128)
    strided = random(16, 4096, 12, 128).permute(1, 2, 0, 3)
    logits, scale = random(49152, 8192), torch.ones(1, device="cuda")
    rows, dropped = random(24576, 2048), torch.rand(24576, 1, device="cuda") < 0.1
    wide, gradient = random(32768, 1408), random(32768, 1408)
    first, second = random(16, 4096, 12, 64).permute(1, 2, 0, 3), random(4096, 12, 16, 64)
    sums, number = random(2048, 2048), torch.randint(0, 2048, (12288,), device="cuda")
    tokens = random(12288, 2048)
    return {
        "mul, broadcast": (lambda a, b: a * b, (heads, angles), 4 * heads.numel()),
        "mul, broadcast and strided": (lambda a, b: a * b, (strided, angles), 4 * strided.numel()),
        "mul_, one number": (lambda a, b: a.mul_(b), (logits, scale), 4 * logits.numel()),
        "masked_fill_": (lambda a, b: a.masked_fill_(b, 0.0), (rows, dropped), 4 * rows.numel()),
        "cat, strided": (lambda a, b: torch.cat((a, b), -1), (first, second), 8 * first.numel()),
        "silu": (torch.nn.functional.silu, (wide,), 4 * wide.numel()),
        "silu_backward": (torch.ops.aten.silu_backward, (gradient, wide), 6 * wide.numel()),
        "index_add": (
            lambda a, b, c: a.index_add(0, b, c),
            (sums, number, tokens),
            2 * tokens.numel() + 6 * sums.numel(),
        ),
    }


def gpu_us(call: Callable[..., Any], arguments: tuple[torch.Tensor, ...]) -> float:
    """GPU time of a call, mean of several."""
    for _ in range(3):
        call(*arguments)
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for _ in range(REPEATS):
            call(*arguments)
        torch.cuda.synchronize()
    kernels = [each for each in profiler.key_averages() if each.device_type.name == "CUDA"]
    return float(sum(each.self_device_time_total for each in kernels)) / REPEATS


def main() -> None:
    """Print the table."""
    device = match(torch.cuda.get_device_name())
    if device is None:
        raise SystemExit(f"no measurements of {torch.cuda.get_device_name()}")
    print(f"{'call':28} {'eager':>9} {'compiled':>9} {'need':>9}  us on {device.title}")
    for name, (function, arguments, moved) in calls().items():
        need_us = moved / memory_rate(device, moved).per_s * 1e6
        compiled = torch.compile(function, dynamic=False)
        print(
            f"{name:28} {gpu_us(function, arguments):9.1f} {gpu_us(compiled, arguments):9.1f} {need_us:9.1f}"
        )


if __name__ == "__main__":
    main()
