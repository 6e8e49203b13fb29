"""Record programs of plain torch again and again, unchanged and with small planted changes, for the gate.

    python3 tests/conformance/record_repeats.py OUT [--device cuda|cpu] [--only REGEX] [--budget SECONDS]

Two programs on one GPU, which the GPU and the host decide (with a host sync in each layer), and two with
experts on both of two GPUs. Each run is a process of its own. A change is planted in the size that a first
process of the program measures: more GPU work (GEMMs, or passes over memory), more host work in each layer,
more bytes sent in each layer, a late rank. OUT/PROGRAM.CHANGE.N/rank0.json.zst holds the recorded steps and
the pace of two blocks of steps without the profiler; OUT/runs-N.tar the folders.
"""

from __future__ import annotations

import gzip
import json
import multiprocessing
import os
import re
import tarfile
import time
import traceback
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import pack_pairs
import record_ranks
import torch
import torch.distributed as dist
import zstandard
from record_ranks import EP, EPS, Run, Trainer

WARM, BLOCK, BEFORE, RECORDED = 6, 15, 2, 4
SAME, CHANGED = 8, 4


class Change(NamedTuple):
    """What is planted, as a share of the step."""

    gemms: float = 0.0
    passes: float = 0.0
    host: float = 0.0
    sent: float = 0.0
    late: float = 0.0


CHANGES = {
    "same": Change(),
    "gpu1": Change(gemms=0.01),
    "gpu2": Change(passes=0.02),
    "gpu5": Change(gemms=0.05),
    "host5": Change(host=0.05),
    "host20": Change(host=0.2),
    "bytes": Change(sent=0.25),
    "waits": Change(late=0.05),
}


class Program(NamedTuple):
    """What runs on how many GPUs, and the changes that are planted in it."""

    run: Run
    ranks: int
    changes: tuple[str, ...]


PROGRAMS = {
    "gpu": Program(Run("dense", 5, 2048, 8192, 4, 1024), 1, ("gpu1", "gpu2", "gpu5")),
    "host": Program(
        Run("dense", 10, 512, 1024, 1, 512, item=True), 1, ("gpu1", "gpu2", "gpu5", "host5", "host20")
    ),
    "ep": Program(EP, 2, ("gpu1", "gpu2", "gpu5", "bytes", "waits")),
    "ep_small": Program(EPS, 2, ("host5", "host20", "waits")),
}


class ChangedTrainer(Trainer):
    """Steps with a change of a known size."""

    def __init__(self, run: Run, rank: int, device: str, sizes: dict[str, float]) -> None:
        super().__init__(run, rank, device)
        self.gemms, self.passes = (int(sizes.get(name, 0)) for name in ("gemms", "passes"))
        self.late_s = sizes.get("late_s", 0.0) if rank == record_ranks.RANKS - 1 else 0.0
        self.square = torch.randn(GEMM, GEMM, device=device, dtype=torch.bfloat16)
        self.long = torch.zeros(PASS, device=device, dtype=torch.bfloat16)
        host_s, rows = sizes.get("host_s", 0.0), int(sizes.get("rows", 0))

        def before_block(*_: Any) -> None:
            until = time.perf_counter() + host_s
            while time.perf_counter() < until:
                pass
            if rows:
                sent = torch.empty(rows, run.hidden, device=device, dtype=torch.bfloat16)
                dist.all_to_all_single(torch.empty_like(sent), sent)

        module = getattr(self.model, "module", self.model)
        if host_s or rows:
            for block in module.blocks:
                block.register_forward_pre_hook(before_block)

    def step(self) -> None:
        if self.late_s:
            time.sleep(self.late_s)
        for _ in range(self.gemms):
            self.square @ self.square
        for _ in range(self.passes):
            self.long.mul_(0.5)
        super().step()


GEMM, PASS = 2048, 1 << 25


def gpu_s(kernel: Any) -> float:
    """Time of a kernel's calls on the GPU, without communication."""
    is_own = kernel.device_type.name == "CUDA" and not kernel.is_user_annotation
    return kernel.self_device_time_total / 1e6 if is_own and "nccl" not in kernel.key.lower() else 0.0


