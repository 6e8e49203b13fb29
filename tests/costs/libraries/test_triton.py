"""Triton kernels of torch.compile, by the arguments recorded with their launch."""

from math import prod
from typing import Any

import pytest

from tracelens.costs import OpCall, OpCost, Uncounted, find


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


def inductor(name: str, shapes: list[list[int]], domain: list[int], dtypes: str = "") -> OpCost:
    """A kernel over a domain; types are bf16 but for those of `dtypes`, one a tensor."""
    types = dtypes.split() or ["bf16"] * len(shapes)
    values = [""] * len(shapes) + list(map(str, domain))
    sizes: list[list[int]] = [[]] * len(domain)
    return counted(OpCall(f"triton_{name}_0", [*shapes, *sizes], [*types, *[""] * len(domain)], values))


M, N = 24576, 2816


@pytest.mark.parametrize(
    ("name", "shapes", "in_place"),
    [
        ("poi_fused_addmm_gelu", [[M, N], [N]], True),
        ("poi_fused_ge_masked_fill_scalar_tensor", [[M, N], [M]], True),
        ("poi_fused_relu", [[M, N]], True),
        ("poi_fused_new_zeros", [[M, N]], False),
        ("poi_fused_embedding_dense_backward", [[M, N]], False),
        ("poi_fused_add_silu", [[M, N], [N], [M, N]], False),
        ("poi_fused_index_put", [[M, N], [M], [64, N]], False),
        ("poi_fused_cat", [[M // 2, N], [M, N]], False),
        ("per_fused_add_sum", [[M, N], [N]], False),
    ],
)
def test_in_place(name: str, shapes: list[list[int]], in_place: bool) -> None:
    """A pointwise kernel without a result of its own reads and writes its first argument."""
    cost = inductor(name, shapes, [M * N] if name.startswith("poi") else [M, N])
    once = sum(2 * prod(shape) for shape in shapes)
    assert (cost.read_bytes, cost.write_bytes) == (once, 2 * M * N if in_place else 0)
    assert ("in place" in cost.note) is in_place


@pytest.mark.parametrize(
    ("name", "shapes", "dtypes", "domain", "touched"),
    [
        # As recorded by dsv2 with torch.compile; one element an output of what is larger than the domain.
        ("red_fused__log_softmax_nll_loss_forward", [[], [2, 2049], [4096, 32768], [4096, 1]],
         "fp32 i64 bf16 fp32", [1, 4096], [1, 4096, 4096, 4096]),
        ("red_fused_embedding_mean_pow", [[2, 2048], [32768, 2048], [2, 2048, 2048]],
         "i64 bf16 bf16", [4096, 2048], [4096, 4096 * 2048, 4096 * 2048]),
        ("poi_fused__to_copy_slice_view", [[2, 16, 2048, 192], [2, 16, 2048, 32, 2]],
         "bf16 fp32", [4194304], [4194304, 4194304]),
        ("poi_fused_split_with_sizes", [[4096, 3072], [4096, 1024]],
         "bf16 fp32", [4194304], [4194304, 4194304]),
        # Whole: both halves, six rows that six indices a token name, an unrolled sum.
        ("poi_fused_mul_silu_split", [[24576, 2816], [24576, 1408]],
         "bf16 bf16", [24576 * 1408], [24576 * 2816, 24576 * 1408]),
        ("red_fused_index_mean_sum", [[24576], [24576, 2048], [4096, 2048]],
         "i64 bf16 bf16", [4096, 2048], [24576, 24576 * 2048, 4096 * 2048]),
        ("poi_fused_sum", [[4096, 6, 2048], [4096, 2048]],
         "bf16 bf16", [4096 * 2048], [4096 * 6 * 2048, 4096 * 2048]),
        # The sizes of dynamic shapes stand before the domain's.
        ("poi_fused_embedding", [[100], [5000, 64], [100, 64]],
         "i64 bf16 bf16", [100, 5000, 6400], [100, 6400, 6400]),
    ],
)  # fmt: skip
def test_gathers_and_slices(
    name: str, shapes: list[list[int]], dtypes: str, domain: list[int], touched: list[int]
) -> None:
    cost = inductor(name, shapes, domain, dtypes)
    sizes = {"fp32": 4, "bf16": 2, "i64": 8}
    assert cost.read_bytes == sum(sizes[d] * count for d, count in zip(dtypes.split(), touched, strict=True))
    assert cost.flops == max(touched)
    assert ("gathers" in cost.note) is (touched != list(map(prod, shapes)))


def test_a_domain_that_is_not_recorded_cuts_nothing() -> None:
    assert inductor("poi_fused_embedding", [[100], [5000, 64], [100, 64]], []).read_bytes == 2 * 326500


@pytest.mark.parametrize(
    ("name", "shapes", "reason"),
    [
        ("triton_poi_fused_add_0", [], "no shapes"),
        ("triton_poi_fused_add_0", [["s0"]], "not a list of sizes"),
    ],
)
def test_what_cannot_be_counted_is_told(name: str, shapes: list[Any], reason: str) -> None:
    with pytest.raises(Uncounted, match=reason):
        counted(OpCall(name, shapes, ["bf16"] * len(shapes)))
