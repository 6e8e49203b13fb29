"""Mamba-2, gated delta rule and their convolution, against hand-worked counts."""

from __future__ import annotations

import pytest

from tests.costs.recorded import costed, recorded
from tracelens.costs import Lengths, OpCall, OpCost, ServingBatch, Uncounted, find

NONE = Lengths(0, 0, 0, 0)
B, L, H, P, N, G, W, Q = 2, 4096, 80, 64, 128, 8, 4, 256
INNER = H * P
CHANNELS = INNER + 2 * G * N
JOINT = INNER + CHANNELS + H


def scan(*behind: object, skip: str = "fp32 80") -> OpCost:
    front = (f"bf16 {B} {L} {JOINT}", f"bf16 {CHANNELS} {W}", f"bf16 {CHANNELS}", "fp32 80", "fp32 80", skip)
    return costed(
        "MambaSplitConv1dScanCombinedFn", *front, str(Q), None, None, None, "False", "silu", *behind
    )


def test_scan_of_mamba() -> None:
    """Mamba-2 of 2.7 billion parameters, as in its paper, with 8 groups."""
    cost = scan(None, None, None, None, str(P), str(G), "True")
    tokens = B * L
    # Scores, their product with x, state and output, convolution.
    assert cost.flops == tokens * (G * Q * N + H * Q * P + H * 4 * N * P + 2 * W * CHANNELS)
    assert cost.read_bytes == 2 * (tokens * JOINT + CHANNELS * W + CHANNELS) + 4 * 3 * H
    assert cost.write_bytes == 2 * tokens * INNER
    assert (cost.dtype, cost.engine) == ("bf16", "matrix")
    assert scan(None, None, None, None, None, str(G), skip="fp32 80 64").flops == cost.flops


def test_scan_with_the_output_projection() -> None:
    plain = scan(None, None, None, None, str(P), str(G))
    cost = scan("bf16 5120", None, "bf16 2560 5120", None, str(P), str(G))
    assert cost.flops == plain.flops + 2 * B * L * INNER * 2560
    assert cost.write_bytes == 2 * B * L * 2560
    assert cost.read_bytes == plain.read_bytes + 2 * (INNER + 2560 * INNER)


def test_shapes_of_a_scan_that_do_not_fit_are_named() -> None:
    with pytest.raises(Uncounted, match="argument 17 has no recorded value"):
        scan(None, None, None, None, str(P))
    with pytest.raises(Uncounted, match="disagree"):
        scan(None, None, None, None, "100", str(G))
    with pytest.raises(Uncounted, match="projection disagree"):
        scan(None, None, "bf16 2560 99", None, str(P), str(G))


def test_short_convolution() -> None:
    x = "bf16 2 10240 4096"
    elements = 2 * 10240 * 4096
    name, front = "DaoAILab::_causal_conv1d_fwd_cpp", (x, "bf16 10240 4", "bf16 10240")
    cost = costed(name, *front, None, None, x, None, "True")
    assert (cost.flops, cost.engine) == ((2 * 4 + 5) * elements, "vector")
    assert (cost.read_bytes, cost.write_bytes) == (2 * (elements + 5 * 10240), 2 * elements)
    states = costed(name, *front, None, "bf16 2 10240 3", x, "bf16 2 10240 3", "False")
    assert states.flops == 8 * elements
    assert states.write_bytes == 2 * (elements + 2 * 10240 * 3)


# Qwen3-Next: 16 heads of queries and keys, 32 of values, all 128 wide.
KEYS, VALUES = 2 * 16 * 128, 32 * 128
STATE = 32 * 128 * 128


def delta(call: OpCall, batch: ServingBatch | None) -> OpCost:
    model = find(call.name)
    assert model is not None
    assert model.batch
    return model.function(call._replace(batch=batch))


@pytest.mark.parametrize("name", ["vllm::gdn_attention_core", "aiter::linear_attention_with_output_base"])
def test_gated_delta_rule_decoding(name: str) -> None:
    """60 sequences in a graph of 64: each token reads and writes a state of 1 MiB."""
    call = recorded(
        name, f"bf16 64 {KEYS + VALUES}", "bf16 64 32", "bf16 64 32", "bf16 64 32 128", "layers.0"
    )
    cost = delta(call, ServingBatch(NONE, Lengths(60, 60000, 60, 60000)))
    assert cost.flops == 60 * 7 * STATE
    assert cost.read_bytes == 2 * 60 * (KEYS + VALUES + 2 * 32 + STATE)
    assert cost.write_bytes == 2 * 60 * (VALUES + STATE)
    assert dict(cost.dims) == {"T": 60, "H": 32, "D": 128, "states": 60}


def test_gated_delta_rule_in_prefill_and_with_an_output_gate() -> None:
    name = "vllm::gdn_attention_core"
    prefill = ServingBatch(Lengths(2048, 2048, 2048**2, 2048**2), NONE)
    call = recorded(name, f"bf16 2048 {KEYS + VALUES}", "bf16 2048 32", "bf16 2048 32", "bf16 2048 32 128")
    cost = delta(call, prefill)
    # One state at least: the label does not say how many sequences the tokens are of.
    assert (cost.flops, cost.write_bytes) == (2048 * 7 * STATE, 2 * (2048 * VALUES + STATE))
    fast = recorded(name, f"bf16 2048 {KEYS + 2 * VALUES}", "bf16 2048 64", "bf16 2048 32 128",
                    "bf16 2048 32 128", "True")  # fmt: skip
    assert delta(fast, prefill).flops == cost.flops
    assert delta(fast, prefill).read_bytes == cost.read_bytes + 2 * 2048 * VALUES


def test_states_are_not_guessed() -> None:
    name, gates = "vllm::gdn_attention_core", ("bf16 64 32", "bf16 64 32", "bf16 64 32 128")
    known = recorded(name, f"bf16 64 {KEYS + VALUES}", *gates)
    with pytest.raises(Uncounted, match="how many states"):
        delta(known, None)
    with pytest.raises(Uncounted, match="how many states"):
        delta(known, ServingBatch(NONE, Lengths(65, 65, 65, 65)))
    with pytest.raises(Uncounted, match="width of keys"):
        delta(
            recorded(name, f"bf16 64 {VALUES + 2 * 1000}", *gates),
            ServingBatch(NONE, Lengths(64, 64, 64, 64)),
        )
