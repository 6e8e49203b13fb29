"""Record pairs of runs of plain torch programs on two GPUs or more, before and after one change each.

    RANKS=2 python3 record_ranks.py OUT [--device cuda|cpu] [--only REGEX] [--budget SECONDS]

Experts on all ranks under DistributedDataParallel (sizes of the all-to-alls read by the host, or known),
dense layers under it and FSDP2 with accumulated gradients, and tensor parallelism by hand. Uses nothing of
tracelens. OUT/before-N.tar and OUT/after-N.tar hold NAME/rank0.json.zst and so on, and
times.json; nothing of the runs after the change is printed but whether they ended.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import subprocess
import sys
import time
import traceback
import warnings
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pack_pairs
import torch
import torch.distributed as dist
from record_planted import Exchange
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

RANKS = int(os.environ.get("RANKS", "2"))
WARM, BLOCKS, BLOCK, BEFORE, RECORDED = 5, 2, 10, 2, 3
ALL = tuple(range(RANKS))


@dataclasses.dataclass(frozen=True)
class Run:
    """A program, and what goes wrong in it.

    Attributes:
        kind: what is distributed: experts, data (ddp), parameters (fsdp) or matrices (tensor).
        micro_batches: of a step, of `batch` sequences each.
        sizes: where the sizes of all-to-alls come from: the host knows them, or reads them in each layer.
        skew: added to the scores of rank 0's experts.
        sync: gradients are reduced after each micro-batch, not only after the last.
        hosts: that the ranks seem to be on; messages among them go over sockets.
        flat: gradients are reduced over all ranks at once, not first within each host.
        ranks: those on which a fault happens.
    """

    kind: str
    layers: int
    hidden: int
    wide: int
    batch: int
    sequence: int
    micro_batches: int = 1
    experts: int = 16
    top_k: int = 4
    loop: bool = False
    sizes: str = "known"
    skew: float = 0.0
    moved: str = "bfloat16"
    dtype: str = "bfloat16"
    recompute: bool = False
    sync: bool = False
    reshard: bool = False
    hosts: int = 1
    flat: bool = True
    ranks: tuple[int, ...] = ALL
    pause: tuple[float, str] = (0.0, "")
    collect: str = ""
    loader_s: float = 0.0
    item: bool = False
    busy: bool = False

    def but(self, **changes: Any) -> Run:
        return dataclasses.replace(self, **changes)


EP = Run("experts", 3, 2048, 1536, 4, 2048)
EPS = Run("experts", 5, 768, 512, 2, 512, experts=8, top_k=2)
DDP = Run("ddp", 4, 2048, 8192, 4, 1024, micro_batches=4)
FSDP = Run("fsdp", 6, 2560, 10240, 2, 1024, micro_batches=1)
ACCUMULATES = FSDP.but(layers=4, micro_batches=3, batch=1)
TP = Run("tensor", 4, 3072, 12288, 2, 1024)
EPW = Run("experts", 4, 1536, 1024, 4, 1024, experts=24, top_k=6)
DDP_DEEP = Run("ddp", 8, 1536, 6144, 2, 1024, micro_batches=2)
FSDP_WIDE = Run("fsdp", 4, 3072, 12288, 1, 2048)
TP_LONG = Run("tensor", 3, 4096, 16384, 1, 2048)
HOSTS = Run("ddp", 4, 1536, 6144, 4, 1024, hosts=2, flat=False)
HOSTS_WIDE = Run("ddp", 2, 2560, 10240, 4, 1024, micro_batches=2, hosts=2, flat=False)

AFTER = {
    "ep": EP,
    "ep_small": EPS,
    "ddp": DDP,
    "fsdp": FSDP,
    "fsdp_accumulates": ACCUMULATES,
    "tp": TP,
    "epw": EPW,
    "ddp_deep": DDP_DEEP,
    "fsdp_wide": FSDP_WIDE,
    "tp_long": TP_LONG,
    "hosts": HOSTS,
    "hosts_wide": HOSTS_WIDE,
}
BEFORE_IT = {
    "ep.sizes": EP.but(sizes="read"),
    "ep_small.sizes": EPS.but(sizes="read"),
    "ep.skew": EP.but(skew=0.8),
    "ep_small.skew": EPS.but(skew=1.2),
    "ep.loop": EP.but(loop=True),
    "ep_small.loop": EPS.but(loop=True),
    "ep.sleep_start": EP.but(pause=(0.03, "start"), ranks=(0,)),
    "ep.sleep_middle": EP.but(pause=(0.04, "middle")),
    "ep_small.sleep_middle": EPS.but(pause=(0.01, "middle"), ranks=(1,)),
    "ep_small.sleep_end": EPS.but(pause=(0.015, "end")),
    "ep.collect_start": EP.but(collect="start", ranks=(0,)),
    "ep_small.collect_middle": EPS.but(collect="middle", ranks=(1,)),
    "ep.loader": EP.but(loader_s=0.05, ranks=(1,)),
    "ep_small.loader": EPS.but(loader_s=0.02),
    "ep.recompute": EP.but(recompute=True),
    "ep.half": EP.but(batch=2),
    "ep_small.item": EPS.but(item=True),
    "fsdp.reshard": FSDP.but(reshard=True),
    "fsdp.recompute": FSDP.but(recompute=True),
    "fsdp.half": FSDP.but(batch=1),
    "fsdp.sleep_end": FSDP.but(pause=(0.02, "end"), ranks=(0,)),
    "fsdp_accumulates.sync": ACCUMULATES.but(sync=True),
    "fsdp_accumulates.reshard": ACCUMULATES.but(reshard=True),
    "ddp.sync": DDP.but(sync=True),
    "ddp.recompute": DDP.but(recompute=True),
    "ddp.fp32": DDP.but(dtype="float32"),
    "ddp.sleep_start": DDP.but(pause=(0.03, "start"), ranks=(1,)),
    "ddp.loader": DDP.but(loader_s=0.02, ranks=(0,)),
    "tp.half": TP.but(batch=1),
    "tp.sleep_middle": TP.but(pause=(0.02, "middle"), ranks=(0,)),
    "tp.item": TP.but(item=True),
    "ep.busy": EP.but(busy=True, ranks=(1,)),
    "ep_small.double": EPS.but(batch=4),
    "ep.collect_end": EP.but(collect="end"),
    "tp.recompute": TP.but(recompute=True),
    "ep.item": EP.but(item=True, ranks=(1,)),
    "ddp.half": DDP.but(batch=2),
    "ep.fp32": EP.but(moved="float32"),
    "epw.sizes": EPW.but(sizes="read"),
    "epw.skew": EPW.but(skew=1.0),
    "epw.loop": EPW.but(loop=True),
    "epw.recompute": EPW.but(recompute=True),
    "epw.half": EPW.but(batch=2),
    "ddp_deep.sync": DDP_DEEP.but(sync=True),
    "ddp_deep.recompute": DDP_DEEP.but(recompute=True),
    "ddp_deep.sleep_end": DDP_DEEP.but(pause=(0.025, "end"), ranks=(0,)),
    "fsdp_wide.reshard": FSDP_WIDE.but(reshard=True),
    "fsdp_wide.recompute": FSDP_WIDE.but(recompute=True),
    "fsdp_wide.loader": FSDP_WIDE.but(loader_s=0.05, ranks=(1,)),
    "tp_long.recompute": TP_LONG.but(recompute=True),
    "tp_long.collect_middle": TP_LONG.but(collect="middle", ranks=(1,)),
    "hosts.flat": HOSTS.but(flat=True),
    "hosts_wide.flat": HOSTS_WIDE.but(flat=True),
    "hosts_wide.sync": HOSTS_WIDE.but(sync=True),
}
VOCABULARY = 16384


class Copied(torch.autograd.Function):
    """To all ranks of a tensor-parallel group: gradients are summed."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        return rows.view_as(rows)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        gradient = gradient.contiguous()
        dist.all_reduce(gradient)
        return gradient


