"""Whole results out of the parts that ranks hold, to compare a layout or a toggle with one rank.

A job of `run_ranks` returns train_once(config, make_groups(config.layout, rank), seed), with a seed from
clear_seed(config). In the parent, expected = train_once(alone, Groups(alone.layout), seed), where alone is
one_rank(config); then assert_same(result, expected, seed) for the result of each rank.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from tests.workload.agree import FLOAT32, relative_error
from tracelens.planner.config import Config, Layout
from tracelens.workload.kernels import choose, scores
from tracelens.workload.model import Router, Transformer
from tracelens.workload.parallel import Groups, initialise
from tracelens.workload.train import local_part

STD = 0.1
"""Of weights: at the usual 0.02 attention is so even, and gradients so small, that errors would not show."""

_HOLDERS = {"dense": "tp", "edp": "ep"}
"""Group whose ranks hold the other parts, by the group that holds the same."""


@dataclass
class Result:
    """Of one step.

    Attributes:
        loss: mean over all tokens of the step.
        gradients: of whole parameters of this rank's stage, by name.
    """

    loss: Tensor
    gradients: dict[str, Tensor]


def token_batch(config: Config, groups: Groups, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """token_SB and target_SB: this rank's part of a micro-batch of all ranks."""
    shape = (1, config.training.seq + 1, config.training.micro_batch * config.layout.dp)
    ids = torch.randint(config.model.vocab, shape, generator=generator)
    tokens, targets = (local_part(part, config.layout, groups) for part in (ids[:, :-1], ids[:, 1:]))
    return tokens[0], targets[0]


def whole_gradients(model: nn.Module, groups: Groups) -> dict[str, Tensor]:
    """Gradients of the whole parameters that this rank has a part of, by name; all of its stage must call it.

    Summed over the ranks with the same part, then joined with the other parts.
    """
    found = {}
    for name, parameter in model.named_parameters():
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
        same = getattr(groups, parameter.replicas)
        if same is not None:
            dist.all_reduce(gradient, group=same)
        dim, part, parts = parameter.cut
        if parts > 1:
            others = getattr(groups, _HOLDERS[parameter.replicas])
            assert (others.size(), others.rank()) == (parts, part), name
            pieces = [torch.empty_like(gradient) for _ in range(parts)]
            dist.all_gather(pieces, gradient, group=others)
            gradient = torch.cat(pieces, dim)
        found[name] = gradient
    return found


def train_once(config: Config, groups: Groups, seed: int) -> Result:
    """Forward and backward of the micro-batches of one step, without a pipeline."""
    model = make_model(config, groups, seed)
    generator = torch.Generator().manual_seed(seed)
    total = torch.zeros(())
    for _ in range(config.training.micro_batches):
        token_SB, target_SB = token_batch(config, groups, generator)
        loss = loss_sum(model(token_SB), target_SB) / config.global_tokens
        loss.backward()
        total += loss.detach()
    if groups.stage is not None:
        dist.all_reduce(total, group=groups.stage)
    return Result(total, whole_gradients(model, groups))


def make_model(config: Config, groups: Groups, seed: int) -> Transformer:
    """The whole model of a rank without a pipeline, norms away from 1 so that they matter."""
    model = Transformer(config, groups)
    initialise(model, seed, STD)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            generator = torch.Generator().manual_seed(seed + len(name))
            with torch.no_grad():
                parameter.add_(torch.randn(parameter.shape, generator=generator) * STD)
    return model


def loss_sum(logits_SBV: Tensor, target_SB: Tensor) -> Tensor:
    """Sum of the losses of tokens."""
    return F.cross_entropy(logits_SBV.flatten(0, 1), target_SB.flatten(), reduction="sum")


def one_rank(config: Config) -> Config:
    """The same batch and model on one rank, at the baseline in everything that a layout or toggle changes."""
    training = replace(config.training, micro_batch=config.training.micro_batch * config.layout.dp)
    return Config(config.model, Layout(), training=training)


def clear_seed(config: Config, tries: int = 100) -> int:
    """A fresh seed with which no choice of experts hangs on rounding, as told by small changes of the scores.

    Without it a run in some thousands would differ, and rightly so: where two experts score alike, the order
    of a sum decides.
    """
    config = one_rank(config)
    groups = Groups(config.layout)
    for _ in range(tries):
        seed = int(torch.seed() % 2**31)
        if _is_clear(config, groups, seed):
            return seed
    raise AssertionError(f"none of {tries} seeds gives clear choices of experts")


def _is_clear(config: Config, groups: Groups, seed: int) -> bool:
    model = make_model(config, groups, seed)
    clear = []

    def check(router: Router, inputs: tuple[Tensor], _: object) -> None:
        score_TE = scores(F.linear(inputs[0], router.weight_ED).flatten(0, 1), router.model)
        chosen_TK = choose(score_TE, router.model).sort(1).values
        for _ in range(16):
            changed_TE = score_TE * (1 + 1e-5 * torch.randn_like(score_TE))
            clear.append(torch.equal(choose(changed_TE, router.model).sort(1).values, chosen_TK))

    for module in model.modules():
        if isinstance(module, Router):
            module.register_forward_hook(check)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for _ in range(config.training.micro_batches):
            model(token_batch(config, groups, generator)[0])
    return all(clear)


def assert_same(found: Result, expected: Result, seed: int, tolerance: float = FLOAT32) -> None:
    """Loss and all gradients agree; else the worst are named, and the seed."""
    assert found.gradients.keys() == expected.gradients.keys()
    errors = {name: relative_error(found.gradients[name], one) for name, one in expected.gradients.items()}
    errors["loss"] = relative_error(found.loss, expected.loss)
    wrong = {name: error for name, error in errors.items() if not error <= tolerance}
    worst = sorted(wrong.items(), key=lambda item: -item[1])[:5]
    assert not wrong, f"seed {seed}: {len(wrong)} of {len(errors)} differ by more than {tolerance}: {worst}"
