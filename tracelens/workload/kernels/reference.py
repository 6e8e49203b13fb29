"""What the fused kernels compute, in torch's ops: they run on the CPU, and the kernels are tested by them."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from tracelens.planner.config import Model

if TYPE_CHECKING:
    from tracelens.workload.rows import RowMap  # which needs these kernels

LEAST_AMAX = 1e-12
"""Below it a row counts as zeros: its scale would be no normal number."""


def permute(x_TD: Tensor, rows: RowMap) -> Tensor:
    """x_RD: each row its token; anything in rows without one."""
    return x_TD.index_select(0, rows.token_R.clamp(min=0))


def unpermute(y_RD: Tensor, weight_TK: Tensor | None, rows: RowMap) -> Tensor:
    """y_TD: for each token the sum of its rows, each times its weight, in float32."""
    y_TKD = _rows_of(y_RD, rows)
    if weight_TK is not None:
        # Tokens that choose no row may have anything for weights.
        y_TKD = y_TKD * torch.where(rows.row_TK >= 0, weight_TK, 0).unsqueeze(2)
    return y_TKD.sum(1).to(y_RD.dtype)


def unpermute_backward(
    g_TD: Tensor, y_RD: Tensor, weight_TK: Tensor | None, rows: RowMap
) -> tuple[Tensor, Tensor | None]:
    """Gradients of `unpermute` by y_RD (anything in rows without a token) and by weight_TK."""
    g_RD = permute(g_TD, rows)
    if weight_TK is None:
        return g_RD, None
    g_TK = (_rows_of(y_RD, rows) * g_TD.float().unsqueeze(1)).sum(2)
    g_TK = torch.where(rows.row_TK >= 0, g_TK, 0).to(weight_TK.dtype)
    weight_R = weight_TK.flatten().index_select(0, rows.choice_R.clamp(min=0))
    return (g_RD * weight_R.unsqueeze(1)).to(y_RD.dtype), g_TK


def _rows_of(y_RD: Tensor, rows: RowMap) -> Tensor:
    """y_TKD in float32: the row of each choice, zeros for choices without one."""
    if not len(y_RD):
        return y_RD.new_zeros(*rows.row_TK.shape, y_RD.shape[1], dtype=torch.float32)
    y_TKD = y_RD.index_select(0, rows.row_TK.flatten().clamp(min=0)).view(*rows.row_TK.shape, -1).float()
    return torch.where((rows.row_TK >= 0).unsqueeze(2), y_TKD, 0)


def swiglu(up_RG: Tensor, end_e: Tensor) -> Tensor:
    """silu(gate) * up for the first end_e[-1] rows, anything behind; G = 2 F, gate and up side by side."""
    gate_RF, up_RF = up_RG.chunk(2, dim=-1)
    return F.silu(gate_RF) * up_RF


def swiglu_backward(g_RF: Tensor, up_RG: Tensor, end_e: Tensor) -> Tensor:
    """Gradient of `swiglu` by up_RG."""
    gate_RF, up_RF = up_RG.float().chunk(2, dim=-1)
    sigmoid_RF = torch.sigmoid(gate_RF)
    silu_RF = gate_RF * sigmoid_RF
    by_gate = g_RF * up_RF * (sigmoid_RF + silu_RF * (1 - sigmoid_RF))
    return torch.cat([by_gate, g_RF * silu_RF], dim=-1).to(up_RG.dtype)


def route(logits_TE: Tensor, model: Model) -> tuple[Tensor, Tensor, Tensor]:
    """weight_TK and score_TE in float32, expert_TK in int64: see `routing`."""
    score_TE = scores(logits_TE, model)
    expert_TK = choose(score_TE, model)
    return weights(score_TE, expert_TK, model), expert_TK, score_TE


def route_backward(g_TK: Tensor, g_TE: Tensor, expert_TK: Tensor, score_TE: Tensor, model: Model) -> Tensor:
    """Gradient of the logits in float32, from those of the weights and of the scores."""
    if model.score == "sigmoid":
        top_TK = score_TE.gather(1, expert_TK)
        total_T1 = top_TK.sum(1, keepdim=True)
        g_TK = (g_TK - (g_TK * top_TK).sum(1, keepdim=True) / total_T1) / total_T1
    g_TE = g_TE.scatter_add(1, expert_TK, g_TK)
    if model.score == "sigmoid":
        return g_TE * score_TE * (1 - score_TE)
    return score_TE * (g_TE - (g_TE * score_TE).sum(1, keepdim=True))


def cross_entropy(logits_TV: Tensor, target_T: Tensor) -> tuple[Tensor, Tensor]:
    """Sum of the losses of all tokens, a float32 scalar, and its gradient by the logits in their dtype."""
    log_TV = torch.log_softmax(logits_TV.float(), 1)
    loss_T1 = -log_TV.gather(1, target_T.unsqueeze(1))
    gradient_TV = log_TV.exp().scatter_add(1, target_T.unsqueeze(1), torch.full_like(loss_T1, -1.0))
    return loss_T1.sum(), gradient_TV.to(logits_TV.dtype)


def quantize(x_ZK: Tensor) -> tuple[Tensor, Tensor]:
    """FP8 numbers of x, and the float32 scale of each row: the last side is a row, the others count rows."""
    dtype = e4m3(x_ZK.device)
    largest = torch.finfo(dtype).max
    x_ZK = x_ZK.float()
    scale_Z = x_ZK.abs().amax(-1).clamp(min=LEAST_AMAX) / largest
    return (x_ZK / scale_Z.unsqueeze(-1)).clamp(-largest, largest).to(dtype), scale_Z


def quantize_transposed(w_eKN: Tensor) -> tuple[Tensor, Tensor]:
    """FP8 numbers of the transposed matrices, e x N x K, and the float32 scale of each row, e x N."""
    return quantize(w_eKN.transpose(1, 2).contiguous())


@cache
def e4m3(device: torch.device) -> torch.dtype:
    """The 8-bit type with 4 exponent bits that the device multiplies: MI300X has one of its own."""
    if device.type == "cuda" and torch.version.hip is not None:
        architecture = getattr(torch.cuda.get_device_properties(device), "gcnArchName", "")
        if architecture.startswith("gfx94"):
            return torch.float8_e4m3fnuz
    return torch.float8_e4m3fn


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
