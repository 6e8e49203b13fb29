"""Causal self-attention: multi-head latent (DeepSeek-V2, arXiv:2405.04434) or with grouped queries.

Sequence first: x_SBD holds this rank's positions. See `rows` for the letters of shapes; here also n, the
heads of this rank, q and v, the widths of a query and a value head, r, the width of its rotary part.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.bias import causal_lower_right

from tracelens.planner.config import Config
from tracelens.workload.parallel import (
    AllGather,
    Groups,
    gather_matmul,
    matmul_scatter,
    run_collective,
    shard,
)

ROTARY_BASE = 10000.0


class RMSNorm(nn.RMSNorm):
    """torch's, whose weight all ranks of a stage hold."""

    def __init__(self, width: int) -> None:
        super().__init__(width, eps=1e-6)
        shard(self.weight, "stage")


class Attention(nn.Module):
    """Output projection, rotary positions, context parallelism; a rank has a share of the heads."""

    def __init__(self, config: Config, groups: Groups) -> None:
        super().__init__()
        model, layout = config.model, config.layout
        self.heads, self.kv_groups = model.heads // layout.tp, model.kv_groups // layout.tp
        self.query_dim, self.value_dim, self.rotary_dim = model.query_dim, model.value_dim, model.rotary_dim
        self.tp, self.cp, self.overlap = groups.tp, groups.cp, config.toggles.tp_overlap
        self.positions = config.training.seq // layout.cp
        self.first = groups.coordinate("cp") * self.positions
        cos_Sr, sin_Sr = rotary_tables(self.first, self.positions, self.rotary_dim)
        dtype = getattr(torch, config.training.dtype)
        self.register_buffer("cos", cos_Sr[:, None, None].to(dtype), persistent=False)
        self.register_buffer("sin", sin_Sr[:, None, None].to(dtype), persistent=False)
        self.part = (groups.coordinate("tp"), layout.tp)
        out = nn.Parameter(torch.empty(model.hidden, self.heads * self.value_dim))
        self.out = shard(out, "dense", 1, *self.part)

    def by_head(self, rows: int, columns: int) -> nn.Parameter:
        """A matrix whose rows are heads of this rank."""
        return shard(nn.Parameter(torch.empty(rows, columns)), "dense", 0, *self.part)

    def replicated(self, rows: int, columns: int) -> nn.Parameter:
        """A matrix that every rank of the stage holds."""
        return shard(nn.Parameter(torch.empty(rows, columns)), "stage")

    def rotate(self, x_SBnr: Tensor) -> Tensor:
        """Turn pairs of numbers, the first half with the second, by an angle that grows with the position."""
        a, b = x_SBnr.chunk(2, dim=-1)
        return torch.addcmul(x_SBnr * self.cos, torch.cat([b, a], dim=-1), self.sin)

    def all_positions(self, x_SBN: Tensor) -> Tensor:
        """Positions of all ranks that share the sequence, up to the last of this rank: it sees no later."""
        return run_collective(x_SBN, AllGather(self.cp))[: self.first + self.positions]

    def attend(self, q_SBnq: Tensor, k_SBnq: Tensor, v_SBnv: Tensor) -> Tensor:
        """Output x_SBD of this rank's positions: its queries, and keys of all positions up to them."""
        q, k, v = (t.permute(1, 2, 0, 3) for t in (q_SBnq, k_SBnq, v_SBnv))
        grouped = q.shape[1] != k.shape[1]
        if q.shape[2] == k.shape[2]:
            y_BnSv = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
        else:
            mask = causal_lower_right(q.shape[2], k.shape[2])
            y_BnSv = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=grouped)
        return matmul_scatter(y_BnSv.permute(2, 0, 1, 3).flatten(2), self.out, self.tp, self.overlap)


