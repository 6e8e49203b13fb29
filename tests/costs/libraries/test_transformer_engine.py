"""Products of TransformerEngine, whose functions differ between versions in their arguments."""

from typing import Any

import pytest

from tracelens.costs import OpCall, OpCost, Uncounted, find

T, N, K = 512, 384, 128


def counted(call: OpCall) -> OpCost:
    model = find(call.name)
    assert model is not None
    return model.function(call)


def te_gemm(a: list[int], b: list[int], transa: str, transb: str, accumulate: str = "0") -> OpCall:
    """A call of te_gemm_ts: A, its scale, three numbers, B and the same, D and the rest."""
    shapes: list[Any] = [a, [8], [], [], [], b, [8], [], [], [], [T, N], [], [], [], [N]]
    dtypes = ["u8", "fp32", "", "", "", "u8", "fp32", "", "", "", "bf16", "", "", "", "bf16"]
    values = [""] * 21
    values[4], values[9], values[20] = transa, transb, accumulate
    return OpCall("tex_ts::te_gemm_ts", shapes, dtypes, values)


@pytest.mark.parametrize(
    ("a", "b", "transa", "transb"),
    [([N, K], [T, K], "1", "0"), ([K, N], [T, K], "0", "0"), ([K, N], [K, T], "0", "1")],
)
def test_operands_are_in_the_order_of_cublas(a: list[int], b: list[int], transa: str, transb: str) -> None:
    op_cost = counted(te_gemm(a, b, transa, transb))
    assert op_cost == OpCost(
        2 * T * N * K, N * K + T * K + 2 * N, 2 * T * N, "fp8e4m3", "matrix",
        dims=(("M", T), ("N", N), ("K", K)),
    )  # fmt: skip


def test_accumulation_reads_the_result() -> None:
    once = counted(te_gemm([N, K], [T, K], "1", "0"))
    twice = counted(te_gemm([N, K], [T, K], "1", "0", "1"))
    assert twice.read_bytes - once.read_bytes == 2 * T * N


def test_generic_gemm() -> None:
    call = OpCall(
        "tex::generic_gemm",
        [[N, K], [], [T, K], [], []],
        ["bf16", "", "bf16", "", ""],
        ["", "True", "", "False"],
    )
    assert (counted(call).flops, counted(call).write_bytes) == (2 * T * N * K, 2 * T * N)


@pytest.mark.parametrize(
    ("name", "shapes", "dtypes"),
    [
        ("_Linear", [[N, K], [2, T // 2, K], [N]], ["bf16", "bf16", "bf16"]),
        ("_Linear", [[N, K], [N, K], [2, T // 2, K], [N]], ["bf16", "u8", "bf16", "bf16"]),
        ("_LayerNormLinear", [[T, K], [K], [K], [N, K], [N]], ["bf16"] * 5),
    ],
)
@pytest.mark.parametrize(
    ("kernel", "dtype"),
    [("nvjet_hsh_128x256", "bf16"), ("nvjet_qqtst_128x256", "fp8e4m3"), ("Cijk_Ailk_Bljk_F8BS", "fp8e4m3")],
)
def test_linear(name: str, shapes: list[list[int]], dtypes: list[str], kernel: str, dtype: str) -> None:
    op_cost = counted(OpCall(name, shapes, dtypes, kernel=kernel))
    assert (op_cost.flops, op_cost.read_bytes) == (2 * T * N * K, 2 * (T * K + N * K))
    assert (op_cost.write_bytes, op_cost.dtype) == (2 * T * N, dtype)
    assert op_cost.note.startswith("GEMM only")


@pytest.mark.parametrize("name", ["_LinearBackward", "autograd::engine::evaluate_function: _LinearBackward"])
def test_backward_is_both_gradients(name: str) -> None:
    forward = OpCall("_Linear", [[N, K], [T, K]], ["bf16", "bf16"])
    op_cost = counted(OpCall(name, [[T, N]], ["bf16"], forward=forward))
    assert op_cost.flops == 4 * T * N * K
    assert op_cost.read_bytes == 2 * (T * K + N * K + T * N)
    assert op_cost.write_bytes == 2 * (T * K + N * K)
    with pytest.raises(Uncounted, match="forward op is not in the trace"):
        counted(OpCall(name, [[T, N]], ["bf16"]))


@pytest.mark.parametrize("inner", [512, 256])
def test_mlp_is_two_products(inner: int) -> None:
    shapes = [[T, K], [K], [K], [512, K], [512], [K, inner], [K]]
    forward = OpCall("_LayerNormMLP", shapes, ["bf16"] * 7)
    flops = 2 * T * K * 512 + 2 * T * inner * K
    assert counted(forward).flops == flops
    assert counted(OpCall("_LayerNormMLPBackward", forward=forward)).flops == 2 * flops


@pytest.mark.parametrize(
    ("name", "shapes", "reason"),
    [
        ("_Linear", [], "no shapes"),
        ("_Linear", [[N, K], [K]], "input and weight not found"),
        ("_Linear", [[K]], "input and weight not found"),
        ("_LayerNormLinear", [[T, K], [K], [N, K + 1]], "input and weight not found"),
        ("_LayerNormMLP", [[T, K], [K], [512, K]], "second weight not recorded"),
        ("_LayerNormMLPBackward", [[T, K]], "forward op is not in the trace"),
        ("tex::generic_gemm", [[4, 5], [], [6, 7]], "disagree on the inner dimension"),
    ],
)
def test_what_cannot_be_counted_is_told(name: str, shapes: list[Any], reason: str) -> None:
    with pytest.raises(Uncounted, match=reason):
        counted(OpCall(name, shapes, ["bf16" if shape else "" for shape in shapes]))
