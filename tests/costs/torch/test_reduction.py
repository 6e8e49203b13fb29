"""Reductions: dimensions as profilers record them, types of results."""

import pytest

from tests.costs.recorded import costed
from tracelens.costs import OpCall, Uncounted, find


def test_mean_over_the_last_dimension() -> None:
    # As recorded on MI300X: x.mean(-1, keepdim=True) of (16, 559, 1024) fp32.
    cost = costed("aten::mean", "fp32 16 559 1024", "[-1]", "True", None)
    rows = 16 * 559
    assert cost.flops == rows * 1024 + rows
    assert (cost.read_bytes, cost.write_bytes, cost.dtype) == (4 * rows * 1024, 4 * rows, "fp32")


@pytest.mark.parametrize(
    ("name", "arguments", "written"),
    [
        # x is (6, 4).
        ("aten::sum", ("bf16 6 4", None), 2),
        ("aten::sum", ("bf16 6 4", "[1]", "False", None), 2 * 6),
        ("aten::sum", ("bf16 6 4", "[0, 1]", "True", None), 2),
        ("aten::sum", ("bf16 6 4", "[]", "False", None), 2),
        ("aten::sum", ("i32 6 4", "[0]", "False", None), 8 * 4),
        ("aten::sum", ("bool 6 4", None), 8),
        ("aten::sum", ("bf16 6 4", 6), 4),  # dtype=torch.float32
        ("aten::sum", ("bf16 6 4", "[-1]", "False", 7), 8 * 6),  # dtype=torch.float64
        ("aten::sum", ("bf16 6 4", "[-1]", "False", None, "fp32 6"), 4 * 6),  # out=
        ("aten::mean", ("bf16 6 4", "[0]", "False", None), 2 * 4),
        ("aten::prod", ("i64 6 4", 1, "False", None), 8 * 6),
        ("aten::amax", ("bf16 6 4", "[0]", "False"), 2 * 4),
        ("aten::amax", ("bf16 6 4", "[]", "False"), 2),
        ("aten::max", ("bf16 6 4",), 2),
        ("aten::max", ("bf16 6 4", 1, "False"), (2 + 8) * 6),
        ("aten::max", ("bf16 6 4", "bf16 6 4"), 2 * 24),
        ("aten::min", ("i32 6 4", 0, "True"), (4 + 8) * 4),
        ("aten::all", ("bool 6 4",), 1),
        ("aten::any", ("bool 6 4", 1, "False"), 6),
        ("aten::argmax", ("bf16 6 4", None, "False"), 8),
        ("aten::argmax", ("bf16 6 4", 1, "False"), 8 * 6),
        ("aten::count_nonzero", ("bool 6 4", 1), 8 * 6),
        ("aten::linalg_vector_norm", ("fp32 6 4", 2, None, "False", None), 4),
        ("aten::linalg_vector_norm", ("bf16 6 4", 2, "[1]", "False", 6), 4 * 6),
        ("aten::norm", ("fp32 6 4", 2), 4),
        ("aten::logsumexp", ("fp32 6 4", "[1]", "False"), 4 * 6),
        ("aten::var", ("fp32 6 4", "[1]", 1, "False"), 4 * 6),
        ("aten::var_mean", ("fp32 6 4", "[1]", 1, "False"), 2 * 4 * 6),
        ("aten::aminmax", ("fp32 6 4", 0, "False"), 2 * 4 * 4),
        ("aten::equal", ("fp32 6 4", "fp32 6 4"), 1),
        ("aten::dist", ("fp32 6 4", "fp32 6 4", 2), 4),
        ("aten::trace", ("fp32 6 4",), 4),
    ],
)
def test_results(name: str, arguments: tuple[object, ...], written: int) -> None:
    """Checked against torch 2.13."""
    assert costed(name, *arguments).write_bytes == written


def test_operations() -> None:
    assert costed("aten::sum", "fp32 6 4", None).flops == 24
    assert costed("aten::linalg_vector_norm", "fp32 6 4", 2, None, "False", None).flops == 2 * 24 + 1
    assert costed("aten::var", "fp32 6 4", "[1]", 1, "False").flops == 3 * 24 + 4 * 6
    assert costed("aten::logsumexp", "fp32 6 4", "[1]", "False").flops == 4 * 24 + 2 * 6
    assert costed("aten::trace", "fp32 6 4").flops == 4


def test_without_argument_values() -> None:
    # Older profilers record shapes only: aten::sum(x, dim, keepdim, dtype) of (1024, 96).
    model = find("aten::sum")
    assert model is not None
    cost = model.function(OpCall("aten::sum", [[1024, 96], [], [], []], ["fp32", "", "", ""]))
    assert (cost.flops, cost.read_bytes, cost.write_bytes) == (1024 * 96, 4 * 1024 * 96, 0)
    assert "not recorded" in cost.note
    whole = model.function(OpCall("aten::sum", [[1024, 96], []], ["fp32", ""]))
    assert (whole.write_bytes, whole.note) == (4, "")


def test_odd_tensors() -> None:
    assert costed("aten::sum", "fp32", "[0]", "False", None).write_bytes == 4
    assert costed("aten::sum", "fp32 0 4", "[0]", "False", None).write_bytes == 16
    assert costed("aten::sum", "fp32 4 0", None).flops == 0
    with pytest.raises(Uncounted, match="dimensions"):
        costed("aten::sum", "fp32 6 4", "[2]", "False", None)
    with pytest.raises(Uncounted, match="cannot be read"):
        costed("aten::sum", "fp32 6 4", "[x]", "False", None)
    with pytest.raises(Uncounted, match="element type"):
        costed("aten::sum", "fp32 6 4", "[1]", "False", 99)
    with pytest.raises(Uncounted, match="no shapes"):
        costed("aten::mean")
    with pytest.raises(Uncounted, match="instead of 2"):
        costed("aten::trace", "fp32 6")


def test_norm_of_vectors_and_matrices() -> None:
    """Gradient clipping of one weight, and the rows of a matrix."""
    whole = costed("aten::linalg_norm", "bf16 4096 4096", None, None, "False", None)
    assert (whole.flops, whole.write_bytes) == (2 * 4096 * 4096 + 1, 2)
    rows = costed("aten::linalg_norm", "fp32 64 128", "2.", "[1]", "False", None)
    assert (rows.flops, rows.read_bytes, rows.write_bytes) == (2 * 64 * 128 + 64, 4 * 64 * 128, 4 * 64)
    assert costed("aten::linalg_norm", "fp32 8 64 128", "fro", "[1, 2]", "False").write_bytes == 4 * 8
    for order in ("nuc", "2.", "-2"):
        with pytest.raises(Uncounted, match="singular values"):
            costed("aten::linalg_norm", "fp32 64 128", order, None, "False")