class GroupedQueryAttention(Attention):
    """Several query heads for one head of keys and values."""

    def __init__(self, config: Config, groups: Groups) -> None:
        super().__init__(config, groups)
        D = config.model.hidden
        self.q = self.by_head(self.heads * self.query_dim, D)
        self.k = self.by_head(self.kv_groups * self.query_dim, D)
        self.v = self.by_head(self.kv_groups * self.value_dim, D)

    def forward(self, x_SBD: Tensor) -> Tensor:
        q, k, v = gather_matmul(x_SBD, [self.q, self.k, self.v], self.tp, self.overlap)
        q_SBnq = self.rotate(q.unflatten(2, (self.heads, -1)))
        k_SBnq = self.rotate(k.unflatten(2, (self.kv_groups, -1)))
        if self.cp is None:
            return self.attend(q_SBnq, k_SBnq, v.unflatten(2, (self.kv_groups, -1)))
        kv = self.all_positions(torch.cat([k_SBnq.flatten(2), v], dim=2)).split([k.shape[2], v.shape[2]], 2)
        k_SBnq, v_SBnv = (t.unflatten(2, (self.kv_groups, -1)) for t in kv)
        return self.attend(q_SBnq, k_SBnq, v_SBnv)


class LatentAttention(Attention):
    """Keys and values come from one narrow latent a token, and share one rotary key."""

    def __init__(self, config: Config, groups: Groups) -> None:
        super().__init__(config, groups)
        model = config.model
        D, self.latent, self.qk_dim = model.hidden, model.kv_lora, model.qk_dim
        self.q_down = self.replicated(model.q_lora, D) if model.q_lora else None
        self.q_norm = RMSNorm(model.q_lora) if model.q_lora else None
        self.q_up = self.by_head(self.heads * self.query_dim, model.q_lora or D)
        self.kv_down = self.replicated(self.latent + self.rotary_dim, D)
        self.kv_norm = RMSNorm(self.latent)
        self.kv_up = self.by_head(self.heads * (self.qk_dim + self.value_dim), self.latent)

    def forward(self, x_SBD: Tensor) -> Tensor:
        first = self.q_up if self.q_down is None else self.q_down
        q, kv = gather_matmul(x_SBD, [first, self.kv_down], self.tp, self.overlap)
        if self.q_norm is not None:
            q = F.linear(self.q_norm(q), self.q_up)
        q_SBnq = q.unflatten(2, (self.heads, -1))
        latent, rotary = kv.split([self.latent, self.rotary_dim], dim=2)
        # What travels between ranks that share a sequence is the latent, which is narrower than the heads.
        kv = torch.cat([self.kv_norm(latent), self.rotate(rotary.unsqueeze(2)).squeeze(2)], dim=2)
        latent, rotary = self.all_positions(kv).split([self.latent, self.rotary_dim], dim=2)
        heads = F.linear(latent, self.kv_up).unflatten(2, (self.heads, -1))
        k_SBnc, v_SBnv = heads.split([self.qk_dim, self.value_dim], dim=3)
        k_SBnq = torch.cat([k_SBnc, rotary.unsqueeze(2).expand(-1, -1, self.heads, -1)], dim=3)
        q_SBnc, q_SBnr = q_SBnq.split([self.qk_dim, self.rotary_dim], dim=3)
        return self.attend(torch.cat([q_SBnc, self.rotate(q_SBnr)], dim=3), k_SBnq, v_SBnv)


def rotary_tables(first: int, positions: int, width: int) -> tuple[Tensor, Tensor]:
    """Cosines, and sines with the sign of the half they are for, of the angles of positions: S x r.

    Angle = position * base ** (-pair / pairs) (RoFormer, arXiv:2104.09864, equation 15).
    """
    pair_h = torch.arange(width // 2, dtype=torch.float32)
    position_S = torch.arange(first, first + positions, dtype=torch.float32)
    angle_Sh = position_S[:, None] * ROTARY_BASE ** (-pair_h * 2 / width)
    sin_Sh = angle_Sh.sin()
    return angle_Sh.cos().repeat(1, 2), torch.cat([-sin_Sh, sin_Sh], dim=1)


def make_attention(config: Config, groups: Groups) -> Attention:
    """The kind of attention that the model has."""
    return (LatentAttention if config.model.attention == "mla" else GroupedQueryAttention)(config, groups)
