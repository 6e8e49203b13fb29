"""A DeepSeek-style Mixture-of-Experts transformer in plain torch, to be read from top to bottom.

See `dispatch` for the letters of shapes. What it learns is not the point: there is no positional encoding and
no load-balancing loss, neither of which changes much of what a trace looks like.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tracelens.workload import spans
from tracelens.workload.config import MoEConfig
from tracelens.workload.dispatch import combine, dispatch
from tracelens.workload.experts import EXPERTS

INIT_STD = 0.02
# Wider than the matrices, or all tokens look alike to the router after the first attention and a few experts
# get most of them. With this the busiest of the 16 in preset `sample` gets 1.1 to 1.3 times its share.
EMBEDDING_STD = 0.1


class Transformer(nn.Module):
    """Token ids to logits: embedding, layers, norm, LM head.

    Args:
        config: sizes; the first `dense_layers` layers have an MLP, the others experts.
    """

    def __init__(self, config: MoEConfig) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.vocab, config.hidden)
        self.layers = nn.ModuleList(Layer(config, moe=i >= config.dense_layers) for i in range(config.layers))
        self.norm = nn.RMSNorm(config.hidden)
        self.lm_head = nn.Linear(config.hidden, config.vocab, bias=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:  # matrices; norms keep their ones
                nn.init.normal_(parameter, std=INIT_STD)
        nn.init.normal_(self.embedding.weight, std=EMBEDDING_STD)

    def forward(self, token_BS: Tensor) -> Tensor:
        """Logits_BSV."""
        with spans.span(spans.EMBEDDING):
            x_BSD: Tensor = self.embedding(token_BS)
        for layer in self.layers:
            x_BSD = layer(x_BSD)
        with spans.span(spans.LM_HEAD):
            logits_BSV: Tensor = self.lm_head(self.norm(x_BSD))
        return logits_BSV


class Layer(nn.Module):
    """Attention, then an MLP or experts, each on a normalised input and added to the stream."""

    def __init__(self, config: MoEConfig, moe: bool) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.hidden)
        self.attention = Attention(config)
        self.ffn_norm = nn.RMSNorm(config.hidden)
        self.ffn = MoE(config) if moe else SwiGLU(config.hidden, config.dense_ffn, spans.DENSE_MLP)

    def forward(self, x_BSD: Tensor) -> Tensor:
        """The stream x_BSD after this layer."""
        x_BSD = x_BSD + self.attention(self.attention_norm(x_BSD))
        y_BSD: Tensor = x_BSD + self.ffn(self.ffn_norm(x_BSD))
        return y_BSD


class Attention(nn.Module):
    """Causal multi-head attention."""

    def __init__(self, config: MoEConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.qkv = nn.Linear(config.hidden, 3 * config.hidden, bias=False)
        self.out = nn.Linear(config.hidden, config.hidden, bias=False)

    def forward(self, x_BSD: Tensor) -> Tensor:
        """Attention output, B x S x D."""
        with spans.span(spans.ATTENTION):
            B, S, D = x_BSD.shape
            qkv_BSD: tuple[Tensor, ...] = self.qkv(x_BSD).chunk(3, dim=-1)
            q, k, v = (t_BSD.view(B, S, self.heads, -1).transpose(1, 2) for t_BSD in qkv_BSD)
            y_BHSd = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # d = D / H
            y_BSD: Tensor = self.out(y_BHSd.transpose(1, 2).reshape(B, S, D))
            return y_BSD


class SwiGLU(nn.Module):
    """Gated MLP: the dense layers, and the shared experts.

    Args:
        hidden: width of input and output.
        ffn: inner width.
        name: of the span in the trace.
    """

    def __init__(self, hidden: int, ffn: int, name: str) -> None:
        super().__init__()
        self.name = name
        self.gate = nn.Linear(hidden, ffn, bias=False)
        self.up = nn.Linear(hidden, ffn, bias=False)
        self.down = nn.Linear(ffn, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Output of the input's shape."""
        with spans.span(self.name):
            y: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
            return y


class Router(nn.Module):
    """Choice of experts: softmax over all of them, the best `top_k`, weights that sum to 1."""

    def __init__(self, config: MoEConfig) -> None:
        super().__init__()
        self.top_k = config.top_k
        self.gate = nn.Linear(config.hidden, config.routed_experts, bias=False)

    def forward(self, x_TD: Tensor) -> tuple[Tensor, Tensor]:
        """Weights_TK (float32) and experts_TK (int64)."""
        with spans.span(spans.ROUTER):
            # float32: in bfloat16 close scores tie, and ties make the choice depend on the kernel.
            score_TE = F.softmax(self.gate(x_TD), dim=-1, dtype=torch.float32)
            weight_TK, expert_TK = score_TE.topk(self.top_k, dim=-1)
            return weight_TK / weight_TK.sum(dim=-1, keepdim=True), expert_TK


class MoE(nn.Module):
    """Routed experts plus the shared ones."""

    def __init__(self, config: MoEConfig) -> None:
        super().__init__()
        self.routed_experts = config.routed_experts
        self.router = Router(config)
        self.experts = EXPERTS[config.experts](config)
        shared_ffn = config.shared_experts * config.expert_ffn
        self.shared = SwiGLU(config.hidden, shared_ffn, spans.SHARED) if shared_ffn else None

    def forward(self, x_BSD: Tensor) -> Tensor:
        """Output, B x S x D."""
        with spans.span(spans.MOE):
            x_TD = x_BSD.flatten(0, 1)
            weight_TK, expert_TK = self.router(x_TD)
            routed = dispatch(x_TD, weight_TK, expert_TK, self.routed_experts)
            y_RD = self.experts(routed.x_RD, routed.rows_E)
            y_TD = combine(y_RD, routed, tokens=x_TD.shape[0])
            if self.shared is not None:
                y_TD = y_TD + self.shared(x_TD)
            return y_TD.view_as(x_BSD)


def cross_entropy(logits_BSV: Tensor, target_BS: Tensor) -> Tensor:
    """Mean loss over tokens, a scalar, in float32."""
    with spans.span(spans.LOSS):
        return F.cross_entropy(logits_BSV.flatten(0, 1).float(), target_BS.flatten())
