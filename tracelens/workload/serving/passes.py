"""A forward pass of one rank: eagerly, as two overlapped halves, or replayed from a graph."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tracelens.recording import span
from tracelens.workload.serving.model import ServingModel, Waits
from tracelens.workload.serving.rows import make_rows
from tracelens.workload.serving.split import Batch


def eager(model: ServingModel, batch: Batch, prefill: bool, padded: int, device: torch.device) -> Tensor:
    """Logits_RV of a prefill or a decode, which has `padded` tokens on each rank where all meet."""
    return together([model.run(make_rows(batch, prefill, device), padded)])[0]


def overlapped(
    model: ServingModel,
    batches: Sequence[tuple[str, Batch]],
    prefill: bool,
    padded: Sequence[int],
    device: torch.device,
) -> Tensor:
    """Logits_RV of the halves of a batch, those of the first half first.

    The halves take turns: where one waits for other ranks, the other one goes on. As the first is always a
    turn ahead, what it puts into the cache in a layer is there when the second half looks at it.
    """
    runs = [
        model.run(make_rows(batch, prefill, device), tokens, alone=False)
        for (_, batch), tokens in zip(batches, padded, strict=True)
    ]
    return torch.cat(together(runs, [label for label, _ in batches]))


def together(runs: Sequence[Waits], labels: Sequence[str] | None = None) -> list[Tensor]:
    """Run computations in turns, each as far as its next wait for other ranks; what each made.

    All wait as often; the scopes of their turns have the names in `labels`.
    """
    made: list[Tensor] = []
    while len(made) < len(runs):
        for number, run in enumerate(runs):
            try:
                if labels is None:
                    next(run)
                else:
                    # A scope cannot stay open while another computation has its turn.
                    with span(labels[number]):
                        next(run)
            except StopIteration as end:
                made.append(end.value)
    return made
