"""Random numbers, dropout and ranges."""

import pytest

from tests.costs.recorded import costed
from tracelens.costs import Uncounted


def moved(name: str, *arguments: object) -> tuple[int, int]:
    cost = costed(name, *arguments)
    return cost.read_bytes, cost.write_bytes


def test_draws_write_only() -> None:
    for name in ("uniform_", "normal_", "exponential_", "random_", "bernoulli_"):
        cost = costed(f"aten::{name}", "bf16 8 4", 0, 1, None)
        assert (cost.read_bytes, cost.write_bytes) == (0, 64)
        assert cost.flops >= 32
    assert moved("aten::bernoulli_", "bf16 8", "fp32 8", None) == (32, 16)


def test_samples() -> None:
    assert moved("aten::bernoulli", "fp32 8", None) == (32, 32)
    assert moved("aten::binomial", "fp32 8", "fp32 8", None) == (64, 32)
    assert moved("aten::normal", "fp32 8", 1.0, None) == (32, 32)
    assert moved("aten::normal", 0.0, "fp32 8", None) == (32, 32)
    assert moved("aten::multinomial", "fp32 3 5", 2, "False", None) == (60, 48)
    with pytest.raises(Uncounted, match="no tensor"):
        costed("aten::normal", 0.0, 1.0, "[4]")


def test_dropout() -> None:
    cost = costed("aten::native_dropout", "bf16 4 8", 0.1, "True")
    assert (cost.flops, cost.read_bytes, cost.write_bytes) == (4 * 32, 64, 64 + 32)
    assert costed("aten::native_dropout", "bf16 4 8", 0.1, "False").flops == 0
    # The gradient and the mask read: two products.
    cost = costed("aten::native_dropout_backward", "bf16 4 8", "bool 4 8", 1.1)
    assert (cost.flops, cost.read_bytes, cost.write_bytes) == (64, 64 + 32, 64)


def test_permutation() -> None:
    cost = costed("aten::randperm", 1000, None, "i64 0")
    assert (cost.flops, cost.read_bytes, cost.write_bytes) == (1000 * 11, 0, 8000)
    assert costed("aten::randperm", 0).flops == 0
    with pytest.raises(Uncounted, match="negative"):
        costed("aten::randperm", -1)


def test_ranges() -> None:
    # As recorded: arange(0, 24576, 1, out=empty).
    assert moved("aten::arange", 0, 24576, 1, "i64 0") == (0, 8 * 24576)
    assert moved("aten::arange", 9) == (0, 72)
    assert moved("aten::arange", 1, 9, 3) == (0, 24)  # 1, 4, 7
    assert moved("aten::arange", "0.", "1.", "0.3") == (0, 16)  # 0, 0.3, 0.6, 0.9
    assert moved("aten::arange", 9, 0, -2) == (0, 40)
    assert moved("aten::range", 1, 9, 4) == (0, 24)  # 1, 5, 9
    assert moved("aten::linspace", 0, 1, 7, None, None) == (0, 28)
    assert moved("aten::linspace", 0, 1, 7, "fp64 7") == (0, 56)
    for arguments in ((), ("x",), (0, 9, 0), (9, 0, 1), ("inf",), ("nan",)):
        with pytest.raises(Uncounted):
            costed("aten::arange", *arguments)


def test_matrices() -> None:
    assert moved("aten::eye", 5) == (0, 100)
    assert moved("aten::eye", 5, 2, "bf16 5 2") == (0, 20)
    # On and below the diagonal of 4 x 5 there are 10, above it 10 more.
    assert moved("aten::tril_indices", 4, 5, 0) == (0, 2 * 8 * 10)
    assert moved("aten::triu_indices", 4, 5, 1) == (0, 2 * 8 * 10)
