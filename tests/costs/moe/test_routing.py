"""Routing, sorting and permuting against hand-worked counts."""

from typing import Any

import pytest

from tests.costs.recorded import costed
from tracelens.costs import OpCall, OpCost, Uncounted, find

T, H, E, K = 4096, 2048, 64, 6
"""Tokens, hidden size, experts, experts a token."""


def counted(call: OpCall) -> OpCost:
    model = find(call.name)
    assert model is not None
    return model.function(call)


def bytes_of(op_cost: OpCost) -> tuple[int, int]:
    return op_cost.read_bytes, op_cost.write_bytes


@pytest.mark.parametrize(
    ("name", "shapes", "dtypes", "written"),
    [
        (
            "_moe_C::topk_softmax",
            [[T, K], [T, K], [T, K], [T, E]],
            ["fp32", "i32", "i32", "bf16"],
            12 * T * K,
        ),
        ("sgl_kernel::topk_softmax", [[T, K], [T, K], [T, E]], ["fp32", "i32", "bf16"], 8 * T * K),
        ("aiter::grouped_topk", [[T, E], [T, K], [T, K]], ["bf16", "fp32", "i32"], 8 * T * K),
    ],
)
def test_routing(name: str, shapes: list[list[int]], dtypes: list[str], written: int) -> None:
    op_cost = counted(OpCall(name, shapes, dtypes))
    assert (op_cost.flops, bytes_of(op_cost), op_cost.dtype) == (5 * T * E, (2 * T * E, written), "bf16")


def test_routing_with_a_bias() -> None:
    shapes = [[T, E], [E], [T, K], [T, K]]
    op_cost = counted(OpCall("aiter::biased_grouped_topk", shapes, ["bf16", "fp32", "fp32", "i32"]))
    assert bytes_of(op_cost) == (2 * T * E + 4 * E, 8 * T * K)


def test_routing_of_root_softplus() -> None:
    """DeepSeek-V4: results first, then the logits and the bias of 256 experts."""
    cost = costed("aiter::topk_softplus", "fp32 64 6", "i32 64 6", "bf16 64 256", "fp32 256", "True", "1.5")
    assert (cost.flops, cost.dtype) == (5 * 64 * 256, "bf16")
    assert bytes_of(cost) == (2 * 64 * 256 + 4 * 256, 8 * 64 * 6)


def test_shared_experts_behind_the_chosen_ones() -> None:
    name = "sglang_profiler::fused_moe_triton_kernels_fused_append_shared_experts_91"
    cost = costed(name, "i32 64 8", "fp32 64 8")
    assert (cost.flops, bytes_of(cost)) == (0, (2 * 4 * 64 * 8, 2 * 4 * 64 * 9))
    assert "lower bound" in cost.note


def test_routing_of_triton_kernels_as_recorded_on_mi300x() -> None:
    """gpt-oss in vLLM: 8192 tokens, 4 of 32 experts; these are autograd functions."""
    top = costed("TopK", "bf16 8192 32", "4", "True", "1", "True", kernel="_topk_forward")
    assert (top.flops, top.read_bytes) == (5 * 8192 * 32, 2 * 8192 * 32)
    # Weights of 2 bytes and indices of 2, and 32 bits a token.
    assert top.write_bytes == (2 + 2) * 8192 * 4 + 4 * 8192
    sort = costed("SortTokens", "bf16 8192 4", "i16 8192 4", "32", kernel="_combined_routing_compute")
    assert bytes_of(sort) == (4 * 8192 * 4, (2 + 4 + 4) * 8192 * 4 + 4 * 32)
    for name in ("TopK", "SortTokens"):
        with pytest.raises(Uncounted, match="of the same name"):
            costed(name, "bf16 8192 32", "4", kernel="my_kernel")


def test_sorting() -> None:
    align = counted(
        OpCall("_moe_C::moe_align_block_size", [[T, K], [], [], [T * K + 1024], [200], [1]],
               ["i32", "", "", "i32", "i32", "i32"])
    )  # fmt: skip
    assert (align.flops, bytes_of(align)) == (0, (4 * T * K, 4 * (T * K + 1024 + 200 + 1)))
    shapes = [[T, K], [T, K], [9000], [9000], [300], [2], [T, H]]
    dtypes = ["i32", "fp32", "i32", "fp32", "i32", "i32", "bf16"]
    op_cost = counted(OpCall("aiter::moe_sorting_fwd", shapes, dtypes))
    assert bytes_of(op_cost) == (8 * T * K, 4 * (9000 + 9000 + 300 + 2) + 2 * T * H)


def test_sum_of_the_experts() -> None:
    op_cost = counted(OpCall("_moe_C::moe_sum", [[T, K, H], [T, H]], ["bf16", "bf16"]))
    assert (op_cost.flops, bytes_of(op_cost)) == (T * K * H, (2 * T * K * H, 2 * T * H))


