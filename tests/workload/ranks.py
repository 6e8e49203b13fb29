"""Several ranks on one machine, for tests: each a process, joined by gloo, or by NCCL with a GPU each."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from tracelens.workload.launch import rendezvous

TIMEOUT_S = 120

# Ranks without a GPU are forked from one process that has imported what they all need: torch alone takes
# seconds to import, longer than most of them run.
mp.set_forkserver_preload(["tracelens.workload.launch", "tracelens.workload.serving.serve", "pytest"])


def run_ranks(
    world: int, job: Callable[..., Any], *arguments: Any, folder: Path, device: str = "cpu"
) -> list[Any]:
    """What `job(rank, *arguments)` returns on each of so many ranks; a function of a module, not a local one.

    Args:
        world: number of ranks.
        job: called on every rank, where torch.distributed runs, with one thread.
        arguments: passed on; they and the results must be picklable.
        folder: for the results, as tmp_path.
        device: "cpu", or "cuda": then rank r has GPU r as its current one.
    """
    with rendezvous() as store:
        mp.start_processes(
            _rank,
            (world, store, job, arguments, folder, device),
            nprocs=world,
            start_method="spawn" if device == "cuda" else "forkserver",
        )
    return [torch.load(folder / f"result{rank}.pt", weights_only=False) for rank in range(world)]


def _rank(
    rank: int,
    world: int,
    store: str,
    job: Callable[..., Any],
    arguments: tuple[Any, ...],
    folder: Path,
    device: str,
) -> None:
    torch.set_num_threads(1)
    if device == "cuda":
        torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl" if device == "cuda" else "gloo",
        init_method=store,
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=TIMEOUT_S),
    )
    try:
        torch.save(job(rank, *arguments), folder / f"result{rank}.pt")
        dist.barrier()
    except BaseException:
        traceback.print_exc()
        raise
    dist.destroy_process_group()
