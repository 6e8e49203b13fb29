# ruff: noqa: E402
"""Record pairs of runs of torchtitan on two GPUs or more, before and after one change each.

    RANKS=2 python3 record_titan.py OUT [--device cuda|cpu] [--only REGEX] [--budget SECONDS]

DeepSeek V3 and Qwen3 with experts, in sizes of our own and on random tokens: torchtitan's models, its
parallelize functions (FSDP2 and expert parallelism over the same ranks), optimizers, and its Trainer's own
train_step. Uses nothing of tracelens. OUT/before-N.tar and OUT/after-N.tar hold NAME/rank0.json.zst and so
on, and times.json; nothing of the runs after the change is printed but whether they ended.
"""

from __future__ import annotations

import os

# Before torch: NVLink multicast stays off in whatever is started here.
SAFE = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
os.environ |= SAFE

import dataclasses
import functools
import json
import sys
import time
import traceback
import types
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pack_pairs
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.attention import SDPBackend
from torch.utils.data import IterableDataset

KIND = "cpu" if "cpu" in sys.argv else "cuda"
# torchtitan and inductor ask while they are imported whether there is a GPU; the true call would make
# CUDA useless in forked processes.
torch._utils._get_available_device_type = lambda: KIND
own_is_available, torch.cuda.is_available = torch.cuda.is_available, lambda: KIND == "cuda"
# Its text datasets are not used: their package is not needed then.
sys.modules["datasets"] = types.ModuleType("datasets")
sys.modules["datasets.distributed"] = types.ModuleType("datasets.distributed")
sys.modules["datasets"].Dataset = sys.modules["datasets"].load_dataset = object
sys.modules["datasets.distributed"].split_dataset_by_node = object

import torchtitan.distributed.parallel_dims
import torchtitan.models.llama4.infra.parallelize as llama4_parallelize
import torchtitan.models.moe.moe as moe_module
import torchtitan.models.moe.utils as moe_utils
from torchtitan.components.dataloader import ParallelAwareDataloader
from torchtitan.config import JobConfig
from torchtitan.distributed import ParallelDims
from torchtitan.distributed import utils as dist_utils
from torchtitan.models import deepseek_v3, qwen3
from torchtitan.models.attention import ScaledDotProductAttentionWrapper
from torchtitan.models.moe import MoEArgs
from torchtitan.tools import utils as titan_utils
from torchtitan.train import Trainer as TitanTrainer

torch.cuda.is_available = own_is_available
del sys.modules["datasets"], sys.modules["datasets.distributed"]
if os.environ.get("TITAN_CUDNN") == "0":  # should cuDNN not take DeepSeek's heads, 192 and 128 wide
    ScaledDotProductAttentionWrapper.sdpa_backends = [
        SDPBackend.FLASH_ATTENTION,
        SDPBackend.EFFICIENT_ATTENTION,
        SDPBackend.MATH,
    ]

RANKS = int(os.environ.get("RANKS", "2"))
WARM, BLOCKS, BLOCK, BEFORE, RECORDED = 5, 2, 8, 2, 3
HANGS_S, COMPILES_S = 60, 150
ALL = tuple(range(RANKS))
VOCABULARY = 16384
if KIND == "cpu":  # only to see that it runs
    WARM, BLOCKS, BLOCK, VOCABULARY = 1, 1, 2, 512


@dataclasses.dataclass(frozen=True)
class Run:
    """A program, and what goes wrong in it.

    Attributes:
        family: of models, deepseek_v3 or qwen3.
        wide: inner size of an expert.
        micro_batches: of a step, of `batch` sequences each.
        loop: experts one by one, not in grouped calls (torchtitan's use_grouped_mm).
        reshard: parameters are freed after the forward pass (fsdp_reshard_after_forward).
        recompute: full activation checkpointing.
        sync: gradients are reduced after each micro-batch (as torchtitan does), not only after the last.
        skew: of top_k experts of a token, all but one are on rank 0; otherwise all get as many.
        pause_s: the host sleeps between forward and backward pass on `ranks`.
        compiled: torchtitan's torch.compile of the model.
    """

    family: str
    layers: int
    hidden: int
    heads: int
    wide: int
    experts: int
    top_k: int
    batch: int
    sequence: int
    micro_batches: int = 1
    loop: bool = False
    reshard: bool = False
    recompute: bool = False
    sync: bool = False
    skew: bool = False
    pause_s: float = 0.0
    ranks: tuple[int, ...] = ALL
    compiled: bool = False

    def but(self, **changes: Any) -> Run:
        return dataclasses.replace(self, **changes)


