"""The reference model for serving: whole attention, and MLPs and experts of which each rank has a slice.

A rank's slice is as wide everywhere: of each expert, of the shared one, of a dense layer's MLP. So a rank
computes a part of the result of all ranks' tokens, and the parts are added up on the way back. Parameters
have the names, and so the numbers, of `model`. Letters of shapes as in `rows`; also N, tokens of all ranks,
padded to the rank with most of them.

A forward pass is a generator: it stops wherever it waits for other ranks, so that another half of the batch
may go on there (see `passes`).
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tracelens.planner.config import Config
from tracelens.recording import scoped, span
from tracelens.workload import spans
from tracelens.workload.model import EMBEDDING_STD, INIT_STD, GroupedExperts, RMSNorm, Router
from tracelens.workload.parallel import (
    AllGather,
    Group,
    Groups,
    ReduceScatter,
    finish,
    initialise,
    normal,
    shard,
    start,
)
from tracelens.workload.permute import permute, unpermute
from tracelens.workload.rows import sort_rows
from tracelens.workload.serving.attention import make_cached_attention
from tracelens.workload.serving.rows import BatchTensors

Waits = Generator[None, None, Tensor]
"""A computation that stops where it waits for other ranks, and in the end has a tensor."""


class ServingModel(nn.Module):
    """All layers, whose caches have one more slot than asked for: the last one, for tokens of nobody.

    Args:
        config: of the model on one rank; its `seq` is the longest context.
        slots: requests in the cache.
        group: ranks that the slices are on, None for one rank alone.
    """

    def __init__(self, config: Config, slots: int, group: Group = None) -> None:
        super().__init__()
        model, alone = config.model, Groups(config.layout)
        self.embedding = shard(nn.Parameter(torch.empty(model.vocab, model.hidden)), "stage")
        self.embedding.std = EMBEDDING_STD
        self.layers = nn.ModuleDict(
            {str(number): Layer(config, alone, number, slots + 1, group) for number in range(model.layers)}
        )
        self.norm = RMSNorm(model.hidden)
        self.head = shard(nn.Parameter(torch.empty(model.vocab, model.hidden)), "stage")

    def initialise(self, seed: int, std: float = INIT_STD) -> None:
        """Fill all matrices; with one seed the same in any number of slices."""
        initialise(self, seed, std)
        for name, module in self.named_modules():
            if isinstance(module, SlicedExperts):
                module.initialise(name, seed, std)

    def run(self, rows: BatchTensors, padded: int, alone: bool = True) -> Waits:
        """Logits_RV of the tokens with an answer.

        Args:
            rows: tokens of this rank.
            padded: tokens of each rank where all meet, at least as many.
            alone: whether nothing else runs while it waits, so that scopes may stay open.
        """
        x_TD = scoped("embedding", F.embedding, rows.token_T, self.embedding)
        for layer in self.layers.values():
            x_TD = yield from layer.run(x_TD, rows, padded, alone)
        return scoped("head", self.logits, x_TD, rows.answer_R)

    def logits(self, x_TD: Tensor, answer_R: Tensor) -> Tensor:
        return F.linear(self.norm(x_TD[answer_R]), self.head)


class Layer(nn.Module):
    """Attention for this rank's own tokens, then a slice of an MLP or of experts for those of all ranks."""

    def __init__(self, config: Config, alone: Groups, number: int, slots: int, group: Group) -> None:
        super().__init__()
        self.name, model = f"L{number}", config.model
        self.attention_norm = RMSNorm(model.hidden)
        self.attention = make_cached_attention(config, alone, slots)
        self.ffn_norm = RMSNorm(model.hidden)
        self.ffn: SlicedMoE | SlicedMLP = (
            SlicedMoE(config, alone, group)
            if number >= model.dense_layers
            else SlicedMLP(config, model.dense_ffn, group)
        )

    def run(self, x_TD: Tensor, rows: BatchTensors, padded: int, alone: bool) -> Waits:
        x_TD = x_TD + scoped(f"{self.name}.attention", self.attend, x_TD, rows)
        own_TD = self.ffn_norm(x_TD)
        if padded > len(own_TD):
            own_TD = F.pad(own_TD, (0, 0, 0, padded - len(own_TD)))
        with span(f"{self.name}.{spans.MOE}") if alone and isinstance(self.ffn, SlicedMoE) else nullcontext():
            y_TD = yield from self.ffn.run(own_TD, self.name)
        return x_TD + y_TD[: len(x_TD)]

    def attend(self, x_TD: Tensor, rows: BatchTensors) -> Tensor:
        return self.attention.run(self.attention_norm(x_TD), rows)


