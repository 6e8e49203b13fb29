"""Memory traffic of eager ops beyond that of fused kernels, in one micro-batch on one rank.

`work` counts what a fused kernel moves. The reference workload runs torch's ops one by one: it puts heads
together from parts, takes three kernels for rotary positions and two for SiLU and its product, and adds rows
of experts to tokens in any order. Each op reads its operands and writes its result.
"""

from __future__ import annotations

from tracelens.planner.expected import FLOAT32, Share
from tracelens.planner.step_time.work import Load, Part, RoutedRows, Traffic

OPTIMIZER_RATE = 0.75
"""Of the bandwidth of elementwise kernels, in two recorded runs on an H200 with torch 2.11: 0.74 and 0.72 for
the whole update, 0.79 for fused AdamW (tests/conformance/truth/before, medium and loop_large, 2026-11-22)."""


def eager_parts(share: Share, is_moe: bool, rows: RoutedRows | None) -> list[Part]:
    """More traffic of a layer; `rows` of an MoE layer."""
    model, toggles = share.config.model, share.config.toggles
    parts = [_attention(share)]
    if not is_moe or rows is None:
        return [*parts, _gated(share, "mlp", share.cut(model.dense_ffn) * share.gathered)]
    if model.shared_ffn:
        parts.append(_gated(share, "shared", share.cut(model.shared_ffn) * share.gathered))
    parts.append(_gated(share, "experts", model.expert_ffn * rows.computed))
    if toggles.permute != "fused":
        moved = 2 * (rows.sent or rows.received) * model.hidden
        # The gradient of a gather adds rows; so does the combination, whose gradient also has the weights'.
        parts.append(_part(share, "dispatch", 0, moved, "scatter"))
        parts.append(_part(share, "combine", moved, 0, "scatter"))
        parts.append(_part(share, "combine", 0, 3 * moved, "triad"))
    return parts


def embedding_gradient(share: Share) -> list[Part]:
    """More traffic of the embedding: its gradient is a cleared table, filled by rows, then accumulated."""
    model = share.config.model
    return [
        _part(share, "embedding", 0, 4 * model.vocab * model.hidden, "triad"),
        _part(share, "embedding", 0, 2 * share.tokens * model.hidden, "scatter"),
    ]


def loss_parts(share: Share) -> list[Part]:
    """More traffic of an unfused loss: softmax reads float32 logits twice, its gradient begins as zeros."""
    if share.config.toggles.loss == "fused":
        return []
    logits = share.tokens * share.config.model.vocab * 2 * FLOAT32 // share.element
    return [_part(share, "head", logits, logits, "triad")]


def optimizer_traffic(least_bytes: int, main_params: bool) -> float:
    """Bytes of the parameter update, as a multiple of the `least_bytes` that AdamW moves per parameter.

    Gradients are cast to float32 (2 + 4 bytes), parameters back (4 + 2), and gradients cleared (2). Kernels
    over many tensors reach OPTIMIZER_RATE of the bandwidth.
    """
    return (1 + 14 * main_params / least_bytes) / OPTIMIZER_RATE


def _attention(share: Share) -> Part:
    """Rotary positions in three ops (two products and a concatenation), and heads put together."""
    model, heads, training = share.config.model, share.heads, share.config.training
    positions, keys = share.gathered, share.keys * training.micro_batch
    if model.attention == "gqa":
        rotated = positions * (heads + share.kv_groups) * model.rotary_dim
        return _part(share, "attention", 6 * rotated, 7 * rotated, "concat")
    rotated = positions * heads * model.rotary_dim
    query = positions * heads * 2 * model.query_dim
    key = keys * heads * (model.qk_dim + model.query_dim)
    gradient = 2 * keys * heads * (model.qk_dim + model.v_dim)
    return _part(share, "attention", query + key + 6 * rotated, query + gradient + 7 * rotated, "concat")


def _gated(share: Share, name: str, size: int) -> Part:
    """SiLU by itself, and in the backward two products, its gradient, and gate and up side by side."""
    return _part(share, name, 2 * size, 8 * size, "triad")


def _part(share: Share, name: str, forward: int, backward: int, pattern: str) -> Part:
    def load(elements: int) -> Load:
        moved = elements * share.element
        return Load(0, moved, (Traffic(moved, pattern),))

    return Part(name, load(forward), load(backward))
