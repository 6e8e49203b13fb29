"""The choice of experts in one kernel."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the workload needs torch")

from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from tests.workload.kernels.compare import DTYPES, Backend, assert_near, normal  # noqa: E402
from tracelens.planner.config import MODELS, Model  # noqa: E402
from tracelens.workload.kernels import (  # noqa: E402
    choose,
    reference,
    scores,
    weights,
)
from tracelens.workload.model.router import _Route  # noqa: E402

# (experts, groups, groups chosen, experts chosen)
SIZES = [
    (8, 1, 1, 2),
    (1, 1, 1, 1),
    (21, 3, 2, 5),  # odd in every way
    (20, 4, 4, 3),  # groups, all of them
    (6, 6, 2, 2),  # groups of one
    (160, 8, 3, 6),
    (256, 8, 4, 8),
    (448, 1, 1, 16),
]


def model(score: str, E: int, G: int, top_groups: int, K: int) -> Model:
    sizes = {"experts_count": E, "expert_groups": G, "top_groups": top_groups, "top_k": K}
    return replace(MODELS["tiny"], score=score, **sizes)


def distinct_logits(T: int, E: int, seed: int = 0) -> Any:
    """No two of a token are equal, nor nearly: the choice is the same however it is computed."""
    generator = torch.Generator().manual_seed(seed)
    return torch.stack([torch.randperm(E, generator=generator) for _ in range(T)]) * (8.0 / E) - 4


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
class TestTriton:
    def test_scores_choice_and_weights(self, triton_backend, sizes, score, dtype):
        of, kernels, device = model(score, *sizes), *triton_backend
        logits_TE = distinct_logits(4, sizes[0]).to(dtype)
        weight_TK, expert_TK, score_TE = kernels.route(logits_TE.to(device), of)
        exact_weight_TK, exact_TK, exact_TE = reference.route(logits_TE, of)
        assert (weight_TK.dtype, expert_TK.dtype, score_TE.dtype) == (
            torch.float32,
            torch.int64,
            torch.float32,
        )
        if dtype == torch.float32:
            assert torch.equal(expert_TK.cpu(), exact_TK)
        assert_near(score_TE, exact_TE)
        # In bfloat16 scores of different experts may be the same.
        assert_near(weight_TK, exact_weight_TK)

    def test_the_gradient(self, triton_backend, sizes, score, dtype):
        of, kernels, device = model(score, *sizes), *triton_backend
        _, expert_TK, score_TE = reference.route(distinct_logits(4, sizes[0]).to(dtype), of)
        gradients = normal(*expert_TK.shape), normal(*score_TE.shape, seed=2)
        exact = reference.route_backward(*gradients, expert_TK, score_TE, of)
        placed = (part.to(device) for part in (*gradients, expert_TK, score_TE))
        found = kernels.route_backward(*placed, of)
        assert found.dtype == torch.float32
        assert_near(found, exact, scale=10)


@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
class TestTies:
    def test_the_lowest_numbers_win(self, triton_backend, score):
        kernels, device = triton_backend
        logits_TE = torch.tensor([[0.0, 1.0, 1.0, 0.0, 1.0, 0.0]], device=device)
        _, expert_TK, _ = kernels.route(logits_TE, model(score, 6, 1, 1, 4))
        assert expert_TK.tolist() == [[1, 2, 4, 0]]

    def test_so_do_those_of_groups(self, triton_backend, score):
        kernels, device = triton_backend
        # Groups 1 and 2 are alike, 0 is worse; with sigmoid the best two of a group count.
        logits_TE = torch.tensor([[0.0, 0.0, 1.0, 2.0, 2.0, 1.0]], device=device)
        _, expert_TK, _ = kernels.route(logits_TE, model(score, 6, 3, 1, 2))
        assert expert_TK.tolist() == [[3, 2]]

    @pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, in the interpreter
    def test_what_is_not_a_number_chooses_experts_that_exist(self, triton_backend, score):
        kernels, device = triton_backend
        logits_TE = torch.full((2, 20), float("nan"), device=device)
        logits_TE[1] = 1.0
        logits_TE[1, 7] = float("nan")
        weight_TK, expert_TK, _ = kernels.route(logits_TE, model(score, 20, 4, 2, 3))
        assert ((expert_TK >= 0) & (expert_TK < 20)).all()
        assert all(len(set(row)) == 3 for row in expert_TK.tolist())
        assert weight_TK[0].isnan().all()
        assert weight_TK[1].isnan().any()


def test_no_tokens(triton_backend):
    kernels, device = triton_backend
    of = model("softmax", 8, 1, 1, 2)
    weight_TK, expert_TK, score_TE = kernels.route(torch.zeros(0, 8, device=device), of)
    assert [len(part) for part in (weight_TK, expert_TK, score_TE)] == [0, 0, 0]
    assert kernels.route_backward(weight_TK, score_TE, expert_TK, score_TE, of).shape == (0, 8)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    score=st.sampled_from(["softmax", "sigmoid"]), sizes=st.sampled_from(SIZES[:5]), T=st.integers(1, 5),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_fused_is_plain(backend: Backend, score: str, sizes: tuple[int, ...], T: int, seed: int) -> None:
    """Values and gradients through weights and scores, as the balance loss takes them."""
    of, E = model(score, *sizes), sizes[0]
    g_TK, g_TE = normal(T, of.top_k, seed=seed).to(backend.device), normal(T, E, seed=seed).to(backend.device)
    results = []
    for fused in (False, True):
        logits_TE = distinct_logits(T, E, seed).to(backend.device).requires_grad_()
        if fused:
            weight_TK, expert_TK, score_TE = _Route.apply(logits_TE, of)
        else:
            score_TE = scores(logits_TE, of)
            expert_TK = choose(score_TE.detach(), of)
            weight_TK = weights(score_TE, expert_TK, of)
        ((weight_TK * g_TK).sum() + (score_TE * g_TE).sum()).backward()
        results.append((weight_TK.detach(), score_TE.detach(), logits_TE.grad, expert_TK.float()))
    for plain, fused_result in zip(*results, strict=True):
        assert_near(fused_result, plain, scale=10)


@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
def test_the_gradient_of_the_reference_is_right(score: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By finite differences in float64, to which what should be float32 is raised."""
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    of = model(score, 6, 3, 2, 3)
    logits_TE = distinct_logits(3, 6).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: _Route.apply(x, of)[::2], (logits_TE,))
