"""FLOPs of the ops are those of the closed forms; bytes are worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.planner.expected import closed_forms
from tracelens.devices import device
from tracelens.planner.block import (
    Gemm,
    Kernel,
    Load,
    Op,
    RoutedCounts,
    attention_section,
    embedding_section,
    head_section,
    mlp_section,
    moe_section,
    recomputed,
)
from tracelens.planner.config import Config, Layout, Model, Training, override, preset
from tracelens.planner.expected import RankShare, balanced
from tracelens.planner.step_time import ROOFLINE, LayerKind, Timer

CASES = [
    "routing=balanced",
    "routing=balanced micro_batches=3 shared_ffn=0",
    "routing=balanced ranks=4 ep=2 dispatch=dedup recompute_layer_ids=0,1,2",
    "routing=balanced ranks=4 cp=2 recompute_layer_ids=1 overlap_shared=on",
    "routing=balanced ranks=4 tp=2 cp=2 ep=4 q_lora=16",
    "routing=balanced ranks=2 tp=2 tp_overlap=chunked recompute_layer_ids=0,1",
    "routing=balanced ranks=8 cp=4 tp=2 ep=8 attention=gqa kv_groups=2 head_dim=16",
    "routing=balanced ranks=4 pp=2 micro_batches=4 ep=2 recompute_layer_ids=0",
]


@pytest.mark.parametrize("case", CASES)
def test_flops_are_those_that_are_expected(case: str) -> None:
    config = override(preset("tiny"), case.split())
    timer = Timer(config, device("h200"), ROOFLINE)
    layout = config.layout
    last = (layout.cp - 1) * layout.tp
    counted: dict[str, list[int]] = {}

    def count(scope: str, kernel: Kernel, is_recomputed: bool) -> None:
        sums = counted.setdefault(scope, [0, 0, 0])
        forward, backward = kernel.forward.flops, kernel.backward.flops
        for phase, phase_flops in enumerate((forward, backward, forward if is_recomputed else 0)):
            sums[phase] += phase_flops * config.training.micro_batches

    for layer in range(config.model.layers):
        kind = timer.kind(layer)
        ops = timer.ops(kind.is_moe)
        end = recomputed(ops) if kind.is_recomputed else 0
        for number, op in enumerate(ops):
            for kernel in op.kernels:
                if kernel.kind in ("gemm", "attention"):
                    count(f"L{layer}.{op.scope}", kernel, number < end)
    for op in head_section(timer.share.sizes).ops:
        for kernel in op.kernels:
            if kernel.kind in ("gemm", "attention"):
                count("head", kernel, False)
    expected: dict[str, list[int]] = {}
    for stage in range(layout.pp):
        rank = stage * layout.stage_ranks + last
        work = closed_forms.flops(config, rank, balanced(config, rank))
        expected |= {scope: list(scope_work) for scope, scope_work in work.items()}
    assert counted == expected


BY_HAND = Model(
    layers=2, dense_layers=1, hidden=8, dense_ffn=16, heads=2, attention="gqa", kv_groups=1, head_dim=4,
    experts_count=4, top_k=2, expert_ffn=8, shared_ffn=4, vocab=10, aux_loss=0.0,
)  # fmt: skip


@pytest.fixture
def share() -> RankShare:
    """Six tokens of float32: four bytes a number."""
    return RankShare(Config(BY_HAND, training=Training(seq=6, dtype="float32", routing="balanced")), 0)


def kernels(ops: Sequence[Op], scope: str) -> list[Kernel]:
    """What ops of a scope do, apart from those that others can fuse."""
    of_scope = (kernel for op in ops if op.scope == scope for kernel in op.kernels)
    return [kernel for kernel in of_scope if kernel.kind != "eager"]


def eager(ops: Sequence[Op], scope: str) -> list[tuple[int, int]]:
    """Bytes in forward and backward that ops of a scope move one by one beyond those."""
    of_scope = (kernel for op in ops if op.scope == scope for kernel in op.kernels)
    return [(kernel.forward.bytes, kernel.backward.bytes) for kernel in of_scope if kernel.kind == "eager"]


def test_a_product_reads_both_and_writes_one(share: RankShare) -> None:
    (kernel,) = share.sizes.gemm(6, 8, 5)
    assert kernel.forward[:2] == (2 * 6 * 8 * 5, 4 * (48 + 40 + 30))
    # The output's gradient twice, the input, its gradient, the weights, and their gradient read and written.
    assert kernel.backward[:2] == (4 * 6 * 8 * 5, 4 * (2 * 30 + 2 * 48 + 3 * 40))
    (experts,) = share.sizes.gemm(6, 8, 5, 3)
    assert experts.forward.bytes == 4 * (48 + 3 * 40 + 30)
    for load in (*kernel[1:], *experts[1:]):
        assert sum(item.flops for item in load.kernels if isinstance(item, Gemm)) == load.flops


def test_bytes_by_hand(share: RankShare) -> None:
    T, D = 6, 8
    ops = mlp_section(share.sizes).ops
    norm, up, inner, _down, add = kernels(ops, "mlp")
    # Recompute ends before the last GEMM, so without it and the sum after it.
    assert kernels(ops[: recomputed(ops)], "mlp") == [norm, up, inner]
    assert up.forward.bytes == 4 * (T * D + D * 32 + T * 32)
    assert (inner.forward.bytes, inner.backward.bytes) == (4 * 3 * 16 * T, 4 * 5 * 16 * T)
    assert norm.forward.bytes + add.forward.bytes == 4 * 5 * T * D
    assert norm.backward.bytes + add.backward.bytes == 4 * 6 * T * D
    (lookup,) = kernels(embedding_section(share.sizes).ops, "embedding")
    assert lookup.backward.bytes == 4 * 3 * T * D


def test_bytes_of_experts_by_hand(share: RankShare) -> None:
    T, D = 6, 8
    several = replace(share.config, layout=Layout(ranks=4, ep=4))
    deduplicated = replace(several, toggles=replace(several.toggles, dispatch="dedup"))
    ops = moe_section(RankShare(deduplicated, 0).routed(RoutedCounts(10, 12, 11))).ops
    _, logits, soft, add_shared, add = kernels(ops, "router")
    assert logits.forward.bytes == 4 * (T * D + D * 4 + T * 4)
    assert soft.forward.bytes == 4 * 2 * T * 4
    assert add_shared.backward.bytes + add.backward.bytes == 4 * 6 * T * D
    (sort,), (back,) = kernels(ops, "dispatch"), kernels(ops, "combine")
    assert sort.forward.bytes == back.backward.bytes == 4 * D * (T + 12 + 11 + 10)
    up, inner, down = kernels(ops, "experts")
    assert up.forward.bytes == 4 * (10 * D + 1 * D * 16 + 10 * 16)
    assert inner.forward.bytes == 4 * 3 * 8 * 10
    assert down.forward.bytes == 4 * (10 * 8 + 1 * 8 * D + 10 * D)


def test_bytes_of_attention_by_hand(share: RankShare) -> None:
    T, D = 6, 8
    norm, qkv, q, k, scores, out, add = kernels(attention_section(share.sizes, "flash").ops, "attention")
    assert qkv.forward.bytes == 4 * (T * D + D * 16 + T * 16)
    assert qkv.forward.kernels == (Gemm(T, D, 16),)
    assert out.forward.bytes == 4 * (T * D + D * D + T * D)
    # Queries 2 x 4, keys and values 1 x 4 each, output 2 x 4.
    assert scores.forward.bytes == 4 * T * (8 + 8 + 8)
    assert scores.backward.bytes == 2 * scores.forward.bytes
    # Norm, sum, and rotation of queries and keys, read and written.
    rest = (norm, q, k, add)
    assert sum(kernel.forward.bytes for kernel in rest) == 4 * (5 * T * D + 2 * T * 3 * 4)
    assert norm.backward.bytes - norm.forward.bytes == 4 * T * D


def test_bytes_of_the_loss(share: RankShare) -> None:
    *_, plain = kernels(head_section(share.sizes).ops, "head")
    assert plain.forward.bytes == 60 * (4 + 12)
    fused = replace(share.config, toggles=replace(share.config.toggles, loss="fused"))
    *_, loss = kernels(head_section(RankShare(fused, 0).sizes).ops, "head")
    assert loss.forward.bytes == loss.backward.bytes == 60 * 2 * 4


def test_a_part_takes_the_longer_of_flops_and_bytes(share: RankShare) -> None:
    h200 = device("h200")
    timer = Timer(share.config, h200, replace(ROOFLINE, matrix_efficiency=0.5, hbm_efficiency=0.25))
    rate = h200.peak("matrix", "fp32")
    assert rate is not None
    assert timer.rates.nanoseconds(Load(10**12, 0)) == pytest.approx(1e12 / (rate / 2) * 1e9)
    assert timer.rates.nanoseconds(Load(1, 10**9)) == pytest.approx(1e9 / (4.8e12 / 4) * 1e9)
    assert timer.of_kind(LayerKind(False, False)) is timer.of_kind(timer.kind(0))


def test_bytes_of_ops_one_by_one_by_hand(share: RankShare) -> None:
    """Beyond fused kernels: rotary positions, SiLU, gradient of the embedding, loss, and rows of experts."""
    queries, keys, inner, logits, table = 192, 96, 384, 240, 320
    ops = [*attention_section(share.sizes, "flash").ops, *mlp_section(share.sizes).ops]
    assert eager(ops, "attention") == [(6 * queries, 7 * queries), (6 * keys, 7 * keys)]
    assert eager(ops, "mlp") == [(2 * inner, 8 * inner)]
    assert eager(embedding_section(share.sizes).ops, "embedding") == [(0, 4 * table), (0, 2 * 192)]
    assert eager(head_section(share.sizes).ops, "head") == [(2 * logits, 2 * logits)]
    moe = moe_section(share.routed(RoutedCounts(12, 12, 12))).ops
    assert eager(moe, "dispatch") == [(0, 2 * 12 * 8 * 4)]
    assert eager(moe, "combine") == [(2 * 12 * 8 * 4, 6 * 12 * 8 * 4)]
    fused = replace(share.config, toggles=replace(share.config.toggles, permute="fused", loss="fused"))
    assert eager(head_section(RankShare(fused, 0).sizes).ops, "head") == []
    assert sum(sum(loads) for loads in eager(moe_section(RankShare(fused, 0).sizes).ops, "combine")) == 0
