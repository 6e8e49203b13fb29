"""Megatron-core's memory against published figures: AMD's guide, and Megatron-LM's own estimate."""

from __future__ import annotations

from typing import Any

import pytest

from tracelens.devices import device
from tracelens.planner.config import Config, override, preset
from tracelens.planner.memory import Assumptions, Stages, memory

CHART = Assumptions(framework="megatron", gradients="parameters", states="bfloat16")
FUSED = "experts=grouped permute=fused router=fused loss=fused"


def trillion(model: str, ep: int, cp: int) -> Config:
    layout = f"ranks=768 pp=24 vpp=4 ep={ep} cp={cp} micro_batches=48 {FUSED}"
    return override(preset(model), layout.split())


@pytest.mark.parametrize(
    ("model", "name", "first"),
    [
        ("moe_1t", "mi300x", (8, 2)),
        ("moe_1t", "mi355x", (8, 1)),
        ("moe_2t", "mi300x", (16, 2)),
        ("moe_2t", "mi355x", (8, 2)),
    ],
)
def test_the_conclusions_of_the_guide(model: str, name: str, first: tuple[int, int]) -> None:
    # In the charts' order: the first layout that fits is what they recommend.
    order = [(8, 1), (8, 2), (16, 2)]
    fits = [memory(trillion(model, *key), CHART, [device(name)])["fits"]["fits"][0] for key in order]
    assert order[fits.index("yes")] == first


# Megatron-LM, megatron/training/theoretical_memory_usage.py (compute_activation_memory): with sequence
# parallelism and selective recomputation of attention a layer of ffn 4 H keeps s b H (18 + 4 ffn / H) bytes.
def estimate(config: Config) -> float:
    model, T = config.model, config.tokens
    return T * model.hidden * (18 + 4 * model.dense_ffn / model.hidden) * model.layers


@pytest.mark.parametrize("seq", [2048, 4096])
def test_megatron_own_estimate_of_a_dense_model(seq: int) -> None:
    fields = f"layers=16 dense_layers=16 dense_ffn=16384 experts_count=1 top_k=1 seq={seq} ranks=1"
    gqa = "hidden=4096 heads=32 attention=gqa kv_groups=32 head_dim=128"
    config = override(preset("moe_1t"), f"{fields} {gqa}".split())
    held: dict[str, Any] = Stages(config, Assumptions(framework="megatron")).stage(0).held
    layers = sum(size for name, size in held.items() if name.startswith("activations"))
    # Its MLP is not gated: the gate adds ffn values, of 2 bytes, before the activation function; and its 18
    # bytes have a byte of mask for each of two dropouts, which are off here.
    gate, masks = 2 * config.model.dense_ffn, 2 * config.model.hidden
    assert layers == pytest.approx(
        estimate(config) + config.tokens * config.model.layers * (gate - masks), rel=0.1
    )


def test_megatron_own_estimate_of_the_model_state() -> None:
    # compute_weight_and_optimizer_memory: 6 + 12 / DP bytes per parameter with the distributed optimizer. It
    # leaves out the router, and shards experts over all replicas, as EP1 does.
    config = override(preset("deepseek_v2_lite"), ["ranks=4", "ep=1", "layers=4"])
    model, dp = config.model, 4
    H, heads = model.hidden, model.heads
    attention = H * heads * 192 + 512 * (H + heads * 256 + 1) + H * 64 + heads * 128 * H
    norms = 2 * H
    dense = 3 * H * model.dense_ffn + norms + attention
    moe = 3 * H * (model.expert_ffn * model.experts_count + model.shared_ffn) + norms + attention
    count = dense + 3 * moe + H + 2 * H * model.vocab
    stage = Stages(config, Assumptions(framework="megatron", library_bytes=0)).stage(0)
    assert stage.moments["between"] == pytest.approx(count * (6 + 12 / dp), rel=0.001)
