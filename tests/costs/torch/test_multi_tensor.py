"""Multi-tensor kernels by their names and launch grids, as real traces have them."""

from pathlib import Path

import numpy as np
import pytest

import tracelens
from tracelens.costs import OpCall, OpCost, Uncounted, find
from tracelens.costs.multi_tensor import CHUNK, ONE_FACTOR, Functor, functor
from tracelens.trace import gpu_work

AT = "at::native::(anonymous namespace)::"


def kernel(metadata: str, what: str, *more: str) -> str:
    """The name of a kernel of PyTorch, its parameters repeated behind it as profilers do."""
    arguments = ", ".join((f"{AT}{metadata}", f"{AT}{what}", *more))
    return f"void {AT}multi_tensor_apply_kernel<{arguments}>({arguments})"


ADAMW = kernel(
    "FusedOptimizerTensorListMetadata<4>",
    "FusedAdamMathFunctor<c10::BFloat16, 4, (at::native::ADAM_MODE)1, false>",
    "float const*", "double", "double", "double", "double", "double", "bool", "float const*", "float const*",
)  # fmt: skip
ADDCMUL = kernel(
    "TensorListMetadata<3>", "PointwiseOpScalarFunctor<float, 3, 3, 0>", "std::multiplies<float>", "float"
)
MUL = kernel(
    "TensorListMetadata<1>", "BinaryOpScalarFunctor<float, 1, 1, 0>", "std::multiplies<float>", "float"
)
ADDCDIV = kernel(
    "TensorListScalarListMetadata<float, 3>",
    "PointwiseOpScalarListFunctor<float, 3, 3, 0>",
    "std::divides<float>",
)
APEX = (
    "void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>, float, adamMode_t, float, int>"
    "(int, int volatile*, TensorListMetadata<4>, AdamFunctor<float>, float, adamMode_t, float, int)"
)


def counted(name: str, blocks: int) -> OpCost:
    model = find(f"kernel::{name}")
    assert model is not None
    return model.function(OpCall(f"kernel::{name}", kernel=name, blocks=blocks))


def test_a_full_launch_of_adamw() -> None:
    # 320 · 65,536 elements; 4 lists of bf16 read, 3 written. With at most 36 tensors 284 chunks are full.
    assert counted(ADAMW, 320) == OpCost(
        15 * 20_971_520, 8 * 20_971_520, 6 * 20_971_520, "bf16", dims=(("elements", 20_971_520),),
        note="upper bound: full chunks of 65,536 elements, 88% of them certain",
    )  # fmt: skip


def test_the_two_factors_of_addcmul_are_one_tensor() -> None:
    found = counted(ADDCMUL, 320)
    elements = 320 * CHUNK
    assert (found.flops, found.read_bytes, found.write_bytes) == (3 * elements, 8 * elements, 4 * elements)
    assert found.note.endswith(ONE_FACTOR)
    assert counted(ADDCDIV, 320).read_bytes == 12 * elements
    assert not counted(ADDCDIV, 320).note.endswith(ONE_FACTOR)


@pytest.mark.parametrize(
    ("name", "least"),
    [(MUL, 220), (ADDCMUL, 96), (ADAMW, 72), (APEX, 72)],
    ids=["mul", "addcmul", "adamw", "apex"],
)
def test_at_least_half_of_the_chunks_must_be_full(name: str, least: int) -> None:
    """One, three and four lists: up to 110, 48 and 36 tensors, each with one chunk that may be small."""
    assert counted(name, least).note
    with pytest.raises(Uncounted, match="launch grid too small"):
        counted(name, least - 1)


def test_large_builds_launch_seven_times_as_many() -> None:
    large = kernel("TensorListMetadata<1, true>", "UnaryOpFunctor<float, 1, 1, 0>", "at::native::Sqrt<float>")
    assert functor(large).tensors == 770
    assert "65% of them certain" in counted(large, 2240).note
    assert counted(large, 2240).note == counted(MUL, 2240).note
    with pytest.raises(Uncounted, match="too small"):
        counted(large, 320)


def test_without_a_grid_nothing_is_counted() -> None:
    with pytest.raises(Uncounted, match="launch grid not recorded"):
        counted(MUL, -1)


