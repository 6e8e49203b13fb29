"""A DeepSeek-style Mixture-of-Experts transformer in plain torch, to be read from top to bottom.

Tensors between layers are x_SBD, sequence first: this rank's positions of its sequences. See `rows` for
the letters of shapes. With a pipeline a rank holds some of the layers; see `pipeline`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ParamSpec, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from tracelens.errors import TracelensError
from tracelens.planner.config import Config, FusionName
from tracelens.recording import region, scoped, span
from tracelens.workload.dispatch import enter, make_dispatcher
from tracelens.workload.kernels import kernels
from tracelens.workload.model.attention import RMSNorm, make_attention
from tracelens.workload.model.experts import EXPERTS
from tracelens.workload.model.router import Router
from tracelens.workload.parallel import Groups, gather_matmul, matmul_scatter, shard

INIT_STD = 0.02
# Wider than the matrices, or all tokens look alike to the router after the first attention and a few experts
# get most of them.
EMBEDDING_STD = 0.1
P = ParamSpec("P")
T = TypeVar("T")


class Transformer(nn.Module):
    """Layers of the model, with the embedding in front of the first and the head behind the last.

    `layers` are the numbers of those that this rank, or this chunk of it, holds, by default all; `ends` says
    whether it holds the embedding, and whether the head, by default with the layers beside these.
    """

    def __init__(
        self,
        config: Config,
        groups: Groups,
        layers: range | None = None,
        ends: tuple[bool, bool] | None = None,
    ) -> None:
        super().__init__()
        model = config.model
        layers = range(model.layers) if layers is None else layers
        self.is_first, self.is_last = ends or (layers.start == 0, layers.stop == model.layers)
        self.recomputed = frozenset(config.toggles.recompute_layer_ids)
        if self.is_first:
            self.embedding = shard(nn.Parameter(torch.empty(model.vocab, model.hidden)), "stage")
            self.embedding.std = EMBEDDING_STD
        # Keyed by the number in the whole model, so that a parameter has one name in every layout.
        self.layers = nn.ModuleDict({str(layer): Layer(config, groups, layer) for layer in layers})
        if self.is_last:
            self.norm = RMSNorm(model.hidden)
            self.head = shard(nn.Parameter(torch.empty(model.vocab, model.hidden)), "stage")

    def forward(self, x: Tensor) -> Tensor:
        """Logits_SBV of token_SB; x_SBD in place of either where other ranks hold what is there."""
        if self.is_first:
            # The weight goes in, too: what has a gradient is what gives a scope its backward.
            x = scoped("embedding", F.embedding, x, self.embedding)
        for number, layer in self.layers.items():
            is_recomputed = int(number) in self.recomputed and self.training
            # Nothing in a layer is random, and a graph's capture may not read the random state.
            run = partial(checkpoint, layer, use_reentrant=False, preserve_rng_state=False)
            x = run(x) if is_recomputed else layer(x)
        return scoped("head", self.logits, x) if self.is_last else x

    def logits(self, x_SBD: Tensor) -> Tensor:
        return F.linear(self.norm(x_SBD), self.head)


class Layer(nn.Module):
    """Attention, then an MLP or experts, each on a normalized input and added to the stream."""

    def __init__(self, config: Config, groups: Groups, number: int) -> None:
        super().__init__()
        self.name, model = f"L{number}", config.model
        self.attention_norm = RMSNorm(model.hidden)
        self.attention = make_attention(config, groups)
        self.ffn_norm = RMSNorm(model.hidden)
        self.moe = number >= model.dense_layers
        self.ffn = MoE(config, groups, self.name) if self.moe else SwiGLU(config, groups, model.dense_ffn)

    def forward(self, x_SBD: Tensor) -> Tensor:
        x_SBD = x_SBD + scoped(f"{self.name}.attention", self.attend, x_SBD)
        if self.moe:
            return x_SBD + self.ffn(self.ffn_norm(x_SBD))
        return x_SBD + scoped(f"{self.name}.mlp", self.feed_forward, x_SBD)

    def attend(self, x_SBD: Tensor) -> Tensor:
        return self.attention(self.attention_norm(x_SBD))

    def feed_forward(self, x_SBD: Tensor) -> Tensor:
        return self.ffn(self.ffn_norm(x_SBD))


class SwiGLU(nn.Module):
    """Gated MLP of inner width `ffn`: of the dense layers, and the shared expert."""

    def __init__(self, config: Config, groups: Groups, ffn: int) -> None:
        super().__init__()
        parts, part, D = config.layout.tp, groups.coordinate("tp"), config.model.hidden
        self.tp, self.overlap = groups.tp, config.toggles.tp_overlap
        self.gate = shard(nn.Parameter(torch.empty(ffn // parts, D)), "dense", 0, part, parts)
        self.up = shard(nn.Parameter(torch.empty(ffn // parts, D)), "dense", 0, part, parts)
        self.down = shard(nn.Parameter(torch.empty(D, ffn // parts)), "dense", 1, part, parts)

    def forward(self, x_SBD: Tensor) -> Tensor:
        gate_SBF, up_SBF = gather_matmul(x_SBD, [self.gate, self.up], self.tp, self.overlap)
        return matmul_scatter(F.silu(gate_SBF) * up_SBF, self.down, self.tp, self.overlap)


class MoE(nn.Module):
    """Routed experts plus the shared one."""

    def __init__(self, config: Config, groups: Groups, name: str) -> None:
        super().__init__()
        self.name, model, toggles = name, config.model, config.toggles
        self.router = Router(config, groups)
        self.dispatcher = make_dispatcher(config, groups, name)
        self.experts = EXPERTS[toggles.experts](config, groups)
        self.shared = SwiGLU(config, groups, model.shared_ffn) if model.shared_ffn else None
        self.overlap_shared = toggles.overlap_shared

    def forward(self, x_SBD: Tensor) -> Tensor:
        with span(f"{self.name}.moe"):
            weight_TK, expert_TK = self.stage("router", self.router, x_SBD)
            x_TD = x_SBD.flatten(0, 1)
            sent = self.stage("dispatch", self.dispatcher.send, x_TD, weight_TK, expert_TK)
            early = self.share(x_SBD) if self.overlap_shared else 0.0
            routed = self.stage("dispatch", self.dispatcher.receive, sent)
            y_RD = self.stage("experts", self.experts, routed.x_RD, routed.rows.rows_e)
            returned = self.stage("combine", self.dispatcher.send_back, y_RD, routed)
            y_SBD = self.stage("combine", self.dispatcher.combine, returned).view_as(x_SBD)
            return y_SBD + early if self.overlap_shared else y_SBD + self.share(x_SBD)

    def share(self, x_SBD: Tensor) -> Tensor | float:
        """What the shared expert makes of the tokens; nothing without one."""
        return 0.0 if self.shared is None else self.stage("shared", self.shared, x_SBD)

    def stage(self, name: str, run: Callable[P, T], *inputs: P.args, **named: P.kwargs) -> T:
        with region(f"{self.name}.{name}") as part:
            for tensor in inputs:
                enter(tensor, part.enter)
            return part.leave(run(*part.enter(inputs), **part.enter(named)))


class _CrossEntropy(Function):
    """The gradient is there as soon as the loss is; backward only scales it, in place."""

    @staticmethod
    def forward(ctx: Any, logits_TV: Tensor, target_T: Tensor) -> Tensor:
        loss, gradient_TV = kernels(logits_TV).cross_entropy(logits_TV, target_T)
        # Neither input nor output, so that it can hang here and be gone after its use.
        ctx.gradient_TV = gradient_TV if ctx.needs_input_grad[0] else None
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        gradient_TV, ctx.gradient_TV = ctx.gradient_TV, None
        if gradient_TV is None:
            raise TracelensError("the fused loss supports one backward: use loss=plain for more")
        # A scalar of no dimension would be rounded to the gradient's dtype first.
        return gradient_TV.mul_(gradients[0].view(1)), None


def token_loss(logits_SBV: Tensor, target_SB: Tensor, fusion: FusionName = "plain") -> Tensor:
    """Sum of the losses of all tokens, a float32 scalar, by the token that comes next.

    `fusion` is "plain" for torch's ops on logits in float32; "fused" for one kernel that computes the loss
    and the gradient, and keeps only the gradient, in the logits' dtype: backward can run once.
    """
    logits_TV, target_T = logits_SBV.flatten(0, 1), target_SB.flatten()
    if fusion == "fused":
        return _CrossEntropy.apply(logits_TV, target_T)
    return F.cross_entropy(logits_TV.float(), target_T, reduction="sum")
