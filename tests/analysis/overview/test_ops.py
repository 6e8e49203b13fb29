"""Ops by name: direct and subtree GPU time."""

from __future__ import annotations

from typing import Any

from tests.builders import draw, draw_run, records
from tracelens import analyze
from tracelens.table import Result
from tracelens.trace import make_run


def ops(text: str, **options: Any) -> Result:
    return analyze(make_run([draw(text)]), "ops", **options)


def test_direct_and_subtree_time() -> None:
    table = ops("""
        op aten::linear | ----------       ------
        op aten::addmm  |  ----             ---
        launch          |   a    b          c
        s7 gemm         |      aaaa           ccc
        s7 add          |          bb
    """)["ops"]
    # aten::linear launched b itself, once; its subtree is a + b. Its second call launched nothing itself,
    # so only the first one is in the row.
    assert records(
        table, "name", "category", "count", "dur_ns", "subtree_dur_ns", "fraction_of_gpu_time"
    ) == [
        ("aten::addmm", "gemm", 2, 7000, 7000, 7 / 9),
        ("aten::linear", "gemm", 1, 2000, 6000, 2 / 9),
    ]


def test_kernels_of_one_call_that_overlap_count_once() -> None:
    table = ops("""
        op f   | -----        -----
        launch | ab           c
        s7 k   |    aaaa        ccccc
        s8 k   |      bbbb
    """)["ops"]
    # First call: 3-9; second: 15-20.
    shown = ("count", "dur_ns", "mean_ns", "median_ns", "min_ns", "max_ns")
    assert records(table, *shown) == [(2, 11000, 5500.0, 5500.0, 5000, 6000)]


def test_two_calls_that_overlap_each_other_count_in_full() -> None:
    table = ops("""
        op f   | --  --
        launch | a   b
        s7 k   |       aaaa
        s8 k   |         bbbb
    """)["ops"]
    assert records(table, "count", "dur_ns") == [(2, 8000)]


def test_recursion_counts_the_inner_call_once_in_the_subtree() -> None:
    table = ops("""
        op f   | -----------
        op g   |   ------
        op f   |    ---
        launch |  a b
        s7 k   |       aa bbb
    """)["ops"]
    assert records(table, "name", "count", "dur_ns", "subtree_dur_ns") == [("f", 2, 5000, 5000)]


def test_recursion_around_work_without_extent() -> None:
    table = ops("""
        op f        | -----------
        op f        |    ---
        launch      |  a b
        s7 k        |          bbb
        s8 k corr=a |           !
    """)["ops"]
    assert records(table, "count", "dur_ns", "subtree_dur_ns") == [(2, 3000, 3000)]


def test_the_category_is_where_most_of_the_time_is() -> None:
    table = ops("""
        op f    | -----
        launch  | abcd
        s7 gemm |     aa
        s7 copy |       bbbb
        s7 gemm |           c
        s7 fill |            d
    """)["ops"]
    assert records(table, "category", "dur_ns") == [("copy", 8000)]


def test_scope_linked_leaves_communication_out() -> None:
    drawing = """
        op f             | --
        op g             |   --
        launch           | a b
        s7 k             |   aa ==
        s8 ncclAllReduce |     bb
    """
    assert records(ops(drawing)["ops"], "name") == [("f",), ("g",)]
    linked = ops(drawing, scope="linked")
    assert records(linked["ops"], "name", "fraction_of_gpu_time") == [("f", 1.0)]


def test_work_outside_of_ops_is_named() -> None:
    result = ops("""
        op f   | --
        launch | a   b
        s7 k   |   aa bbb
    """)
    (skip,) = result.skips
    assert (skip.subject, skip.reason) == ("rank 0: 3,000 ns of GPU work", "no op around its launch")


def test_a_trace_without_ops() -> None:
    result = ops("s7 k | ==")
    assert len(result["ops"]) == 0
    assert [skip.subject for skip in result.skips] == ["rank 0"]


def test_each_rank_has_its_rows() -> None:
    drawing = """
        op f   | --
        launch | a
        s7 k   |   aa
    """
    table = analyze(draw_run(drawing, drawing.replace("op f", "op g")), "ops")["ops"]
    assert records(table, "rank", "name", "dur_ns") == [(0, "f", 2000), (1, "g", 2000)]
