"""Records runs of several ranks in which the last rank is late for a known reason.

    python -m tracelens.workload.late --out late_rank

One folder a fault, one trace a rank. Each rank multiplies matrices and reduces, first with one neighbour,
then with all; what the last one does besides is in `FAULTS`. `control` has no fault.
"""

from __future__ import annotations

import argparse
import gc
import gzip
import hashlib
import json
import os
import socket
import sys
import time
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor
from torch.profiler import ProfilerActivity, schedule
from torch.profiler import profile as torch_profile

from tracelens.errors import TracelensError
from tracelens.recording.scrub import scrub
from tracelens.recording.software import device_name, experimental_config, software_versions

MODULE = "tracelens.workload.late"
FAULTS = {
    "control": "nothing",
    "token_load": "it has half as many rows again as the others",
    "slow_kernels": "another process computes on its GPU",
    "late_launch": "its host sleeps for 4 ms before each layer",
    "blocking_call": "its host reads 60 numbers back from the GPU before each layer",
    "garbage_collection": "its host leaves reference cycles behind and collects them before each layer",
}
LAYERS = 4
RECORDED, WARMUP = 3, 2
_SLEEP_S, _READS, _CYCLES = 0.004, 60, 60_000
_NEIGHBOUR_STARTS_S = 8


class Sizes(NamedTuple):
    """Rows of the input, its width, the width between two products, and elements of both reductions."""

    rows: int
    width: int
    inner: int
    all_elements: int
    pair_elements: int


SIZES = {"cuda": Sizes(8192, 4096, 8192, 1 << 24, 1 << 18), "cpu": Sizes(64, 32, 64, 1 << 10, 1 << 8)}


