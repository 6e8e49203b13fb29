"""Index, gather, scatter, masks and embeddings."""

import pytest

from tests.costs.recorded import costed
from tracelens.costs import OpCall, OpCost, Uncounted, find

GATHER = (
    "void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*, int, long, long, long, long)"
)
ELEMENTWISE = "void at::native::index_elementwise_kernel<128, 4, at::native::gpu_index_kernel<x> >(x)"


def moved(name: str, *arguments: object) -> tuple[int, int]:
    cost = costed(name, *arguments)
    return cost.read_bytes, cost.write_bytes


def launched(name: str, shape: list[int], dtype: str, kernel: str, blocks: int, *more: list[int]) -> OpCost:
    model = find(name)
    assert model is not None
    dtypes = [dtype, *("bool" for _ in more)] if more else [dtype, ""]
    return model.function(
        OpCall(name, [shape, *(more or [[]])], dtypes, ["", ""], kernel=kernel, blocks=blocks)
    )


def test_index_rows_by_the_gather_kernel() -> None:
    # As recorded on H100: 24,576 rows of (4096, 2048) bf16, a block of 256 threads x 16 bytes a row.
    cost = launched("aten::index", [4096, 2048], "bf16", GATHER, 24576)
    assert cost.write_bytes == 24576 * 2048 * 2
    assert cost.read_bytes == 4096 * 2048 * 2  # no more than there is
    # fp32 rows of 2048 are two blocks.
    cost = launched("aten::index", [24576, 2048], "fp32", GATHER, 49152)
    assert cost.read_bytes == cost.write_bytes == 24576 * 2048 * 4
    assert cost.note == "size of the result from the launch grid, indices not counted"


def test_index_by_the_elementwise_kernel_is_an_upper_bound() -> None:
    cost = launched("aten::index", [24576], "fp32", ELEMENTWISE, 48)
    assert cost.write_bytes == 48 * 512 * 4 == 24576 * 4
    assert cost.note.startswith("upper bound")


def test_index_without_a_grid() -> None:
    for kernel, blocks in ((GATHER, -1), ("another", 5), (GATHER, 3)):
        with pytest.raises(Uncounted, match="indices"):
            launched("aten::index", [24576, 2048], "fp32", kernel, blocks)


def test_index_put() -> None:
    # As recorded: gradients of 24,576 rows added to (4096, 2048) bf16.
    values = 24576 * 2048
    cost = costed("aten::_index_put_impl_", "bf16 4096 2048", None, "bf16 24576 2048", "True", "True")
    assert cost.flops == values
    assert cost.read_bytes == 2 * values + 2 * 4096 * 2048
    assert cost.write_bytes == 2 * 4096 * 2048
    assert moved("aten::index_put_", "fp32 100", None, "fp32 7", "False") == (28, 28)
    assert moved("aten::index_put", "fp32 100", None, "fp32 7", "False") == (4 * (7 + 93), 400)
    with pytest.raises(Uncounted, match="single value"):
        costed("aten::index_put_", "fp32 100", None, "fp32", "False")


def test_rows_by_index() -> None:
    # As recorded: 8,944 rows of a (151936, 1024) table.
    rows = 8944 * 1024 * 2
    assert moved("aten::index_select", "bf16 151936 1024", 0, "i64 8944") == (rows + 8 * 8944, rows)
    assert moved("aten::embedding", "bf16 151936 1024", "i64 16 559", -1) == (rows + 8 * 8944, rows)
    assert moved("aten::index_select", "fp32 6 4", 1, "i64 3") == (4 * 18 + 24, 4 * 18)
    # A table smaller than what is taken from it is read once.
    assert moved("aten::index_select", "bf16 2 512", 0, "i64 141")[0] == 2 * 1024 + 8 * 141
    assert moved("aten::take", "fp32 6 4", "i64 2") == (8 + 16, 8)
    model = find("aten::index_select")
    assert model is not None
    with pytest.raises(Uncounted, match="argument 1"):
        model.function(OpCall("aten::index_select", [[6, 4], [], [3]], ["fp32", "", "i64"]))


