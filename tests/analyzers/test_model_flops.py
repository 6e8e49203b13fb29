"""The sum over a trace's ops against the FLOPs of its model on paper, for a transformer with experts.

Letters: T tokens, B sequences of S, D model width, F inner width of an expert, E experts of which each token
takes K, V vocabulary. A product of (m, k) and (k, n) is 2mkn FLOPs, and its backward pass two such products.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

import tracelens
from tracelens.schema import Result

SAMPLES = Path(__file__).parents[2] / "sample_traces"
ENTRIES = {
    entry["file"].removesuffix(".json.gz"): entry
    for entry in tomllib.loads((SAMPLES / "MANIFEST.toml").read_text())["trace"]
}


@pytest.fixture(scope="module", params=sorted(ENTRIES))
def sample(request: pytest.FixtureRequest) -> tuple[dict[str, Any], Result]:
    entry = ENTRIES[request.param]
    return entry, tracelens.analyze(tracelens.load(SAMPLES / entry["file"]), "roofline")


def products_on_paper(config: dict[str, Any]) -> int:
    """FLOPs of the forward pass's matrix products, attention's own left out."""
    tokens = config["micro_batch"] * config["seq"]
    width, inner = config["hidden"], config["expert_ffn"]
    projections = 2 * tokens * width * (3 * width + width)
    # Gate, up and down; a dense layer is as wide as what a token uses of the experts.
    used = config["top_k"] + config["shared_experts"]
    feed_forward = 3 * 2 * tokens * width * inner * used
    router = 2 * tokens * width * config["routed_experts"]
    head = 2 * tokens * width * config["vocab"]
    experts = config["layers"] - config["dense_layers"]
    return config["layers"] * (projections + feed_forward) + experts * router + head


def attention_on_paper(config: dict[str, Any]) -> int:
    """FLOPs of QK' and PV, half of which the causal mask leaves over."""
    return config["layers"] * 4 * config["micro_batch"] * config["seq"] ** 2 * config["hidden"] // 2


def test_model_flops(sample: tuple[dict[str, Any], Result]) -> None:
    """Three products for each of the forward pass's; attention's backward pass does 5 for its 2."""
    entry, result = sample
    config = entry["config"]
    per_step = 3 * products_on_paper(config) + attention_on_paper(config) * 7 / 2
    found = result["utilisation"]["flops"].sum() / entry["steps"]
    assert found == pytest.approx(per_step, rel=1e-3)


def test_utilisation_is_of_the_recorded_steps(sample: tuple[dict[str, Any], Result]) -> None:
    _, result = sample
    table = result["utilisation"]
    peak = 989.4e12  # bf16 of the H100 that the samples were recorded on
    busy = table[table["flops"] > 0]
    expected = busy["flops"] / (busy["dur_ns"] / 1e9) / peak
    # The router's softmax runs in fp32, but its product in bf16: one peak for all.
    assert busy["mfu"].tolist() == pytest.approx(expected.tolist(), rel=1e-3)
    assert (table["hfu"] >= table["mfu"]).all()