def measure(trainer: Trainer, run: Run, folder: Path) -> None:
    """How large each share of the step is: counts of calls, seconds, rows."""
    for _ in range(WARM):
        trainer.step()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(BLOCK):
        trainer.step()
    torch.cuda.synchronize()
    step_s = (time.perf_counter() - began) / BLOCK
    with torch.profiler.profile() as profiler:
        trainer.step()
        torch.cuda.synchronize()
    work_s = sum(map(gpu_s, profiler.key_averages()))
    square = torch.randn(GEMM, GEMM, device=trainer.device, dtype=torch.bfloat16)
    long = torch.zeros(PASS, device=trainer.device, dtype=torch.bfloat16)
    each_s = []
    for call in (lambda: square @ square, lambda: long.mul_(0.5)):
        with torch.profiler.profile() as profiler:
            for _ in range(50):
                call()
            torch.cuda.synchronize()
        each_s.append(sum(map(gpu_s, profiler.key_averages())) / 50)
    told = {"step_s": step_s, "work_s": work_s, "gemm_s": each_s[0], "pass_s": each_s[1]}
    (folder / "sizes.json").write_text(json.dumps(told))
    print(folder.name, told, flush=True)


def sizes_of(change: Change, measured: dict[str, float], run: Run) -> dict[str, float]:
    """The change in calls, seconds and rows."""
    rows = run.batch * run.sequence * run.top_k
    return {
        "gemms": round(change.gemms * measured["work_s"] / measured["gemm_s"]),
        "passes": round(change.passes * measured["work_s"] / measured["pass_s"]),
        "host_s": change.host * measured["step_s"] / run.layers,
        "late_s": change.late * measured["step_s"],
        "rows": int(change.sent * rows) // 2 * 2,
    }


def record(program: str, folder: Path, rank: int, sizes: dict[str, float] | None, idle: Any) -> None:
    """Time and record one run; without sizes, measure them. `idle` is set when the GPU is needed no more."""
    run, ranks, _ = PROGRAMS[program]
    trainer = ChangedTrainer(run, rank, f"cuda:{torch.cuda.current_device()}", sizes or {})
    if sizes is None:
        measure(trainer, run, folder)
        return

    def meet() -> None:
        if ranks > 1:
            dist.barrier()
        torch.cuda.synchronize()

    steps = 0

    def timed() -> dict[str, Any]:
        nonlocal steps
        meet()
        began = time.perf_counter_ns()
        for _ in range(BLOCK):
            trainer.step()
        torch.cuda.synchronize()
        steps += BLOCK
        return {"steps": [steps - BLOCK, steps], "dur_ns": time.perf_counter_ns() - began}

    for _ in range(WARM):
        trainer.step()
    pace = {"before": timed()}
    meet()
    path = folder / f"rank{rank}.json.gz"
    pack_pairs.profile(trainer.step, path, "cuda", BEFORE, RECORDED)
    steps += BEFORE + RECORDED
    for _ in range(3):
        trainer.step()
    steps += 3
    pace["after"] = timed()
    idle.set()
    text = gzip.decompress(path.read_bytes())
    text = re.sub(rb'"traceName": "[^"]*"', b'"traceName": "trace"', text)
    told = json.dumps({"pace": pace, "planted": sizes}).encode()
    text = text.replace(b"{", b'{"tracelens": ' + told + b",", 1)
    path.with_suffix(".zst").write_bytes(zstandard.ZstdCompressor(level=12).compress(text))
    path.unlink()
    means = [part["dur_ns"] / BLOCK / 1e6 for part in pace.values()]
    print(f"{folder.name} rank {rank}: {means[0]:.3f} and {means[1]:.3f} ms a step", flush=True)


def child(
    name: str, folder: Path, rank: int, gpu: int, port: int, sizes: Any, idle: Any, cores: list[int]
) -> None:
    """A rank of one run."""
    warnings.simplefilter("ignore")
    ranks = PROGRAMS[name].ranks
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks), "NCCL_NVLS_ENABLE": "0"}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        record_ranks.RANKS = ranks
        os.sched_setaffinity(0, cores)
        torch.set_num_threads(4)
        torch.cuda.set_device(gpu)
        if ranks > 1:
            dist.init_process_group("nccl", device_id=torch.device(f"cuda:{gpu}"))
        record(name, folder, rank, sizes, idle)
        if ranks > 1:
            dist.barrier()
            dist.destroy_process_group()
    except Exception:
        print(f"{folder.name}: FAILED on rank {rank}\n{traceback.format_exc()[-1500:]}", flush=True)
        os._exit(1)
    finally:
        idle.set()


