"""Training steps of the reference model on one rank."""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass, field

import torch
from torch import nn

from tracelens.planner.config import Config
from tracelens.recording import span
from tracelens.workload.data import Batches
from tracelens.workload.model import INIT_STD
from tracelens.workload.parallel import Groups, ShardedAdamW, all_reduce, initialise, require
from tracelens.workload.pipeline import make_schedule

# With gc=manual: what collecting between steps may cost is spread over so many of them.
STEPS_A_COLLECTION = 100


class Trainer:
    """Model, optimizer and data of one rank."""

    def __init__(self, config: Config, groups: Groups, device: torch.device) -> None:
        self.config, self.groups, self.device = config, groups, device
        require(config.toggles.tp_overlap, groups.tp, device)
        self.schedule = make_schedule(config, groups, device)
        self.model = nn.ModuleDict({str(number): chunk for number, chunk in self.schedule.chunks.items()})
        for chunk in self.schedule.chunks.values():
            initialise(chunk, config.training.seed, INIT_STD)
        self.optimizer = ShardedAdamW(list(self.model.parameters()), config, groups)
        self.batches = Batches(config, groups, pin=device.type == "cuda")
        self.steps = 0
        if config.toggles.gc == "manual":
            gc.disable()
            gc.freeze()
        else:
            gc.enable()  # the command line runs without

    def step(self) -> float:
        """Train on one batch; the mean loss of all ranks' tokens. Reading it waits for the device."""
        with span("data"):
            tokens, targets = self.batches.next_step()
            tokens = tokens.to(self.device, non_blocking=True)
            targets = targets.to(self.device, non_blocking=True)
        loss = self.schedule.step(tokens, targets)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.steps += 1
        if self.config.toggles.gc == "manual" and self.steps % STEPS_A_COLLECTION == 0:
            with span("gc"):
                gc.collect()
        with span("log"):
            return float(all_reduce(all_reduce(loss, self.groups.stage), self.groups.pp).item())

    def close(self) -> None:
        """Free what must be gone before the process group is; to be called at the end."""
        self.schedule.close()


@dataclass
class Measured:
    """What one rank saw of its run.

    Attributes:
        loss: of each step.
        step_ms: of each step.
        peak_bytes: of device memory that torch's allocator gave out, 0 on a CPU.
    """

    loss: list[float] = field(default_factory=list)
    step_ms: list[float] = field(default_factory=list)
    peak_bytes: int = 0

    def step(self, trainer: Trainer) -> None:
        begin = time.perf_counter()
        self.loss.append(trainer.step())
        self.step_ms.append((time.perf_counter() - begin) * 1e3)
        if trainer.device.type == "cuda":
            self.peak_bytes = torch.cuda.max_memory_allocated(trainer.device)
