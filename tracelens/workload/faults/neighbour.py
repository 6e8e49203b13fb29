"""A process that computes on a GPU, or on one core, until its parent is gone.

    python -m tracelens.workload.faults.neighbour cuda:3
    python -m tracelens.workload.faults.neighbour core:5

It writes one line as soon as it computes.
"""

from __future__ import annotations

import os
import sys

READY = b"computing\n"

_WIDTH = 8192
_PRODUCTS = 20


def on_gpu(number: int, parent: int) -> None:
    """Multiply matrices on a GPU."""
    import torch

    torch.cuda.set_device(number)
    a = torch.randn(_WIDTH, _WIDTH, device="cuda", dtype=torch.bfloat16)
    a @ a
    torch.cuda.synchronize()
    _tell()
    while os.getppid() == parent:
        for _ in range(_PRODUCTS):
            a @ a
        torch.cuda.synchronize()


def on_core(number: int, parent: int) -> None:
    """Count on one core."""
    os.sched_setaffinity(0, {number})
    _tell()
    while os.getppid() == parent:
        sum(range(10_000))


def _tell() -> None:
    os.write(sys.stdout.fileno(), READY)


def main(where: str) -> None:
    """Compute where the argument says."""
    kind, _, number = where.partition(":")
    (on_gpu if kind == "cuda" else on_core)(int(number), os.getppid())


if __name__ == "__main__":
    main(sys.argv[1])
