"""The reference model for serving: whole attention, and MLPs and experts of which each rank has a slice.

A rank's slice is as wide everywhere: of each expert, of the shared one, of a dense layer's MLP. So a rank
computes a part of the result of all ranks' tokens, and the parts are added up on the way back. Parameters
have the names, and so the numbers, of `model`. Letters of shapes as in `rows`; also N, tokens of all
ranks, padded to the rank with most of them.

A forward pass is a generator: it stops wherever it waits for other ranks, so that another half of the batch
may go on there (see `engine`).

Attention takes the parameters of training another way, since keys and values are kept. Grouped queries keep
keys and values, turned by their position. Latent attention keeps the latent and the rotary key. A prefill
makes keys and values of them, as training does; a decode does not: it takes the queries into the space of the
latents, where all heads look at the same rows (DeepSeek-V2, arXiv:2405.04434, section 2.1.2: the up-
projections are absorbed).

Letters of shapes as in `attention`; also T tokens, B those of a decode, L rows of a slot, g groups of heads
that share keys, h heads of a group, l the width of a latent.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right

from tracelens.planner.config import Config
from tracelens.recording import scoped, span
from tracelens.workload.model import (
    EMBEDDING_STD,
    INIT_STD,
    Attention,
    GroupedExperts,
    GroupedQueryAttention,
    LatentAttention,
    RMSNorm,
    Router,
)
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
from tracelens.workload.rows import permute, sort_rows, unpermute
from tracelens.workload.serving.plan import Batch

Waits = Generator[None, None, Tensor]
"""A computation that stops where it waits for other ranks, and in the end has a tensor."""


class ServingModel(nn.Module):
    """All layers, whose caches have one more slot than asked for: the last one, for tokens of nobody.

    The config's `seq` is the longest context; the slices are on the ranks of `group`, None for one alone.
    """

    def __init__(self, config: Config, slots: int, group: Group = None) -> None:
        super().__init__()
        model, alone = config.model, Groups(config.layout)
        self.embedding = shard(nn.Parameter(torch.empty(model.vocab, model.hidden)), "stage")
        self.embedding.std = EMBEDDING_STD
        self.layers = nn.ModuleDict(
            {
                str(number): ServingLayer(config, alone, number, slots + 1, group)
                for number in range(model.layers)
            }
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


class ServingLayer(nn.Module):
    """Attention for this rank's own tokens, then a slice of an MLP or of experts for those of all ranks."""

    def __init__(self, config: Config, alone: Groups, number: int, slots: int, group: Group) -> None:
        super().__init__()
        self.name, model = f"L{number}", config.model
        self.attention_norm = RMSNorm(model.hidden)
        cached = CachedLatentAttention if model.attention == "mla" else CachedGroupedQueryAttention
        self.attention = cached(config, alone, slots)
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
        with span(f"{self.name}.moe") if alone and isinstance(self.ffn, SlicedMoE) else nullcontext():
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
        with span(f"{name}.router"):
            weight_TK, expert_TK = self.router(x_TD.unsqueeze(1))
            # Side by side in one message: as 32 bits each.
            choice_TC = torch.cat([weight_TK.view(torch.int32), expert_TK.to(torch.int32)], dim=1)
        with span(f"{name}.dispatch"):
            choices = start(choice_TC, AllGather(self.group))
        x_ND = yield from gathered(x_TD, self.group, f"{name}.dispatch")
        with span(f"{name}.dispatch"):
            choice_NK, expert_NK = finish(choices).chunk(2, dim=1)
            weight_NK = choice_NK.contiguous().view(torch.float32)
        y_ND = self.compute(x_ND, weight_NK, expert_NK.long(), name)
        return (yield from scattered(y_ND, self.group, f"{name}.combine"))

    def compute(self, x_ND: Tensor, weight_NK: Tensor, expert_NK: Tensor, name: str) -> Tensor:
        """What this rank's slices add to the output y_ND.

        All rows have experts, padding as well: the host knows their number, and waits for nothing.
        """
        with span(f"{name}.permute"):
            rows = sort_rows(expert_NK, self.count, expert_NK.numel())
            x_RD = permute(x_ND, rows, self.fusion)
        with span(f"{name}.experts"):
            y_RD = self.experts(x_RD, rows.rows_e)
        with span(f"{name}.permute"):
            y_ND = unpermute(y_RD, weight_NK, rows, self.fusion)
        if self.shared is None:
            return y_ND
        return y_ND + scoped(f"{name}.shared", self.shared, x_ND)


# Not cuDNN's, which plans for tens of milliseconds for every new length, and prompts have all lengths.
KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