class SlicedMLP(nn.Module):
    """A slice of a gated MLP of inner width `ffn`, its other slices on the ranks of `group`."""

    def __init__(self, config: Config, ffn: int, group: Group) -> None:
        super().__init__()
        part, parts = rank_and_size(group)
        D, self.group = config.model.hidden, group
        self.gate = shard(nn.Parameter(torch.empty(ffn // parts, D)), "dense", 0, part, parts)
        self.up = shard(nn.Parameter(torch.empty(ffn // parts, D)), "dense", 0, part, parts)
        self.down = shard(nn.Parameter(torch.empty(D, ffn // parts)), "dense", 1, part, parts)

    def forward(self, x_ND: Tensor) -> Tensor:
        """What this slice adds to the output y_ND."""
        return F.linear(F.silu(F.linear(x_ND, self.gate)) * F.linear(x_ND, self.up), self.down)

    def run(self, x_TD: Tensor, name: str) -> Waits:
        """Output y_TD of this rank's tokens."""
        x_ND = yield from gathered(x_TD, self.group, f"{name}.mlp.gather")
        y_ND = scoped(f"{name}.mlp", self, x_ND)
        return (yield from scattered(y_ND, self.group, f"{name}.mlp.scatter"))


class SlicedExperts(GroupedExperts):
    """A slice of every expert."""

    def __init__(self, config: Config, alone: Groups, group: Group) -> None:
        super().__init__(config, alone)
        self.part, self.parts = rank_and_size(group)
        E, D, F_ = len(self.up_eDG), config.model.hidden, config.model.expert_ffn // self.parts
        self.up_eDG = shard(nn.Parameter(torch.empty(E, D, 2 * F_)), "edp")
        self.down_eFD = shard(nn.Parameter(torch.empty(E, F_, D)), "edp")

    def initialise(self, name: str, seed: int, std: float) -> None:
        """Fill the slices of one expert after the other, of gate and up projection alike."""
        with torch.no_grad():
            for expert, (up_DG, down_FD) in enumerate(zip(self.up_eDG, self.down_eFD, strict=True)):
                D, G = up_DG.shape[0], up_DG.shape[1] * self.parts
                up = normal(torch.Size((D, G)), f"{name}.up_eDG.{expert}", seed, up_DG)
                down = normal(torch.Size((G // 2, D)), f"{name}.down_eFD.{expert}", seed, down_FD)
                both = [half.chunk(self.parts, 1)[self.part] for half in up.chunk(2, 1)]
                up_DG.copy_(torch.cat(both, 1) * std)
                down_FD.copy_(down.chunk(self.parts, 0)[self.part] * std)


class SlicedMoE(nn.Module):
    """Router of this rank's tokens, then a slice of all experts for the tokens of all ranks."""

    def __init__(self, config: Config, alone: Groups, group: Group) -> None:
        super().__init__()
        model, self.group = config.model, group
        self.count, self.fusion = model.experts_count, config.toggles.permute
        self.router = Router(config, alone)
        self.experts = SlicedExperts(config, alone, group)
        self.shared = SlicedMLP(config, model.shared_ffn, group) if model.shared_ffn else None

    def run(self, x_TD: Tensor, name: str) -> Waits:
        """Output y_TD of this rank's tokens."""
        with span(f"{name}.{spans.ROUTER}"):
            weight_TK, expert_TK = self.router(x_TD.unsqueeze(1))
            # Side by side in one message: as 32 bits each.
            choice_TC = torch.cat([weight_TK.view(torch.int32), expert_TK.to(torch.int32)], dim=1)
        with span(f"{name}.{spans.DISPATCH}"):
            choices = start(choice_TC, AllGather(self.group))
        x_ND = yield from gathered(x_TD, self.group, f"{name}.{spans.DISPATCH}")
        with span(f"{name}.{spans.DISPATCH}"):
            choice_NK, expert_NK = finish(choices).chunk(2, dim=1)
            weight_NK = choice_NK.contiguous().view(torch.float32)
        y_ND = self.compute(x_ND, weight_NK, expert_NK.long(), name)
        return (yield from scattered(y_ND, self.group, f"{name}.{spans.COMBINE}"))

    def compute(self, x_ND: Tensor, weight_NK: Tensor, expert_NK: Tensor, name: str) -> Tensor:
        """What this rank's slices add to the output y_ND.

        All rows have experts, padding as well: the host knows their number, and waits for nothing.
        """
        with span(f"{name}.{spans.PERMUTE}"):
            rows = sort_rows(expert_NK, self.count, expert_NK.numel())
            x_RD = permute(x_ND, rows, self.fusion)
        with span(f"{name}.{spans.EXPERTS}"):
            y_RD = self.experts(x_RD, rows.rows_e)
        with span(f"{name}.{spans.PERMUTE}"):
            y_ND = unpermute(y_RD, weight_NK, rows, self.fusion)
        if self.shared is None:
            return y_ND
        return y_ND + scoped(f"{name}.{spans.SHARED}", self.shared, x_ND)


def rank_and_size(group: Group) -> tuple[int, int]:
    """This rank's index in a group, and the group's size."""
    return (0, 1) if group is None else (group.rank(), group.size())


def gathered(x_TD: Tensor, group: Group, name: str) -> Waits:
    """The tokens of all ranks."""
    return (yield from _collective(x_TD, AllGather(group), name))


def scattered(y_ND: Tensor, group: Group, name: str) -> Waits:
    """This rank's tokens of the sum over all ranks."""
    return (yield from _collective(y_ND, ReduceScatter(group), name))


def _collective(x: Tensor, how: AllGather | ReduceScatter, name: str) -> Waits:
    with span(name):
        pending = start(x, how)
    yield
    with span(name):
        return finish(pending)
