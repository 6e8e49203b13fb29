"""The variants of the experts compute the same, on the CPU and on a GPU where there is one."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the workload needs torch")

from tests.workload.agree import FLOAT32, moe_config, relative_error  # noqa: E402
from tracelens.errors import TracelensError  # noqa: E402
from tracelens.workload.model import gemm  # noqa: E402
from tracelens.workload.model.experts import EXPERTS  # noqa: E402
from tracelens.workload.parallel import Groups  # noqa: E402

CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
DEVICES = ["cpu", pytest.param("cuda", marks=CUDA)]
# Relative errors: rounding of the dtype, summed in another order.
TOLERANCE = {"float32": FLOAT32, "bfloat16": 1e-2}
VARIANTS = [
    ("loop", 1), ("multistream", 0), ("multistream", 1), ("grouped", 0), ("grouped", 1), ("grouped", 2),
    ("grouped", 3),
]  # fmt: skip
ROWS = [[16, 8, 24, 16], [64, 0, 0, 0], [0, 0, 0, 64], [1, 30, 0, 33], [0, 0, 0, 0]]


def run(variant: str, sync_free: int, state: Any, x_RD: Any, rows: list[int]) -> dict[str, Any]:
    """Output and gradients of a variant with these parameters."""
    config = moe_config(f"experts={variant}", f"sync_free={sync_free}", "experts_count=4")
    module = EXPERTS[config.toggles.experts](config, Groups(config.layout)).to(x_RD.device, x_RD.dtype)
    module.load_state_dict(state)
    leaf_RD = x_RD.clone().requires_grad_()
    y_RD = module(leaf_RD, torch.tensor(rows, device=x_RD.device))
    used = sum(rows)
    # What comes back for rows behind the last is as arbitrary as what lies there.
    g_RD = torch.full_like(y_RD, float("nan"))
    g_RD[:used] = y_RD[:used].detach() + 1
    y_RD.backward(g_RD)
    found = {"y": y_RD[:used], "x": leaf_RD.grad[:used]}
    return found | {key: value.grad for key, value in module.named_parameters()}


def some_state(device: str, dtype: str) -> dict[str, Any]:
    config = moe_config("experts_count=4")
    D, F = config.model.hidden, config.model.expert_ffn
    state = {"up_eDG": torch.randn(4, D, 2 * F) / 2, "down_eFD": torch.randn(4, F, D) / 2}
    return {key: value.to(device, getattr(torch, dtype)) for key, value in state.items()}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("rows", ROWS)
def test_variants_agree(rows: list[int], dtype: str, device: str) -> None:
    if device == "cuda" and dtype == "float32":
        pytest.skip("grouped_mm takes bfloat16 alone on a GPU")
    state = some_state(device, dtype)
    x_RD = torch.randn(sum(rows), 16, device=device, dtype=getattr(torch, dtype))
    expected = run("loop", 0, state, x_RD, rows)
    for variant, sync_free in VARIANTS:
        found = run(variant, sync_free, state, x_RD, rows)
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            error = relative_error(found[key], value)
            assert error < TOLERANCE[dtype], (variant, sync_free, key)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("rows", ROWS)
def test_rows_behind_the_last_never_matter(rows: list[int], device: str) -> None:
    dtype = "float32" if device == "cpu" else "bfloat16"
    state, used = some_state(device, dtype), sum(rows)
    x_RD = torch.full((80, 16), float("nan"), device=device, dtype=getattr(torch, dtype))
    x_RD[:used] = torch.randn(used, 16)
    found = run("grouped", 3, state, x_RD, rows)
    for key, value in run("loop", 0, state, x_RD[:used], rows).items():
        assert relative_error(found[key], value) < TOLERANCE[dtype], key


def test_an_expert_is_a_gated_mlp() -> None:
    """One expert by the formula: (silu(x W_gate) * (x W_up)) W_down."""
    state, x_RD = some_state("cpu", "float32"), torch.randn(5, 16)
    gate_DF, up_DF = state["up_eDG"][2].chunk(2, dim=1)
    gate_RF = x_RD @ gate_DF
    expected_RD = (gate_RF * torch.sigmoid(gate_RF) * (x_RD @ up_DF)) @ state["down_eFD"][2]
    assert relative_error(run("loop", 0, state, x_RD, [0, 0, 5, 0])["y"], expected_RD) < FLOAT32


def test_a_torch_without_grouped_gemm_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(gemm.F, "grouped_mm", raising=False)
    monkeypatch.delattr(torch, "_grouped_mm", raising=False)
    with pytest.raises(TracelensError, match="has no grouped_mm: use experts=loop"):
        gemm.grouped_mm(torch.ones(1, 8), torch.ones(1, 8, 8), torch.tensor([1], dtype=torch.int32))