class CachedGroupedQueryAttention(GroupedQueryAttention):
    """Keys and values of each group of heads are kept; `seq` is the longest context."""

    def __init__(self, config: Config, groups: Groups, slots: int) -> None:
        super().__init__(config, groups)
        rows = (slots, self.kv_groups, config.training.seq)
        self.register_buffer("keys", torch.zeros(*rows, self.query_dim), persistent=False)
        self.register_buffer("values", torch.zeros(*rows, self.value_dim), persistent=False)

    def run(self, x_TD: Tensor, rows: BatchTensors) -> Tensor:
        """Attention output x_TD; the tokens are in the cache afterwards."""
        q_Tnq, k_Tgq, v_Tgv = (
            F.linear(x_TD, weight).unflatten(1, (heads, -1))
            for weight, heads in ((self.q, self.heads), (self.k, self.kv_groups), (self.v, self.kv_groups))
        )
        q_Tnq, k_Tgq = (turn(x, self, rows.position_T) for x in (q_Tnq, k_Tgq))
        self.keys[rows.slot_T, :, rows.position_T] = k_Tgq
        self.values[rows.slot_T, :, rows.position_T] = v_Tgv
        y_Tnv = self.look_back(q_Tnq, rows) if rows.stretches is None else self.prefill(q_Tnq, rows)
        return F.linear(y_Tnv.flatten(1), self.out)

    def prefill(self, q_Tnq: Tensor, rows: BatchTensors) -> Tensor:
        """y_Tnv, request by request."""
        y_Tnv = q_Tnq.new_empty(*q_Tnq.shape[:2], self.value_dim)
        for begin, end, slot, first in rows.stretches or ():
            upto = first + end - begin
            k_gLq, v_gLv = self.keys[slot, :, :upto], self.values[slot, :, :upto]
            y_Tnv[begin:end] = causal(q_Tnq[begin:end], k_gLq, v_gLv)
        return y_Tnv

    def look_back(self, q_Bnq: Tensor, rows: BatchTensors) -> Tensor:
        q_Bghq = q_Bnq.unflatten(1, (self.kv_groups, -1))
        k_BgLq, v_BgLv = (kept[:, :, : rows.longest][rows.slot_T] for kept in (self.keys, self.values))
        return look_up(q_Bghq, k_BgLq, v_BgLv, rows.position_T, self.query_dim**-0.5).flatten(1, 2)


class CachedLatentAttention(LatentAttention):
    """The latent of keys and values is kept, and the shared rotary key; `seq` is the longest context."""

    def __init__(self, config: Config, groups: Groups, slots: int) -> None:
        super().__init__(config, groups)
        width = self.latent + self.rotary_dim
        self.register_buffer("kept", torch.zeros(slots, config.training.seq, width), persistent=False)

    def run(self, x_TD: Tensor, rows: BatchTensors) -> Tensor:
        """Attention output x_TD; the tokens are in the cache afterwards."""
        q_Tnq = self.queries(x_TD, rows)
        latent_Tl, rotary_Tr = F.linear(x_TD, self.kv_down).split([self.latent, self.rotary_dim], dim=1)
        rotary_Tr = turn(rotary_Tr.unsqueeze(1), self, rows.position_T).squeeze(1)
        self.kept[rows.slot_T, rows.position_T] = torch.cat([self.kv_norm(latent_Tl), rotary_Tr], dim=1)
        y_Tnv = self.look_back(q_Tnq, rows) if rows.stretches is None else self.prefill(q_Tnq, rows)
        return F.linear(y_Tnv.flatten(1), self.out)

    def queries(self, x_TD: Tensor, rows: BatchTensors) -> Tensor:
        """q_Tnq, the rotary part turned."""
        if self.q_down is not None and self.q_norm is not None:
            x_TD = self.q_norm(F.linear(x_TD, self.q_down))
        q_Tnq = F.linear(x_TD, self.q_up).unflatten(1, (self.heads, -1))
        q_Tnc, q_Tnr = q_Tnq.split([self.qk_dim, self.rotary_dim], dim=2)
        return torch.cat([q_Tnc, turn(q_Tnr, self, rows.position_T)], dim=2)

    def prefill(self, q_Tnq: Tensor, rows: BatchTensors) -> Tensor:
        """y_Tnv, request by request: keys and values of what is cached before it are made again."""
        y_Tnv = q_Tnq.new_empty(*q_Tnq.shape[:2], self.value_dim)
        for begin, end, slot, first in rows.stretches or ():
            kept_Ll = self.kept[slot, : first + end - begin]
            latent_Ll, rotary_Lr = kept_Ll.split([self.latent, self.rotary_dim], dim=1)
            heads_Lnc = F.linear(latent_Ll, self.kv_up).unflatten(1, (self.heads, -1))
            k_Lnc, v_Lnv = heads_Lnc.split([self.qk_dim, self.value_dim], dim=2)
            k_Lnq = torch.cat([k_Lnc, rotary_Lr.unsqueeze(1).expand(-1, self.heads, -1)], dim=2)
            y_Tnv[begin:end] = causal(q_Tnq[begin:end], k_Lnq.transpose(0, 1), v_Lnv.transpose(0, 1))
        return y_Tnv

    def look_back(self, q_Bnq: Tensor, rows: BatchTensors) -> Tensor:
        """y_Bnv of a decode: scores and sums in the space of the latents."""
        up_ncl = self.kv_up.unflatten(0, (self.heads, -1))
        k_ncl, v_nvl = up_ncl.split([self.qk_dim, self.value_dim], dim=1)
        q_Bnc, q_Bnr = q_Bnq.split([self.qk_dim, self.rotary_dim], dim=2)
        q_nBl = q_Bnc.transpose(0, 1) @ k_ncl
        q_Bnk = torch.cat([q_nBl.transpose(0, 1), q_Bnr], dim=2)
        kept_BLk = self.kept[:, : rows.longest][rows.slot_T]
        y_B1nl = look_up(
            q_Bnk[:, None], kept_BLk[:, None], kept_BLk[:, None, :, : self.latent], rows.position_T,
            self.query_dim**-0.5,
        )  # fmt: skip
        return (y_B1nl[:, 0].transpose(0, 1) @ v_nvl.transpose(1, 2)).transpose(0, 1)


