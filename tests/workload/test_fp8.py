"""FP8 experts compute nearly what the model's type does: on the CPU, and on a GPU where there is one."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the workload needs torch")

from tests.workload.agree import moe_config, relative_error  # noqa: E402
from tracelens.errors import TracelensError  # noqa: E402
from tracelens.planner.config import override, preset  # noqa: E402
from tracelens.workload.launch import Job, run_job  # noqa: E402
from tracelens.workload.model import gemm  # noqa: E402

CUDA = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0),
    reason="needs a GPU that multiplies FP8",
)
DEVICES = ["cpu", pytest.param("cuda", marks=CUDA)]
# e4m3 rounds by up to 6%, on average by 2.5%: of a product of two, independent along the sum.
FP8 = 0.05
ROWS = [[16, 8, 24, 16], [64, 0, 0, 0], [1, 30, 0, 33]]


def run(multiply: Any, rows: list[int], device: str, padding: int = 0) -> dict[str, Any]:
    """Output and gradients of a grouped GEMM of these rows, 32 wide, and matrices to 48 columns."""
    generator = torch.Generator().manual_seed(0)
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    x, w, g = (
        torch.randn(*shape, generator=generator).to(device, dtype)
        for shape in ((sum(rows) + padding, 32), (4, 32, 48), (sum(rows) + padding, 48))
    )
    if padding:
        x[sum(rows) :], g[sum(rows) :] = float("nan"), float("nan")
    x, w = x.requires_grad_(), w.requires_grad_()
    end_e = torch.tensor(rows, device=device).cumsum(0, dtype=torch.int32)
    y = multiply(x, w, end_e)
    y.backward(g)
    assert x.grad is not None
    return {"y": y[: sum(rows)], "x": x.grad[: sum(rows)], "w": w.grad}


@pytest.mark.parametrize("padding", [0, 16])
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("rows", ROWS, ids=str)
def test_a_grouped_gemm_in_fp8(rows: list[int], device: str, padding: int) -> None:
    expected, found = (
        run(multiply, rows, device, padding) for multiply in (gemm.grouped_mm, gemm.grouped_mm_fp8)
    )
    for key in ("y", "x"):
        assert 1e-3 < relative_error(found[key], expected[key]) < FP8, key
    # Its own GEMM is in the model's type.
    assert relative_error(found["w"], expected["w"]) < 1e-6


def test_no_rows_at_all() -> None:
    found = run(gemm.grouped_mm_fp8, [0, 0, 0, 0], "cpu")
    assert found["y"].shape == (0, 48)
    assert not found["w"].any()


def test_the_op_gets_scales_of_rows_and_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a GPU is called with, multiplied out as torch documents the op."""

    def op(a: Any, b: Any, scale_a: Any, scale_b: Any, **options: Any) -> Any:
        assert a.dtype == b.dtype == torch.float8_e4m3fn
        # Row-major by column-major, as the op requires.
        assert (a.stride(1), b.stride(1)) == (1, 1)
        assert options["out_dtype"] == torch.float32
        a, b = a.float() * scale_a[:, None], b.float() * scale_b[:, None, :]
        return gemm.grouped_mm(a, b, options["offs"])

    rows = [16, 8, 24, 16]
    expected = run(gemm.grouped_mm_fp8, rows, "cpu")
    monkeypatch.setattr(gemm, "has_scaled_op", lambda x: True)
    monkeypatch.setattr(torch, "_scaled_grouped_mm", op, raising=False)
    found = run(gemm.grouped_mm_fp8, rows, "cpu")
    for key, value in expected.items():
        assert relative_error(found[key], value) < 1e-6, key


def losses(*fields: str) -> list[float]:
    config = override(preset("tiny"), ["learning_rate=0.003", "experts=grouped", *fields])
    return run_job(Job(config, None, "cpu", steps=4))[0].loss


def test_training_goes_as_without_it() -> None:
    plain, quantized = losses(), losses("fp8=experts")
    assert plain != quantized
    assert quantized == pytest.approx(plain, rel=1e-3)
    # Recompute quantizes the same numbers again, and buffers for the worst case hold no others.
    assert losses("fp8=experts", "recompute_layer_ids=1,2") == quantized
    assert losses("fp8=experts", "sync_free=3") == pytest.approx(quantized, rel=1e-6)


def test_what_fp8_needs() -> None:
    with pytest.raises(TracelensError, match="fp8=experts needs experts=grouped, not loop"):
        override(preset("tiny"), ["fp8=experts"])
    with pytest.raises(TracelensError, match="needs a multiple of 16 for expert_ffn, not 8"):
        moe_config("experts=grouped", "fp8=experts")


def test_a_gpu_whose_torch_lacks_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TracelensError, match="needs dtype=bfloat16 on a GPU"):
        gemm.require_op(torch.float32)
    monkeypatch.delattr(torch, "_scaled_grouped_mm", raising=False)
    with pytest.raises(TracelensError, match="has no scaled grouped GEMM: use fp8=off"):
        gemm.require_op(torch.bfloat16)