def test_gather_and_scatter() -> None:
    assert moved("aten::gather", "fp32 6 4", 1, "i64 6 2", "False") == (4 * 12 + 8 * 12, 4 * 12)
    assert moved("aten::scatter_", "fp32 6 4", 1, "i64 6 2", 1) == (8 * 12, 4 * 12)
    assert moved("aten::scatter_", "fp32 6 4", 1, "i64 6 2", "fp32 6 4") == (8 * 12 + 4 * 12, 4 * 12)
    assert moved("aten::scatter", "fp32 6 4", 1, "i64 6 2", 1) == (8 * 12 + 4 * 12, 4 * 24)
    cost = costed("aten::scatter_add_", "bf16 2048 2048", 0, "i64 12288 2048", "bf16 12288 2048")
    count, into = 12288 * 2048, 2048 * 2048
    assert (cost.flops, cost.read_bytes, cost.write_bytes) == (count, 10 * count + 2 * into, 2 * into)
    assert costed("aten::scatter_reduce_", "fp32 4", 0, "i64 9", "fp32 9", "amax", "True").flops == 9


def test_an_expanded_index_is_read_once() -> None:
    model = find("aten::gather")
    assert model is not None
    call = OpCall(
        "aten::gather", [[64, 32], [], [16, 32], []], ["bf16", "", "i64", ""], ["", "0", "", "False"],
        [[32, 1], [], [1, 0], []],
    )  # fmt: skip
    assert model.function(call).read_bytes == 2 * 512 + 8 * 16


def test_index_add() -> None:
    # As recorded on H200: 12,288 rows added to (2048, 2048) bf16.
    cost = costed("aten::index_add_", "bf16 2048 2048", 0, "i64 12288", "bf16 12288 2048", 1)
    count, into = 12288 * 2048, 2048 * 2048
    assert cost.flops == count
    assert (cost.read_bytes, cost.write_bytes) == (8 * 12288 + 2 * count + 2 * into, 2 * into)
    assert costed("aten::index_add_", "fp32 4 2", 0, "i64 1", "fp32 1 2", 0.5).flops == 4
    assert moved("aten::index_copy_", "fp32 6 4", 0, "i64 2", "fp32 2 4") == (16 + 32, 32)
    assert moved("aten::index_fill_", "fp32 6 4", 0, "i64 2", 0) == (16, 32)
    assert moved("aten::put_", "fp32 6 4", "i64 2", "fp32 2", "False") == (24, 8)


def test_embedding_gradients() -> None:
    cost = costed("aten::embedding_dense_backward", "bf16 1 2048 2048", "i64 1 2048", 32768, -1, "False")
    count = 2048 * 2048
    assert (cost.flops, cost.read_bytes, cost.write_bytes) == (count, 2 * count + 8 * 2048, 2 * 32768 * 2048)
    with pytest.raises(Uncounted, match="no recorded value"):
        costed("aten::embedding_dense_backward", "bf16 1 2048 2048", "i64 1 2048")


def test_embedding_bag() -> None:
    assert moved("aten::_embedding_bag", "fp32 100 8", "i64 20", "i64 5") == (
        4 * 160 + 8 * 20 + 8 * 5,
        4 * 40 + 8 * 20,
    )
    arguments = ("fp32 5 8", "i64 20", "i64 20", "i64 5", "i64 5", 100)
    assert costed("aten::_embedding_bag_dense_backward", *arguments).write_bytes == 4 * 800


def test_masks() -> None:
    # As recorded on H200: 12,288 of (64, 2048) bf16 are selected, by 24 blocks of 512.
    cost = launched("aten::masked_select", [64, 2048], "bf16", ELEMENTWISE, 24, [64, 2048])
    assert (cost.read_bytes, cost.write_bytes) == (64 * 2048 + 2 * 12288, 2 * 12288)
    with pytest.raises(Uncounted, match="selected elements"):
        costed("aten::masked_select", "bf16 8", "bool 8")
    cost = costed("aten::masked_scatter_", "bf16 64 2048", "bool 64 2048", "bf16 12288")
    assert (cost.read_bytes, cost.write_bytes) == (64 * 2048 + 2 * 12288, 2 * 12288)
    assert cost.note.startswith("upper bound")


def test_nonzero() -> None:
    cost = costed("aten::nonzero", "i64 6 4096")
    assert (cost.flops, cost.read_bytes, cost.write_bytes) == (24576, 8 * 24576, 0)
    assert "not recorded" in cost.note
    assert costed("aten::nonzero_static", "bool 6 4", 5, -1).write_bytes == 8 * 2 * 5