def test_permute_and_unpermute() -> None:
    rows = T * K
    permute = counted(
        OpCall(
            "te_moe::permute_mask_map_fwd", [[T, H], [T, E], []], ["bf16", "bool", ""], ["", "", str(rows)]
        )
    )
    assert (permute.flops, bytes_of(permute)) == (0, (2 * T * H + T * E, 2 * rows * H))
    by_index = counted(OpCall("te_moe::permute_index_map", [[T, H], [T, K]], ["bf16", "i32"], ["", "", "-1"]))
    assert bytes_of(by_index) == (2 * T * H + 4 * T * K, 2 * rows * H)
    shapes: list[Any] = [[rows, H], [T, 2 * E + 1], [T, E], []]
    merge = counted(
        OpCall("te_moe::unpermute_mask_map_fwd", shapes, ["bf16", "i32", "fp32", ""], ["", "", "", str(T)])
    )
    assert (merge.flops, merge.write_bytes) == (2 * rows * H, 2 * T * H)
    backward = counted(
        OpCall("te_moe::permute_mask_map_bwd", [[rows, H], [rows], [T, 2 * E + 1]], ["bf16", "fp32", "i32"],
               ["", "", "", "", str(T)])
    )  # fmt: skip
    assert (backward.flops, backward.write_bytes) == (rows * H, 2 * T * H)


def test_functions_of_transformer_engine() -> None:
    rows = T * K
    index = counted(OpCall("_moe_permute_index_map", [[T, H], [T, K]], ["bf16", "i32"]))
    assert index.write_bytes == 2 * rows * H
    mask = counted(
        OpCall("_moe_permute_mask_map", [[T, H], [T, E], []], ["bf16", "bool", ""], ["", "", str(rows)])
    )
    assert mask.write_bytes == 2 * rows * H
    merge = counted(OpCall("_moe_unpermute_mask_map", [[rows, H], [T, 2 * E + 1]], ["bf16", "i32"]))
    assert (merge.flops, merge.write_bytes) == (rows * H, 2 * T * H)
    chunks = counted(OpCall("_moe_chunk_sort", [[rows, H], [E], [E]], ["bf16", "i32", "i32"]))
    assert bytes_of(chunks) == (2 * rows * H + 8 * E, 2 * rows * H)


def test_backward_writes_what_forward_read() -> None:
    forward = OpCall("_moe_permute_mask_map", [[T, H], [T, E]], ["bf16", "bool"])
    op_cost = counted(OpCall("_moe_permute_mask_mapBackward", [[T * K, H]], ["bf16"], forward=forward))
    assert (op_cost.flops, bytes_of(op_cost)) == (T * K * H, (2 * T * K * H, 2 * T * H))
    forward = OpCall("_moe_unpermute_mask_map", [[T * K, H], [T, 2 * E + 1]], ["bf16", "i32"])
    op_cost = counted(OpCall("_moe_unpermute_mask_mapBackward", [[T, H]], ["bf16"], forward=forward))
    assert (op_cost.flops, bytes_of(op_cost)) == (0, (2 * T * H, 2 * T * K * H))
    with pytest.raises(Uncounted, match="forward op is not in the trace"):
        counted(OpCall("_moe_chunk_sortBackward", [[T, H]], ["bf16"]))


def test_given_results_are_written() -> None:
    rows = T * K
    shapes: list[Any] = [[T, H], [rows, H], [], [], [T, E], [rows], [T, 2 * E + 1]]
    dtypes = ["bf16", "bf16", "", "", "fp32", "fp32", "i32"]
    op_cost = counted(OpCall("primus_turbo_cpp_extension::permute", shapes, dtypes))
    assert bytes_of(op_cost) == (2 * T * H + 4 * T * E + 4 * T * (2 * E + 1), 2 * rows * H + 4 * rows)
    back = counted(OpCall("primus_turbo_cpp_extension::unpermute", [[rows, H], [T, H]], ["bf16", "bf16"]))
    assert (back.flops, bytes_of(back)) == (rows * H, (2 * rows * H, 2 * T * H))
    vllm = OpCall("_moe_C::moe_permute", [[T, H], [T, K], [T, K], [T, K], [], [], [rows, H]],
                  ["bf16", "fp32", "i32", "i32", "", "", "bf16"])  # fmt: skip
    assert bytes_of(counted(vllm)) == (2 * T * H + 12 * T * K, 2 * rows * H)


@pytest.mark.parametrize(
    ("name", "shapes", "values", "reason"),
    [
        ("FusedDispatch", [[T, H]], [], "number of tokens that go to other ranks"),
        ("_moe_C::topk_softmax", [], [], "no shapes"),
        ("te_moe::permute_mask_map_fwd", [[T, H], [T, E]], [], "number of permuted rows not recorded"),
        ("_moe_permute_mask_map", [[T, H], [T, E]], [], "number of permuted rows not recorded"),
        ("te_moe::unpermute_mask_map_fwd", [[T, H], [T, E]], [], "argument 3 has no recorded value"),
        ("te_moe::unpermute_mask_map_fwd", [[T, H], [T, E]], ["", "", "", "-1"], "number of tokens"),
        ("te_moe::permute_index_map", [[T], [T, E]], [], "1 dimensions instead of 2"),
    ],
)
def test_what_cannot_be_counted_is_told(name: str, shapes: list[Any], values: list[str], reason: str) -> None:
    with pytest.raises(Uncounted, match=reason):
        counted(OpCall(name, shapes, ["bf16"] * len(shapes), values))
