"""Random token ids: the same global batch in every layout, of which each rank takes its part."""

from __future__ import annotations

import torch
from torch import Tensor

from tracelens.planner.config import Config, Layout
from tracelens.workload.parallel import Groups


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
