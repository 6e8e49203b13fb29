"""The choice of experts in Triton: one program a token, each way one kernel; see `routing` for what it does.

Ties go to the expert, and the group, of the lowest number. A NaN counts as the best, as in torch.topk, so
that a run that diverges ends in a loss of NaN and never in an expert that does not exist.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tracelens.planner.config import Model

# A token's scores fit into one warp, whose threads find a maximum without waiting for others.
WARPS = 1


def route(logits_TE: Tensor, model: Model) -> tuple[Tensor, Tensor, Tensor]:
    """weight_TK and score_TE in float32, expert_TK in int64."""
    (T, E), K, G = logits_TE.shape, model.top_k, model.expert_groups
    weight_TK = logits_TE.new_empty(T, K, dtype=torch.float32)
    expert_TK = logits_TE.new_empty(T, K, dtype=torch.int64)
    score_TE = logits_TE.new_empty(T, E, dtype=torch.float32)
    if T:
        fused_topk_routing_kernel[(T,)](
            logits_TE.contiguous(), weight_TK, expert_TK, score_TE, K, G, E // G, model.top_groups,
            model.score == "sigmoid", *map(triton.next_power_of_2, (K, G, E // G)), num_warps=WARPS,
        )  # fmt: skip
    return weight_TK, expert_TK, score_TE


def route_backward(g_TK: Tensor, g_TE: Tensor, expert_TK: Tensor, score_TE: Tensor, model: Model) -> Tensor:
    """Gradient of the logits in float32, from those of the weights and of the scores."""
    (T, E), K = score_TE.shape, model.top_k
    g_logits_TE = score_TE.new_empty(T, E)
    if T:
        fused_topk_routing_backward_kernel[(T,)](
            g_TK.contiguous(), g_TE.contiguous(), expert_TK, score_TE, g_logits_TE, K, E,
            model.score == "sigmoid", *map(triton.next_power_of_2, (K, E)), num_warps=WARPS,
        )  # fmt: skip
    return g_logits_TE


@triton.jit
def fused_topk_routing_kernel(
    logits_TE: tl.tensor,
    weight_TK: tl.tensor,
    expert_TK: tl.tensor,
    score_TE: tl.tensor,
    K: tl.constexpr,
    G: tl.constexpr,
    e: tl.constexpr,
    TOP_GROUPS: tl.constexpr,
    SIGMOID: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_e: tl.constexpr,
) -> None:
    """A token's scores as G groups of e experts, the best K of them, and their weights."""
    token = tl.program_id(0).to(tl.int64)
    group_G = tl.arange(0, BLOCK_G)
    group, member = group_G[:, None], tl.arange(0, BLOCK_e)[None, :]
    expert, real = group * e + member, (group < G) & (member < e)
    x = tl.load(logits_TE + token * (G * e) + expert, mask=real, other=-float("inf")).to(tl.float32)
    if SIGMOID:
        score = tl.sigmoid(x)
    else:
        x = tl.exp(x - tl.max(x))
        score = x / tl.sum(x)
    tl.store(score_TE + token * (G * e) + expert, score, mask=real)

    rank = tl.where(score == score, score, float("inf"))
    rank = tl.where(real, rank, -float("inf"))
    if TOP_GROUPS < G:
        best_G = tl.max(rank, axis=1)
        if SIGMOID and e > 1:
            first_G = tl.min(tl.where(rank == best_G[:, None], member, BLOCK_e), axis=1)
            best_G += tl.max(tl.where(member == first_G[:, None], -float("inf"), rank), axis=1)
        kept_G = group_G < 0
        for _ in tl.static_range(TOP_GROUPS):
            first = tl.min(tl.where(best_G == tl.max(best_G, axis=0), group_G, BLOCK_G), axis=0)
            kept_G = kept_G | (group_G == first)
            best_G = tl.where(group_G == first, -float("inf"), best_G)
        rank = tl.where(kept_G[:, None], rank, -float("inf"))

    k_K = tl.arange(0, BLOCK_K)
    weight_K, expert_K = tl.zeros([BLOCK_K], dtype=tl.float32), tl.zeros([BLOCK_K], dtype=tl.int32)
    for k in tl.static_range(K):
        best = tl.max(rank)
        first = tl.min(tl.where(rank == best, expert, G * e))
        weight_K = tl.where(k_K == k, best, weight_K)
        expert_K = tl.where(k_K == k, first, expert_K)
        rank = tl.where(expert == first, -float("inf"), rank)
    weight_K = tl.where(weight_K == float("inf"), float("nan"), weight_K)
    if SIGMOID:
        weight_K = weight_K / tl.sum(weight_K, axis=0)
    tl.store(weight_TK + token * K + k_K, weight_K, mask=k_K < K)
    tl.store(expert_TK + token * K + k_K, expert_K.to(tl.int64), mask=k_K < K)


@triton.jit
def fused_topk_routing_backward_kernel(
    g_TK: tl.tensor,
    g_TE: tl.tensor,
    expert_TK: tl.tensor,
    score_TE: tl.tensor,
    g_logits_TE: tl.tensor,
    K: tl.constexpr,
    E: tl.constexpr,
    SIGMOID: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_E: tl.constexpr,
) -> None:
    """A token's gradient: of its weights to the scores of the chosen, then through the scores."""
    token = tl.program_id(0).to(tl.int64)
    expert_E = tl.arange(0, BLOCK_E)
    score_E = tl.load(score_TE + token * E + expert_E, mask=expert_E < E, other=0.0)
    g_E = tl.load(g_TE + token * E + expert_E, mask=expert_E < E, other=0.0)
    shift, total = 0.0, 1.0
    if SIGMOID:
        k_K = tl.arange(0, BLOCK_K)
        expert_K = tl.load(expert_TK + token * K + k_K, mask=k_K < K, other=0)
        top_K = tl.load(score_TE + token * E + expert_K, mask=k_K < K, other=0.0)
        g_K = tl.load(g_TK + token * K + k_K, mask=k_K < K, other=0.0)
        total = tl.sum(top_K, axis=0)
        shift = tl.sum(g_K * top_K, axis=0) / total
    for k in tl.static_range(K):
        expert = tl.load(expert_TK + token * K + k)
        g = (tl.load(g_TK + token * K + k) - shift) / total
        g_E += tl.where(expert_E == expert, g, 0.0)
    g_score_E = g_E * score_E
    g_E = g_score_E * (1 - score_E) if SIGMOID else g_score_E - score_E * tl.sum(g_score_E, axis=0)
    tl.store(g_logits_TE + token * E + expert_E, g_E, mask=expert_E < E)
