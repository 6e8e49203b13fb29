"""Tokens to rows and back: in Triton, in torch's ops, and through autograd."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the workload needs torch")

from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from tests.workload.kernels.compare import DTYPES, Backend, assert_near, normal  # noqa: E402
from tracelens.workload import rows as autograd  # noqa: E402
from tracelens.workload.kernels import reference  # noqa: E402
from tracelens.workload.rows import RowMap, sort_rows, sort_rows_by_host, spread_rows  # noqa: E402

# Experts 0 to E - 1 are here, E stands for those elsewhere. (tokens, experts chosen, experts here, width)
SHAPES = [
    (5, 3, 4, 19),  # odd in every way
    (1, 1, 1, 1),
    (1, 2, 3, 8),
    (6, 1, 2, 32),
    (3, 2, 9, 40),  # more experts than rows: most have none
    (4, 2, 3, 2056),  # more than one program a token
]


def choices(T: int, K: int, E: int, seed: int) -> Any:
    """Different experts for each token, some of them not here."""
    generator = torch.Generator().manual_seed(seed)
    return torch.stack([torch.randperm(E + K, generator=generator)[:K] for _ in range(T)]).clamp(max=E)


def row_map(T: int, K: int, E: int, how: str = "padded", seed: int = 0) -> RowMap:
    """Rows of such tokens: as many as are used ("exact"), as may be ("padded"), in parts ("spread")."""
    expert_TK = choices(T, K, E, seed)
    if how == "exact":
        return sort_rows(expert_TK, E, int((expert_TK < E).sum()))
    rows = sort_rows(expert_TK, E, T * K, padded=True)
    return spread_rows(rows, E, T * K) if how == "spread" else rows


def on(device: str, rows: RowMap) -> RowMap:
    """The same on a device."""
    return RowMap(*(part.to(device) for part in rows[:4]), rows.padded)


def poisoned(x_RD: Any, rows: RowMap) -> Any:
    """Rows without a token hold NaN."""
    return torch.where((rows.token_R >= 0).unsqueeze(1), x_RD, float("nan"))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("how", ["exact", "padded", "spread"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
class TestTriton:
    def test_permute_copies_tokens_and_leaves_rows_without_one(
        self, triton_backend, sentinel, shape, how, dtype
    ):
        T, K, E, D = shape
        rows, x_TD = row_map(T, K, E, how), normal(T, D).to(dtype)
        kernels, device = triton_backend
        x_RD = kernels.permute(x_TD.to(device), on(device, rows)).cpu()
        used = rows.token_R >= 0
        assert torch.equal(x_RD[used], x_TD[rows.token_R[used]])
        assert (x_RD[~used] == sentinel).all()

    @pytest.mark.parametrize("weighted", [False, True])
    def test_unpermute_sums_rows_and_reads_no_padding(
        self, triton_backend, sentinel, shape, how, dtype, weighted
    ):
        T, K, E, D = shape
        rows = row_map(T, K, E, how)
        y_RD = poisoned(normal(len(rows.token_R), D).to(dtype), rows)
        # Nobody has set the weights of choices that have no row either.
        weight_TK = torch.where(rows.row_TK >= 0, normal(T, K), float("nan")) if weighted else None
        kernels, device = triton_backend
        found = kernels.unpermute(
            y_RD.to(device), None if weight_TK is None else weight_TK.to(device), on(device, rows)
        )
        assert found.dtype == dtype
        assert_near(found, reference.unpermute(y_RD.float(), weight_TK, rows), scale=K)

    def test_the_gradients_of_unpermute(self, triton_backend, sentinel, shape, how, dtype):
        T, K, E, D = shape
        rows, weight_TK = row_map(T, K, E, how), normal(T, K, seed=2)
        y_RD = poisoned(normal(len(rows.token_R), D).to(dtype), rows)
        g_TD = normal(T, D, seed=3).to(dtype)
        # A token without rows is padding itself, and so may its gradient be.
        g_TD[(rows.row_TK < 0).all(1)] = float("nan")
        kernels, device = triton_backend
        on_device = (g_TD.to(device), y_RD.to(device), weight_TK.to(device), on(device, rows))
        g_RD, g_TK = (part.cpu() for part in kernels.unpermute_backward(*on_device))
        exact_RD, exact_TK = reference.unpermute_backward(g_TD.float(), y_RD.float(), weight_TK, rows)
        used = rows.token_R >= 0
        assert g_RD.dtype == dtype
        assert_near(g_RD[used], exact_RD[used])
        assert (g_RD[~used] == sentinel).all()
        assert_near(g_TK, exact_TK, scale=D**0.5 * 10)
        assert (g_TK[rows.row_TK < 0] == 0).all()

    def test_without_weights_the_gradient_is_permuted(self, triton_backend, shape, how, dtype):
        T, K, E, D = shape
        rows, g_TD = row_map(T, K, E, how), normal(T, D).to(dtype)
        kernels, device = triton_backend
        y_RD = torch.zeros(len(rows.token_R), D, dtype=dtype, device=device)
        g_RD, nothing = kernels.unpermute_backward(g_TD.to(device), y_RD, None, on(device, rows))
        used = rows.token_R >= 0
        assert nothing is None
        assert torch.equal(g_RD.cpu()[used], g_TD[rows.token_R[used]])


@pytest.mark.parametrize("tokens", [0, 3])
def test_no_rows_at_all(triton_backend, tokens):
    expert_TK = torch.full((tokens, 2), 4)
    kernels, device = triton_backend
    rows = on(device, sort_rows(expert_TK, 4, 0))
    x_TD, weight_TK = torch.ones(tokens, 8, device=device), torch.ones(tokens, 2, device=device)
    empty = kernels.permute(x_TD, rows)
    assert empty.shape == (0, 8)
    assert torch.equal(kernels.unpermute(empty, weight_TK, rows), torch.zeros_like(x_TD))
    g_RD, g_TK = kernels.unpermute_backward(x_TD, empty, weight_TK, rows)
    assert g_RD.shape == (0, 8)
    assert torch.equal(g_TK, torch.zeros_like(weight_TK))


def test_tensors_that_are_not_contiguous(triton_backend):
    T, K, E, D = 4, 2, 3, 6
    rows, kernels, device = row_map(T, K, E, "exact"), *triton_backend
    x_TD, weight_TK = normal(D, T).T, normal(T, 2 * K)[:, ::2]
    y_RD, placed = normal(D, len(rows.token_R)).T, on(device, rows)
    x, y = x_TD.to(device), y_RD.to(device)
    # A copy to another device closes gaps.
    weight = torch.stack([weight_TK.to(device)] * 2, dim=2)[:, :, 0]
    assert not any(part.is_contiguous() for part in (x, y, weight))
    assert_near(kernels.permute(x, placed), reference.permute(x_TD, rows))
    assert_near(kernels.unpermute(y, weight, placed), reference.unpermute(y_RD, weight_TK, rows))
    found = kernels.unpermute_backward(x, y, weight, placed)
    for part, exact in zip(found, reference.unpermute_backward(x_TD, y_RD, weight_TK, rows), strict=True):
        assert_near(part, exact, scale=10)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    T=st.integers(1, 6), K=st.integers(1, 4), E=st.integers(1, 6), D=st.integers(1, 70),
    how=st.sampled_from(["exact", "padded", "spread"]), seed=st.integers(0, 99),
)  # fmt: skip
def test_fused_is_plain(backend: Backend, T: int, K: int, E: int, D: int, how: str, seed: int) -> None:
    """Values and gradients of tokens through rows and back, each row its own function, weights included."""
    rows, device = on(backend.device, row_map(T, K, E, how, seed)), backend.device
    factor_R1 = normal(len(rows.token_R), 1).to(device)
    results = []
    for fusion in ("plain", "fused"):
        x_TD, weight_TK = normal(T, D).to(device).requires_grad_(), normal(T, K).to(device).requires_grad_()
        x_RD = autograd.permute(x_TD, rows, fusion)
        # What experts leave in rows without a token, and what comes back for them, is anything.
        y_RD = _Poison.apply(x_RD * factor_R1, rows.token_R)
        y_TD = autograd.unpermute(y_RD, weight_TK, rows, fusion)
        y_TD = y_TD + autograd.unpermute(_Poison.apply(x_RD, rows.token_R), None, rows, fusion)
        (y_TD * normal(T, D, seed=5).to(device)).sum().backward()
        results.append((y_TD.detach(), x_TD.grad, weight_TK.grad))
    for plain, fused in zip(*results, strict=True):
        assert_near(fused, plain, scale=10 * K * D**0.5)


class _Poison(torch.autograd.Function):
    """NaN in rows without a token, on the way there and on the way back."""

    @staticmethod
    def forward(ctx: Any, x_RD: Any, token_R: Any) -> Any:
        ctx.save_for_backward(token_R)
        return torch.where((token_R >= 0).unsqueeze(1), x_RD, float("nan"))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (token_R,) = ctx.saved_tensors
        # An earlier op multiplies this gradient by numbers alone, so that NaN stays in its row.
        return torch.where((token_R >= 0).unsqueeze(1), gradients[0], float("nan")), None


def test_the_gradients_of_the_reference_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """By finite differences in float64, to which what should be float32 is raised."""
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    T, K, E, D = 4, 3, 3, 5
    rows = row_map(T, K, E, "exact")
    x_TD, weight_TK = normal(T, D).double().requires_grad_(), normal(T, K).double().requires_grad_()
    y_RD = normal(len(rows.token_R), D).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: autograd.permute(x, rows, "fused"), (x_TD,))
    assert torch.autograd.gradcheck(lambda y, w: autograd.unpermute(y, w, rows, "fused"), (y_RD, weight_TK))


def test_rows_sorted_by_the_host_are_the_same_rows() -> None:
    expert_TK = choices(6, 3, 4, seed=3)
    one, other = sort_rows(expert_TK, 4, int((expert_TK < 4).sum())), sort_rows_by_host(expert_TK, 4)
    for a, b in zip(one, other, strict=True):
        assert torch.equal(torch.as_tensor(a), torch.as_tensor(b))