class Lane:
    """Runs of programs, one after the other, on GPUs of their own."""

    def __init__(self, out: Path, programs: list[str], gpus: list[int], cores: list[int]) -> None:
        self.out, self.gpus, self.cores = out, gpus, cores
        queue: list[tuple[str, str, int]] = [(name, "sizes", 0) for name in programs]
        # Unchanged and changed ones in turn: what drifts is the same for both.
        for number in range(SAME):
            for name in programs:
                queue.append((name, "same", number))
                if number % 2 == 0:
                    queue += [(name, change, number // 2) for change in PROGRAMS[name].changes]
        self.queue, self.running, self.number, self.began = queue, [], gpus[0] * 500, 0.0
        self.idle: list[Any] = []

    def go_on(self, fork: Any, is_late: bool) -> bool:
        """Start the next run if the GPUs are free; whether there is more to do."""
        alive = [process for process in self.running if process.is_alive()]
        # The next begins while this one writes its traces.
        if alive and not all(event.is_set() for event in self.idle) and time.time() - self.began < 60:
            return True
        if alive and not all(event.is_set() for event in self.idle):
            print("hangs", flush=True)
            for process in alive:
                process.kill()
        if not self.queue or is_late:
            return bool(alive)
        name, change, number = self.queue[0]
        measured = self.out / f"{name}.sizes.0" / "sizes.json"
        if change != "sizes" and not measured.exists():
            if any(process.is_alive() for process in self.running):
                return True
            print(f"no sizes for {name}", flush=True)
            self.queue.pop(0)
            return True
        self.queue.pop(0)
        program = PROGRAMS[name]
        sizes = None
        if change != "sizes":
            sizes = sizes_of(CHANGES[change], json.loads(measured.read_text()), program.run)
        self.number, self.began = self.number + 1, time.time()
        self.idle = [fork.Event() for _ in range(program.ranks)]
        part = max(1, len(self.cores) // (2 * program.ranks))
        self.running = alive
        for rank in range(program.ranks):
            at = (2 * rank + self.number % 2) * part
            folder = self.out / f"{name}.{change}.{number}"
            more = (name, folder, rank, self.gpus[rank], 29500 + self.number, sizes, self.idle[rank])
            process = fork.Process(target=child, args=(*more, self.cores[at : at + part]))
            process.start()
            self.running.append(process)
        return True


def pack(out: Path) -> None:
    """Tars that are small enough to move."""
    parts: list[list[Path]] = []
    size = pack_pairs.TAR_BYTES
    for folder in sorted(path for path in out.iterdir() if path.is_dir()):
        bytes_ = sum(path.stat().st_size for path in folder.iterdir())
        if size + bytes_ > pack_pairs.TAR_BYTES:
            parts.append([])
            size = 0
        size += bytes_
        parts[-1].append(folder)
    for number, folders in enumerate(parts):
        with tarfile.open(out / f"runs-{number}.tar", "w") as archive:
            for folder in folders:
                archive.add(folder, folder.name)


def main() -> None:
    options = pack_pairs.options(__doc__)
    options.out.mkdir(parents=True, exist_ok=True)
    until = time.time() + options.budget
    # Forked, so that what was imported is there; this process itself never touches a GPU.
    fork = multiprocessing.get_context("fork")
    cores = sorted(os.sched_getaffinity(0))
    half = len(cores) // 2
    names = [name for name in PROGRAMS if re.search(options.only, name)]
    single = [name for name in names if PROGRAMS[name].ranks == 1]
    both = [name for name in names if PROGRAMS[name].ranks == 2]
    lanes = []
    if single:
        lanes = [
            Lane(options.out, [name], [gpu], cores[gpu * half : (gpu + 1) * half])
            for gpu, name in enumerate(single)
        ]
    for these in (lanes, [Lane(options.out, both, [0, 1], cores)] if both else []):
        while sum(lane.go_on(fork, time.time() > until) for lane in these):
            time.sleep(0.05)
    pack(options.out)


if __name__ == "__main__":
    main()