class Rank:
    """One rank of the run.

    Args:
        rank: its number.
        world: how many there are, an even number.
        fault: a key of FAULTS, which the last rank has.
        device: "cuda" or "cpu".
    """

    def __init__(self, rank: int, world: int, fault: str, device: str) -> None:
        self.fault = fault if rank == world - 1 else "control"
        self.device = torch.device(device, rank) if device == "cuda" else torch.device(device)
        size = SIZES[device]
        rows = size.rows * 3 // 2 if self.fault == "token_load" else size.rows
        dtype = torch.bfloat16 if device == "cuda" else torch.float32

        def random(*shape: int) -> Tensor:
            return torch.randn(*shape, device=self.device, dtype=dtype) * 0.01

        self.x = random(rows, size.width)
        self.up = [random(size.width, size.inner) for _ in range(LAYERS)]
        self.down = [random(size.inner, size.width) for _ in range(LAYERS)]
        self.for_all, self.for_pair = random(size.all_elements), random(size.pair_elements)
        pairs = [dist.new_group([first, first + 1]) for first in range(0, world, 2)]
        self.pair = pairs[rank // 2]

    def step(self) -> None:
        """One step: the fault, two products and two reductions a layer."""
        y = self.x
        for up, down in zip(self.up, self.down, strict=True):
            self.hinder(y)
            y = torch.nn.functional.gelu(y @ up) @ down
            dist.all_reduce(self.for_pair, group=self.pair)
            y = y * 0.5
            dist.all_reduce(self.for_all)

    def hinder(self, y: Tensor) -> None:
        """What the fault does on the host; the other faults are in the sizes, or in another process."""
        if self.fault == "late_launch":
            time.sleep(_SLEEP_S)
        elif self.fault == "blocking_call":
            for _ in range(_READS):
                y[0, 0].item()
        elif self.fault == "garbage_collection":
            cycles: list[dict[str, object]] = [{} for _ in range(_CYCLES)]
            for cycle in cycles:
                cycle["self"] = cycle
            del cycles, cycle
            gc.collect()


def run_rank(rank: int, world: int, fault: str, device: str, port: int, folder: str) -> None:
    """Run one rank and write its trace; what a spawned process does."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    if device == "cuda":
        torch.cuda.set_device(rank)
    dist.init_process_group("nccl" if device == "cuda" else "gloo", rank=rank, world_size=world)
    gc.disable()  # only the fault collects
    runner = Rank(rank, world, fault, device)
    path = Path(folder) / f"rank{rank}.json"
    profiler = torch_profile(
        activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device == "cuda" else [])],
        schedule=schedule(wait=0, warmup=WARMUP, active=RECORDED, repeat=1),
        on_trace_ready=lambda done: done.export_chrome_trace(str(path)),
        record_shapes=True,
        with_stack=True,
        experimental_config=experimental_config(stack=True),
    )
    runner.step()
    with profiler:
        for _ in range(WARMUP + RECORDED):
            runner.step()
            profiler.step()
    dist.barrier()
    dist.destroy_process_group()
    name = f"rank{rank}.json.gz"
    text = scrub(path.read_text(encoding="utf-8"), name)
    (path.parent / name).write_bytes(gzip.compress(text.encode(), compresslevel=9, mtime=0))
    path.unlink()


def occupy(device: int) -> None:
    """Compute on a GPU for as long as the process lives."""
    torch.cuda.set_device(device)
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    while True:
        for _ in range(20):
            a @ a
        torch.cuda.synchronize()


def record(out: Path, fault: str, world: int, device: str) -> list[Path]:
    """Record one run; returns its traces.

    Raises:
        TracelensError: an odd number of ranks, or fewer GPUs than ranks.
    """
    if world < 2 or world % 2:
        raise TracelensError(f"--ranks must be an even number, not {world}")
    if device == "cuda" and torch.cuda.device_count() < world:
        raise TracelensError(f"{world} ranks need {world} GPUs, here are {torch.cuda.device_count()}")
    out.mkdir(parents=True, exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    neighbour = None
    if fault == "slow_kernels" and device == "cuda":
        neighbour = mp.get_context("spawn").Process(target=occupy, args=(world - 1,), daemon=True)
        neighbour.start()
        time.sleep(_NEIGHBOUR_STARTS_S)
    try:
        mp.spawn(run_rank, (world, fault, device, port, str(out)), nprocs=world)  # type: ignore[no-untyped-call]
    finally:
        if neighbour is not None:
            neighbour.kill()
            neighbour.join()
    return [out / f"rank{rank}.json.gz" for rank in range(world)]


def manifest(out: Path, files: Sequence[Path], device: str, origin: str) -> str:
    """MANIFEST.toml of a recording."""
    name = device_name(torch.device(device))
    facts = {"origin": origin, "device": name, "recorded": date.today(), "steps": RECORDED, "layers": LAYERS}
    lines = [f"{key} = {toml(value)}" for key, value in facts.items()]
    lines += ["[software]", *(f"{key} = {toml(value)}" for key, value in software_versions().items())]
    lines += [
        "[faults]",
        *(f"{path.name} = {toml(FAULTS[path.name])}" for path in sorted({f.parent for f in files})),
    ]
    lines.append("[sha256]")
    for file in files:
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        lines.append(f'"{file.relative_to(out).as_posix()}" = "{digest}"')
    return "\n".join(lines) + "\n"


def toml(value: object) -> str:
    """A text, number or date in TOML, which writes texts and numbers as JSON does."""
    return value.isoformat() if isinstance(value, date) else json.dumps(value)


def main(arguments: Sequence[str]) -> int:
    """Record as the command line says; the exit code."""
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", description="Record runs with a late rank.")
    add = parser.add_argument
    add("--out", type=Path, required=True, metavar="DIR", help="where the folders of the faults go")
    add("--fault", action="append", choices=list(FAULTS), help="only this one (repeat for more); default all")
    add("--ranks", type=int, default=4, help="an even number of them")
    add("--device", choices=list(SIZES), default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args(arguments)
    files: list[Path] = []
    try:
        for fault in options.fault or FAULTS:
            files += record(options.out / fault, fault, options.ranks, options.device)
    except TracelensError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    origin = f"python -m {MODULE} --ranks {options.ranks} --out {options.out.name}"
    (options.out / "MANIFEST.toml").write_text(manifest(options.out, files, options.device, origin))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