class Summed(torch.autograd.Function):
    """Over all ranks of a tensor-parallel group."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        rows = rows.contiguous()
        dist.all_reduce(rows)
        return rows

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient


class Experts(nn.Module):
    """Routed experts, as many on each rank."""

    def __init__(self, run: Run, tokens: int) -> None:
        super().__init__()
        self.run, self.known = run, None
        own = run.experts // RANKS
        self.gate = nn.Linear(run.hidden, run.experts, bias=False)
        self.up = nn.Parameter(torch.randn(own, run.hidden, 2 * run.wide) * 0.02)
        self.down = nn.Parameter(torch.randn(own, run.wide, run.hidden) * 0.02)
        # Random scores, so that experts get about as many tokens each, unless rank 0's have more.
        generator = torch.Generator().manual_seed(17)
        scores = torch.randn(tokens, run.experts, generator=generator, device="cpu")
        scores[:, :own] += run.skew
        self.register_buffer("scores", scores.to(self.up.device))

    def forward(self, rows: Tensor) -> Tensor:
        run = self.run
        chosen = self.scores.topk(run.top_k, -1).indices  # type: ignore[operator]
        weight = self.gate(rows).sigmoid().gather(1, chosen).flatten()
        order = chosen.flatten().argsort(stable=True)
        token = order // run.top_k
        sent, received, by_expert, ends, counts = self.split(chosen)
        moved = rows[token].to(getattr(torch, run.moved))
        moved = Exchange.apply(moved, received, sent).to(rows.dtype)
        moved = moved[by_expert]
        if run.loop:
            parts = []
            for number, each in enumerate(moved.split(counts)):
                gate, up = (each @ self.up[number]).chunk(2, -1)
                parts.append((functional.silu(gate) * up) @ self.down[number])
            done = torch.cat(parts)
        else:
            gate, up = torch._grouped_mm(moved, self.up, offs=ends).chunk(2, -1)
            done = torch._grouped_mm(functional.silu(gate) * up, self.down, offs=ends)
        back = torch.empty_like(done).index_copy(0, by_expert, done).to(getattr(torch, run.moved))
        back = Exchange.apply(back, sent, received).to(rows.dtype)
        return torch.zeros_like(rows).index_add(0, token, back * weight[order, None])

    def split(self, chosen: Tensor) -> Any:
        """How many rows go where, and how those that come are sorted by expert."""
        if self.known is not None and self.run.sizes == "known":
            return self.known
        run = self.run
        own = run.experts // RANKS
        counts = torch.bincount(chosen.flatten(), minlength=run.experts)
        other = torch.empty_like(counts)
        dist.all_to_all_single(other, counts)
        sent, received = counts.view(RANKS, own).sum(1).tolist(), other.view(RANKS, own).sum(1).tolist()
        label = torch.arange(own, device=chosen.device).repeat(RANKS)
        by_expert = label.repeat_interleave(other, output_size=sum(received)).argsort(stable=True)
        each = other.view(RANKS, own).sum(0)
        listed = each.tolist() if run.loop else []
        self.known = sent, received, by_expert, each.cumsum(0).to(torch.int32), listed
        return self.known


class Feed(nn.Module):
    """Two matrices; under tensor parallelism this rank's part of each."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.parallel = run.kind == "tensor"
        wide = run.wide // (RANKS if self.parallel else 1)
        self.up, self.down = nn.Linear(run.hidden, wide, bias=False), nn.Linear(wide, run.hidden, bias=False)

    def forward(self, rows: Tensor) -> Tensor:
        if self.parallel:
            done: Tensor = Summed.apply(self.down(functional.gelu(self.up(Copied.apply(rows)))))
            return done
        return self.down(functional.gelu(self.up(rows)))  # type: ignore[no-any-return]


