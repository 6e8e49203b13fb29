"""Steps of a schedule on one rank or several, to compare them with one rank that does all the work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from tests.workload.ranks import run_ranks
from tests.workload.whole import (
    STD,
    Result,
    clear_seed,
    make_model,
    one_rank,
    token_batch,
    train_once,
    whole_gradients,
)
from tracelens.planner.config import Config, Layout
from tracelens.workload.parallel import Groups, initialise, make_groups
from tracelens.workload.pipeline import MicroBatchSchedule, make_schedule

SMALL = (
    "seq=8", "micro_batch=1", "micro_batches=4", "hidden=16", "heads=2", "kv_lora=8", "dense_ffn=16",
    "expert_ffn=8", "shared_ffn=8", "vocab=32", "aux_loss=0.01",
)  # fmt: skip
STEPS = 2


def filled_schedule(config: Config, groups: Groups, seed: int) -> MicroBatchSchedule:
    """A schedule with the weights of `make_model`, and gradients of zero that are there from the start."""
    schedule = make_schedule(config, groups, torch.device("cpu"))
    norms = dict(make_model(one_rank(config), Groups(Layout()), seed).named_parameters())
    for chunk in schedule.chunks.values():
        initialise(chunk, seed, STD)
        for name, parameter in chunk.named_parameters():
            parameter.grad = torch.zeros_like(parameter)
            if parameter.dim() == 1:
                parameter.data.copy_(norms[name])
    return schedule


def batch(config: Config, groups: Groups, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """token_MSB and target_MSB of one step."""
    generator = torch.Generator().manual_seed(seed)
    pairs = [token_batch(config, groups, generator) for _ in range(config.training.micro_batches)]
    return torch.stack([token for token, _ in pairs]), torch.stack([target for _, target in pairs])


def run_schedule(config: Config, groups: Groups, seed: int) -> Result:
    """The last of some steps that are all the same: this rank's share of the loss, whole gradients."""
    schedule = filled_schedule(config, groups, seed)
    parameters = [one for chunk in schedule.chunks.values() for one in chunk.parameters()]
    buffers = [parameter.grad for parameter in parameters]
    for _ in range(STEPS):
        for buffer in buffers:
            buffer.zero_()
        loss = schedule.step(*batch(config, groups, seed))
    assert all(one.grad is buffer for one, buffer in zip(parameters, buffers, strict=True))
    gradients = [whole_gradients(chunk, groups) for chunk in schedule.chunks.values()]
    return Result(loss, {name: gradient for some in gradients for name, gradient in some.items()})


def run_all(rank: int, configs: Sequence[Config], seeds: Sequence[int]) -> list[Result]:
    """One after the other on a rank: starting ranks takes longer than what they do."""
    return [
        run_schedule(config, make_groups(config.layout, rank), seed)
        for config, seed in zip(configs, seeds, strict=True)
    ]


def joined(results: Sequence[Result]) -> Result:
    """Of all ranks: the sum of the losses, the gradients of all stages."""
    gradients = {name: gradient for one in results for name, gradient in one.gradients.items()}
    return Result(torch.stack([one.loss for one in results]).sum(), gradients)


def baseline(config: Config, seed: int) -> Result:
    """One rank that does all micro-batches in turn, with every toggle off."""
    return train_once(one_rank(config), Groups(Layout()), seed)


def beside_one_rank(configs: Mapping[str, Config], folder: Path) -> dict[str, tuple[Result, Result, int]]:
    """By name: what all ranks of a configuration found, what one rank finds in turn, and the seed.

    Args:
        configs: all of as many ranks, which are started once.
        folder: for the ranks' results.
    """
    parts = list(configs.values())
    seeds = [clear_seed(config) for config in parts]
    found = run_ranks(parts[0].layout.ranks, run_all, parts, seeds, folder=folder)
    together = [joined(ranks) for ranks in zip(*found, strict=True)]
    expected = [baseline(config, seed) for config, seed in zip(parts, seeds, strict=True)]
    return dict(zip(configs, zip(together, expected, seeds, strict=True), strict=True))
