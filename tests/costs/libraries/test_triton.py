"""Triton kernels of torch.compile, by the arguments recorded with their launch."""

from typing import Any

import pytest

from tracelens.costs.call import OpCall, Uncounted
from tracelens.costs.model import OpCost, find


def counted(call: OpCall) -> OpCost:
    model = find(call.name)
    assert model is not None
    return model.function(call)


def test_pointwise_as_recorded() -> None:
    shapes = [[10, 10], [10, 10], [10, 10], []]
    op_cost = counted(
        OpCall(
            "triton_poi_fused_add_cos_sin_0", shapes, ["fp32"] * 3 + [""], ["", "", "", "100"], [[10, 1]] * 3
        )
    )
    # Three tensors of 100 fp32.
    assert (op_cost.flops, op_cost.read_bytes + op_cost.write_bytes, op_cost.dtype) == (100, 1200, "fp32")
    assert "read or written" in op_cost.note


def test_a_reduction_is_as_large_as_its_largest_argument() -> None:
    shapes = [[4096, 1024], [4096], [1024]]
    op_cost = counted(OpCall("triton_red_fused_mean_3", shapes, ["bf16", "fp32", "bf16"]))
    assert (op_cost.flops, op_cost.dtype) == (4096 * 1024, "bf16")
    assert op_cost.read_bytes == 2 * 4096 * 1024 + 4 * 4096 + 2 * 1024
    assert counted(OpCall("triton_per_fused_sum_1", shapes, ["bf16", "fp32", "bf16"])).flops == op_cost.flops


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


def test_batched_template_product() -> None:
    op_cost = counted(OpCall("triton_tem_fused_bmm_1", [[8, 64, 32], [8, 32, 16], [8, 64, 16]], ["fp16"] * 3))
    assert op_cost.flops == 2 * 8 * 64 * 32 * 16
    assert op_cost.dims[0] == ("B", 8)


@pytest.mark.parametrize(
    ("name", "shapes", "reason"),
    [
        ("triton_poi_fused_add_0", [], "no shapes"),
        ("triton_tem_fused_mm_0", [], "no shapes"),
        ("triton_tem_fused_mm_0", [[4]], "do not show a GEMM"),
        ("triton_tem_fused_mm_0", [[4, 5], [5, 6]], "do not show a GEMM"),
        ("triton_tem_fused_convolution_2", [[8, 3, 224, 224], [64, 3, 7, 7]], "do not show a GEMM"),
        ("triton_poi_fused_add_0", [["s0"]], "not a list of sizes"),
    ],
)
def test_what_cannot_be_counted_is_told(name: str, shapes: list[Any], reason: str) -> None:
    with pytest.raises(Uncounted, match=reason):
        counted(OpCall(name, shapes, ["bf16"] * len(shapes)))
