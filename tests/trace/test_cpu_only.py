"""Which ops are the work of a host without a GPU."""

from __future__ import annotations

import pytest

from tests.builders import draw
from tracelens.trace import WORK_KINDS, Trace, gpu_work


def worked(trace: Trace) -> list[tuple[str, int, int]]:
    """Name, first column and columns of each piece of work."""
    work = gpu_work(trace)
    return [
        (work.names[name], int(start) // 1000, int(dur) // 1000)
        for name, start, dur in zip(work.name, work.start, work.dur, strict=True)
    ]


def test_the_work_is_in_the_innermost_op_of_its_class() -> None:
    trace = draw("""
                                  | 0    5    10   15
        op aten::linear           | --------------
        op aten::t                |  --
        op aten::as_strided       |   -
        op aten::addmm            |     --------
        op aten::expand           |      -
        op aten::copy_            |        -
        op aten::resolve_conj     |          -
    """)
    # The product ran in addmm itself, which copied its bias on the way; linear only called it.
    assert worked(trace) == [("aten::addmm", 4, 8)]


@pytest.mark.parametrize(
    ("inner", "expected"),
    [
        ("aten::fill_", ["aten::sum"]),  # clears the result of the sum
        ("aten::sum", ["aten::sum"]),  # one overload calls the other
        ("aten::view", ["aten::sum"]),
        ("aten::mm", ["aten::mm"]),  # a more telling class
        ("qzx::strange", ["aten::sum"]),  # says nothing about what it does
    ],
)
def test_an_op_inside_of_a_reduction(inner: str, expected: list[str]) -> None:
    trace = draw(_aligned("aten::sum", inner))
    assert [name for name, _, _ in worked(trace)] == expected


def _aligned(outer: str, inner: str) -> str:
    width = max(len(outer), len(inner))
    return f"op {outer:{width}} | -----\nop {inner:{width}} |   --"


@pytest.mark.parametrize(
    ("outer", "inner", "expected"),
    [
        ("aten::mul", "aten::copy_", "aten::mul"),  # converts a factor: the multiplication is its own
        ("aten::_to_copy", "aten::copy_", "aten::copy_"),
        ("aten::zeros", "aten::fill_", "aten::fill_"),
        ("aten::masked_fill", "aten::masked_fill_", "aten::masked_fill_"),
        ("aten::_grouped_mm", "aten::mm", "aten::_grouped_mm"),
        ("aten::_fused_rms_norm", "aten::mul", "aten::_fused_rms_norm"),
        ("aten::_scaled_dot_product_attention_math", "aten::bmm", "aten::bmm"),
        ("aten::cross_entropy_loss", "aten::_log_softmax", "aten::cross_entropy_loss"),
        ("MyFunction", "aten::mm", "aten::mm"),
        ("aten::to", "aten::copy_", "aten::copy_"),
    ],
)
def test_one_op_around_another(outer: str, inner: str, expected: str) -> None:
    assert [name for name, _, _ in worked(draw(_aligned(outer, inner)))] == [expected]


@pytest.mark.parametrize(
    "name",
    [
        "aten::view",
        "aten::empty",
        "aten::to",
        "aten::item",
        "detach",
        "AddBackward0",
        "_MyFunction",
        "MyFunctionBackward",
        "torch::autograd::Node",
    ],
)
def test_bookkeeping_and_nodes_are_no_work(name: str) -> None:
    assert worked(draw(f"op {name} | ---")) == []


def test_a_function_that_only_waits_is_no_work() -> None:
    assert worked(draw(_aligned("MyFunction", "aten::view"))) == []
    assert [name for name, *_ in worked(draw("op CompiledFunction | ---"))] == ["CompiledFunction"]


def test_frames_and_scopes_between_ops_change_nothing() -> None:
    trace = draw("""
        op aten::linear        | --------
        python train.py(3): f  |  ------
        scope region           |   ----
        op aten::mm            |    --
    """)
    assert worked(trace) == [("aten::mm", 3, 2)]


def test_columns_of_the_work() -> None:
    trace = draw("""
        op aten::mm seq=4                                               | ---
        op autograd::engine::evaluate_function: MmBackward0 seq=4 fwd=1 |     -----
        op MmBackward0 seq=4 fwd=1                                      |     -----
        op aten::mm tid=7                                               |      --
        op aten::mm                                                     |      ---
    """)
    work = gpu_work(trace)
    names = trace.arrays.names
    assert work.cpu_only
    assert trace.meta.cpu_only
    assert work.launch.tolist() == [-1, -1, -1]
    assert work.op.tolist() == work.event.tolist() == work.launch_call.tolist()
    assert work.stream.tolist() == [1, 7, 1]
    assert work.device.tolist() == [-1, -1, -1]
    assert [WORK_KINDS[kind] for kind in work.kind] == ["computation"] * 3
    assert [work.categories[code] for code in work.category] == ["gemm"] * 3
    assert work.is_kernel.all()
    assert len(gpu_work(trace, "linked").event) == 3
    # Only what the node itself called is backward work, and belongs to the product before it.
    assert [names[trace.arrays.name[row]] if row >= 0 else "" for row in work.forward] == ["", "", "aten::mm"]


@pytest.mark.parametrize("row", ["launch", "s7 k", "gpu region", "s7 copy"])
def test_one_event_of_a_gpu_and_its_work_counts(row: str) -> None:
    trace = draw(f"op aten::mm   | ---\n{row:13} |     --")
    assert not trace.meta.cpu_only
    assert "aten::mm" not in [name for name, _, _ in worked(trace)]


def test_a_gpu_that_has_no_part_in_it_is_none() -> None:
    """A CPU run on a machine with GPUs, which the profiler asks what they are and waits for."""
    trace = draw("""
        op aten::mm                   | ---
        launch cudaGetDeviceCount     |     -
        launch cudaDeviceSynchronize  |      --
    """)
    assert trace.meta.cpu_only
    assert [name for name, _, _ in worked(trace)] == ["aten::mm"]


def test_communication_of_gpus_makes_it_no_trace_of_a_host() -> None:
    trace = draw("""
        op c10d::allreduce_   | ---
        scope nccl:all_reduce |  --
    """)
    assert not trace.meta.cpu_only
    assert worked(trace) == []
