"""FP8 with a scale per row: in Triton, in torch's ops, and both by hand."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the workload needs torch")

from tests.workload.kernels.compare import DTYPES, normal  # noqa: E402
from tracelens.workload.kernels import reference  # noqa: E402

# e4m3 keeps 4 bits: half a unit in the last place of the largest number of a row.
HALF_UNIT = 2**-4
ROWS = [(5, 19), (1, 1), (3, 2, 40), (4, 2056), (0, 16)]
MATRICES = [(1, 16, 32), (3, 19, 70), (2, 130, 16), (0, 16, 16)]


def test_the_reference_by_hand() -> None:
    x_RK = torch.tensor([[0.0, 1.0, -2.0], [896.0, 448.0, -224.0], [0.0, 0.0, 0.0]])
    q_RK, scale_R = reference.quantize(x_RK)
    assert q_RK.float().tolist() == [[0, 224, -448], [448, 224, -112], [0, 0, 0]]
    assert scale_R.tolist() == pytest.approx([2 / 448, 2, 1e-12 / 448])


@pytest.mark.parametrize("shape", ROWS, ids=str)
def test_a_number_is_half_a_unit_from_its_fp8(shape: tuple[int, ...]) -> None:
    x_ZK = normal(*shape) * 10
    q_ZK, scale_Z = reference.quantize(x_ZK)
    error = (q_ZK.float() * scale_Z.unsqueeze(-1) - x_ZK).abs()
    assert (error <= x_ZK.abs() * HALF_UNIT + scale_Z.unsqueeze(-1) * 2**-10).all()


def assert_same(found: tuple[Any, Any], expected: tuple[Any, Any]) -> None:
    """Same scales and, but for one rounding, the same numbers."""
    (q, scale), (exact_q, exact_scale) = found, expected
    torch.testing.assert_close(scale.cpu(), exact_scale)
    assert (q.shape, q.dtype) == (exact_q.shape, exact_q.dtype)
    q, exact = q.cpu().float(), exact_q.float()
    if not found[0].is_cuda:
        # Where rounding reaches a power of two, Triton's interpreter loses the carry, and half the number.
        lost = (2 * q == exact) & (exact.abs().log2() % 1 == 0)
        q = torch.where(lost, exact, q)
    torch.testing.assert_close(q, exact, rtol=2 * HALF_UNIT, atol=2**-9)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", ROWS, ids=str)
def test_rows_in_triton(triton_backend, shape, dtype):
    kernels, device = triton_backend
    x_ZK = normal(*shape).to(dtype)
    assert_same(kernels.quantize(x_ZK.to(device)), reference.quantize(x_ZK))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", MATRICES, ids=str)
def test_transposed_matrices_in_triton(triton_backend, shape, dtype):
    kernels, device = triton_backend
    w_eKN = normal(*shape).to(dtype)
    assert_same(kernels.quantize_transposed(w_eKN.to(device)), reference.quantize_transposed(w_eKN))
