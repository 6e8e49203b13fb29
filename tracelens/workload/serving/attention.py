"""Attention of requests whose keys and values are kept: the parameters of training, another way through them.

Grouped queries keep keys and values, turned by their position. Latent attention keeps the latent and the
rotary key. A prefill makes keys and values of them, as training does; a decode does not: it takes the
queries into the space of the latents, where all heads look at the same rows (DeepSeek-V2, arXiv:2405.04434,
section 2.1.2: the up-projections are absorbed).

Letters of shapes as in `attention`; also T tokens, B those of a decode, L rows of a slot, g groups of heads
that share keys, h heads of a group, l the width of a latent.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right

from tracelens.planner.config import Config
from tracelens.workload.model import Attention, GroupedQueryAttention, LatentAttention
from tracelens.workload.parallel import Groups
from tracelens.workload.serving.rows import BatchTensors

# Not cuDNN's, which plans for tens of milliseconds for every new length, and prompts have all lengths.
KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


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


def make_cached_attention(
    config: Config, groups: Groups, slots: int
) -> CachedGroupedQueryAttention | CachedLatentAttention:
    """The kind of attention that the model has."""
    kind = CachedLatentAttention if config.model.attention == "mla" else CachedGroupedQueryAttention
    return kind(config, groups, slots)
