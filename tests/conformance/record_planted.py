"""Record a program of plain torch on two GPUs or more, healthy and with one fault at a time.

    RANKS=2 python3 record_planted.py OUT [--device cuda|cpu] [--only REGEX]

A transformer with experts on all ranks (all-to-alls of known sizes, no call waits for the GPU but the loss
at the end of a step), fed by a DataLoader. It uses nothing of tracelens. OUT/NAME/rank0.json.gz and
so on hold three steps, OUT/NAME/times.json how long a step takes without the profiler, OUT/N.tar the
folders.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import re
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

RANKS = int(os.environ.get("RANKS", "2"))
EXPERTS, TOP_K, VOCAB, HEADS = 16, 2, 8192, 16
WARM, TIMED, BEFORE, RECORDED = 4, 20, 2, 3
TAR_BYTES = 14_000_000


class Size(NamedTuple):
    """Of the model and its batch."""

    layers: int
    hidden: int
    tokens: int
    sequence: int


SIZES = {"cuda": Size(3, 2048, 8192, 2048), "cpu": Size(2, 64, 256, 64)}
SLEEP_S, LOADER_S, LATE_S = 0.02, 0.015, 0.2


class Fault(NamedTuple):
    """What goes wrong, on which ranks, and where in a step."""

    kind: str = ""
    ranks: tuple[int, ...] = (1,)
    where: str = ""


ALL = tuple(range(RANKS))
FAULTS = {
    "control_0": Fault(),
    "sleep_start": Fault("sleep", where="start"),
    "sleep_middle": Fault("sleep", where="middle"),
    "sleep_end": Fault("sleep", where="end"),
    "sleep_middle_stack": Fault("sleep", where="middle"),
    "sleep_start_both": Fault("sleep", ALL, "start"),
    "sleep_middle_both": Fault("sleep", ALL, "middle"),
    "sleep_end_both": Fault("sleep", ALL, "end"),
    "gc_start": Fault("gc", where="start"),
    "gc_middle": Fault("gc", where="middle"),
    "gc_end": Fault("gc", where="end"),
    "gc_end_rank0": Fault("gc", (0,), "end"),
    "gc_end_both": Fault("gc", ALL, "end"),
    "control_1": Fault(),
    "loader": Fault("loader"),
    "loader_both": Fault("loader", ALL),
    "slow_host": Fault("slow_host"),
    "slow_gpu": Fault("slow_gpu"),
    "slow_gpu_rank0": Fault("slow_gpu", (0,)),
    "extra_calls": Fault("extra_calls"),
    "item_per_layer": Fault("item"),
    "item_per_layer_both": Fault("item", ALL),
    "skewed_tokens": Fault("skew", ALL),
    "kernel_loading": Fault("kernel_loading"),
    "late_start": Fault("late"),
    "control_2": Fault(),
}


class Tokens(Dataset[Tensor]):
    """Random tokens, made while the program waits."""

    def __init__(self, size: Size, delay_s: float) -> None:
        self.size, self.delay_s = size, delay_s

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> Tensor:
        until = time.perf_counter() + self.delay_s
        while time.perf_counter() < until:
            sum(range(100))
        generator = torch.Generator().manual_seed(index)
        shape = self.size.tokens // self.size.sequence, self.size.sequence
        return torch.randint(VOCAB, shape, generator=generator)


class Exchange(torch.autograd.Function):
    """All-to-all of rows, backwards in its backward pass."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, received: list[int], sent: list[int]) -> Tensor:
        ctx.splits = received, sent
        result = rows.new_empty(sum(received), rows.shape[1])
        dist.all_to_all_single(result, rows.contiguous(), received, sent)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        received, sent = ctx.splits
        result = gradient.new_empty(sum(sent), gradient.shape[1])
        dist.all_to_all_single(result, gradient.contiguous(), sent, received)
        return result, None, None


