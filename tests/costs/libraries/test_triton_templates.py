"""Template kernels of torch.compile: GEMMs and convolutions, by the arguments recorded with their launch."""

from typing import Any

import pytest

from tracelens.costs import OpCall, OpCost, Uncounted, find


def counted(call: OpCall) -> OpCost:
    model = find(call.name)
    assert model is not None
    return model.function(call)


@pytest.mark.parametrize(
    ("shapes", "extra"),
    [
        ([[64, 32], [32, 16], [64, 16]], 0),
        ([[16], [64, 32], [32, 16], [64, 16]], 2 * 16),
        ([[64, 32], [32, 16], [64, 16], [64, 16]], 2 * 64 * 16),
    ],
    ids=["mm", "addmm", "with an addend"],
)
def test_template_products(shapes: list[list[int]], extra: int) -> None:
    op_cost = counted(OpCall("triton_tem_fused_mm_0", shapes, ["bf16"] * len(shapes)))
    assert op_cost.flops == 2 * 64 * 32 * 16
    assert op_cost.read_bytes == 2 * (64 * 32 + 32 * 16) + extra
    assert (op_cost.write_bytes, op_cost.engine) == (2 * 64 * 16, "matrix")


@pytest.mark.parametrize("bias", [[], [[64]]])
def test_template_convolution(bias: list[list[int]]) -> None:
    shapes = [[8, 3, 224, 224], [64, 3, 7, 7], *bias, [8, 64, 112, 112]]
    op_cost = counted(OpCall("triton_tem_fused_convolution_2", shapes, ["bf16"] * len(shapes)))
    assert op_cost.flops == 2 * 8 * 64 * 112**2 * 3 * 49
    assert op_cost.engine == "matrix"
    assert op_cost.read_bytes == 2 * (8 * 3 * 224**2 + 64 * 3 * 49 + 64 * len(bias))
    assert op_cost.write_bytes == 2 * 8 * 64 * 112**2


def test_batched_template_product() -> None:
    op_cost = counted(OpCall("triton_tem_fused_bmm_1", [[8, 64, 32], [8, 32, 16], [8, 64, 16]], ["fp16"] * 3))
    assert op_cost.flops == 2 * 8 * 64 * 32 * 16
    assert op_cost.dims[0] == ("B", 8)


@pytest.mark.parametrize(
    ("name", "shapes", "reason"),
    [
        ("triton_tem_fused_mm_0", [], "no shapes"),
        ("triton_tem_fused_mm_0", [[4]], "do not show a GEMM"),
        ("triton_tem_fused_mm_0", [[4, 5], [5, 6]], "do not show a GEMM"),
        ("triton_tem_fused_convolution_2", [[8, 3, 224, 224], [64, 3, 7, 7]], "do not show a convolution"),
        ("triton_tem_fused_convolution_2", [[8, 3, 9, 9], [64, 4, 7, 7], [8, 64, 3, 3]], "a convolution"),
    ],
)
def test_what_cannot_be_counted_is_told(name: str, shapes: list[Any], reason: str) -> None:
    with pytest.raises(Uncounted, match=reason):
        counted(OpCall(name, shapes, ["bf16"] * len(shapes)))
