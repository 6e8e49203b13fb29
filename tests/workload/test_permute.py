"""Tokens to rows and back, plain and fused, against a loop in float64; padded rows may hold anything."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="the workload needs torch")

from tests.workload.agree import FLOAT32, relative_error  # noqa: E402
from tests.workload.test_rows import choices  # noqa: E402
from tracelens.workload.rows import RowMap, permute, sort_rows, unpermute  # noqa: E402

D = 4
FUSIONS = ["plain", "fused"]
NAN = float("nan")


def some_rows(chosen: list[list[int]], experts: int, padded: bool) -> RowMap:
    used = sum(one < experts for of_token in chosen for one in of_token)
    room = len(chosen) * len(chosen[0]) if padded else used
    return sort_rows(torch.tensor(chosen), experts, room, padded)


def by_hand(x_TD: Any, y_RD: Any, weight_TK: Any, rows: RowMap) -> tuple[Any, Any]:
    """x_RD (None for rows without a token) and y_TD, row by row."""
    x_RD = [None if token < 0 else x_TD[token] for token in rows.token_R.tolist()]
    y_TD = torch.zeros(len(weight_TK), D, dtype=torch.float64)
    for row, choice in enumerate(rows.choice_R.tolist()):
        if choice >= 0:
            token, k = divmod(choice, weight_TK.shape[1])
            y_TD[token] = y_TD[token] + y_RD[row] * weight_TK[token, k]
    return x_RD, y_TD


@pytest.mark.parametrize("fusion", FUSIONS)
@given(drawn=choices(), padded=st.booleans(), weighted=st.booleans(), seed=st.integers(0, 2**31))
def test_outputs_and_gradients_agree_with_a_loop(
    fusion: Any, drawn: tuple[list[list[int]], int], padded: bool, weighted: bool, seed: int
) -> None:
    chosen, experts = drawn
    T, K = len(chosen), len(chosen[0])
    rows = some_rows(chosen, experts, padded)
    generator = torch.Generator().manual_seed(seed)
    x_TD, g_TD = torch.randn(T, D, generator=generator), torch.randn(T, D, generator=generator)
    y_RD = torch.randn(len(rows.token_R), D, generator=generator)
    g_RD = torch.randn(y_RD.shape, generator=generator)
    weight_TK = torch.rand(T, K, generator=generator) if weighted else torch.ones(T, K)
    # What nothing has written, on the way there and on the way back.
    empty_R = rows.token_R < 0
    y_RD[empty_R], g_RD[empty_R] = NAN, NAN

    leaves = [t.clone().requires_grad_() for t in (x_TD, y_RD, weight_TK)]
    x_RD = permute(leaves[0], rows, fusion)
    z_TD = unpermute(leaves[1], leaves[2] if weighted else None, rows, fusion)
    torch.autograd.backward([x_RD, z_TD], [g_RD, g_TD])

    exact = [t.double().requires_grad_() for t in (x_TD, y_RD, weight_TK)]
    expected_RD, expected_TD = by_hand(*exact, rows)
    loss = (expected_TD * g_TD).sum() + exact[0].sum() * 0 + sum(
        (x * g).sum() for x, g in zip(expected_RD, g_RD.double(), strict=True) if x is not None
    )  # fmt: skip
    loss.backward()
    assert relative_error(z_TD, expected_TD) < FLOAT32
    for row, expected in enumerate(expected_RD):
        if expected is not None:
            torch.testing.assert_close(x_RD[row].double(), expected)
    assert relative_error(leaves[0].grad, exact[0].grad) < FLOAT32
    if exact[1].grad is not None:
        assert relative_error(leaves[1].grad[~empty_R], exact[1].grad[~empty_R]) < FLOAT32
    if weighted and exact[2].grad is not None:
        assert relative_error(leaves[2].grad, exact[2].grad) < FLOAT32


def test_plain_padded_rows_are_zeros_and_pass_no_gradient() -> None:
    rows = some_rows([[0, 1], [1, 1]], 1, padded=True)
    y_RD = torch.full((4, D), NAN).requires_grad_()
    x_RD = permute(torch.randn(2, D), rows)
    unpermute(y_RD, None, rows).backward(torch.ones(2, D))
    assert not x_RD[1:].any()
    assert not y_RD.grad[1:].any()
    assert y_RD.grad[0].all()


@pytest.mark.parametrize("fusion", FUSIONS)
def test_a_sum_in_bfloat16_is_close(fusion: Any) -> None:
    chosen = torch.randint(0, 5, (64, 3)).tolist()
    rows = some_rows(chosen, 4, padded=False)
    y_RD, weight_TK = torch.randn(len(rows.token_R), D), torch.rand(64, 3)
    half_TD = unpermute(y_RD.bfloat16(), weight_TK, rows, fusion)
    assert half_TD.dtype == torch.bfloat16
    assert relative_error(half_TD, unpermute(y_RD, weight_TK, rows)) < 1e-2
