"""GPU timeline: overlap, exposure, steps, scope."""

from __future__ import annotations

from typing import Any

import pytest

from tests.builders import draw, draw_run, records
from tracelens import analyze
from tracelens.table import Result
from tracelens.trace import Run, make_run


def timeline(text: str, **options: Any) -> Result:
    return analyze(make_run([draw(text)]), "timeline", **options)


def columns_of(result: Result) -> dict[str, int]:
    """Metric to its time in columns of the drawing."""
    return {metric: dur // 1000 for metric, dur in records(result["timeline"], "metric", "dur_ns")}


def test_overlap_of_all_kinds() -> None:
    result = timeline("""
                         | 0    5    10   15   20
        launch           | abcdef
        s7 gemm          |       aaaaaa        bb
        s8 ncclAllReduce |          cccccccc
        s9 copy          |               dddddd
        s9 fill          |     eee           f  f
    """)
    # computation  6-12, 20-22                     8
    # comm         9-17                            8, exposed 12-17: 5
    # copies      14-20                            6, exposed 17-20: 3
    # fills        4-7, 18-19, 21-22               5, exposed  4-6:  2
    # busy         4-22                           18 = 8 + 5 + 3 + 2
    assert columns_of(result) == {
        "total": 18,
        "busy": 18,
        "idle": 0,
        "computation": 8,
        "comm": 8,
        "memcpy": 6,
        "memset": 5,
        "exposed_comm": 5,
        "exposed_memcpy": 3,
        "exposed_memset": 2,
        "unlinked": 0,
    }


def test_idle_time_and_fractions() -> None:
    result = timeline("s7 gemm |  ==      ==")
    assert columns_of(result)["idle"] == 6
    fraction = dict(records(result["timeline"], "metric", "fraction_of_total"))
    assert (fraction["total"], fraction["idle"], fraction["computation"]) == (1.0, 0.6, 0.4)


def test_kernels_of_one_kind_on_two_streams_count_once() -> None:
    result = timeline("""
        s7 gemm  | ====
        s8 gemm  |   ====
    """)
    assert columns_of(result)["computation"] == 6


def test_work_counts_in_the_step_that_launched_it() -> None:
    result = timeline("""
                | 0    5    10   15   20
        step 1  | ----------
        step 2  |           ----------
        launch  |  a      b    c
        s7 gemm |    aaa   bbbbbb cc
        s8 copy |                   ==
    """)
    # Step 1 launched the kernels 3-6 and 9-15, so it is 0-15. Step 2 is 15-20: a kernel 16-18, a copy 18-20
    # that nothing in the trace launched.
    shown = ("step", "total_ns", "busy_ns", "idle_ns", "computation_ns", "memcpy_ns", "unlinked_ns")
    assert records(result["steps"], *shown, "idle_fraction") == [
        ("ProfilerStep#1", 15_000, 9_000, 6_000, 9_000, 0, 0, 0.4),
        ("ProfilerStep#2", 5_000, 4_000, 1_000, 2_000, 2_000, 2_000, 0.2),
    ]
    # The whole is from the first start to the last end, not from mark to mark.
    assert columns_of(result)["total"] == 17


def test_steps_add_up_to_the_whole() -> None:
    result = timeline("""
        step 1  |    -------
        step 2  |           -------
        s7 gemm | ==========  =====    ===
        s8 copy |        ========   ==
    """)
    whole = columns_of(result)
    for metric in ("busy", "computation", "exposed_memcpy"):
        assert result["steps"][f"{metric}_ns"].sum() == 1000 * whole[metric]
    assert result["steps"]["step"].tolist() == [
        "(before the first step)",
        "ProfilerStep#1",
        "ProfilerStep#2",
        "(after the last step)",
    ]


def test_without_step_marks_the_reason_is_given() -> None:
    result = timeline("s7 gemm | ==")
    assert "steps" not in result.tables
    assert [(skip.subject, "prof.step()" in skip.reason) for skip in result.skips] == [
        ("rank 0: steps", True)
    ]


def test_scope_linked_takes_fills_as_computation_and_drops_what_has_no_call() -> None:
    result = timeline("""
                | 0    5    10   15
        launch  | a b c
        s7 gemm |   aaaa       ====
        s8 copy |     bbbb
        s9 fill |          cc
    """, scope="linked")  # fmt: skip
    # gemm 2-6 and fill 9-11 are computation, copy 4-8 of which 6-8 exposed; the gemm 13-17 has no call: it is
    # left out, and told
    assert columns_of(result) == {
        "total": 9,
        "busy": 8,
        "idle": 1,
        "computation": 6,
        "comm": 0,
        "memcpy": 4,
        "exposed_comm": 0,
        "exposed_memcpy": 2,
        "unlinked": 4,
    }


@pytest.mark.parametrize("scope", ["all", "linked"])
def test_no_gpu_work_at_all(scope: str) -> None:
    result = timeline("launch | ---", scope=scope)
    assert len(result["timeline"]) == 0
    (skip,) = result.skips
    assert skip.subject == "rank 0"
    assert "no GPU work; record" in skip.reason


def test_no_linked_gpu_work() -> None:
    (skip,) = timeline("s7 gemm | ==", scope="linked").skips
    assert "--scope all" in skip.reason


def test_each_rank_has_its_rows() -> None:
    run: Run = draw_run("s7 gemm | ==  =", "s7 gemm | === =")
    table = analyze(run, "timeline")["timeline"]
    assert records(table[table["metric"] == "idle"], "rank", "dur_ns") == [(0, 2000), (1, 1000)]


def test_strip_shows_streams_in_pieces_of_one_kind() -> None:
    # 8 us in 800 pieces of 10 ns
    result = timeline("""
        s7 gemm | ====  ==
        s7 copy |     =
        s8 gemm |   ==
    """)
    assert records(result["strip"], "stream", "kind", "ts_ns", "dur_ns", "busy_fraction") == [
        (7, "computation", 0, 4000, 1.0),
        (7, "memcpy", 4000, 1000, 1.0),
        (7, "computation", 6000, 2000, 1.0),
        (8, "computation", 2000, 2000, 1.0),
    ]


def test_strip_counts_all_work_of_a_piece_as_busy() -> None:
    # 1.6 ms in 800 pieces of 2 us: the first holds a kernel and a copy of 1 us each and is full.
    result = timeline(f"""
        s7 gemm | ={" " * 1598}=
        s7 copy |  =
    """)
    first, last = records(result["strip"], "ts_ns", "dur_ns", "busy_fraction")
    assert first == (0, 2000, 1.0)
    assert last == (1_598_000, 2000, 0.5)


def test_strip_is_exact_at_times_since_1970() -> None:
    # A double of nanoseconds since 1970 is a multiple of 256; the pieces must not be.
    text = "s7 gemm | =========="
    late = draw(text, start_ns=1_712_195_495_519_689_500, ns_per_char=10)
    table = analyze(make_run([late]), "timeline")["strip"]
    assert records(table, "ts_ns", "dur_ns", "busy_fraction") == [(0, 100, 1.0)]


def test_only_the_busiest_streams_are_drawn_and_the_rest_is_named() -> None:
    rows = "\n".join(f"s{10 + n} gemm | {'=' * (n + 1)}" for n in range(14))
    result = timeline(rows)
    assert sorted(result["strip"]["stream"].unique().tolist()) == list(range(12, 24))
    assert "2 more streams" in result.skips[-1].subject
