"""Where the Triton kernels run: on a GPU where there is one, else in Triton's interpreter on the CPU.

No torch at the top: without it this file is loaded all the same, and the tests beside it skip themselves.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.workload.kernels.compare import Backend

CALLERS = ("rows", "model.router", "model.model", "model.experts", "model.gemm")


@pytest.fixture(scope="session")
def triton_backend() -> Iterator[Backend]:
    """The kernels in Triton; skips the test where neither a GPU nor the interpreter is there."""
    import torch

    from tests.workload.kernels.compare import Backend

    gpu = torch.cuda.is_available()
    with pytest.MonkeyPatch.context() as patch:
        if not gpu and "triton" not in sys.modules:
            # Read when Triton is imported, and again by each kernel's decorator.
            patch.setenv("TRITON_INTERPRET", "1")
        pytest.importorskip("triton", reason="the fused kernels need Triton")
        if not gpu and os.environ.get("TRITON_INTERPRET") != "1":
            pytest.skip("the fused kernels need a GPU, or TRITON_INTERPRET=1")
        from tracelens.workload.kernels import fused

        if not gpu:
            patch.setattr(fused, "multiprocessors", lambda _: 1)
            _let_scalars_be_indices(patch)
        yield Backend(fused, "cuda" if gpu else "cpu")


def _let_scalars_be_indices(patch: pytest.MonkeyPatch) -> None:
    """The interpreter has scalars in arrays of one element, which numpy >= 2.4 does not take for an int."""
    from triton.runtime import interpreter

    original = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        original(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    patch.setattr(interpreter, "_patch_lang_tensor", patched)


@pytest.fixture(params=["reference", "triton"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Backend:
    """Each of the two in turn, used by everything that is fused."""
    from tests.workload.kernels.compare import Backend
    from tracelens.workload.kernels import reference

    if request.param == "reference":
        return Backend(reference, "cpu")
    found: Backend = request.getfixturevalue("triton_backend")
    for name in CALLERS:
        # On the CPU nobody but a test would take the kernels in Triton.
        monkeypatch.setattr(f"tracelens.workload.{name}.kernels", lambda _: found.kernels)
    return found


@pytest.fixture
def sentinel(monkeypatch: pytest.MonkeyPatch) -> float:
    """New memory is full of this number, so that what nobody wrote can be told."""
    import torch

    value = -777.0

    def filled(make: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *arguments, **options: make(*arguments, **options).fill_(value)

    monkeypatch.setattr(torch.Tensor, "new_empty", filled(torch.Tensor.new_empty))
    monkeypatch.setattr(torch, "empty_like", filled(torch.empty_like))
    return value
