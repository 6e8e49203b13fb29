"""Rates of messages as a device file has them, beside a plain loop as in nccl-tests.

    torchrun --nproc-per-node 2 -m benchmarks.messages mynode.toml

The witness: for each size five calls that do not count, then twenty in a row by the host's clock, from a
barrier to the end of the device's work, the mean over ranks. Launches are in its figure, so small messages
are slower than captured ones.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from tracelens.devices import Bandwidth, read_device

WARM_UP, CALLS = 5, 20


def main() -> None:
    """Print a line for each size of each curve."""
    on_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if on_gpu else "gloo")
    rank, count = dist.get_rank(), dist.get_world_size()
    device = torch.device(f"cuda:{rank % torch.cuda.device_count()}" if on_gpu else "cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    curves = [curve for curve in read_device(sys.argv[1]).measured.bandwidths if curve.ranks == count]
    if rank == 0:
        print(f"{'collective':16} {'skew':>4} {'bytes':>11} {'file GB/s':>10} {'loop GB/s':>10} {'ratio':>6}")
    for curve in curves:
        for size, rate in zip(curve.size_bytes, curve.bytes_per_s, strict=True):
            call, moved = collective(curve, size // 4, device)
            seconds = torch.tensor(per_call(call, on_gpu), dtype=torch.float64, device=device)
            dist.all_reduce(seconds)
            loop = moved / (float(seconds) / count)
            if rank == 0:
                row = f"{curve.name:16} {curve.skew:4g} {size:11,} {rate / 1e9:10.2f} {loop / 1e9:10.2f}"
                print(f"{row} {rate / loop:6.3f}", flush=True)
    dist.destroy_process_group()


def collective(curve: Bandwidth, elements: int, device: torch.device) -> tuple[Callable[[], object], float]:
    """The call, and the bytes that the busiest rank has to send or receive in it."""
    rank, count = dist.get_rank(), dist.get_world_size()
    large = torch.randn(elements // count * count, device=device) * 1e-9
    part = torch.randn(elements // count, device=device) * 1e-9
    share = large.nbytes * (count - 1) / count
    match curve.name:
        case "all_reduce":
            return lambda: dist.all_reduce(large), 2 * share
        case "all_gather":
            return lambda: dist.all_gather_into_tensor(large, part), share
        case "reduce_scatter":
            return lambda: dist.reduce_scatter_tensor(part, large), share
        case "send_recv":
            target, source = torch.empty_like(large), large
            peers = (rank + count // 2) % count, (rank - count // 2) % count

            def exchange() -> None:
                pair = [dist.P2POp(dist.isend, source, peers[0]), dist.P2POp(dist.irecv, target, peers[1])]
                for work in dist.batch_isend_irecv(pair):
                    work.wait()

            return exchange, large.nbytes
        case _:
            # Rank 0 receives `skew` times the mean of what all ranks send, the others the rest evenly.
            total = elements // curve.skew
            busiest = elements // count
            others = int((total - busiest) / max(count - 1, 1)) if curve.skew > 1 else busiest
            into = [busiest] + [others] * (count - 1)
            out = torch.randn(sum(into), device=device)
            arriving = torch.empty(into[rank] * count, device=device)
            return lambda: dist.all_to_all_single(arriving, out, [into[rank]] * count, into), share


def per_call(call: Callable[[], object], on_gpu: bool) -> float:
    """Seconds on this rank."""

    def timed(calls: int) -> float:
        dist.barrier()
        if on_gpu:
            torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        if on_gpu:
            torch.cuda.synchronize()
        return time.perf_counter() - begin

    timed(WARM_UP)
    return timed(CALLS) / CALLS


if __name__ == "__main__":
    main()
