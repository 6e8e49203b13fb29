"""The two expert variants compute the same, on the CPU and on a GPU where there is one."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch", reason="the workload needs torch")

from tracelens.workload.config import MoEConfig, preset  # noqa: E402
from tracelens.workload.dispatch import combine, dispatch  # noqa: E402
from tracelens.workload.experts import EXPERTS  # noqa: E402
from tracelens.workload.model import Transformer, cross_entropy  # noqa: E402

CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
DEVICES = ["cpu", pytest.param("cuda", marks=CUDA)]
# Relative errors ||a - b|| / ||b||: rounding of the dtype, summed in another order.
TOLERANCE = {"float32": 1e-5, "bfloat16": 1e-2}


def relative_error(a: torch.Tensor, b: torch.Tensor) -> float:
    a, b = a.detach().double(), b.detach().double()
    return float((a - b).norm() / b.norm())


def test_dispatch_sorts_rows_by_expert() -> None:
    x_TD = torch.arange(3.0).unsqueeze(1)
    weight_TK = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3]])
    expert_TK = torch.tensor([[2, 0], [0, 3], [2, 0]])
    routed = dispatch(x_TD, weight_TK, expert_TK, experts=4)
    assert routed.token_R.tolist() == [0, 1, 2, 0, 2, 1]
    assert routed.rows_E.tolist() == [3, 0, 2, 1]  # expert 1 gets none
    assert routed.x_RD[:, 0].tolist() == [0, 1, 2, 0, 2, 1]
    torch.testing.assert_close(routed.weight_R, torch.tensor([0.1, 0.8, 0.3, 0.9, 0.7, 0.2]))


def test_combine_undoes_dispatch() -> None:
    x_TD = torch.randn(5, 8)
    weight_TK = torch.tensor([0.75, 0.25]).repeat(5, 1)
    expert_TK = torch.tensor([[0, 1], [1, 2], [2, 0], [0, 2], [1, 0]])
    routed = dispatch(x_TD, weight_TK, expert_TK, experts=3)
    torch.testing.assert_close(combine(routed.x_RD, routed, tokens=5), x_TD)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("rows", [[16, 8, 24, 16], [64, 0, 0, 0], [1, 30, 0, 33]])
def test_loop_and_grouped_experts_agree(rows: list[int], dtype: str, device: str) -> None:
    if device == "cuda" and dtype == "float32":
        pytest.skip("grouped_mm takes bfloat16 alone on a GPU")
    config: MoEConfig = preset("tiny")
    torch.manual_seed(0)
    outputs, gradients = {}, {}
    loop = EXPERTS["loop"](config)
    for parameter in loop.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    x_RD = torch.randn(sum(rows), config.hidden, device=device, dtype=getattr(torch, dtype))
    for name, variant in EXPERTS.items():
        experts = variant(config)
        experts.load_state_dict(loop.state_dict())
        experts.to(device, getattr(torch, dtype))
        leaf_RD = x_RD.clone().requires_grad_()
        outputs[name] = experts(leaf_RD, torch.tensor(rows, device=device))
        outputs[name].square().sum().backward()
        gradients[name] = {"x": leaf_RD.grad} | {key: value.grad for key, value in experts.named_parameters()}
    assert relative_error(outputs["grouped"], outputs["loop"]) < TOLERANCE[dtype]
    for key, gradient in gradients["loop"].items():
        assert relative_error(gradients["grouped"][key], gradient) < TOLERANCE[dtype], key


@pytest.mark.parametrize("device", DEVICES)
def test_whole_model_has_the_same_loss_with_either_variant(device: str) -> None:
    loss = {}
    for name in EXPERTS:
        config = replace(preset("tiny"), experts=name, dtype="bfloat16")
        torch.manual_seed(config.seed)
        model = Transformer(config).to(device, torch.bfloat16)
        token_BS = torch.arange(config.tokens, device=device).view(config.micro_batch, -1) % config.vocab
        loss[name] = cross_entropy(model(token_BS), token_BS.roll(-1, 1)).item()
    assert loss["grouped"] == pytest.approx(loss["loop"], rel=TOLERANCE["bfloat16"])


def test_a_torch_without_grouped_gemm_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    from tracelens.errors import TracelensError
    from tracelens.workload import experts

    monkeypatch.delattr(experts.F, "grouped_mm", raising=False)
    monkeypatch.delattr(torch, "_grouped_mm", raising=False)
    with pytest.raises(TracelensError, match="has no grouped_mm: take the loop"):
        experts.grouped_mm(torch.ones(1, 8), torch.ones(1, 8, 8), torch.tensor([1], dtype=torch.int32))