class Routes:
    """Which expert gets which token: drawn once, so that the host knows all sizes."""

    def __init__(self, size: Size, rank: int, skewed: bool, device: str) -> None:
        share = torch.ones(EXPERTS)
        share[EXPERTS // 2 :] = 4.0 if skewed else 1.0
        experts = []
        for source in range(RANKS):
            generator = torch.Generator().manual_seed(source)
            each = share.repeat(size.tokens, 1) + 1e-3
            experts.append(torch.multinomial(each, TOP_K, generator=generator).flatten())
        if not skewed:
            experts = [torch.arange(len(each)) % EXPERTS for each in experts]
        counts = torch.stack([torch.bincount(one, minlength=EXPERTS) for one in experts])
        own_count = EXPERTS // RANKS
        own = slice(rank * own_count, (rank + 1) * own_count)
        self.sent = [
            int(counts[rank, peer * own_count : (peer + 1) * own_count].sum()) for peer in range(RANKS)
        ]
        self.received = [int(counts[peer, own].sum()) for peer in range(RANKS)]
        order = experts[rank].argsort(stable=True)
        self.token = (order // TOP_K).to(device)
        self.slot = order.to(device)
        # Received rows lie by sender, then by expert: grouped calls want them by expert.
        label = torch.cat(
            [torch.arange(own_count).repeat_interleave(counts[peer, own]) for peer in range(RANKS)]
        )
        by_expert = label.argsort(stable=True)
        self.by_expert, self.back = by_expert.to(device), by_expert.argsort().to(device)
        self.ends = counts[:, own].sum(0).cumsum(0).to(torch.int32).to(device)


class Block(nn.Module):
    """Attention and experts."""

    def __init__(self, size: Size, routes: Routes) -> None:
        super().__init__()
        hidden = size.hidden
        self.routes, self.before_experts = routes, lambda rows: None
        self.first_norm, self.second_norm = nn.RMSNorm(hidden), nn.RMSNorm(hidden)
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden, bias=False), nn.Linear(hidden, hidden, bias=False)
        self.router = nn.Linear(hidden, TOP_K, bias=False)
        shape = (EXPERTS // RANKS, hidden, hidden)
        self.up, self.down = (nn.Parameter(torch.randn(shape) * 0.02) for _ in range(2))

    def forward(self, rows: Tensor) -> Tensor:
        batch, sequence, hidden = rows.shape
        qkv = self.qkv(self.first_norm(rows)).view(batch, sequence, 3, HEADS, hidden // HEADS)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        rows = rows + self.out(attended.transpose(1, 2).reshape(batch, sequence, hidden))
        self.before_experts(rows)
        return rows + self.experts(self.second_norm(rows).view(-1, hidden)).view_as(rows)

    def experts(self, rows: Tensor) -> Tensor:
        routes = self.routes
        weight = self.router(rows).softmax(-1).flatten()[routes.slot]
        moved = Exchange.apply(rows[routes.token], routes.received, routes.sent)
        grouped = functional.silu(grouped_mm(moved[routes.by_expert], self.up, routes.ends))
        grouped = grouped_mm(grouped, self.down, routes.ends)[routes.back]
        back = Exchange.apply(grouped, routes.sent, routes.received)
        return torch.zeros_like(rows).index_add(0, routes.token, back * weight[:, None])


def grouped_mm(rows: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    """One GEMM for each expert, in one call."""
    return torch._grouped_mm(rows, weights, offs=ends)


class Model(nn.Module):
    """Blocks between an embedding and a loss."""

    def __init__(self, size: Size, routes: Routes) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, size.hidden)
        self.blocks = nn.ModuleList(Block(size, routes) for _ in range(size.layers))
        self.head = nn.Linear(size.hidden, VOCAB, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        rows = self.embedding(tokens)
        for block in self.blocks:
            rows = block(rows)
        return functional.cross_entropy(self.head(rows[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def others(device: str) -> None:
    """Kernels that the program did not run before."""
    values = torch.rand(64, 64, device=device, dtype=torch.float64)
    product, ordered = values @ values, values.sort(1)[0]
    for result in (product, values.cumprod(0), ordered, torch.fft.fft(values), values.erfinv()):
        result.sum()
    torch.linalg.cholesky(values @ values.T + 64 * torch.eye(64, device=device, dtype=torch.float64))


BUSY_GPU = """
import sys, torch
a = torch.rand(4096, 4096, device=f"cuda:{sys.argv[1]}", dtype=torch.bfloat16)
(a @ a).sum().item()
print("ready", flush=True)
while True:
    for _ in range(20):
        a @ a
    torch.cuda.synchronize()
"""


@contextmanager
def neighbour(*command: str) -> Iterator[None]:
    """Another process, while the `with` lasts."""
    process = subprocess.Popen([sys.executable, "-c", *command], stdout=subprocess.PIPE)
    assert process.stdout
    process.stdout.readline()
    try:
        yield
    finally:
        process.kill()
        process.wait()


@contextmanager
def pinned(core: int) -> Iterator[None]:
    """All threads of this process on one core, which it shares with another process."""

    def move(cores: set[int]) -> None:
        for thread in os.listdir("/proc/self/task"):
            os.sched_setaffinity(int(thread), cores)

    before = os.sched_getaffinity(0)
    move({core})  # the other process inherits it
    try:
        with neighbour("print(flush=True)\nwhile True: pass"):
            yield
    finally:
        move(before)


class Trainer:
    """The program with one fault."""

    def __init__(self, fault: Fault, rank: int, device: str) -> None:
        self.rank, self.device, self.size = rank, device, SIZES[device.partition(":")[0]]
        self.fault = fault if rank in fault.ranks else Fault()
        torch.manual_seed(0)
        routes = Routes(self.size, rank, fault.kind == "skew", device)
        self.model = Model(self.size, routes).to(device, torch.bfloat16)
        if self.fault.kind == "item":
            for block in self.model.blocks:
                block.before_experts = lambda rows: rows[0, 0, 0].item()
        experts = {id(weight) for block in self.model.blocks for weight in (block.up, block.down)}
        self.shared = [weight for weight in self.model.parameters() if id(weight) not in experts]
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5, fused=True)
        delay_s = LOADER_S if self.fault.kind == "loader" else 0.0
        self.batches = iter(DataLoader(Tokens(self.size, delay_s), batch_size=None, shuffle=False))
        self.extra = torch.rand(4096, 4096, device=device, dtype=torch.bfloat16) if "cuda" in device else None
        self.heap: Any = None
        if self.fault.kind == "gc":
            gc.collect()
            gc.freeze()
            self.heap = [[number] for number in range(800_000)]

    def place(self, where: str) -> None:
        """What the fault does at a place of the step."""
        if self.fault.where != where:
            return
        if self.fault.kind == "sleep":
            time.sleep(SLEEP_S)
        elif self.fault.kind == "gc":
            gc.collect()

    def step(self, recorded: int = -1) -> None:
        """One step; the how many-th recorded one it is."""
        if self.fault.kind == "late" and recorded == 0:
            time.sleep(LATE_S)
        self.place("start")
        tokens = next(self.batches).to(self.device, non_blocking=True)
        loss = self.model(tokens)
        if self.fault.kind == "kernel_loading" and recorded == 1:
            others(self.device)
        if self.fault.kind == "extra_calls" and self.extra is not None:
            for _ in range(16):
                self.extra @ self.extra
        self.place("middle")
        loss.backward()
        gradients = [weight.grad for weight in self.shared]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        sizes = [gradient.numel() for gradient in gradients]
        for gradient, part in zip(gradients, flat.split(sizes), strict=True):
            gradient.copy_(part.view_as(gradient))
        self.optimizer.step()
        self.optimizer.zero_grad()
        loss.item()
        self.place("end")


def record(name: str, folder: Path, rank: int, device: str) -> None:
    """Time and record one run."""
    fault = FAULTS[name]
    trainer = Trainer(fault, rank, device)
    with ExitStack() as around:
        if rank in fault.ranks and fault.kind == "slow_gpu" and "cuda" in device:
            around.enter_context(neighbour(BUSY_GPU, str(rank)))
        if rank in fault.ranks and fault.kind == "slow_host":
            around.enter_context(pinned(max(os.sched_getaffinity(0))))
        for _ in range(WARM):
            trainer.step()
        dist.barrier()
        times_ms = []
        for _ in range(TIMED):
            began = time.perf_counter()
            trainer.step()
            times_ms.append((time.perf_counter() - began) * 1e3)
        dist.barrier()
        activities = [torch.profiler.ProfilerActivity.CPU]
        if "cuda" in device:
            activities.append(torch.profiler.ProfilerActivity.CUDA)
            torch.cuda.synchronize()
        with torch.profiler.profile(
            activities=activities,
            schedule=torch.profiler.schedule(wait=0, warmup=BEFORE, active=RECORDED, repeat=1),
            record_shapes=True,
            with_stack="stack" in name,
            on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(folder / f"rank{rank}.json.gz")),
            experimental_config=config(),
        ) as profiler:
            for number in range(BEFORE + RECORDED):
                trainer.step(number - BEFORE)
                profiler.step()
    gc.unfreeze()
    whole_ms: list[Any] = [None] * RANKS
    dist.all_gather_object(whole_ms, times_ms)
    if rank == 0:
        told = {"fault": fault._asdict(), "unprofiled_ms": whole_ms, "torch": torch.__version__}
        (folder / "times.json").write_text(json.dumps(told))
        mean = [sum(one) / len(one) for one in whole_ms]
        size = sum(path.stat().st_size for path in folder.glob("rank*"))
        shown = ", ".join(f"{one:.2f}" for one in mean)
        print(f"{name}: {shown} ms a step, {size / 1e3:.0f} kB", flush=True)


def config() -> Any:
    """Collections by Python are recorded where torch can."""
    try:
        return torch._C._profiler._ExperimentalConfig(record_python_gc_info=True)
    except TypeError:
        return None


def run(rank: int, names: list[str], out: Path, kind: str) -> None:
    """All runs of a rank."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29611"}
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(RANKS)}
    device = f"cuda:{rank}" if kind == "cuda" else "cpu"
    if kind == "cuda":
        torch.cuda.set_device(rank)
        cores = os.cpu_count() or RANKS
        os.sched_setaffinity(0, range(rank * cores // RANKS, (rank + 1) * cores // RANKS))
        dist.init_process_group("nccl", device_id=torch.device(device))
    else:
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
    for name in names:
        folder = out / name
        folder.mkdir(parents=True, exist_ok=True)
        record(name, folder, rank, device)
        gc.collect()
        dist.barrier()
    dist.destroy_process_group()


def pack(out: Path) -> None:
    """Archives of at most TAR_BYTES."""
    number, size = 0, 0
    with ExitStack() as tars:
        archive = tars.enter_context(tarfile.open(out / "0.tar", "w"))
        for folder in sorted(path.parent for path in out.glob("*/times.json")):
            bytes_ = sum(path.stat().st_size for path in folder.iterdir())
            if size and size + bytes_ > TAR_BYTES:
                number, size = number + 1, 0
                archive = tars.enter_context(tarfile.open(out / f"{number}.tar", "w"))
            size += bytes_
            archive.add(folder, folder.name)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    names = [name for name in FAULTS if re.search(options.only, name)]
    torch.multiprocessing.spawn(run, (names, options.out, options.device), nprocs=RANKS)
    pack(options.out)


if __name__ == "__main__":
    main()
