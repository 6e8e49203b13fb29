"""Kernels by name."""

from __future__ import annotations

from tests.builders import draw, draw_run, records
from tracelens import analyze
from tracelens.trace import make_run


def test_statistics_of_odd_and_even_numbers() -> None:
    table = analyze(
        make_run([
            draw("""
            s7 odd  | =  ====  ==
            s8 even | === =  ======== ==
            s9 copy | =====
        """)
        ]),
        "kernels",
    )["kernels"]  # fmt: skip
    shown = ("name", "count", "sum_ns", "mean_ns", "median_ns", "min_ns", "max_ns", "fraction_of_kernel_time")
    assert records(table, *shown) == [
        ("even", 4, 14000, 3500.0, 2500.0, 1000, 8000, 14 / 21),
        ("odd", 3, 7000, 7000 / 3, 2000.0, 1000, 4000, 7 / 21),
    ]


def test_large_sums_are_exact() -> None:
    # The mean of doubles of 2^53 and more nanoseconds would round.
    trace = draw("""
        s7 k | =========
        s8 k | =========
    """, ns_per_char=(1 << 50) + 1)  # fmt: skip
    table = analyze(make_run([trace]), "kernels")["kernels"]
    assert records(table, "sum_ns", "max_ns") == [(18 * ((1 << 50) + 1), 9 * ((1 << 50) + 1))]


def test_one_name_of_two_classes_is_two_rows() -> None:
    table = analyze(
        make_run([
            draw("""
            op aten::mm      | ---
            op aten::strange |    ---
            launch           |  a  b
            s7 qzx           |      a bbb
        """)
        ]),
        "kernels",
    )["kernels"]  # fmt: skip
    assert records(table, "name", "category", "sum_ns") == [("qzx", "other", 3000), ("qzx", "gemm", 1000)]


def test_scope() -> None:
    trace = draw("""
        launch | a
        s7 k   |   aa ==
    """)
    counts = [
        analyze(make_run([trace]), "kernels", scope=scope)["kernels"]["count"].sum()
        for scope in ("all", "linked")
    ]
    assert counts == [2, 1]


def test_no_kernels() -> None:
    result = analyze(make_run([draw("s7 copy | ==")]), "kernels")
    assert len(result["kernels"]) == 0
    assert [skip.subject for skip in result.skips] == ["rank 0"]


def test_each_rank_has_its_rows() -> None:
    table = analyze(draw_run("s7 a | ==", "s7 b | =", "s7 a | ==="), "kernels")["kernels"]
    assert records(table, "rank", "name", "sum_ns") == [(0, "a", 2000), (1, "b", 1000), (2, "a", 3000)]
