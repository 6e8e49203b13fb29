"""The rules of two published charts: every number printed on their bars, and what they conclude."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tracelens.devices import device
from tracelens.errors import TracelensError
from tracelens.planner.config import Config, override, preset
from tracelens.planner.memory import Assumptions, memory, worst

GUIDE = Assumptions(framework="amd-guide")

# AMD, MoE training best practices on AMD GPUs, figures 8 and 9: decimal GB a GPU of 768, sequences of 4096
# tokens. Parameters, gradients, main copies, Adam, activations.
CHARTS = {
    ("moe_1t", 24, 8, 4): (12.8, 12.8, 3.2, 12.8, 153.4),
    ("moe_1t", 24, 16, 4): (7.5, 7.5, 3.7, 14.9, 153.4),
    ("moe_1t", 48, 8, 2): (7.2, 7.2, 3.6, 14.4, 183.8),
    ("moe_2t", 24, 8, 4): (23.3, 23.3, 5.8, 23.3, 262.2),
    ("moe_2t", 24, 16, 4): (12.8, 12.8, 6.4, 25.5, 262.2),
    ("moe_2t", 48, 8, 2): (12.5, 12.5, 6.2, 25.0, 314.6),
}
BARS = [(key, cp) for key in CHARTS for cp in (1, 2)]


def config(model: str, pp: int, ep: int, vpp: int, cp: int = 1) -> Config:
    fields = {"ranks": 768, "pp": pp, "ep": ep, "vpp": vpp, "cp": cp, "micro_batches": 2 * pp}
    return override(preset(model), [f"{name}={value}" for name, value in fields.items()])


@pytest.mark.parametrize(("key", "cp"), BARS)
def test_a_bar(key: tuple[str, int, int, int], cp: int) -> None:
    held = worst(config(*key, cp), GUIDE).held
    static = [held[name] / 1e9 for name in ("parameters", "gradients", "main_parameters", "optimizer")]
    activations = sum(size for name, size in held.items() if name.startswith(("activations", "loss"))) / 1e9
    *printed, printed_activations = CHARTS[key]
    assert static == pytest.approx(printed, abs=0.06)
    assert activations == pytest.approx(printed_activations / cp, abs=0.15)
    assert set(held) == {
        "parameters", "gradients", "main_parameters", "optimizer", "loss", "activations.attention",
        "activations.norms", "activations.router", "activations.experts", "activations.embedding",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("model", "where", "fitting"),
    [
        ("moe_1t", "mi300x", (24, 8, 4, 2)),
        ("moe_1t", "mi355x", (24, 8, 4, 1)),
        ("moe_2t", "mi300x", (24, 16, 4, 2)),
        ("moe_2t", "mi355x", (24, 8, 4, 2)),
    ],
)
def test_the_conclusions(model: str, where: str, fitting: tuple[int, int, int, int]) -> None:
    # Of the charts' layouts in their order: the first that fits is what they recommend. At PP24, EP16 without
    # CP 1T would fit, too: the charts go for CP before more EP.
    pp, _, vpp, _ = fitting
    order = [(8, 1), (8, 2), (16, 2)]
    totals = {
        (ep, cp): memory(config(model, pp, ep, vpp, cp), GUIDE, [device(where)])["fits"]["fits"][0]
        for ep, cp in order
    }
    first = next(key for key in order if totals[key] == "yes")
    assert (pp, first[0], vpp, first[1]) == fitting


def test_the_margin_is_the_reserve() -> None:
    tight = config("moe_2t", 24, 8, 4, 2)
    by_nameplate = memory(tight, GUIDE, [device("mi300x")])["fits"].iloc[0]
    assert by_nameplate["memory_bytes"] - by_nameplate["reserve_bytes"] == 192_000_000_000
    assert by_nameplate["fits"] == "no"
    # 206.9 GB against 206.1 GB: nothing is left even of the real bytes.
    real = memory(tight, GUIDE, [device("mi300x")], reserve=0)["fits"].iloc[0]
    assert -1_000_000_000 < real["free_bytes"] < 0
    # And 1T without CP, 194.8 GB, fits or not by what is reserved alone.
    loose = config("moe_1t", 24, 8, 4)
    assert memory(loose, GUIDE, [device("mi300x")], reserve=0)["fits"]["fits"][0] == "yes"
    assert memory(loose, GUIDE, [device("mi300x")])["fits"]["fits"][0] == "no"


def test_other_models_follow_the_same_rules() -> None:
    lite = override(preset("deepseek_v2_lite"), ["ranks=8", "ep=8", "micro_batch=1"])
    held, tokens = worst(lite, GUIDE).held, 4096
    # Keys and values: from the stream to 512 + 64, and up to 16 heads of 128 + 128.
    attention = 27 * (2048 * 576 + 512 * 16 * 256)
    experts = 26 * (8 * 3 * 2048 * 1408 + 3 * 2048 * 2816)
    assert held["parameters"] == 2 * (attention + experts + 3 * 2048 * 10944 + 102400 * 2048)
    assert held["activations.mlp"] == 2 * tokens * (2048 + 3 * 10944)
    assert held["activations.attention"] == 27 * 2 * tokens * (16 * (192 + 192 + 128) + 2048)
    assert held["activations.experts"] == 26 * 2 * tokens * 6 * (2048 + 3 * 1408)


@pytest.mark.parametrize("model", ["deepseek_v2", "deepseek_v3", "moe_2t"])
def test_every_bundled_model_is_accepted(model: str) -> None:
    assert worst(override(preset(model), ["ranks=64", "pp=4", "ep=16", "micro_batches=8"]), GUIDE).total > 1e9


@pytest.mark.parametrize(
    ("assumed", "fields", "what"),
    [
        ({"optimizer": "sgd"}, "", "optimizer=sgd"),
        ({"imbalance": 2.0}, "", "imbalance=2.0"),
        ({"gradients": "float32"}, "", "gradients=float32"),
        ({"sharding": "none"}, "", "sharding=none"),
        ({"recompute": "full"}, "", "recomputation"),
        ({}, "recompute_layer_ids=0", "recomputation"),
        ({}, "tp=2", "tensor parallelism"),
        ({}, "dtype=float32", "another precision"),
        ({}, "main_params=false", "another precision"),
        ({}, "fp8=experts experts=grouped", "fp8=experts"),
    ],
)
def test_what_the_charts_do_not_tell_is_refused(assumed: dict[str, Any], fields: str, what: str) -> None:
    changed = override(config("moe_1t", 24, 8, 4), fields.split())
    with pytest.raises(TracelensError, match=f"framework=amd-guide does not support {what}: leave it out"):
        worst(changed, replace(GUIDE, **assumed))


def test_what_the_charts_leave_out_is_told() -> None:
    result = memory(config("moe_1t", 24, 8, 4), GUIDE)
    assert [skip.subject for skip in result.skips] == ["pipeline ranks from 1 on"]
    assert worst(config("moe_1t", 24, 8, 4)).total > 2 * worst(config("moe_1t", 24, 8, 4), GUIDE).total
