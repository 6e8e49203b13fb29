"""What programs that record pairs share: turns, profiles, and archives of runs before and after a change."""

from __future__ import annotations

import argparse
import ctypes
import gzip
import hashlib
import multiprocessing
import os
import re
import socket
import tarfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import zstandard
from torch.utils.data import Dataset

TAR_BYTES = 15_500_000
ALL_BYTES = 62_000_000
_NEW_NAME = 0x04000000  # CLONE_NEWUTS of Linux


def options(doc: str | None) -> argparse.Namespace:
    """What programs that record pairs are told."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--only", default="")
    parser.add_argument("--budget", type=float, default=500)
    parser.add_argument("--together", action="store_true", help="both sides of a pair in one process")
    return parser.parse_args()


def runs(before: Iterable[str], only: str) -> list[str]:
    """Names of runs in the order of recording: each before a change, then the one after it, each once."""
    names = [name for each in before for name in (each, each.partition(".")[0])]
    return [name for name in dict.fromkeys(names) if re.search(only, name)]


class Tokens(Dataset[torch.Tensor]):
    """Random tokens of a run's batch and sequence; Python works for `loader_s` on each batch."""

    def __init__(self, run: Any, vocabulary: int) -> None:
        self.run, self.vocabulary = run, vocabulary

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        until = time.perf_counter() + self.run.loader_s
        words: dict[int, int] = {}
        while time.perf_counter() < until:
            for number in range(200):
                words[number] = words.get(number, 0) + index
        generator = torch.Generator().manual_seed(index)
        return torch.randint(self.vocabulary, (self.run.batch, self.run.sequence), generator=generator)


def take_turns(
    groups: Sequence[list[str]],
    ranks: int,
    child: Callable[..., None],
    told: argparse.Namespace,
    *,
    method: str = "fork",
    limit_s: Callable[[list[str]], float],
) -> None:
    """Run groups of runs one after the other; while one writes its traces, the next has the GPUs.

    Args:
        groups: names of runs that share their processes.
        ranks: processes of a group.
        child: one of them, of (names, folder of all, rank, device, port, event, cores), with half of a rank's
            cores, the other half for the group after it. It sets the event once it needs the GPU no more.
        told: on the command line.
        method: how processes start. Forked ones have what was imported; this one never touches a GPU.
        limit_s: after which a group hangs.
    """
    until = time.time() + told.budget
    context: Any = multiprocessing.get_context(method)
    cores = sorted(os.sched_getaffinity(0))
    part = max(1, len(cores) // (2 * ranks))
    before: list[Any] = []
    for number, names in enumerate(groups):
        if time.time() > until:
            print(f"no time left for {names[0]}", flush=True)
            continue
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        idle = [context.Event() for _ in range(ranks)]
        mine = []
        for rank in range(ranks):
            at = (2 * rank + number % 2) * part
            own = cores[at : at + part] or cores
            more = (names, told.out, rank, told.device, port, idle[rank], own)
            mine.append(context.Process(target=child, args=more))
            mine[-1].start()
        began = time.time()
        while not all(event.is_set() for event in idle) and time.time() - began < limit_s(names):
            time.sleep(0.1)
            if any(process.exitcode for process in mine):
                time.sleep(1)
                break
        if not all(event.is_set() for event in idle):
            print(f"{names[0]}: ended early or hangs", flush=True)
            for process in mine:
                process.kill()
        _join(before)
        before = mine
    _join(before)


def _join(processes: Iterable[Any]) -> None:
    """Wait, but not for ever."""
    for process in processes:
        process.join(60)
        if process.is_alive():
            process.kill()


def enter_group(rank: int, ranks: int, kind: str, port: int, cores: list[int]) -> str:
    """Make this process a rank of a group on one host; returns its device."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "LOCAL_RANK": str(rank)}
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks), "NCCL_NVLS_ENABLE": "0"}
    if kind != "cuda":
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        return "cpu"
    os.sched_setaffinity(0, cores)
    torch.set_num_threads(4)
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device(f"cuda:{rank}"))
    return f"cuda:{rank}"


def seem_on_host(number: int) -> None:
    """Name this process's host: NCCL reaches those of other names over sockets. Needs root."""
    if ctypes.CDLL(None, use_errno=True).unshare(_NEW_NAME):
        raise OSError(ctypes.get_errno(), "no host name of its own for this process")
    socket.sethostname(f"host{number}")
    os.environ |= {"NCCL_HOSTID": f"host{number}", "NCCL_IB_DISABLE": "1"}
    os.environ |= {"NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo"}


def profiler_config() -> Any:
    """Collections by Python are recorded where torch can."""
    try:
        return torch._C._profiler._ExperimentalConfig(record_python_gc_info=True)
    except TypeError:
        return None


def profile(
    step: Callable[[], None], path: Path, device: str, before: int, recorded: int, idle: Any = None
) -> None:
    """Record steps behind some to warm up; `idle` is set when they no longer need the GPU."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device.startswith("cuda"):
        activities.append(torch.profiler.ProfilerActivity.CUDA)

    def ready(profiler: Any) -> None:
        if idle:
            idle.set()
        path.parent.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(path))

    with torch.profiler.profile(
        activities=activities,
        schedule=torch.profiler.schedule(wait=0, warmup=before, active=recorded, repeat=1),
        record_shapes=True,
        on_trace_ready=ready,
        experimental_config=profiler_config(),
    ) as profiler:
        for _ in range(before + recorded):
            step()
            profiler.step()


def squeeze(folder: Path, rank: int = 0) -> None:
    """A rank's trace in zstandard, in half the bytes, without the name of the file it was written to."""
    path = folder / f"rank{rank}.json.gz"
    text = gzip.decompress(path.read_bytes())
    name = b'"traceName": "trace"'
    if host := os.environ.get("NCCL_HOSTID"):  # torch 2.11 writes no host on a GPU
        name += f', "host_name": "{host}"'.encode()
    text = re.sub(rb'"host_name": "[^"]*",?', b"", text)
    text = re.sub(rb'"traceName": "[^"]*"', name, text)
    path.with_suffix(".zst").write_bytes(zstandard.ZstdCompressor(level=12).compress(text))
    path.unlink()


def pack(out: Path, after: list[str]) -> None:
    """Tars that are small enough to move; of those after a change only the hash is told."""
    folders = sorted(path.parent for path in out.glob("*/times.json"))
    left = ALL_BYTES - sum(path.stat().st_size for each in folders for path in each.iterdir())
    # The traces of runs after a change are of the least use.
    by_use = sorted(out.glob("*/rank*"), key=lambda path: (path.parent.name in after, path.stat().st_size))
    for path in reversed(by_use):
        if left < 0:
            left += path.stat().st_size
            print(f"left out: {path.parent.name}", flush=True)
            path.unlink()
    for side in ("before", "after"):
        mine = [path for path in folders if (path.name in after) is (side == "after")]
        number, size = -1, TAR_BYTES
        paths: list[Path] = []
        with ExitStack() as tars:
            archive: tarfile.TarFile
            for folder in mine:
                bytes_ = sum(path.stat().st_size for path in folder.iterdir())
                if size + bytes_ > TAR_BYTES:
                    number, size = number + 1, 0
                    paths.append(out / f"{side}-{number}.tar")
                    archive = tars.enter_context(tarfile.open(paths[-1], "w"))
                size += bytes_
                archive.add(folder, folder.name)
        for path in paths:
            print(path.name, path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest(), flush=True)
