"""FLOPs of the parts are those that are expected of a step; bytes are worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tracelens.devices.catalogue import device
from tracelens.planner.config.config import Config, Training, override, preset
from tracelens.planner.config.model import Model
from tracelens.planner.expected import flops
from tracelens.planner.expected.share import Share
from tracelens.planner.step_time import ROOFLINE
from tracelens.planner.step_time.layers import LayerKind, Timer
from tracelens.planner.step_time.work import (
    Gemm,
    Load,
    RoutedRows,
    attention_parts,
    embedding_parts,
    expert_parts,
    gated_parts,
    gemm,
    head_parts,
    router_parts,
    stream_part,
)

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
    for layer in range(config.model.layers):
        for part in timer.parts(timer.kind(layer).is_moe):
            again = part.forward.flops if part.reruns and timer.kind(layer).is_recomputed else 0
            if part.forward.flops:
                sums = counted.setdefault(f"L{layer}.{part.name}", [0, 0, 0])
                for at, count in enumerate((part.forward.flops, part.backward.flops, again)):
                    sums[at] += count * config.training.micro_batches
    for part in head_parts(timer.share):
        if part.forward.flops:
            counts = (part.forward.flops, part.backward.flops, 0)
            counted["head"] = [count * config.training.micro_batches for count in counts]
    expected: dict[str, list[int]] = {}
    for stage in range(layout.pp):
        work = flops(config, stage * layout.stage_ranks + last)
        expected |= {scope: list(scope_work) for scope, scope_work in work.items()}
    assert counted == expected


BY_HAND = Model(
    layers=2, dense_layers=1, hidden=8, dense_ffn=16, heads=2, attention="gqa", kv_groups=1, head_dim=4,
    experts_count=4, top_k=2, expert_ffn=8, shared_ffn=4, vocab=10, aux_loss=0.0,
)  # fmt: skip


@pytest.fixture
def share() -> Share:
    """Six tokens of float32: four bytes a number."""
    return Share(Config(BY_HAND, training=Training(seq=6, dtype="float32", routing="balanced")), 0)


def test_a_product_reads_both_and_writes_one(share: Share) -> None:
    part = gemm(share, "x", 6, 8, 5)
    assert part.forward == Load(2 * 6 * 8 * 5, 4 * (48 + 40 + 30), (Gemm(6, 8, 5),))
    # The output's gradient twice, the input, its gradient, the weights, and their gradient read and written.
    kernels = (Gemm(6, 5, 8), Gemm(6, 8, 5, kind="weight"))
    assert part.backward == Load(4 * 6 * 8 * 5, 4 * (2 * 30 + 2 * 48 + 3 * 40), kernels)
    assert sum(kernel.flops for kernel in kernels) == part.backward.flops
    assert gemm(share, "x", 6, 8, 5, 3).forward.kernels == (Gemm(2, 8, 5, 3),)
    assert gemm(share, "x", 6, 8, 5, 3).forward.bytes == 4 * (48 + 3 * 40 + 30)


def test_bytes_by_hand(share: Share) -> None:
    T, D = 6, 8
    up, inner, down = gated_parts(share, "mlp", 16, reruns_down=False)
    assert (up.reruns, down.reruns) == (True, False)
    assert up.forward.bytes == 4 * (T * D + D * 32 + T * 32)
    assert (inner.forward.bytes, inner.backward.bytes) == (4 * 3 * 16 * T, 4 * 5 * 16 * T)
    assert stream_part(share, "mlp", 1).forward.bytes == 4 * 5 * T * D
    assert stream_part(share, "mlp", 2).backward.bytes == 4 * 9 * T * D
    assert embedding_parts(share)[0].backward.bytes == 4 * 3 * T * D
    logits, soft = router_parts(share)
    assert logits.forward.bytes == 4 * (T * D + D * 4 + T * 4)
    assert soft.forward.bytes == 4 * 2 * T * 4
    sort, up, inner, down, back = expert_parts(share, RoutedRows(12, 11, 10))
    assert sort.forward.bytes == back.backward.bytes == 4 * D * (T + 12 + 11 + 10)
    assert up.forward.bytes == 4 * (10 * D + 4 * D * 16 + 10 * 16)
    assert down.forward.bytes == 4 * (10 * 8 + 4 * 8 * D + 10 * D)


def test_bytes_of_attention_by_hand(share: Share) -> None:
    T, D = 6, 8
    qkv, out, scores, rest = attention_parts(share)
    assert qkv.forward.bytes == 4 * (T * D + D * 16 + T * 16)
    assert out.forward.bytes == 4 * (T * D + D * D + T * D)
    # Queries 2 x 4, keys and values 1 x 4 each, output 2 x 4.
    assert scores.forward.bytes == 4 * T * (8 + 8 + 8)
    assert scores.backward.bytes == 2 * scores.forward.bytes
    # Norm, sum, and rotation of queries and keys, read and written.
    assert rest.forward.bytes == 4 * (5 * T * D + 2 * T * 3 * 4)
    assert rest.backward.bytes - rest.forward.bytes == 4 * T * D


def test_bytes_of_the_loss(share: Share) -> None:
    *_, plain = head_parts(share)
    assert plain.forward.bytes == 60 * (4 + 12)
    fused = replace(share.config, toggles=replace(share.config.toggles, loss="fused"))
    *_, loss = head_parts(Share(fused, 0))
    assert loss.forward.bytes == loss.backward.bytes == 60 * 2 * 4


def test_a_part_takes_the_longer_of_flops_and_bytes(share: Share) -> None:
    h200 = device("h200")
    timer = Timer(share.config, h200, replace(ROOFLINE, matrix_efficiency=0.5, hbm_efficiency=0.25))
    rate = h200.peak("matrix", "fp32")
    assert rate is not None
    assert timer.nanoseconds(Load(10**12, 0)) == pytest.approx(1e12 / (rate / 2) * 1e9)
    assert timer.nanoseconds(Load(1, 10**9)) == pytest.approx(1e9 / (4.8e12 / 4) * 1e9)
    assert timer.of_kind(LayerKind(False, False)) is timer.of_kind(timer.kind(0))
