"""Cross-entropy: the kernel, and the loss of a rank's tokens that is built on it."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the workload needs torch")

from tests.workload.kernels.compare import DTYPES, Backend, assert_near, normal  # noqa: E402
from tracelens.errors import TracelensError  # noqa: E402
from tracelens.workload.kernels import reference  # noqa: E402
from tracelens.workload.model import token_loss  # noqa: E402

# The last has more than one block of the vocabulary, and ends inside one.
SHAPES = [(3, 37), (1, 1), (5, 8), (2, 1000), (2, 40003)]


def inputs(T: int, V: int, dtype: Any, spread: float = 5.0) -> tuple[Any, Any]:
    """Logits far apart, and targets that include the first and the last."""
    target_T = torch.randint(V, (T,), generator=torch.Generator().manual_seed(0))
    target_T[0], target_T[-1] = 0, V - 1
    return (normal(T, V) * spread).to(dtype), target_T


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("spread", [1.0, 60.0])
def test_loss_and_gradient(triton_backend, shape, dtype, spread):
    logits_TV, target_T = inputs(*shape, dtype, spread)
    kernels, device = triton_backend
    before = logits_TV.clone().to(device)
    loss, g_TV = kernels.cross_entropy(before, target_T.to(device))
    exact_loss, exact_TV = reference.cross_entropy(logits_TV.float(), target_T)
    assert (loss.dtype, loss.shape, g_TV.dtype) == (torch.float32, (), dtype)
    assert_near(loss, exact_loss, scale=spread)
    assert_near(g_TV, exact_TV, scale=spread)
    assert torch.equal(before.cpu(), logits_TV)


class TestOddLogits:
    def test_logits_of_minus_infinity_have_no_part(self, triton_backend):
        kernels, device = triton_backend
        logits_TV, target_T = inputs(2, 20000, torch.float32)
        logits_TV[:, 100:19990] = -float("inf")
        loss, g_TV = kernels.cross_entropy(logits_TV.to(device), target_T.to(device))
        exact_loss, exact_TV = reference.cross_entropy(logits_TV, target_T)
        assert_near(loss, exact_loss)
        assert_near(g_TV, exact_TV)

    def test_what_is_not_a_number_stays_in_the_loss(self, triton_backend):
        kernels, device = triton_backend
        logits_TV, target_T = inputs(2, 300, torch.float32)
        logits_TV[0, 17] = float("nan")
        loss, g_TV = kernels.cross_entropy(logits_TV.to(device), target_T.to(device))
        assert loss.isnan()
        assert g_TV[0].isnan().all()
        assert g_TV[1].isfinite().all()

    def test_a_target_outside_the_vocabulary_is_no_loss_to_trust(self, triton_backend):
        kernels, device = triton_backend
        for target in (-1, 10):
            target_T = torch.tensor([target], device=device)
            assert kernels.cross_entropy(torch.zeros(1, 10, device=device), target_T)[0].isnan()


def test_no_tokens(triton_backend):
    kernels, device = triton_backend
    loss, g_TV = kernels.cross_entropy(
        torch.zeros(0, 9, device=device), torch.zeros(0, dtype=torch.int64, device=device)
    )
    assert loss == 0
    assert g_TV.shape == (0, 9)


class TestTokenLoss:
    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_fused_is_plain(self, backend: Backend, dtype: Any) -> None:
        S, B, V = 3, 2, 41
        logits_TV, target_T = inputs(S * B, V, dtype)
        # Far from a number of bfloat16: a factor that is rounded to it would show.
        scale, results = 1 / 778, []
        for fusion in ("plain", "fused"):
            logits_SBV = logits_TV.view(S, B, V).to(backend.device).requires_grad_()
            loss = token_loss(logits_SBV, target_T.view(S, B).to(backend.device), fusion)
            (loss * scale).backward()
            assert (loss.dtype, loss.shape) == (torch.float32, ())
            results.append((loss.detach(), logits_SBV.grad))
        (plain, plain_g), (fused, fused_g) = results
        assert_near(fused, plain)
        assert fused_g.dtype == dtype
        # Rounded twice, before and after it is scaled.
        assert_near(fused_g, plain_g, scale=scale, roundings=2)
        _, g_TV = backend.kernels.cross_entropy(logits_TV.to(backend.device), target_T.to(backend.device))
        assert torch.equal(fused_g.flatten(0, 1), (g_TV.float() * scale).to(dtype))

    def test_it_keeps_no_tensor_as_large_as_the_logits_but_the_gradient(self, backend: Backend) -> None:
        logits_SBV = normal(2, 2, 50).to(backend.device, torch.bfloat16).requires_grad_()
        target_SB = torch.zeros(2, 2, dtype=torch.int64, device=backend.device)
        kept: list[Any] = []

        def keep(tensor: Any) -> Any:
            kept.append(tensor)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = token_loss(logits_SBV, target_SB, "fused")
        assert not kept
        loss.backward()
        assert logits_SBV.grad.dtype == torch.bfloat16

    def test_its_backward_runs_once(self, backend: Backend) -> None:
        logits_SBV = normal(2, 1, 5).to(backend.device).requires_grad_()
        loss = token_loss(logits_SBV, torch.zeros(2, 1, dtype=torch.int64, device=backend.device), "fused")
        loss.backward(retain_graph=True)
        once = logits_SBV.grad.clone()
        with pytest.raises(TracelensError, match="one backward"):
            loss.backward()
        assert torch.equal(logits_SBV.grad, once)

    def test_the_gradient_of_the_reference_is_right(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """By finite differences in float64, to which what should be float32 is raised."""
        monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
        logits_SBV = normal(2, 2, 7).double().requires_grad_()
        target_SB = torch.tensor([[0, 6], [3, 3]])
        # gradcheck runs the backward of one graph several times, which the fused loss refuses.
        plain = lambda x: token_loss(x, target_SB)  # noqa: E731
        assert torch.autograd.gradcheck(plain, (logits_SBV,))
        (exact,) = torch.autograd.grad(plain(logits_SBV), logits_SBV)
        (found,) = torch.autograd.grad(token_loss(logits_SBV, target_SB, "fused"), logits_SBV)
        torch.testing.assert_close(found, exact)
