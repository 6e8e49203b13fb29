"""Training steps of the reference model, timed or recorded with torch's profiler."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, schedule
from torch.profiler import profile as torch_profile

from tracelens.workload import spans
from tracelens.workload.config import MoEConfig
from tracelens.workload.model import Transformer, cross_entropy

# Small: no loss balances the experts, and larger steps send all tokens to one of them within tens of steps.
LEARNING_RATE = 1e-5
# Steps before the recorded ones: kernels are loaded, the allocator has its blocks, AdamW its state.
WARMUP_STEPS = 3
ONE_RANK = {"backend": "none", "rank": 0, "world_size": 1}


@dataclass(frozen=True)
class Facts:
    """What a recording was made of.

    Attributes:
        device: name of the device.
        software: name to version.
        parameters: of the model.
        steps: recorded.
        loss: of each recorded step.
    """

    device: str
    software: dict[str, str]
    parameters: int
    steps: int
    loss: tuple[float, ...]


class Trainer:
    """Model, optimizer and data of one rank.

    Args:
        config: what to build; the same config on the same device trains on the same numbers.
        device: "cuda" (NVIDIA and AMD alike) or "cpu".
    """

    def __init__(self, config: MoEConfig, device: str) -> None:
        self.config = config
        self.device = torch.device(device)
        torch.manual_seed(config.seed)
        with self.device:
            self.model = Transformer(config).to(getattr(torch, config.dtype))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=LEARNING_RATE)
        self.batches = random_batches(config, pin=self.device.type == "cuda")

    def step(self) -> float:
        """Train on one batch and return its loss; reading the loss waits for the device, as logging does."""
        with spans.span(spans.DATA):
            # Split on the device: a slice is not contiguous, and copying one goes through pageable memory.
            ids = next(self.batches).to(self.device, non_blocking=True)
            token_BS, target_BS = ids[:, :-1], ids[:, 1:]
        with spans.span(spans.FORWARD):
            loss = cross_entropy(self.model(token_BS), target_BS)
        with spans.span(spans.BACKWARD):
            loss.backward()  # type: ignore[no-untyped-call]
        with spans.span(spans.OPTIMIZER):
            self.optimizer.step()
            self.optimizer.zero_grad()
        with spans.span(spans.LOG):
            return float(loss.item())


def random_batches(config: MoEConfig, pin: bool) -> Iterator[Tensor]:
    """Endless batches of random token ids on the host, int64, B x (S + 1): the last column is a target only.

    Args:
        config: vocabulary, batch and seed.
        pin: page-locked memory, from which a copy to the device does not make the host wait.
    """
    generator = torch.Generator().manual_seed(config.seed)
    while True:
        shape = (config.micro_batch, config.seq + 1)
        ids = torch.randint(config.vocab, shape, generator=generator)
        yield ids.pin_memory() if pin else ids


def time_steps(trainer: Trainer, steps: int, warmup: int = WARMUP_STEPS) -> list[float]:
    """Milliseconds of each step with no profiler running, after `warmup` steps that are not timed."""
    for _ in range(warmup):
        trainer.step()
    milliseconds: list[float] = []
    for _ in range(steps):
        start = time.perf_counter()
        trainer.step()
        milliseconds.append((time.perf_counter() - start) * 1e3)
    return milliseconds


def profile(
    trainer: Trainer, path: Path, steps: int, *, stack: bool = True, warmup: int = WARMUP_STEPS
) -> Facts:
    """Record training steps as Chrome JSON.

    Args:
        trainer: runs the steps.
        path: file to write, `.json` or `.json.gz`.
        steps: how many to record, each marked `ProfilerStep#N`.
        stack: record Python frames, nn.Module calls and garbage collections too. They slow the host down and
            are much of the file.
        warmup: steps before, with the profiler running but nothing kept.
    """
    activities = [ProfilerActivity.CPU]
    if trainer.device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    profiler = torch_profile(
        activities=activities,
        schedule=schedule(wait=0, warmup=warmup, active=steps, repeat=1),
        on_trace_ready=lambda done: done.export_chrome_trace(str(path)),
        record_shapes=True,
        with_stack=stack,
        with_modules=stack,
        experimental_config=experimental_config(stack),
    )
    loss: list[float] = []
    with profiler:
        # One process: written by hand what torch writes by itself where torch.distributed runs.
        profiler.add_metadata_json("distributedInfo", json.dumps(ONE_RANK))
        profiler.add_metadata_json("workload", json.dumps(asdict(trainer.config)))
        for _ in range(warmup + steps):
            loss.append(trainer.step())
            profiler.step()
    return Facts(
        device=device_name(trainer.device),
        software=software_versions(),
        parameters=sum(parameter.numel() for parameter in trainer.model.parameters()),
        steps=steps,
        loss=tuple(loss[warmup:]),
    )


def experimental_config(stack: bool) -> _ExperimentalConfig:
    """What torch calls experimental: garbage collections, where this torch can record them."""
    # The class is native and has no signature to ask; its docstring is the signature.
    if stack and "record_python_gc_info" in (_ExperimentalConfig.__init__.__doc__ or ""):
        return _ExperimentalConfig(record_python_gc_info=True)
    return _ExperimentalConfig()


def device_name(device: torch.device) -> str:
    """Name of the accelerator, or the processor's architecture."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"cpu ({platform.machine()})"


def software_versions() -> dict[str, str]:
    """Versions of Python, torch and the runtime that torch was built for."""
    versions = {"python": platform.python_version(), "torch": str(torch.__version__)}
    for name in ("cuda", "hip"):
        version = getattr(torch.version, name, None)
        if version:
            versions[name] = str(version)
    return versions
