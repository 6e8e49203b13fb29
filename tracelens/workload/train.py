"""Training steps of the reference model on one rank.

Tokens are random: the same global batch in every layout.
"""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from tracelens.planner.config import Config, Layout
from tracelens.recording import span
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
class StepMeasurements:
    """What one rank saw of its run."""

    loss: list[float] = field(default_factory=list)  # of each step
    step_ms: list[float] = field(default_factory=list)  # of each step
    peak_bytes: int = 0  # of device memory that torch's allocator gave out, 0 on a CPU

    def step(self, trainer: Trainer) -> None:
        begin = time.perf_counter()
        self.loss.append(trainer.step())
        self.step_ms.append((time.perf_counter() - begin) * 1e3)
        if trainer.device.type == "cuda":
            self.peak_bytes = torch.cuda.max_memory_allocated(trainer.device)


class Batches:
    """Micro-batches of one rank, step by step; from pinned memory a copy does not block the host."""

    def __init__(self, config: Config, groups: Groups, pin: bool) -> None:
        self.config, self.groups, self.pin = config, groups, pin
        self.generator = torch.Generator().manual_seed(config.training.seed)

    def next_step(self) -> tuple[Tensor, Tensor]:
        """Tokens and targets of the next step on the host, int64, micro-batches x S x B each."""
        training, layout = self.config.training, self.config.layout
        sequences = training.micro_batch * layout.dp
        shape = (training.micro_batches, training.seq + 1, sequences)
        ids = torch.randint(self.config.model.vocab, shape, generator=self.generator)
        both = (local_part(part, layout, self.groups) for part in (ids[:, :-1], ids[:, 1:]))
        tokens, targets = (part.pin_memory() if self.pin else part for part in both)
        return tokens, targets


def local_part(all_MSB: Tensor, layout: Layout, groups: Groups) -> Tensor:
    """A rank's positions of its sequences, contiguous: cut by data, then context, then tensor parallelism."""
    part = all_MSB.chunk(layout.dp, 2)[groups.coordinate("dp")]
    part = part.chunk(layout.cp, 1)[groups.coordinate("cp")]
    return part.chunk(layout.tp, 1)[groups.coordinate("tp")].contiguous()