DEEPSEEK = Run("deepseek_v3", 4, 2048, 16, 1408, experts=16, top_k=4, batch=4, sequence=4096)
QWEN = Run("qwen3", 3, 2560, 20, 1024, experts=32, top_k=8, batch=2, sequence=4096)
DEEPSEEK_ACCUMULATES = DEEPSEEK.but(layers=2, batch=2, micro_batches=3)
QWEN_ACCUMULATES = QWEN.but(layers=2, hidden=2048, heads=16, experts=16, top_k=4, micro_batches=2)

AFTER = {
    "titan_ds": DEEPSEEK,
    "titan_qwen": QWEN,
    "titan_ds_acc": DEEPSEEK_ACCUMULATES,
    "titan_qwen_acc": QWEN_ACCUMULATES,
}
BEFORE_IT = {
    "titan_ds.loop": DEEPSEEK.but(loop=True),
    "titan_ds.reshard": DEEPSEEK.but(reshard=True),
    "titan_ds.recompute": DEEPSEEK.but(recompute=True),
    "titan_qwen.loop": QWEN.but(loop=True),
    "titan_qwen.reshard": QWEN.but(reshard=True),
    "titan_ds_acc.sync": DEEPSEEK_ACCUMULATES.but(sync=True),
    "titan_ds.half": DEEPSEEK.but(batch=2),
    "titan_ds.skew": DEEPSEEK.but(skew=True),
    "titan_ds.sleep_middle": DEEPSEEK.but(pause_s=0.02, ranks=(1,)),
    "titan_qwen_acc.sync": QWEN_ACCUMULATES.but(sync=True),
    "titan_qwen.skew": QWEN.but(skew=True),
    "titan_qwen.half": QWEN.but(batch=1),
    "titan_qwen.recompute": QWEN.but(recompute=True),
    "titan_qwen.sleep_middle": QWEN.but(pause_s=0.02, ranks=(0,)),
}
# Only if --only names it, as it may compile for minutes: its other side is titan_ds.
EXTRA = {"compiled": DEEPSEEK.but(compiled=True)}
SEEN = {**AFTER, **BEFORE_IT, **EXTRA}


class Tokens(IterableDataset[Any]):
    """Random tokens, a sequence each, in the form torchtitan's text datasets have."""

    def __init__(self, run: Run, rank: int) -> None:
        self.run, self.rank = run, rank

    def __iter__(self) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
        generator = torch.Generator().manual_seed(self.rank)
        while True:
            tokens = torch.randint(VOCABULARY, (self.run.sequence + 1,), generator=generator)
            yield {"input": tokens[:-1]}, tokens[1:]


