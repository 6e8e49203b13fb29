"""Sorts, selections, scans, searches and histograms."""

import pytest

from tests.costs.recorded import costed
from tracelens.costs import OpCall, Uncounted, find


def test_sort() -> None:
    # As recorded: a stable sort of 24,576 i64; 2^14 < 24576 <= 2^15.
    cost = costed("aten::sort", "i64 24576", "False", -1, "False")
    assert cost.flops == 24576 * 15
    assert (cost.read_bytes, cost.write_bytes) == (8 * 24576, 16 * 24576)
    assert cost.dims == (("n", 24576),)
    # 8 columns of 4: 2 comparisons each, whichever variant.
    assert costed("aten::sort", "bf16 4 8", 0, "True").flops == 32 * 2
    assert costed("aten::sort", "bf16 4 8", "True", 0, "True").flops == 32 * 2
    assert costed("aten::argsort", "bf16 4 8", 1, "True").write_bytes == 8 * 32
    assert costed("aten::msort", "bf16 4 8").write_bytes == 2 * 32


def test_topk() -> None:
    # As recorded: 6 of 64 experts for 2,048 tokens.
    cost = costed("aten::topk", "fp32 2048 64", 6, 1, "True", "True")
    assert (cost.flops, cost.read_bytes, cost.write_bytes) == (2048 * 64, 4 * 2048 * 64, (4 + 8) * 2048 * 6)
    assert cost.dims == (("n", 64), ("k", 6))
    with pytest.raises(Uncounted, match="largest"):
        costed("aten::topk", "fp32 2048 64", 65, 1)
    with pytest.raises(Uncounted, match="no recorded value"):
        costed("aten::topk", "fp32 2048 64")


def test_selections() -> None:
    assert costed("aten::kthvalue", "bf16 6 4", 2, 0, "False").write_bytes == 10 * 4
    assert costed("aten::median", "bf16 6 4", 1, "False").write_bytes == 10 * 6
    assert costed("aten::median", "bf16 6 4").write_bytes == 2


def test_scans() -> None:
    assert costed("aten::cumsum", "i32 64", 0, 3).write_bytes == 4 * 64  # dtype=torch.int32
    assert costed("aten::cumsum", "bool 64", 0, None).write_bytes == 8 * 64
    assert costed("aten::cumsum", "bf16 64", 0, None).write_bytes == 2 * 64
    assert costed("aten::cumsum", "bf16 64", 0, None, "fp32 64").write_bytes == 4 * 64
    assert costed("aten::cumsum_", "i32 64", 0, None).write_bytes == 4 * 64
    assert costed("aten::cumsum", "fp32 64", 0, None).flops == 64
    assert costed("aten::logcumsumexp", "fp32 64", 0).flops == 5 * 64
    assert costed("aten::cummax", "bf16 64", 0).write_bytes == 10 * 64


def test_searches() -> None:
    # Among 7 there are 8 places: 3 comparisons.
    assert costed("aten::searchsorted", "fp32 7", "fp32 5", "False", "False").flops == 15
    assert costed("aten::searchsorted", "fp32 7", "fp32 5", "False", "False").write_bytes == 40
    assert costed("aten::bucketize", "fp32 5", "fp32 7", "True", "False").write_bytes == 20
    assert costed("aten::searchsorted", "fp32 7", 0.5, "False", "False").write_bytes == 8
    assert costed("aten::isin", "i64 24", "i64 7", "False", "False").flops == 24 * 3
    assert costed("aten::isin", "i64 24", 3, "False", "False").write_bytes == 24


def test_histograms() -> None:
    # As recorded: 24,576 i32 in 64 bins.
    cost = costed("aten::histc", "i32 24576", 64, 0, 63)
    assert (cost.flops, cost.read_bytes, cost.write_bytes) == (3 * 24576, 4 * 24576, 4 * 64)
    assert costed("aten::bincount", "i64 9", None, 7).write_bytes == 56
    assert costed("aten::bincount", "i64 9", "fp32 9", 7).write_bytes == 28


def test_unique() -> None:
    cost = costed("aten::_unique2", "i64 16", "True", "False", "False")
    assert (cost.flops, cost.read_bytes, cost.write_bytes) == (16 * 4, 128, 0)
    assert "not recorded" in cost.note
    assert costed("aten::unique_consecutive", "i64 16").flops == 16
    assert costed("aten::quantile", "fp32 16", "fp32 3").write_bytes == 12


def test_odd_sizes() -> None:
    assert costed("aten::sort", "fp32 0", -1, "False").flops == 0
    assert costed("aten::sort", "fp32 1", -1, "False").flops == 0
    assert costed("aten::sort", "fp32", -1, "False").write_bytes == 12
    assert costed("aten::topk", "fp32 5 0", 0, 1).write_bytes == 0
    model = find("aten::sort")
    assert model is not None
    with pytest.raises(Uncounted, match="dim"):
        model.function(OpCall("aten::sort", [[6, 4], [], []], ["fp32", "", ""]))