@pytest.mark.parametrize(
    ("metadata", "what", "expected"),
    [
        ("TensorListMetadata<2>", "BinaryOpListAlphaFunctor<c10::Half, 2, 2, 0>", ("fp16 fp16", "fp16", 2)),
        ("TensorListMetadata<3>", "BinaryOpListAlphaFunctor<double, 3, 2, 2>", ("fp64 fp64", "fp64", 2)),
        ("TensorListMetadata<2>", "UnaryOpFunctor<float, 2, 1, 1>", ("fp32", "fp32", 1)),
        ("TensorListMetadata<2>", "TernaryOpScalarFunctor<float, 2, 2, 0>", ("fp32 fp32", "fp32", 3)),
        ("TensorListMetadata<2>", "CopyFunctor<c10::BFloat16, float, 2, 1, 1>", ("fp32", "bf16", 0)),
        ("TensorListMetadata<1>", "ZeroFunctor<float, 1, 1, 0>", ("", "fp32", 0)),
        ("TensorListMetadata<1>", "LpNormFunctor<float, (at::native::NormType)1, float, 1, 1, 0>",
         ("fp32", "", 2)),
        ("TensorListScalarListMetadata<c10::complex<double>, 1>",
         "BinaryOpScalarListFunctor<c10::complex<double>, 1, 1, 0>", ("c128", "c128", 1)),
        ("FusedOptimizerTensorListMetadata<5>",
         "FusedAdamMathFunctor<float, 5, (at::native::ADAM_MODE)0, true>",
         ("fp32 fp32 fp32 fp32 fp32", "fp32 fp32 fp32 fp32", 15)),
        ("TensorListMetadata<3>", "FusedSgdMathFunctor<float, 3>", ("fp32 fp32 fp32", "fp32 fp32", 7)),
        ("TensorListMetadata<2>", "ScaleFunctor<c10::Half, float>", ("fp16", "fp32", 1)),
        ("TensorListMetadata<3>", "AxpbyFunctor<float, c10::Half, float>", ("fp32 fp16", "fp32", 3)),
        ("TensorListMetadata<3>", "SGDFunctor<3, c10::Half, float>", ("fp16 fp32 fp32", "fp32 fp32", 7)),
        ("TensorListMetadata<4>", "AdamFunctor<c10::BFloat16, float, int>",
         ("bf16 bf16 fp32 fp32", "bf16 fp32 fp32", 15)),
        ("TensorListMetadata<5, false>",
         "transformer_engine::multi_tensor_adam::AdamFunctorMaster<__nv_bfloat16, float, float, long>",
         ("fp32 fp32 fp32 fp32", "bf16 fp32 fp32 fp32", 15)),
    ],
)  # fmt: skip
def test_lists_and_types_by_functor(metadata: str, what: str, expected: tuple[str, str, int]) -> None:
    found = functor(kernel(metadata, what))
    reads, writes, operations = expected
    assert found.reads == tuple(reads.split())
    assert found.writes == tuple(writes.split())
    assert found.operations == operations


def test_apex_adam() -> None:
    assert functor(APEX) == Functor("AdamFunctor", 4, ("fp32",) * 4, ("fp32",) * 3, 15, 36)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "not a multi-tensor kernel"),
        ("void multi_tensor_apply_kernel", "not a multi-tensor kernel"),
        (MUL[:150], "not a multi-tensor kernel"),
        (kernel("TensorListMetadata<9>", "UnaryOpFunctor<float, 1, 1, 0>"), "number of tensor lists"),
        (kernel("TensorListMetadata<N>", "UnaryOpFunctor<float, 1, 1, 0>"), "number of tensor lists"),
        (kernel("TensorListMetadata<1>", "Something<float>"), "functor not in"),
        (kernel("TensorListMetadata<1>", "UnaryOpFunctor<Odd, 1, 1, 0>"), "element type not in"),
        (
            kernel("TensorListMetadata<4>", "LAMBStage1Functor<float, float>"),
            "unknown multi-tensor functor LAMBStage1Functor",
        ),
        (kernel("TensorListMetadata<3>", "AdamFunctor<float>"), "unknown multi-tensor functor AdamFunctor"),
    ],
)
def test_names_that_do_not_say_enough(name: str, reason: str) -> None:
    with pytest.raises(Uncounted, match=reason):
        functor(name)


def test_the_chunks_of_a_real_step_are_the_parameters_of_its_model(corpus: Path) -> None:
    """DeepSeek-V2-Lite cut to 5 layers and 32,768 words, whose weights are known one by one."""
    experts = 4 * 64 * (2048 * 2816 + 1408 * 2048) + 4 * 3 * 2048 * 2816 + 4 * 64 * 2048
    attention = 5 * (2048 * 3072 + 2048 * 576 + 512 * 4096 + 2048 * 2048)
    norms = 5 * (2 * 2048 + 512) + 2048
    parameters = experts + 3 * 2048 * 10944 + attention + norms + 2 * 32768 * 2048
    assert parameters == 2_554_618_368

    trace = tracelens.load(corpus / "nvidia-h100-hf" / "dsv2_grouped.json.gz").traces[0]
    work, events = gpu_work(trace), trace.arrays
    step = events.names.index("aten::_fused_adamw_")
    rows = np.flatnonzero(work.op >= 0)
    rows = rows[events.name[work.op[rows]] == step]
    blocks = trace.tables["events"].array("blocks")[work.event[rows]]
    steps = len(np.unique(work.op[rows]))
    cost = [counted(work.names[work.name[row]], int(count)) for row, count in zip(rows, blocks, strict=True)]
    elements = sum(dict(one.dims)["elements"] for one in cost)
    assert steps == 2
    # The bound is met within the partly filled chunks: 0.04%.
    assert 1 <= elements / steps / parameters < 1.0005
    assert sum(one.read_bytes + one.write_bytes for one in cost) == 7 * 2 * elements
