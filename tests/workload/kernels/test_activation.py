"""SwiGLU of the first rows of a buffer."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the workload needs torch")

import torch.nn.functional as F  # noqa: E402

from tests.workload.kernels.compare import DTYPES, assert_near, normal  # noqa: E402
from tracelens.workload.kernels import reference  # noqa: E402

# (rows of each expert, rows of the buffer, inner width)
CASES = [
    ([3, 0, 4], 11, 24),
    ([0, 0], 5, 8),
    ([0], 0, 8),
    ([1], 1, 1),
    ([5, 2], 7, 19),  # full, and odd
    ([40, 1, 30], 90, 520),  # more tiles than programs
]


def inputs(rows: list[int], buffer: int, inner: int, dtype: Any) -> tuple[Any, Any, Any]:
    """g_RF, up_RG with NaN behind the last row, and end_e."""
    g_RF, up_RG = normal(buffer, inner).to(dtype), normal(buffer, 2 * inner, seed=2).to(dtype) * 3
    g_RF[sum(rows) :], up_RG[sum(rows) :] = float("nan"), float("nan")
    return g_RF, up_RG, torch.tensor(rows).cumsum(0, dtype=torch.int32)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_forward_and_backward_of_the_first_rows(triton_backend, sentinel, case, dtype):
    g_RF, up_RG, end_e = inputs(*case, dtype)
    kernels, device = triton_backend
    used, on_device = int(end_e[-1]), (up_RG.to(device), end_e.to(device))
    h_RF, g_RG = kernels.swiglu(*on_device), kernels.swiglu_backward(g_RF.to(device), *on_device)
    assert (h_RF.dtype, h_RF.shape, g_RG.dtype, g_RG.shape) == (dtype, g_RF.shape, dtype, up_RG.shape)
    assert_near(h_RF[:used], reference.swiglu(up_RG.float(), end_e)[:used])
    exact_RG = reference.swiglu_backward(g_RF.float(), up_RG.float(), end_e)
    assert_near(g_RG[:used], exact_RG[:used], scale=10)
    assert (h_RF[used:] == sentinel).all()
    assert (g_RG[used:] == sentinel).all()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, in the interpreter
def test_far_from_zero_it_is_finite(triton_backend):
    kernels, device = triton_backend
    up_RG = torch.tensor([[-200.0, 200.0, -88.0, 0.0, 1.0, 1.0, 1.0, 1.0]], device=device)
    end_e = torch.ones(1, dtype=torch.int32, device=device)
    exact = torch.tensor([[0.0, 200.0, 0.0, 0.0]])
    assert_near(kernels.swiglu(up_RG, end_e), exact)
    assert kernels.swiglu_backward(torch.ones_like(up_RG[:, :4]), up_RG, end_e).isfinite().all()


def test_the_reference_is_silu_times_up_and_its_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    up_RG, g_RF = normal(4, 10).double().requires_grad_(), normal(4, 5, seed=2).double()
    end_e = torch.tensor([4], dtype=torch.int32)
    plain = F.silu(up_RG[:, :5]) * up_RG[:, 5:]
    torch.testing.assert_close(reference.swiglu(up_RG, end_e), plain)
    (exact,) = torch.autograd.grad(plain, up_RG, g_RF)
    torch.testing.assert_close(reference.swiglu_backward(g_RF, up_RG.detach(), end_e), exact)