class SlotRange(NamedTuple):
    """Tokens of one request among those of a prefill."""

    begin: int  # first of them in the batch
    end: int  # the one after the last
    slot: int  # of the cache
    first: int  # position of the first of them in the request


@dataclass(frozen=True)
class BatchTensors:
    """The T tokens of a forward pass, those of a request side by side."""

    token_T: Tensor  # int64 ids
    slot_T: Tensor  # int64 slots of the cache
    position_T: Tensor  # int64 positions in their requests
    answer_R: Tensor  # int64, tokens whose logits yield a new one
    # of a prefill, requests; None in a decode, where each token is of another request
    stretches: tuple[SlotRange, ...] | None = None
    longest: int = 0  # of a decode, rows of the cache that it looks at

    def __len__(self) -> int:
        return len(self.token_T)


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


def turn(x_Tnr: Tensor, attention: Attention, position_T: Tensor) -> Tensor:
    """Attention.rotate for tokens at any positions."""
    cos_T1r, sin_T1r = (table[position_T].squeeze(1) for table in (attention.cos, attention.sin))
    a, b = x_Tnr.chunk(2, dim=-1)
    return torch.addcmul(x_Tnr * cos_T1r, torch.cat([b, a], dim=-1), sin_T1r)


def causal(q_Snq: Tensor, k_gLq: Tensor, v_gLv: Tensor) -> Tensor:
    """y_Snv of the last S of L positions of one request."""
    q_1nSq, k_1gLq, v_1gLv = q_Snq.transpose(0, 1)[None], k_gLq[None], v_gLv[None]
    grouped = q_1nSq.shape[1] != k_1gLq.shape[1]
    is_square = q_1nSq.shape[2] == k_1gLq.shape[2]
    mask = None if is_square else causal_lower_right(q_1nSq.shape[2], k_1gLq.shape[2])
    with sdpa_kernel(KERNELS):
        y_1nSv = F.scaled_dot_product_attention(
            q_1nSq, k_1gLq, v_1gLv, attn_mask=mask, is_causal=is_square, enable_gqa=grouped
        )
    return y_1nSv[0].transpose(0, 1)


def look_up(q_Bghq: Tensor, k_BgLq: Tensor, v_BgLv: Tensor, position_B: Tensor, scale: float) -> Tensor:
    """y_Bghv of one token each, which sees the rows up to its own position."""
    score_BghL = (q_Bghq @ k_BgLq.transpose(2, 3)).float() * scale
    later_BL = torch.arange(k_BgLq.shape[2], device=position_B.device) > position_B[:, None]
    share_BghL = score_BghL.masked_fill(later_BL[:, None, None], float("-inf")).softmax(3)
    return share_BghL.to(v_BgLv.dtype) @ v_BgLv


def numbers(batch: Batch) -> list[list[int]]:
    """Tokens, slots, positions and rows with an answer: the columns of `BatchTensors`, on the host."""
    tokens = [token for piece in batch for token in piece.tokens]
    slots = [piece.slot for piece in batch for _ in piece.tokens]
    positions = [piece.first + offset for piece in batch for offset in range(len(piece.tokens))]
    answers, end = [], 0
    for piece in batch:
        end += len(piece.tokens)
        if piece.answers:
            answers.append(end - 1)
    return [tokens, slots, positions, answers]


def make_rows(batch: Batch, prefill: bool, device: torch.device) -> BatchTensors:
    """A batch on the device; a decode has one token a request."""
    columns = numbers(batch)
    flat = torch.tensor([number for column in columns for number in column], dtype=torch.int64)
    if device.type == "cuda":
        # From page-locked memory a copy does not make the host wait.
        flat = flat.pin_memory()
    lengths = [len(column) for column in columns]
    token_T, slot_T, position_T, answer_R = flat.to(device, non_blocking=True).split(lengths)
    if not prefill:
        longest = max((piece.first + 1 for piece in batch), default=1)
        return BatchTensors(token_T, slot_T, position_T, answer_R, longest=longest)
    stretches, begin = [], 0
    for piece in batch:
        end = begin + len(piece.tokens)
        stretches.append(SlotRange(begin, end, piece.slot, piece.first))
        begin = end
    return BatchTensors(token_T, slot_T, position_T, answer_R, tuple(stretches))