class Block(nn.Module):
    """Attention, then experts or two matrices."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.run, self.parallel = run, run.kind == "tensor"
        self.heads = run.hidden // 128 // (RANKS if self.parallel else 1) or 2
        inner = run.hidden // (RANKS if self.parallel else 1)
        self.first, self.second = nn.LayerNorm(run.hidden), nn.LayerNorm(run.hidden)
        self.qkv, self.out = (
            nn.Linear(run.hidden, 3 * inner, bias=False),
            nn.Linear(inner, run.hidden, bias=False),
        )
        self.feed = Experts(run, run.batch * run.sequence) if run.kind == "experts" else Feed(run)

    def forward(self, rows: Tensor) -> Tensor:
        batch, sequence, _ = rows.shape
        normed = self.first(rows)
        if self.parallel:
            normed = Copied.apply(normed)
        qkv = self.qkv(normed).view(batch, sequence, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(*qkv, is_causal=True)
        attended = self.out(attended.transpose(1, 2).reshape(batch, sequence, -1))
        rows = rows + (Summed.apply(attended) if self.parallel else attended)
        if self.run.item:
            rows[0, 0, 0].item()
        return rows + self.feed(self.second(rows).flatten(0, 1)).view_as(rows)


class Model(nn.Module):
    """Blocks between an embedding and a loss."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.run = run
        self.embedding = nn.Embedding(VOCABULARY, run.hidden)
        self.blocks = nn.ModuleList(Block(run) for _ in range(run.layers))
        self.norm, self.head = nn.LayerNorm(run.hidden), nn.Linear(run.hidden, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        rows = self.embedding(tokens)
        for block in self.blocks:
            rows = checkpoint(block, rows, use_reentrant=False) if self.run.recompute else block(rows)
        logits = self.head(self.norm(rows))[:, :-1].flatten(0, 1)
        return functional.cross_entropy(logits, tokens[:, 1:].flatten())


class HostReduction:
    """Means of DDP's buckets: within each host, then across hosts, each rank its part."""

    def __init__(self, hosts: int, rank: int, device: str) -> None:
        count = RANKS // hosts
        own, part = divmod(rank, count)
        inside = [dist.new_group([host * count + each for each in range(count)]) for host in range(hosts)]
        across = [dist.new_group([host * count + each for host in range(hosts)]) for each in range(count)]
        self.inside, self.across, self.count = inside[own], across[part], count
        self.device = device
        self.stream = torch.cuda.Stream() if device.startswith("cuda") else None

    def reduce(self, state, bucket):  # type: ignore[no-untyped-def]  # DDP refuses types that are text
        devices = [torch.device(self.device)] if self.stream else []
        done: torch.futures.Future[Tensor] = torch.futures.Future(devices=devices)
        with ExitStack() as around:
            if self.stream:  # beside the backward pass, as DDP's own reduction
                self.stream.wait_stream(torch.cuda.current_stream())
                around.enter_context(torch.cuda.stream(self.stream))
            flat = bucket.buffer().div_(RANKS)
            whole = functional.pad(flat, (0, -len(flat) % self.count))
            part = whole.new_empty(len(whole) // self.count)
            dist.reduce_scatter_tensor(part, whole, group=self.inside)
            dist.all_reduce(part, group=self.across)
            dist.all_gather_into_tensor(whole, part, group=self.inside)
            flat.copy_(whole[: len(flat)])
            done.set_result(flat)
        return done


class Trainer:
    """Steps of a rank."""

    def __init__(self, run: Run, rank: int, device: str) -> None:
        healthy = run.but(pause=(0.0, ""), collect="", loader_s=0.0, item=False, busy=False)
        self.run = run = run if rank in run.ranks else healthy
        self.device = device
        torch.manual_seed(0)
        with torch.device(device):
            dtype = torch.float32 if run.kind == "fsdp" else getattr(torch, run.dtype)
            self.model: Any = Model(run).to(dtype)
        cuda = device.startswith("cuda")
        if run.kind in ("experts", "ddp"):
            experts = [
                name for name, _ in self.model.named_parameters() if name.endswith(("feed.up", "feed.down"))
            ]
            DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(self.model, experts)
            self.model = DistributedDataParallel(
                self.model, device_ids=[rank] if cuda else None, broadcast_buffers=False
            )
            if not run.flat:
                self.model.register_comm_hook(None, HostReduction(run.hosts, rank, device).reduce)
        if run.kind == "fsdp":
            policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
            for block in self.model.blocks:
                fully_shard(block, mp_policy=policy, reshard_after_forward=run.reshard)
            fully_shard(self.model, mp_policy=policy, reshard_after_forward=run.reshard)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5, fused=cuda)
        self.batches = iter(DataLoader(pack_pairs.Tokens(run, VOCABULARY), batch_size=None, shuffle=False))
        self.heap: Any = None
        if run.collect:
            gc.collect()
            gc.freeze()
            self.heap = [[number] for number in range(500_000)]

    def place(self, where: str) -> None:
        """What happens at a place of a step."""
        seconds, place = self.run.pause
        if place == where:
            time.sleep(seconds)
        if self.run.collect == where:
            gc.collect()

    def step(self) -> None:
        run = self.run
        self.place("start")
        total = torch.zeros((), device=self.device)
        for number in range(run.micro_batches):
            tokens = next(self.batches).to(self.device, non_blocking=True)
            last = number == run.micro_batches - 1
            with ExitStack() as around:
                if not last and not run.sync and run.kind == "ddp":
                    around.enter_context(self.model.no_sync())
                if run.kind == "fsdp":
                    self.model.set_requires_gradient_sync(last or run.sync)
                loss = self.model(tokens) / run.micro_batches
                if last:
                    self.place("middle")
                loss.backward()
            total += loss.detach()
        self.optimizer.step()
        self.optimizer.zero_grad()
        total.item()
        self.place("end")


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


def record(name: str, folder: Path, rank: int, device: str, idle: Any) -> None:
    """Time and record one run; `idle` is set when this rank needs its GPU no more."""
    run = {**AFTER, **BEFORE_IT}[name]
    cuda = device.startswith("cuda")
    if not cuda:
        run = run.but(layers=2, hidden=64, wide=32, batch=2, sequence=32, busy=False)
    sync = torch.cuda.synchronize if cuda else lambda: None
    trainer = Trainer(run, rank, device)
    neighbour = None
    if run.busy and rank in run.ranks:
        neighbour = subprocess.Popen([sys.executable, "-c", BUSY_GPU, str(rank)], stdout=subprocess.PIPE)
        assert neighbour.stdout
        neighbour.stdout.readline()
    try:
        for _ in range(WARM):
            trainer.step()
        blocks = []
        for _ in range(BLOCKS):
            dist.barrier()
            sync()
            began = time.perf_counter()
            for _ in range(BLOCK):
                trainer.step()
            sync()
            blocks.append((time.perf_counter() - began) / BLOCK * 1e3)
        dist.barrier()
        pack_pairs.profile(trainer.step, folder / f"rank{rank}.json.gz", device, BEFORE, RECORDED, idle)
    finally:
        if neighbour:
            neighbour.kill()
    whole: list[Any] = [None] * RANKS
    dist.all_gather_object(whole, blocks)
    pack_pairs.squeeze(folder, rank)
    dist.barrier()
    if rank == 0:
        told = {
            "run": dataclasses.asdict(run),
            "device": torch.cuda.get_device_name() if cuda else "cpu",
            "torch": torch.__version__,
            "unprofiled_ms": whole,
        }
        (folder / "times.json").write_text(json.dumps(told))
        means = [sum(one) / len(one) for one in whole]
        shown = "" if name in AFTER else f" {', '.join(f'{mean:.2f}' for mean in means)} ms a step,"
        size = sum(path.stat().st_size for path in folder.glob("rank*"))
        print(f"{name}:{shown} {size / 1e3:.0f} kB", flush=True)


def child(names: list[str], out: Path, rank: int, kind: str, port: int, idle: Any, cores: list[int]) -> None:
    """A rank of one run."""
    warnings.simplefilter("ignore")
    (name,) = names
    try:
        (out / name).mkdir(parents=True, exist_ok=True)
        hosts = {**AFTER, **BEFORE_IT}[name].hosts
        if hosts > 1:
            pack_pairs.seem_on_host(rank * hosts // RANKS)
        record(name, out / name, rank, pack_pairs.enter_group(rank, RANKS, kind, port, cores), idle)
        dist.destroy_process_group()
    except Exception:
        print(f"{name}: FAILED on rank {rank}\n{traceback.format_exc()[-1500:]}", flush=True)
        os._exit(1)
    finally:
        idle.set()


def main() -> None:
    options = pack_pairs.options(__doc__)
    groups = [[name] for name in pack_pairs.runs(BEFORE_IT, options.only)]
    pack_pairs.take_turns(groups, RANKS, child, options, limit_s=lambda names: 45)
    pack_pairs.pack(options.out, list(AFTER))


if __name__ == "__main__":
    main()
