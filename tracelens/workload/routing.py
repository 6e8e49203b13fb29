"""Scores of experts, the choice among them, and the weights of the chosen; see `rows` for the letters."""

from __future__ import annotations

import torch
from torch import Tensor

from tracelens.planner.config import Model


def scores(logits_TE: Tensor, model: Model) -> Tensor:
    """score_TE in float32: in bfloat16 close scores tie, and ties make the choice depend on the kernel."""
    logits_TE = logits_TE.float()
    return logits_TE.sigmoid() if model.score == "sigmoid" else logits_TE.softmax(1)


def choose(score_TE: Tensor, model: Model) -> Tensor:
    """experts_TK: the best K, among the groups of experts with the best scores where there are groups.

    A group's score is its best expert's with softmax, the sum of its best two with sigmoid (DeepSeek-V2, V3).
    """
    if model.expert_groups > 1:
        score_TGe = score_TE.unflatten(1, (model.expert_groups, -1))
        best = min(2 if model.score == "sigmoid" else 1, score_TGe.shape[2])
        group_TG = score_TGe.topk(best, dim=2).values.sum(2)
        kept_TG = torch.zeros_like(group_TG).scatter(1, group_TG.topk(model.top_groups, dim=1).indices, 1.0)
        score_TE = torch.where(kept_TG.unsqueeze(2) > 0, score_TGe, -1.0).flatten(1)
    return score_TE.topk(model.top_k, dim=1).indices


def weights(score_TE: Tensor, expert_TK: Tensor, model: Model) -> Tensor:
    """weight_TK: the scores of the chosen; of sigmoids, their share in the sum."""
    weight_TK = score_TE.gather(1, expert_TK)
    return weight_TK / weight_TK.sum(1, keepdim=True) if model.score == "sigmoid" else weight_TK