def model_args(run: Run) -> Any:
    """Of torchtitan's model."""
    moe = MoEArgs(
        num_experts=run.experts,
        num_shared_experts=1 if run.family == "deepseek_v3" else 0,
        top_k=run.top_k,
        score_func="softmax",
        route_norm=run.family == "qwen3",
        score_before_experts=False,
        use_grouped_mm=not run.loop,
    )
    if run.family == "deepseek_v3":
        head = run.hidden // run.heads
        return deepseek_v3.DeepSeekV3ModelArgs(
            vocab_size=VOCABULARY,
            dim=run.hidden,
            inter_dim=4 * run.hidden,
            moe_inter_dim=run.wide,
            n_layers=run.layers,
            n_dense_layers=1,
            n_heads=run.heads,
            moe_args=moe,
            q_lora_rank=0,
            kv_lora_rank=run.hidden // 4,
            qk_nope_head_dim=head,
            qk_rope_head_dim=head // 2,
            v_head_dim=head,
            mscale=0.70,
        )
    return qwen3.Qwen3ModelArgs(
        vocab_size=VOCABULARY,
        max_seq_len=run.sequence,
        head_dim=run.hidden // run.heads,
        dim=run.hidden,
        n_layers=run.layers,
        n_heads=run.heads,
        n_kv_heads=max(run.heads // 4, 1),
        qk_norm=True,
        hidden_dim=3 * run.hidden,
        moe_enabled=True,
        moe_inter_dim=run.wide,
        moe_args=moe,
    )


def job_config(run: Run) -> JobConfig:
    """As torchtitan's command line would set it."""
    config = JobConfig()
    config.training.local_batch_size = run.batch
    config.training.global_batch_size = run.batch * RANKS * run.micro_batches
    config.training.seq_len = run.sequence
    config.training.steps = 1000
    config.parallelism.data_parallel_shard_degree = RANKS
    config.parallelism.expert_parallel_degree = RANKS
    config.parallelism.fsdp_reshard_after_forward = "always" if run.reshard else "never"
    config.activation_checkpoint.mode = "full" if run.recompute else "none"
    config.debug.moe_force_load_balance = True
    config.debug.seed = 0
    config.compile.enable = run.compiled
    config.compile.components = ["model"]
    return config


def skewed(router: Any, scores: Tensor) -> tuple[Tensor, Tensor]:
    """In place of torchtitan's round robin: of a token's experts, all but one are on rank 0."""
    number = torch.arange(scores.size(0) * router.top_k, device=scores.device, dtype=torch.int64)
    chosen = router.shares[number % len(router.shares)].reshape(-1, router.top_k)
    return chosen, scores.gather(dim=1, index=chosen)


def shares(experts: int, top_k: int) -> list[int]:
    """Experts of one token after the other, until each expert of rank 0 had as many, and each other one."""
    own, others = experts // RANKS, experts - experts // RANKS
    first = iter(range(own * others * top_k))
    return [
        own + token % others if last else next(first) % own
        for token in range(own * others)
        for last in (*[False] * (top_k - 1), True)
    ]


class Trainer(TitanTrainer):
    """torchtitan's, without what it does around its steps: checkpoints, logs, tokenizer."""

    def __init__(self, run: Run, rank: int, device: str) -> None:
        self.run, self.pause_s = run, run.pause_s if rank in run.ranks else 0.0
        self.job_config = config = job_config(run)
        self.device = torch.device(device)
        self.parallel_dims = ParallelDims(
            dp_replicate=1, dp_shard=RANKS, cp=1, tp=1, pp=1, ep=RANKS, etp=1, world_size=RANKS
        )
        self.parallel_dims.build_mesh()
        self.gc_handler = titan_utils.GarbageCollection(gc_freq=config.training.gc_freq)
        dist_utils.set_determinism(
            self.parallel_dims, self.device, config.debug, distinct_seed_mesh_dims=["pp"]
        )
        self.train_spec = {"deepseek_v3": deepseek_v3, "qwen3": qwen3}[run.family].get_train_spec()
        self.tokenizer = None
        self.model_args = model_args(run)
        self.model_args.update_from_config(config)
        # It is turned off there where there is no GPU, but a CPU can do it as well.
        self.model_args.moe_args.use_grouped_mm = not run.loop
        with torch.device("meta"):
            model: Any = self.train_spec.model_cls(self.model_args)
        self.own_loss = self.train_spec.build_loss_fn(config, parallel_dims=self.parallel_dims)
        self.loss_fn = self.pausing_loss
        self.gradient_accumulation_steps = run.micro_batches
        model = self.train_spec.parallelize_fn(model, self.parallel_dims, config)
        model.to_empty(device=device.partition(":")[0])
        with torch.no_grad():
            model.init_weights(buffer_device=None)
        model.train()
        self.model_parts = [model]
        if run.skew:
            for module in model.modules():
                if isinstance(module, moe_module.TokenChoiceTopKRouter):
                    module.shares = torch.tensor(shares(run.experts, run.top_k), device=device)
                    module._debug_force_load_balance_routing = functools.partial(skewed, module)
        self.optimizers = self.train_spec.build_optimizers_fn(
            self.model_parts, config.optimizer, self.parallel_dims
        )
        self.lr_schedulers = self.train_spec.build_lr_schedulers_fn(
            self.optimizers, config.lr_scheduler, config.training.steps
        )
        self.checkpointer = types.SimpleNamespace(maybe_wait_for_staging=lambda: None)
        self.metrics_processor = types.SimpleNamespace(
            should_log=lambda step: False, ntokens_since_last_log=0, data_loading_times=[]
        )
        self.train_context = dist_utils.get_train_context(False)
        self.maybe_enable_amp = dist_utils.maybe_enable_amp(
            self.parallel_dims, config.training.mixed_precision_param, device.partition(":")[0]
        )
        self.step, self.ntokens_seen, self.micro_batch = 0, 0, 0
        loader = ParallelAwareDataloader(Tokens(run, rank), rank, RANKS, batch_size=run.batch)
        self.batches = self.batch_generator(loader)

    def pausing_loss(self, predicted: Tensor, labels: Tensor) -> Tensor:
        """Between forward and backward pass, in a step's last micro-batch."""
        if self.pause_s and self.micro_batch == self.run.micro_batches:
            time.sleep(self.pause_s)
        loss: Tensor = self.own_loss(predicted, labels)
        return loss

    def forward_backward_step(self, **given: Any) -> Tensor:
        self.micro_batch += 1
        if self.run.micro_batches > 1 and not self.run.sync:
            self.model_parts[0].set_requires_gradient_sync(self.micro_batch == self.run.micro_batches)
        return super().forward_backward_step(**given)

    def one_step(self) -> None:
        """What torchtitan's loop does in a step."""
        self.step += 1
        self.micro_batch = 0
        self.gc_handler.run(self.step)
        self.train_step(self.batches)


def record(name: str, folder: Path, rank: int, device: str, idle: Any) -> None:
    """Time and record one run; `idle` is set when this rank needs its GPU no more."""
    run = SEEN[name]
    cuda = device.startswith("cuda")
    if not cuda:
        # FULL_CALLS: as many calls as on a GPU, to see how large traces get.
        layers = run.layers if os.environ.get("FULL_CALLS") else min(run.layers, 2)
        experts = run.experts if os.environ.get("FULL_CALLS") else 8
        run = run.but(layers=layers, hidden=64, heads=4, wide=32, experts=experts, top_k=4, sequence=32)
    sync = torch.cuda.synchronize if cuda else lambda: None
    began = time.perf_counter()
    trainer = Trainer(run, rank, device)
    built_s = time.perf_counter() - began
    for _ in range(WARM):
        trainer.one_step()
    sync()
    warm_s = time.perf_counter() - began - built_s
    blocks = []
    for _ in range(BLOCKS):
        dist.barrier()
        sync()
        began = time.perf_counter()
        for _ in range(BLOCK):
            trainer.one_step()
        sync()
        blocks.append((time.perf_counter() - began) / BLOCK * 1e3)
    whole: list[Any] = [None] * RANKS
    dist.all_gather_object(whole, blocks)
    dist.barrier()
    pack_pairs.profile(trainer.one_step, folder / f"rank{rank}.json.gz", device, BEFORE, RECORDED, idle)
    # No more collectives, as one that waits for the other rank would keep a GPU of the next run busy.
    pack_pairs.squeeze(folder, rank)
    if rank == 0:
        until = time.time() + 40
        while len(list(folder.glob("*.zst"))) < RANKS or list(folder.glob("*.gz")):
            if time.time() > until:
                raise TimeoutError("another rank writes no trace")
            time.sleep(0.1)
        told = {
            "run": dataclasses.asdict(run),
            "device": torch.cuda.get_device_name() if cuda else "cpu",
            "torch": torch.__version__,
            "torchtitan": torchtitan.__version__,
            "unprofiled_ms": whole,
            "peak_gib": torch.cuda.max_memory_allocated() / 2**30 if cuda else 0.0,
        }
        (folder / "times.json").write_text(json.dumps(told))
        means = [sum(one) / len(one) for one in whole]
        shown = f" {', '.join(f'{mean:.2f}' for mean in means)} ms a step,"
        shown += f" {told['peak_gib']:.1f} GiB, built {built_s:.1f} s, warm {warm_s:.1f} s,"
        size = sum(path.stat().st_size for path in folder.glob("rank*"))
        print(f"{name}:{'' if name in AFTER else shown} {size / 1e3:.0f} kB", flush=True)


def child(names: list[str], out: Path, rank: int, kind: str, port: int, idle: Any, cores: list[int]) -> None:
    """A rank of one run."""
    warnings.simplefilter("ignore")
    (name,) = names
    folder = out / name
    os.environ |= SAFE | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "LOCAL_RANK": str(rank)}
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(RANKS), "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"}
    device = f"cuda:{rank}" if kind == "cuda" else "cpu"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if kind == "cuda":
            os.sched_setaffinity(0, cores)
            torch.set_num_threads(4)
            torch.cuda.set_device(rank)
            dist.init_process_group("nccl")  # as torchtitan does, with no device named
        else:
            # Triton's kernel that sorts tokens by expert has a form for CPUs in torchtitan.
            moe_utils.generate_permute_indices = functools.partial(
                moe_utils.generate_permute_indices, use_cpu=True
            )
            histc = torch.histc  # for whole numbers there is none on CPUs
            torch.histc = lambda numbers, **given: histc(numbers.float(), **given).to(numbers.dtype)
            llama4_parallelize.disable_fsdp_gradient_division = lambda model: None  # a sum gloo has not
            torch.set_num_threads(1)
            dist.init_process_group("gloo")
        record(name, folder, rank, device, idle)
        idle.set()
    except Exception:
        print(f"{name}: FAILED on rank {rank}\n{traceback.format_exc()[-1500:]}", flush=True)
        os._exit(1)
    os._exit(0)


def main() -> None:
    options = pack_pairs.options(__doc__)
    assert options.device == KIND
    names = pack_pairs.runs(BEFORE_IT, options.only)
    if options.only:
        names += pack_pairs.runs(EXTRA, options.only)
    pack_pairs.take_turns(
        [[name] for name in names],
        RANKS,
        child,
        options,
        method="fork" if can_fork() else "spawn",
        limit_s=lambda names: COMPILES_S if SEEN[names[0]].compiled else HANGS_S,
    )
    pack_pairs.pack(options.out, [*AFTER, *EXTRA])


def can_fork() -> bool:
    """Forked processes can use CUDA: nothing that was imported has called it."""
    process = os.fork()
    if not process:
        os._exit(int(torch.cuda._is_in_bad_fork()))
    able = os.waitpid(process, 0)[1] == 0
    if not able:
        print("CUDA was called while importing: processes are spawned, which takes longer", flush=True)
    return able


if __name__ == "__main__":
    main()
