"""The choice of experts; see `rows` for the letters of shapes."""

from __future__ import annotations

from random import Random
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from tracelens.planner.config import Config, Model
from tracelens.workload.kernels import choose, kernels, scores, weights
from tracelens.workload.parallel import Groups, all_reduce, shard

# The logits of routing=skewed: of expert e less by so many times log(1 + e).
SKEW = 1.0


class Router(nn.Module):
    """Scores of all experts, the best of them, and their weights."""

    def __init__(self, config: Config, groups: Groups) -> None:
        super().__init__()
        self.model, self.routing, self.fused = config.model, config.training.routing, config.toggles.router
        self.weight_ED = shard(
            nn.Parameter(torch.empty(self.model.experts_count, self.model.hidden)), "stage"
        )
        self.sequence_ranks = groups.sequence
        training = config.training
        # Sums over ranks, micro-batches and sequences make the mean over the sequences of a step.
        sequences = training.micro_batch * training.micro_batches * config.layout.dp
        self.aux_scale = self.model.aux_loss / sequences
        self.seq = training.seq
        # For routing=balanced. Not in order of number: a token's experts would all be on one rank or two.
        order = Random(training.seed).sample(range(self.model.experts_count), self.model.experts_count)
        self.register_buffer("order_E", torch.tensor(order), persistent=False)

    def forward(self, x_SBD: Tensor) -> tuple[Tensor, Tensor]:
        """Weights_TK (float32) and experts_TK (int64)."""
        logits_TE = F.linear(x_SBD, self.weight_ED).flatten(0, 1)
        (T, E), K = logits_TE.shape, self.model.top_k
        if self.routing != "learned":
            # As the routing says, whatever the scores.
            score_TE = scores(logits_TE, self.model)
            if self.routing == "skewed":
                penalty_E = torch.arange(1, E + 1, device=logits_TE.device).log() * SKEW
                expert_TK = choose((logits_TE.detach().float() - penalty_E).softmax(1), self.model)
            else:
                slot_TK = torch.arange(T * K, device=logits_TE.device).view(T, K)
                expert_TK = self.order_E[slot_TK % E]
            weight_TK = weights(score_TE, expert_TK, self.model)
        elif self.fused == "fused":
            weight_TK, expert_TK, score_TE = _Route.apply(logits_TE, self.model)
        else:
            score_TE = scores(logits_TE, self.model)
            expert_TK = choose(score_TE.detach(), self.model)
            weight_TK = weights(score_TE, expert_TK, self.model)
        if self.aux_scale and self.training:
            # This rank's part of the sequence-wise balance loss, alpha / sequences * sum over B and E of
            # f_BE * P_BE, with f = E / (K S) * tokens that chose the expert and P = mean of its share of the
            # scores (DeepSeek-V2, arXiv:2405.04434, equations 26 to 28, taken per sequence as in
            # arXiv:2412.19437, equations 17 to 20).
            B = x_SBD.shape[1]
            share_SBE = (score_TE / score_TE.sum(1, keepdim=True)).view(-1, B, E)
            count_BE = torch.zeros(B, E, dtype=score_TE.dtype, device=score_TE.device)
            expert_BC = expert_TK.view(-1, B, K).transpose(0, 1).flatten(1)
            count_BE = count_BE.scatter_add(1, expert_BC, torch.ones_like(expert_BC, dtype=count_BE.dtype))
            f_BE = all_reduce(count_BE, self.sequence_ranks) * (E / (K * self.seq))
            loss = (f_BE * share_SBE.sum(0)).sum() * (self.aux_scale / self.seq)
            weight_TK = _AddLoss.apply(weight_TK, loss)
        return weight_TK, expert_TK


class _Route(Function):
    """Scores, choice and weights in one kernel each way."""

    @staticmethod
    def forward(ctx: Any, logits_TE: Tensor, model: Model) -> tuple[Tensor, Tensor, Tensor]:
        weight_TK, expert_TK, score_TE = kernels(logits_TE).route(logits_TE, model)
        ctx.model = model
        ctx.dtype = logits_TE.dtype
        ctx.save_for_backward(expert_TK, score_TE)
        ctx.mark_non_differentiable(expert_TK)
        return weight_TK, expert_TK, score_TE

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        expert_TK, score_TE = ctx.saved_tensors
        g_TK, _, g_TE = gradients
        g_TE = kernels(score_TE).route_backward(g_TK, g_TE, expert_TK, score_TE, ctx.model)
        return g_TE.to(ctx.dtype), None


class _AddLoss(Function):
    """A tensor as it is, and a loss whose gradient joins on the way back: no layer has to hand it on."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, loss: Tensor) -> Tensor:
        ctx.like = loss.detach()
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        return gradients[0], torch.ones_like(ctx.like)
