"""Record pairs of runs of models that libraries distribute over two GPUs or more, before and after a change.

    RANKS=2 python3 record_libraries.py OUT [--device cuda|cpu] [--only REGEX] [--budget SECONDS]

Models of the Hugging Face library under its own tensor parallelism, expert parallelism and FSDP2, and under
DistributedDataParallel; transformer blocks under torch's own pipelines. Uses nothing of tracelens. Both sides
of a pair are in one process per rank, and blocks of timed steps take turns. OUT/before-N.tar and
OUT/after-N.tar hold NAME/rank0.json.zst and so on, and times.json; nothing of the runs after the change is
printed but whether they ended.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import re
import time
import traceback
import warnings
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pack_pairs
import torch
import torch.distributed as dist
import transformers
from record_families import SIZES as FAMILIES
from record_families import TINY
from torch import Tensor, nn
from torch.distributed import pipelining
from torch.distributed.tensor import DTensor
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from transformers.distributed.configuration_utils import DistributedConfig

RANKS = int(os.environ.get("RANKS", "2"))
ALL = tuple(range(RANKS))
WARM, BLOCKS, BLOCK, BEFORE, RECORDED = 5, 3, 6, 2, 2
EAGER, GROUPED = "eager", "grouped_mm"
SIZES: dict[str, dict[str, Any]] = FAMILIES | {
    "axk1": FAMILIES["deepseek_v3"] | {
        "hidden_size": 1536, "intermediate_size": 4096, "moe_intermediate_size": 768, "n_routed_experts": 32,
    },
    "qwen2": FAMILIES["glm"] | {"intermediate_size": 8192, "num_hidden_layers": 5},
    "blocks": {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 8, "vocab_size": 16384},
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Run:
    """A program, and what goes wrong in it.

    Attributes:
        kind: how the library distributes it: tensor, experts, fsdp, ddp, or a pipeline's schedule.
        micro_batches: of a step, of `batch` sequences each (a pipeline's are parts of `batch`).
        skew: added to the router's choice of rank 0's experts.
        sync: gradients are reduced after each micro-batch, not only after the last.
        layers: of each stage of a pipeline, in the order of the model.
        optimizer: fused kernels, lists of parameters, or one parameter at a time (plain).
        ranks: those on which a fault happens.
    """

    kind: str
    family: str
    batch: int
    sequence: int
    experts: str = ""
    dtype: str = "bfloat16"
    micro_batches: int = 1
    recompute: bool = False
    sync: bool = False
    skew: float = 0.0
    layers: tuple[int, ...] = ()
    pause: tuple[float, str] = (0.0, "")
    collect: str = ""
    loader_s: float = 0.0
    item: bool = False
    optimizer: str = "fused"
    ranks: tuple[int, ...] = ALL

    def but(self, **changes: Any) -> Run:
        return dataclasses.replace(self, **changes)


DSV3_EP = Run("experts", "deepseek_v3", 4, 2048, GROUPED)
DSV3_FSDP = Run("fsdp", "deepseek_v3", 4, 1024, GROUPED)
AXK1_TP = Run("tensor", "axk1", 4, 1024, GROUPED)
AXK1_FSDP = Run("fsdp", "axk1", 4, 2048, GROUPED)
QWEN2_TP = Run("tensor", "qwen2", 4, 2048)
QWEN2_DDP = Run("ddp", "qwen2", 2, 1024, micro_batches=3)
GLM_TP = Run("tensor", "glm", 2, 1024)
GLM_FSDP = Run("fsdp", "glm", 2, 2048)
LLAMA4_DDP = Run("ddp", "llama4_text", 2, 2048)
PIPE = Run("1F1B", "blocks", 16, 1024, micro_batches=8, layers=(4,) * RANKS)
INTERLEAVED = Run("Interleaved1F1B", "blocks", 16, 1024, micro_batches=8, layers=(2,) * (2 * RANKS))
AFTER = {
    "dsv3_ep": DSV3_EP,
    "dsv3_fsdp": DSV3_FSDP,
    "axk1_tp": AXK1_TP,
    "axk1_fsdp": AXK1_FSDP,
    "qwen2_tp": QWEN2_TP,
    "qwen2_ddp": QWEN2_DDP,
    "glm_tp": GLM_TP,
    "glm_fsdp": GLM_FSDP,
    "llama4_ddp": LLAMA4_DDP,
    "pipe": PIPE,
    "interleaved": INTERLEAVED,
}
BEFORE_IT = {
    "dsv3_ep.skew": DSV3_EP.but(skew=0.5),
    "dsv3_ep.recompute": DSV3_EP.but(recompute=True),
    "dsv3_ep.half": DSV3_EP.but(batch=2),
    "dsv3_ep.fp32": DSV3_EP.but(dtype="float32"),
    "dsv3_ep.sleep_middle": DSV3_EP.but(pause=(0.02, "middle"), ranks=(1,)),
    "axk1_tp.loop": AXK1_TP.but(experts=EAGER),
    "dsv3_fsdp.loop": DSV3_FSDP.but(experts=EAGER),
    "dsv3_fsdp.half": DSV3_FSDP.but(batch=2),
    "axk1_fsdp.loop": AXK1_FSDP.but(experts=EAGER),
    "axk1_fsdp.recompute": AXK1_FSDP.but(recompute=True),
    "axk1_fsdp.loader": AXK1_FSDP.but(loader_s=0.06, ranks=(0,)),
    "qwen2_tp.half": QWEN2_TP.but(batch=2),
    "qwen2_tp.recompute": QWEN2_TP.but(recompute=True),
    "qwen2_ddp.sync": QWEN2_DDP.but(sync=True),
    "qwen2_ddp.fp32": QWEN2_DDP.but(dtype="float32"),
    "qwen2_ddp.collect_end": QWEN2_DDP.but(collect="end", ranks=(0,)),
    "glm_tp.double": GLM_TP.but(batch=4),
    "glm_tp.sleep_start": GLM_TP.but(pause=(0.02, "start"), ranks=(0,)),
    "glm_fsdp.recompute": GLM_FSDP.but(recompute=True),
    "glm_fsdp.item": GLM_FSDP.but(item=True),
    "llama4_ddp.recompute": LLAMA4_DDP.but(recompute=True),
    "llama4_ddp.fp32": LLAMA4_DDP.but(dtype="float32"),
    "pipe.uneven": PIPE.but(layers=(5, *(4,) * (RANKS - 2), 3)),
    "pipe.recompute": PIPE.but(recompute=True),
    "pipe.sleep_middle": PIPE.but(pause=(0.03, "middle"), ranks=(1,)),
    "dsv3_fsdp.plain": DSV3_FSDP.but(optimizer="plain"),
    "qwen2_tp.plain": QWEN2_TP.but(optimizer="plain"),
    "qwen2_ddp.plain": QWEN2_DDP.but(optimizer="plain"),
    "glm_fsdp.lists": GLM_FSDP.but(optimizer="lists"),
    "interleaved.plain": PIPE,
    "interleaved.recompute": INTERLEAVED.but(recompute=True),
}


def run_of(name: str) -> Run:
    """The program of that name; NAME.CHANGE.after is the one that NAME.CHANGE ends as."""
    if name.endswith(".after"):
        name = name.partition(".")[0]
    return {**AFTER, **BEFORE_IT}[name]


class Block(nn.Module):
    """Attention and two matrices."""

    def __init__(self, hidden: int, wide: int) -> None:
        super().__init__()
        self.heads = max(1, hidden // 128)
        self.first, self.second = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv = nn.Linear(hidden, 3 * hidden, bias=False)
        self.out = nn.Linear(hidden, hidden, bias=False)
        self.up, self.down = nn.Linear(hidden, wide, bias=False), nn.Linear(wide, hidden, bias=False)

    def forward(self, rows: Tensor) -> Tensor:
        batch, sequence, _ = rows.shape
        qkv = self.qkv(self.first(rows)).view(batch, sequence, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(*qkv, is_causal=True)
        rows = rows + self.out(attended.transpose(1, 2).reshape(batch, sequence, -1))
        return rows + self.down(functional.gelu(self.up(self.second(rows))))  # type: ignore[no-any-return]


class Stage(nn.Module):
    """Some blocks of a model; with the embedding in front of the first, and the head behind the last."""

    def __init__(self, run: Run, sizes: dict[str, Any], number: int) -> None:
        super().__init__()
        hidden, vocabulary = sizes["hidden_size"], sizes["vocab_size"]
        self.recompute = run.recompute
        self.embedding = nn.Embedding(vocabulary, hidden) if number == 0 else None
        self.blocks = nn.ModuleList(
            Block(hidden, sizes["intermediate_size"]) for _ in range(run.layers[number])
        )
        last = number == len(run.layers) - 1
        self.head = (
            nn.Sequential(nn.LayerNorm(hidden), nn.Linear(hidden, vocabulary, bias=False)) if last else None
        )

    def forward(self, rows: Tensor) -> Tensor:
        if self.embedding is not None:
            rows = self.embedding(rows)
        for block in self.blocks:
            if self.recompute:
                rows = torch.utils.checkpoint.checkpoint(block, rows, use_reentrant=False)
            else:
                rows = block(rows)
        return rows if self.head is None else self.head(rows)


def loss_of(logits: Tensor, tokens: Tensor) -> Tensor:
    return functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def sizes_of(run: Run, cuda: bool) -> dict[str, Any]:
    sizes = dict(SIZES[run.family])
    if not cuda:
        sizes |= {key: value for key, value in TINY.items() if key in sizes}
    return sizes


class Program:
    """Steps of one rank."""

    def __init__(self, run: Run, rank: int, device: str) -> None:
        healthy = run.but(pause=(0.0, ""), collect="", loader_s=0.0, item=False)
        self.run = run = run if rank in run.ranks else healthy
        self.rank, self.device, self.cuda = rank, device, device.startswith("cuda")
        self.sizes = sizes_of(run, self.cuda)
        torch.manual_seed(0)
        self.schedule: Any = None
        if run.layers:
            self.modules: list[Any] = self.stages()
        else:
            self.modules = [self.library()]
        parameters = [each for module in self.modules for each in module.parameters()]
        # Fused kernels take DTensors and other parameters in groups of their own only.
        spread = [each for each in parameters if isinstance(each, DTensor)]
        plain = [each for each in parameters if not isinstance(each, DTensor)]
        groups = [{"params": group} for group in (spread, plain) if group]
        chosen = {"fused": self.cuda and run.optimizer == "fused", "foreach": run.optimizer == "lists"}
        self.optimizer = torch.optim.AdamW(groups, lr=1e-5, **chosen)
        data = pack_pairs.Tokens(run, self.sizes["vocab_size"])
        self.batches = iter(DataLoader(data, batch_size=None, shuffle=False))
        self.heap: Any = None
        if run.collect:
            gc.collect()
            gc.freeze()
            self.heap = [[number] for number in range(500_000)]

    def library(self) -> Any:
        """A model of the Hugging Face library, distributed by it."""
        run = self.run
        config = transformers.AutoConfig.for_model(run.family, **self.sizes, pad_token_id=0)
        more = {"experts_implementation": run.experts} if run.experts else {}
        spread: DistributedConfig | None = None
        if run.kind == "fsdp":
            spread = DistributedConfig(fsdp_size=RANKS, fsdp_mixed_precision=True)
        elif run.kind in ("tensor", "experts"):
            spread = DistributedConfig(tp_size=RANKS, enable_expert_parallel=run.kind == "experts")
        dtype = torch.float32 if run.kind == "fsdp" else getattr(torch, run.dtype)
        with torch.device(self.device):
            model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype, **more)
        model = model.to(self.device)
        if spread:
            spread, _, mesh = type(model).prepare_distribute_model(spread)
            model.config.distributed_config = spread
            model = type(model).maybe_distribute_model(model, spread, mesh)
        if run.skew:
            for module in model.modules():
                if hasattr(module, "e_score_correction_bias"):
                    bias = module.e_score_correction_bias
                    bias[: len(bias) // RANKS] += run.skew
        model.train()
        if run.recompute:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        if run.item:
            for layer in model.model.layers:
                layer.register_forward_hook(self.read)
        if run.kind == "ddp":
            model = DistributedDataParallel(
                model, device_ids=[self.rank] if self.cuda else None, broadcast_buffers=False,
                find_unused_parameters=False,
            )  # fmt: skip
        return model

    @staticmethod
    def read(module: Any, inputs: Any, output: Any) -> None:
        """The host looks at what a layer gives."""
        rows = output[0] if isinstance(output, tuple) else output
        rows.flatten()[0].item()

    def stages(self) -> list[Any]:
        """This rank's stages of a pipeline, whose schedule is kept."""
        run = self.run
        numbers = list(range(self.rank, len(run.layers), RANKS))
        dtype = getattr(torch, run.dtype)
        with torch.device(self.device):
            modules = [Stage(run, self.sizes, number).to(dtype) for number in numbers]
        made = [
            pipelining.PipelineStage(module, number, len(run.layers), torch.device(self.device))
            for module, number in zip(modules, numbers, strict=True)
        ]
        if run.kind == "1F1B":
            self.schedule = pipelining.Schedule1F1B(made[0], run.micro_batches, loss_fn=loss_of)
        else:
            self.schedule = pipelining.ScheduleInterleaved1F1B(made, run.micro_batches, loss_fn=loss_of)
        return modules

    def place(self, where: str) -> None:
        """What happens at a place of a step."""
        seconds, place = self.run.pause
        if place == where:
            time.sleep(seconds)
        if self.run.collect == where:
            gc.collect()

    def passes(self) -> Tensor:
        """Forward and backward passes of all micro-batches; the loss."""
        run = self.run
        if self.schedule:
            tokens = next(self.batches).to(self.device, non_blocking=True)
            self.place("middle")
            losses: list[Tensor] = []
            first, last = self.rank == 0, self.rank == RANKS - 1
            more: dict[str, Any] = {"target": tokens, "losses": losses} if last else {}
            self.schedule.step(*([tokens] if first else []), **more)
            return torch.stack(losses).mean() if last else torch.zeros((), device=self.device)
        model = self.modules[0]
        total = torch.zeros((), device=self.device)
        for number in range(run.micro_batches):
            tokens = next(self.batches).to(self.device, non_blocking=True)
            last = number == run.micro_batches - 1
            with ExitStack() as around:
                if not last and not run.sync and run.kind == "ddp":
                    around.enter_context(model.no_sync())
                loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss / run.micro_batches
                if last:
                    self.place("middle")
                loss.backward()
            total += loss.detach()
        return total

    def step(self) -> None:
        self.place("start")
        loss = self.passes()
        self.optimizer.step()
        self.optimizer.zero_grad()
        loss.item()
        self.place("end")


def record(names: list[str], out: Path, rank: int, device: str, idle: Any) -> None:
    """Time and record a pair, whose timed steps take turns; `idle` is set when the GPU is needed no more."""
    runs = [run_of(name) for name in names]
    cuda = device.startswith("cuda")
    if not cuda:
        runs = [run.but(batch=min(run.batch, 8), sequence=32) for run in runs]
    sync = torch.cuda.synchronize if cuda else lambda: None
    programs = [Program(run, rank, device) for run in runs]
    for program in programs:
        for _ in range(WARM):
            program.step()
    blocks: list[list[float]] = [[] for _ in runs]
    for _ in range(BLOCKS):
        for program, times in zip(programs, blocks, strict=True):
            program.step()
            dist.barrier()
            sync()
            began = time.perf_counter()
            for _ in range(BLOCK):
                program.step()
            sync()
            times.append((time.perf_counter() - began) / BLOCK * 1e3)
    for name, program in zip(names, programs, strict=True):
        path, last = out / name / f"rank{rank}.json.gz", name == names[-1]
        dist.barrier()
        pack_pairs.profile(program.step, path, device, BEFORE, RECORDED, idle if last else None)
    for name, run, times in zip(names, runs, blocks, strict=True):
        whole: list[Any] = [None] * RANKS
        dist.all_gather_object(whole, times)
        folder = out / name
        pack_pairs.squeeze(folder, rank)
        dist.barrier()
        if rank == 0:
            told = {
                "run": dataclasses.asdict(run),
                "sizes": SIZES[run.family],
                "device": torch.cuda.get_device_name() if cuda else "cpu",
                "torch": torch.__version__,
                "transformers": transformers.__version__,
                "unprofiled_ms": whole,
            }
            (folder / "times.json").write_text(json.dumps(told))
            means = [sum(one) / len(one) for one in whole]
            before = name in BEFORE_IT
            shown = f" {', '.join(f'{mean:.2f}' for mean in means)} ms a step," if before else ""
            size = sum(path.stat().st_size for path in folder.glob("rank*"))
            print(f"{name}:{shown} {size / 1e3:.0f} kB", flush=True)


def child(names: list[str], out: Path, rank: int, kind: str, port: int, idle: Any, cores: list[int]) -> None:
    """A rank of a pair."""
    warnings.simplefilter("ignore")
    try:
        for name in names:
            (out / name).mkdir(parents=True, exist_ok=True)
        record(names, out, rank, pack_pairs.enter_group(rank, RANKS, kind, port, cores), idle)
        dist.destroy_process_group()
    except Exception:
        print(f"{names[0]}: FAILED on rank {rank}\n{traceback.format_exc()[-1500:]}", flush=True)
        os._exit(1)
    finally:
        idle.set()


def main() -> None:
    options = pack_pairs.options(__doc__)
    groups = [[name, f"{name}.after"] for name in BEFORE_IT if re.search(options.only, name)]
    pack_pairs.take_turns(groups, RANKS, child, options, limit_s=lambda names: 70)
    pack_pairs.pack(options.out, [names[-1] for names in groups])


if __name__ == "__main__":
    main()
