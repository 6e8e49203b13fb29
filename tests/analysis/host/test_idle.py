"""Why the GPU waits: one drawing a cause. A column is 10 us here, so every gap is worth explaining."""

from __future__ import annotations

from typing import Any

import pytest

from tests.builders import draw, draw_run, records
from tracelens import analyze
from tracelens.table.result import Result
from tracelens.trace.run import make_run

COLUMN = 10_000


def idle(text: str, **options: Any) -> Result:
    return analyze(make_run([draw(text, ns_per_char=COLUMN)]), "idle", **options)


def gaps(text: str, **options: Any) -> list[tuple[int, int, str, str, str]]:
    """(start, length, cause, host, op) of the gaps in order of time; start counted from the first column."""
    result = idle(text, **options)
    gap = records(result["gaps"], "ts_ns", "dur_ns", "cause", "host", "op")
    return sorted((ts // COLUMN, dur // COLUMN, *rest) for ts, dur, *rest in gap)


def test_host_late_names_the_frame_and_the_op_it_was_in() -> None:
    # GPU work from column 2 on; the gap is 4-12, its next launch at 11. From 4 to 11 the host is in
    # aten::stack for 5 columns and in the frame for 2.
    assert gaps(
        """
                                  | 0    5    10
        python data.py(7): collate |    --------
        op aten::stack            |     -----
        launch                    | a          b
        s7 k                      |   aa        bb
    """.replace("collate |", "collate|")
    ) == [(2, 8, "host late", "aten::stack", "aten::stack")]


def test_host_late_in_python_has_no_op() -> None:
    assert gaps("""
        python train.py(9): log | ------------
        op aten::item           |     --
        launch                  | a          b
        s7 k                    |   aa        bb
    """) == [(2, 8, "host late", "train.py(9): log", "")]


def test_host_late_without_anything_on_the_thread() -> None:
    assert gaps("""
        op aten::mm tid=2 |   --------
        launch            | a          b
        s7 k              |   aa        bb
    """) == [(2, 8, "host late", "", "")]


def test_a_child_that_overruns_its_parent_does_not_stretch_it() -> None:
    # The call ends 0.9 us after the op around it; what follows belongs to the frame, and not to the op.
    drawn = draw("""
        python f    | -------------------------------------------
        op aten::mm | ---------------
        launch      |     aaaaaaaaaaaa                        b
        s7 k        |      aaaaaaaaaa                           b
    """, ns_per_char=900)  # fmt: skip
    table = analyze(make_run([drawn]), "idle")["gaps"]
    assert records(table, "host", "op") == [("f", "")]


def test_an_op_without_extent_does_not_own_what_follows() -> None:
    assert gaps("""
        python f    | -----------
        op aten::_  |     !
        launch      | a          b
        s7 k        |   aa        bb
    """)[0][2:] == ("host late", "f", "")


def test_a_blocking_call_is_the_cause_though_it_ends_early() -> None:
    # The queue ran empty because the host waited until 5; then it took until 11 to launch again.
    assert gaps("""
        op aten::item                |  ------
        launch cudaStreamSynchronize |   ---
        op aten::add                 |        ---
        launch                       | a          b
        s7 k                         |   aa        bb
    """) == [(2, 8, "blocking call", "cudaStreamSynchronize", "aten::item")]


def test_a_blocking_call_before_the_gap_is_not_its_cause() -> None:
    assert gaps("""
        launch cudaDeviceSynchronize |  --
        op aten::add                 |      -----
        launch                       | a          b
        s7 k                         |   aa        bb
    """) == [(2, 8, "host late", "aten::add", "aten::add")]


def test_a_blocking_call_of_another_thread_is_not_its_cause() -> None:
    assert gaps("""
        launch cudaDeviceSynchronize tid=2 |   ------
        op aten::add                       |      -----
        launch                             | a          b
        s7 k                               |   aa        bb
    """)[0][2:] == ("host late", "aten::add", "aten::add")


@pytest.mark.parametrize("call", ["hipDeviceSynchronize", "cudaMalloc", "hipFree", "hipMemcpyWithStream"])
def test_calls_that_block(call: str) -> None:
    assert gaps(
        f"""
        launch {call:21} |    ---
        launch                       | a          b
        s7 k                         |   aa        bb
    """.replace(f"{call:21} |", f"{call:21} |")
    )[0][2:4] == ("blocking call", call)


@pytest.mark.parametrize(
    "call", ["cudaMemcpyAsync", "cudaLaunchKernel", "cudaEventRecord", "cudaMallocAsync"]
)
def test_calls_that_do_not_block(call: str) -> None:
    assert gaps(f"""
        launch {call:21} |     -----
        launch                       | a          b
        s7 k                         |   aa        bb
    """)[0][2:4] == ("host late", call)


def test_a_copy_whose_call_returns_after_it_is_done_was_waited_for() -> None:
    # A pageable copy: the asynchronous call is as good as blocking.
    assert gaps("""
        op aten::to            |  -----
        launch cudaMemcpyAsync |   aaaa
        op aten::add           |       ---
        launch                 |           b
        s7 copy                |    aa
        s7 k                   |            bb
    """) == [(2, 6, "blocking call", "cudaMemcpyAsync", "aten::to")]


def test_a_fill_whose_call_returns_late_was_not_waited_for() -> None:
    (gap,) = gaps("""
        op aten::zero_         |  -----
        launch cudaMemsetAsync |   aaaa
        op aten::add           |       ---
        launch                 |           b
        s7 fill                |    aa
        s7 k                   |            bb
    """)
    assert gap[2] == "host late"


def test_garbage_collection() -> None:
    assert gaps("""
        python Python GC |     -----
        op aten::add     |          --
        launch           | a          b
        s7 k             |   aa        bb
    """)[0][2:4] == ("garbage collection", "Python GC")


def test_short_garbage_collection_is_not_the_cause() -> None:
    assert gaps("""
        python Python GC |     --
        op aten::add     |        ---
        launch           | a          b
        s7 k             |   aa        bb
    """)[0][2:4] == ("host late", "aten::add")


def test_queued_in_time_behind_another_stream() -> None:
    # b was launched at 1, long before the gap 6-8: it waited for something on the other stream.
    assert gaps("""
        launch | ab
        s7 k   |   aaaa
        s8 k   |         bb
    """) == [(4, 2, "other stream", "", "")]


def test_queued_in_time_on_the_same_stream() -> None:
    assert gaps("""
        launch | ab
        s7 k   |   aaaa  bb
    """) == [(4, 2, "dispatch", "", "")]


def test_the_last_work_to_end_counts_and_not_the_last_to_start() -> None:
    # Before the gap 8-10 the kernel on stream 8 started last, but that on stream 7 ended last.
    assert gaps("""
        launch | abc
        s7 k   |   aaaaaa  cc
        s8 k   |     bb
    """) == [(6, 2, "dispatch", "", "")]


def test_equal_stream_numbers_of_two_gpus_are_two_streams() -> None:
    assert (
        gaps("""
        launch        | ab
        s7 k          |   aaaa
        s7 k device=1 |         bb
    """)[0][2]
        == "other stream"
    )


def test_work_without_a_launch_call() -> None:
    assert gaps("""
        launch | a
        s7 k   |   aa   ==
    """) == [(2, 3, "no launch", "", "")]


def test_before_the_first_and_after_the_last_work_of_the_steps() -> None:
    gap = gaps("""
        step 1 | ----------
        launch |  a
        s7 k   |   aaa
    """)
    assert gap == [(-2, 2, "window", "", ""), (3, 5, "window", "", "")]


def test_short_gaps_are_summed_and_not_explained() -> None:
    result = analyze(
        make_run([
            draw("""
            launch |    abcd
            s7 k   | ==   aa bb ccc  dd
        """)
        ]),
        "idle",
    )  # fmt: skip
    # columns of 1 us: gaps of 3, 1, 1 and 2 us
    causes = {
        cause: (count, dur) for cause, count, dur in records(result["causes"], "cause", "count", "dur_ns")
    }
    assert causes["short gaps"] == (2, 2000)
    assert sum(count for count, _ in causes.values()) == 4
    assert result["hosts"]["dur_ns"].sum() == 5000


def test_causes_add_up_to_the_idle_time_of_the_timeline() -> None:
    run = make_run([
        draw("""
        step 1                       | --------------------------------
        launch cudaStreamSynchronize |     ---
        op f                         |                ---
        launch                       | ab      c         d
        s7 k                         |   aa  b   ccc      d   ==
        s8 k                         |                            ==
    """, ns_per_char=COLUMN)
    ])  # fmt: skip
    causes = analyze(run, "idle")["causes"]
    (step,) = records(analyze(run, "timeline")["steps"], "idle_ns")
    assert causes["dur_ns"].sum() == step[0]
    assert causes["fraction"].sum() == pytest.approx(1)
    assert causes["dur_ns"].is_monotonic_decreasing


def test_hosts_are_grouped() -> None:
    result = idle("""
        op f   |    ---     ---
        launch | a     b  c    d
        s7 k   |   aa   bb cc   dd
    """)
    # gaps 4-7 and 11-14 while the host is in f; c runs on at 10
    shown = ("cause", "host", "op", "count", "dur_ns", "mean_ns", "max_ns")
    assert records(result["hosts"], *shown)[0] == ("host late", "f", "f", 2, 60_000, 30_000.0, 30_000)


def test_the_next_work_is_named() -> None:
    table = idle("""
        launch    | ab
        s7 first  |   a
        s9 second |       bb
    """)["gaps"]
    assert records(table, "next_work", "stream") == [("second", 9)]


def test_scope_linked_takes_unlinked_work_as_idle() -> None:
    assert gaps("""
        launch | ab
        s7 k   |   aa ==  bb
    """, scope="linked") == [(2, 5, "dispatch", "", "")]  # fmt: skip


@pytest.mark.parametrize(
    ("drawing", "reason"),
    [("s7 k | ====", "the GPU never waits"), ("s7 k | == ==", "no gap is longer than 1000 ns")],
)
def test_nothing_to_explain_is_said(drawing: str, reason: str) -> None:
    result = analyze(make_run([draw(drawing)]), "idle")
    assert len(result["hosts"]) == len(result["gaps"]) == 0
    assert [(skip.subject, skip.reason) for skip in result.skips] == [("rank 0: gaps", reason)]


def test_no_gpu_work() -> None:
    assert [skip.subject for skip in idle("python f | ==").skips] == ["rank 0"]


def test_each_rank_has_its_rows() -> None:
    table = analyze(draw_run("s7 k | ==  ==", "s7 k | ==   ==", ns_per_char=COLUMN), "idle")["causes"]
    assert records(table, "rank", "cause", "dur_ns") == [(0, "no launch", 20_000), (1, "no launch", 30_000)]
