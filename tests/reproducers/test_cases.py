"""Calls merged by what they are called with: counts and times by hand."""

from __future__ import annotations

import numpy as np

from tests.builders import aligned, draw
from tests.reproducers.calls import H100, MI300X, called, trace_of
from tracelens.reproducers.calls import OpCase, cases, merged
from tracelens.trace import Trace

MM = ("aten::mm", "bf16 64 32", "bf16 32 16")


def found(*traces: Trace) -> list[OpCase]:
    return merged([cases(trace, trace.work) for trace in traces])


def test_calls_with_the_same_arguments_are_one_case() -> None:
    trace = trace_of(
        called(*MM, us=10),
        called("aten::mul", "bf16 64", "fp64", us=3),
        called(*MM, us=14),
        called(*MM, us=11),
    )
    mm, mul = found(trace)
    assert (mm.call.op, mm.times.tolist(), mm.total_ns) == ("aten::mm", [10_000, 11_000, 14_000], 35_000)
    assert (mul.call.op, mul.times.tolist()) == ("aten::mul", [3000])
    assert np.median(mm.times) == 11_000
    assert mm.devices == (MI300X,)
    # The longest starts after two others and their kernels: 2 + 10 + 2 + 3 us.
    assert mm.at_ns == 17_000


def test_the_traced_texts_are_kept() -> None:
    (case,) = found(trace_of(called("aten::add", "bf16 64 32 @ 0 1", "fp64", 1)))
    assert case.call.shapes == "[[64, 32], [], []]"
    assert case.call.dtypes == '["c10::BFloat16", "double", "Scalar"]'
    assert case.call.strides == "[[0, 1], [], []]"
    assert case.call.values == '["", "", "1"]'


def test_each_difference_makes_a_case() -> None:
    trace = trace_of(
        called("aten::add", "bf16 64 32", "bf16 64 32", 1, us=7),
        called("aten::add", "bf16 64 32", "bf16 64 32", 2, us=6),  # value
        called("aten::add", "bf16 64 32", "bf16 64 32 @ 1 64", 1, us=5),  # strides
        called("aten::add", "bf16 64 32", "fp32 64 32", 1, us=4),  # type
        called("aten::add", "bf16 64 33", "bf16 64 33", 1, us=3),  # sizes
        called("aten::sub", "bf16 64 32", "bf16 64 32", 1, us=2),  # op
    )
    assert [case.total_ns for case in found(trace)] == [7000, 6000, 5000, 4000, 3000, 2000]


def test_most_time_comes_first() -> None:
    # Of calls together, not of one.
    short = [called("aten::exp", "bf16 64", us=4) for _ in range(3)]
    assert [case.call.op for case in found(trace_of(called(*MM, us=11), *short))] == ["aten::exp", "aten::mm"]


def test_cases_of_several_ranks_are_merged() -> None:
    zero = trace_of(called(*MM, us=10), called(*MM, us=20), rank=0)
    two = trace_of(called("aten::exp", "bf16 8", us=50), called(*MM, us=30), rank=2)
    exp, mm = sorted(found(zero, two), key=lambda case: case.call.op)
    assert (mm.times.tolist(), mm.ranks, mm.total_ns) == ([10_000, 20_000, 30_000], (0, 2), 60_000)
    # The longest one is on rank 2, behind 52 us.
    assert mm.at_ns == 52_000
    assert (exp.times.tolist(), exp.ranks) == ([50_000], (2,))
    swapped = next(case for case in found(two, zero) if case.call == mm.call)
    assert (sorted(swapped.times.tolist()), swapped.ranks) == (sorted(mm.times.tolist()), (2, 0))
    assert found(zero, two)[0].call.op == "aten::mm"


def test_the_time_of_a_call_is_the_union_of_its_kernels() -> None:
    trace = draw(aligned("""
        op aten::mm shapes=[[4,4]] types=["float"] strides=[[4,1]] | --------
        launch                                                     |  abc
        s7 short                                                   |   aa
        s7 long                                                    |     bbbb
        s9 beside                                                  |    ccc
    """))  # fmt: skip
    (case,) = found(trace)
    # From column 2 to 8, though the pieces are 2 + 4 + 3.
    assert case.times.tolist() == [6000]
    assert case.kernels == ("long", "beside", "short")


def test_kernels_are_those_of_the_longest_call() -> None:
    (case,) = found(trace_of(called(*MM, us=9, kernel="slow"), called(*MM, us=5, kernel="fast")))
    assert case.kernels == ("slow",)


def test_a_case_has_its_cost() -> None:
    # 2 * 64 * 32 * 16 floating-point operations.
    (case,) = found(trace_of(called(*MM)))
    assert case.cost is not None
    assert case.cost.flops == 65_536
    assert case.cost.read_bytes + case.cost.write_bytes == 2 * (64 * 32 + 32 * 16 + 64 * 16)
    (case,) = found(trace_of(called("mylib::mm", "bf16 64 32", "bf16 32 16")))
    assert case.cost is None


def test_devices_are_named_once() -> None:
    (case,) = found(trace_of(called(*MM), device=H100))
    assert case.devices == (H100,)
    (case,) = found(trace_of(called(*MM), device=""))
    assert case.devices == ()


def test_work_without_a_call_is_none() -> None:
    assert found(draw("s7 gemm | ===")) == []
    assert found(draw("op aten::mm | ---")) == []


def test_a_part_of_the_work() -> None:
    trace = trace_of(called(*MM, us=10), called("aten::exp", "bf16 8", us=4))
    work = trace.work
    (case,) = cases(trace, work.take(work.dur < 5000))
    assert case.call.op == "aten::exp"


def test_an_op_around_what_is_no_op_stands_for_it() -> None:
    # An autograd Function has no schema to call; the op around it has.
    one = 'shapes=[[4,4]] types=["float"] strides=[[4,1]]'
    trace = draw(aligned(f"""
        op mylib::attend {one} | ---------
        op AttendFunction      |  ------
        launch                 |   ab  c
        s7 first               |    aaa
        s7 second              |       bb
        s7 third               |         c
    """))  # fmt: skip
    (case,) = found(trace)
    assert (case.call.op, case.times.tolist(), case.kernels) == (
        "mylib::attend",
        [6000],
        ("first", "second", "third"),
    )
