"""What the tests of the kernels share: where these run, and how close results must be."""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch", reason="the workload needs torch")

# bfloat16 keeps 8 bits. GPUs round to the nearest, Triton's interpreter cuts the rest off.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2**-7}
DTYPES = (torch.float32, torch.bfloat16)


class Backend(NamedTuple):
    """Kernels, and the device of the tensors to give to them."""

    kernels: ModuleType
    device: str


def normal(*shape: int, seed: int = 1) -> Any:
    """Random numbers in float32, on the CPU."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def assert_near(found: Any, exact: Any, scale: float = 1.0, roundings: int = 1) -> None:
    """Each element of `found` is that of `exact`, computed in float32, within its dtype's precision.

    Args:
        found: under test.
        exact: of the same shape.
        scale: of the terms that were added up; what cancels leaves an error of their size.
        roundings: to the dtype, on the way to the result.
    """
    tolerance = TOLERANCE[found.dtype] * roundings
    torch.testing.assert_close(
        found.cpu().float(), exact.cpu().float(), rtol=tolerance, atol=scale * min(tolerance, 1e-5)
    )
