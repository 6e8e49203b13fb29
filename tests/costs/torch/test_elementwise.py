"""Elementwise ops: bytes by shapes and types, operations by formula. Calls are as profilers record them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.costs.recorded import costed, recorded
from tracelens.costs import OpCall, Tensor, Uncounted, find
from tracelens.costs.elementwise import rules
from tracelens.costs.tensors import broadcast, promote


def bytes_of(name: str, *arguments: object) -> tuple[int, int]:
    cost = costed(name, *arguments)
    return cost.read_bytes, cost.write_bytes


def test_add_two_tensors() -> None:
    cost = costed("aten::add", "bf16 64 2816", "bf16 64 2816", 1)
    count = 64 * 2816
    assert (cost.flops, cost.read_bytes, cost.write_bytes) == (count, 2 * 2 * count, 2 * count)
    assert (cost.dtype, cost.engine, cost.note) == ("bf16", "vector", "")


def test_a_factor_costs_a_product() -> None:
    assert costed("aten::add_", "fp32 10", "fp32 10", 1).flops == 10
    assert costed("aten::add_", "fp32 10", "fp32 10", 0.5).flops == 20
    assert costed("aten::addcmul", "fp32 10", "fp32 10", "fp32 10", 1).flops == 20
    assert costed("aten::addcmul", "fp32 10", "fp32 10", "fp32 10", -0.1).flops == 30


def test_broadcasting() -> None:
    # (2048, 1, 32768) * (2048, 1, 1), and an outer sum (4, 1) + (3).
    assert bytes_of("aten::mul", "fp32 2048 1 32768", "fp32 2048 1 1") == (
        4 * (2048 * 32768 + 2048),
        4 * 2048 * 32768,
    )
    assert bytes_of("aten::add", "fp32 4 1", "fp32 3", 1) == (4 * 7, 4 * 12)


def test_expanded_elements_are_read_once() -> None:
    call = OpCall("aten::mul", [[2, 1000], [2, 1000]], ["fp32", "fp32"], ["", ""], [[0, 1], [1000, 1]])
    model = find(call.name)
    assert model is not None
    cost = model.function(call)
    assert (cost.read_bytes, cost.write_bytes) == (4 * 3000, 4 * 2000)


def test_a_python_number_is_a_0_dim_double() -> None:
    # As recorded: aten::mul of (8, 12, 3137, 3137) bf16 and a number.
    count = 8 * 12 * 3137 * 3137
    assert bytes_of("aten::mul", "bf16 8 12 3137 3137", "fp64") == (2 * count + 8, 2 * count)
    assert costed("aten::mul", "i64 6", "fp64").write_bytes == 4 * 6
    assert costed("aten::mul", "i64 6", "fp64").note == "a 0-dim double counted as a Python number"
    assert costed("aten::mul", "fp32 6", "fp64").note == ""


def test_in_place() -> None:
    assert bytes_of("aten::add_", "bf16 8 4", "bf16 4", 1) == (2 * 36, 2 * 32)
    assert bytes_of("aten::mul_", "bf16 8", "fp32 8") == (2 * 8 + 4 * 8, 2 * 8)
    with pytest.raises(Uncounted, match="in-place"):
        costed("aten::add_", "bf16 4", "bf16 8 4", 1)


def test_given_results_are_written_not_read() -> None:
    # torch.exp(x, out=x), torch.abs(x, out=empty), nan_to_num(x, out=x), logical_and(a, b, out=a)
    assert bytes_of("aten::exp", "fp32 2048 1 32768", "fp32 2048 1 32768") == (4 << 26, 4 << 26)
    assert bytes_of("aten::abs", "fp64 1 4096", "fp64 0") == (8 * 4096, 8 * 4096)
    assert bytes_of("aten::nan_to_num", "fp32 1024 64", 0, None, None, "fp32 1024 64") == (4 << 16, 4 << 16)
    assert bytes_of("aten::logical_and", "bool 9", "bool 9", "bool 9") == (18, 9)
    # Their type is that of the result: torch.add(bf16, bf16, out=fp32).
    assert bytes_of("aten::add", "bf16 4", "bf16 4", 1, "fp32 4") == (16, 16)
    # gelu_backward.grad_input(gradient, x, approximate, result)
    assert bytes_of("aten::gelu_backward", "bf16 4", "bf16 4", None, "bf16 4") == (16, 8)


@pytest.mark.parametrize(
    ("name", "arguments", "written"),
    [
        ("aten::eq", ("i64 24", 64), 24),
        ("aten::isnan", ("fp32 24",), 24),
        ("aten::logical_not", ("i64 24",), 24),
        ("aten::div", ("i64 24", "i64"), 4 * 24),
        ("aten::div", ("i64 24", "i64", ""), 8 * 24),  # rounding_mode="floor"
        ("aten::floor_divide", ("i64 24", "i64"), 8 * 24),
        ("aten::remainder", ("i64 24", "i64"), 8 * 24),
        ("aten::exp", ("i32 24",), 4 * 24),
        ("aten::sigmoid", ("bool 24",), 4 * 24),
        ("aten::exp", ("fp64 24",), 8 * 24),
        ("aten::pow", ("i64 24", 2), 8 * 24),
        ("aten::pow", ("i64 24", 0.5), 4 * 24),
        ("aten::pow", (2.0, "i64 24"), 4 * 24),
        ("aten::bitwise_and", ("bool 24", 2), 8 * 24),
        ("aten::float_power", ("bf16 24", 2), 8 * 24),
        ("aten::abs", ("c64 24",), 4 * 24),
        ("aten::polar", ("fp32 24", "fp32 24"), 8 * 24),
        ("aten::complex", ("fp64 24", "fp64 24"), 16 * 24),
        ("aten::add", ("bf16 24", "fp32 24", 1), 4 * 24),
        ("aten::add", ("bf16 24", "fp16 24", 1), 4 * 24),
        ("aten::add", ("u8 24", "i8 24", 1), 2 * 24),
        ("aten::add", ("bf16 24", "fp32", 1), 2 * 24),
        ("aten::add", ("i32 24", "i64", 1), 4 * 24),
        ("aten::add", ("fp64", "fp32 24", 1), 4 * 24),
        ("aten::mul", ("c64 24", "fp32 24"), 8 * 24),
        ("aten::mul", ("c64 24", "fp64 24"), 16 * 24),
        ("aten::where", ("bool 24", "bf16 24", "bf16"), 2 * 24),
        ("aten::where", ("bool 24", "i64 24", 0.5), 4 * 24),
        ("aten::where", ("bool 24", 1, 0), 8 * 24),
        ("aten::masked_fill", ("fp32 24", "bool 24", 0), 4 * 24),
        ("aten::frexp", ("fp32 24",), 8 * 24),
        ("aten::_prelu_kernel_backward", ("bf16 24", "bf16 24", "bf16 1"), 2 * 2 * 24),
    ],
)
def test_types_of_results(name: str, arguments: tuple[object, ...], written: int) -> None:
    """Checked against torch 2.13: element size of the result times 24."""
    assert costed(name, *arguments).write_bytes == written


@pytest.mark.parametrize(
    ("name", "arguments", "operations"),
    [
        ("aten::relu", ("fp32 10",), 1),
        ("aten::neg", ("fp32 10",), 1),
        ("aten::sigmoid", ("fp32 10",), 4),  # negate, exp, add, divide
        ("aten::silu", ("fp32 10",), 5),
        ("aten::silu_backward", ("fp32 10", "fp32 10"), 9),  # s: 4, g·s·(1 + x·(1 - s)): 5
        ("aten::sigmoid_backward", ("fp32 10", "fp32 10"), 3),  # g·y·(1 - y)
        ("aten::tanh_backward", ("fp32 10", "fp32 10"), 3),  # g·(1 - y·y)
        ("aten::threshold_backward", ("fp32 10", "fp32 10", 0), 1),
        ("aten::lerp", ("fp32 10", "fp32 10", 0.1), 3),
        ("aten::where", ("bool 10", "fp32 10", "fp32 10"), 0),
        ("aten::gelu", ("fp32 10", "none"), 5),
        ("aten::gelu", ("fp32 10", "tanh"), 9),
        ("aten::gelu_backward", ("fp32 10", "fp32 10", "tanh"), 18),
        ("aten::elu_backward", ("fp32 10", 1, 1, 1, "False", "fp32 10"), 4),
        ("aten::mul", ("c64 10", "c64 10"), 6),
        ("aten::add", ("c64 10", "c64 10", 1), 2),
        ("aten::glu", ("fp32 2 10", -1), 5),
        ("aten::glu_backward", ("fp32 2 5", "fp32 2 10", -1), 9),
        ("aten::addr", ("fp32 5 2", "fp32 5", "fp32 2", 1, 1), 2),
    ],
)
def test_operations(name: str, arguments: tuple[object, ...], operations: int) -> None:
    """For ten elements of the result (or of the gradient)."""
    assert costed(name, *arguments).flops == operations * 10


def test_complex_numbers_are_computed_in_their_parts() -> None:
    assert costed("aten::mul", "c64 10", "c64 10").dtype == "fp32"


def test_gelu_by_its_kernel() -> None:
    # Texts are not recorded; the kernel on MI300X says lambda #2, which is the error function.
    kernel = "vectorized_elementwise_kernel<8, at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&, "
    kernel += "at::native::GeluType)::{{lambda()#{}}}::operator()() const"
    assert costed("aten::gelu", "bf16 10", "", kernel=kernel.format(2)).flops == 50
    assert costed("aten::gelu", "bf16 10", "", kernel=kernel.format(1)).flops == 90


def test_glu_halves_one_dimension() -> None:
    cost = costed("aten::glu", "bf16 8 6", 0)
    assert (cost.read_bytes, cost.write_bytes) == (2 * 48, 2 * 24)
    with pytest.raises(Uncounted, match="odd"):
        costed("aten::glu", "bf16 8 5", -1)
    with pytest.raises(Uncounted, match="dimension 2"):
        costed("aten::glu", "bf16 8 6", 2)


def test_empty_and_0_dim() -> None:
    assert costed("aten::add", "fp32 0 4", "fp32 1 4", 1).write_bytes == 0
    assert bytes_of("aten::add", "fp64", "fp64", 1) == (16, 8)
    assert costed("aten::add", "fp32", "fp64", 1).write_bytes == 4  # a tensor and a number


def test_what_lacks() -> None:
    with pytest.raises(Uncounted, match="no shapes recorded"):
        costed("aten::add")
    with pytest.raises(Uncounted, match="do not broadcast"):
        costed("aten::add", "fp32 4", "fp32 3", 1)
    with pytest.raises(Uncounted, match="no tensor"):
        costed("aten::add", 1, 2, 1)
    model = find("aten::neg")
    assert model is not None
    with pytest.raises(Uncounted, match="element type"):
        model.function(OpCall("aten::neg", [[4]], ["qint8"], [""]))


def test_every_rule_has_its_ops() -> None:
    names = [name for name, _ in rules()]
    assert len(names) == len(set(names))
    for name in names:
        model = find(name)
        assert model is not None
        assert model.name == name
    assert find("aten::mul_") is not None
    assert find("aten::__iand__") is not None
    assert find("aten::__iand___") is None


def test_the_type_of_a_shift_in_place() -> None:
    assert bytes_of("aten::__ilshift__", "i32 8", "i64 8") == (96, 32)


SHAPES = st.lists(st.integers(0, 5), max_size=4).map(tuple)


@given(SHAPES)
def test_broadcast_with_itself_and_ones(shape: tuple[int, ...]) -> None:
    assert broadcast([shape, shape]) == shape
    assert broadcast([shape, ()]) == shape
    assert broadcast([(1,) * len(shape), shape]) == shape


@given(st.lists(st.sampled_from(["bool", "u8", "i32", "i64", "fp16", "bf16", "fp32", "fp64"]), min_size=1))
def test_promotion_knows_no_order(dtypes: list[str]) -> None:
    tensors = [Tensor((2,), dtype, 2) for dtype in dtypes]
    assert promote(tensors) == promote(tensors[::-1])


def test_recorded_call_is_what_the_profiler_writes() -> None:
    call = recorded("aten::add", "fp32 2", "fp64", 1)
    assert (call.shapes, call.dtypes, call.values) == ([[2], [], []], ["fp32", "fp64", ""], ["", "", "1"])
