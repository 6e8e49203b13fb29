"""Step windows."""

from __future__ import annotations

import numpy as np
import pytest

from tests.builders import draw, draw_run
from tracelens.errors import TracelensError
from tracelens.trace import WHOLE, Steps, gpu_work, select_step, steps_of
from tracelens.trace.run import AFTER, BEFORE

STEPS = """
           | 0    5    10   15
    step 4 | -----
    step 5 |      -----
    step 6 |           -----
    launch | a b    c   d  e
    s7 k   |  aa bbb cc  dd eee
"""


def windows(text: str) -> list[tuple[str, int, int]]:
    """(label, first column, column behind the last) of each window."""
    trace = draw(text)
    steps = steps_of(trace)
    edges = [edge // 1000 for edge in steps.edges.tolist()]
    assert len(edges) == len(steps.labels) + 1
    return list(zip(steps.labels, edges[:-1], edges[1:], strict=True))


def test_without_marks_the_whole_trace_is_one_window() -> None:
    assert windows("""
        launch | a b
        s7 k   |   aa  bbb
    """) == [("(whole trace)", 2, 9)]


def test_a_step_lasts_until_its_work_is_done() -> None:
    assert windows("""
        step 4 | -----
        step 5 |      -----
        launch | a b  c   d
        s7 k   |  aa bbb cc dddd
    """) == [("ProfilerStep#4", 0, 7), ("ProfilerStep#5", 7, 15)]


def test_a_host_that_runs_ahead_does_not_make_its_steps_short() -> None:
    assert windows("""
        step 4 | ---
        step 5 |    ---
        launch | ab cd
        s7 k   |  aaaabbbbccccdddd
    """) == [("ProfilerStep#4", 0, 9), ("ProfilerStep#5", 9, 17)]


def test_what_was_queued_before_the_first_mark_is_before_it() -> None:
    assert windows("""
        step 4 | ---
        step 5 |    ---
        launch | ab cd
        s7 k   | ====aaaabbbbccccdddd
    """) == [("(before the first step)", 0, 4), ("ProfilerStep#4", 4, 12), ("ProfilerStep#5", 12, 20)]


def test_a_step_is_over_when_all_its_streams_are() -> None:
    """The next step waits for b, which the host launched in this one."""
    assert windows("""
        step 4 | ----
        step 5 |     ----
        launch | ab  cd
        s7 k   |  aaa      ccc
        s9 n   |   bbbbbbb
        s7 k   |              ddd
    """) == [("ProfilerStep#4", 0, 9), ("ProfilerStep#5", 9, 16)]


def test_a_kernel_that_stays_for_good_ends_no_step_but_the_last() -> None:
    assert windows("""
        step 4 | ----
        step 5 |     ----
        step 6 |         ----
        launch | ab  c   d
        s7 k   |  aaa ccc dd
        s9 n   |   bbbbbbbbbbbbbbb
    """) == [("ProfilerStep#4", 0, 4), ("ProfilerStep#5", 4, 8), ("ProfilerStep#6", 8, 17)]


def test_work_without_a_launch_belongs_to_the_step_of_its_neighbours_on_the_stream() -> None:
    steps = steps_of(draw("""
        step 4 | ---
        step 5 |    ---
        launch | a  b c
        s7 k   |  aaaa==bbbb==cc==
    """))  # fmt: skip
    labels = [steps.labels[window] for window in steps.of_work.tolist()]
    # Behind the last launch of the stream only the time is known.
    assert labels == ["ProfilerStep#4"] + ["ProfilerStep#5"] * 4 + [AFTER]
    assert steps.edges.tolist() == [0, 5000, 15_000, 17_000]


def test_the_host_windows_of_steps() -> None:
    steps = steps_of(draw("""
        step 4 | ---
        step 5 |    ---
        launch | ab cd    e
        s7 k   |  aaaabbbbccccdddd eee
    """))  # fmt: skip
    assert steps.labels == ["ProfilerStep#4", "ProfilerStep#5", AFTER]
    assert steps.marks[:3].tolist() == [0, 3000, 6000]
    assert steps.begun_at(np.array([-5, 0, 2999, 3000, 5999, 6000, 10**9])).tolist() == [0, 0, 0, 1, 1, 2, 2]
    whole = steps.only_whole()
    assert (whole.labels, whole.of_work.tolist()) == (steps.labels[:2], [0, 0, 1, 1, -1])


def test_the_last_step_does_not_wait_for_work_launched_after_it() -> None:
    assert windows("""
        step 4 | -----
        launch | a b   c
        s7 k   |  aa b    cccc
    """) == [("ProfilerStep#4", 0, 5), ("(after the last step)", 5, 13)]


def test_work_before_the_first_mark_has_a_window() -> None:
    assert windows("""
        step 4 |     -----
        launch |      b
        s7 k   | ==     bb
    """) == [("(before the first step)", 0, 4), ("ProfilerStep#4", 4, 9)]


def test_a_step_marked_on_several_threads_is_one() -> None:
    assert windows("""
        step 4       | -----
        step 4 tid=2 |  ----
        step 5       |      -----
        s7 k         |  ====    =
    """) == [("ProfilerStep#4", 0, 5), ("ProfilerStep#5", 5, 10)]


def test_marks_on_the_gpu_row_and_names_like_marks_do_not_count() -> None:
    assert windows("""
        gpu ProfilerStep#4    | -----
        scope ProfilerStep#x  | -----
        python ProfilerStep#5 | -----
        s7 k                  |  ==
    """) == [("(whole trace)", 1, 3)]


def test_steps_need_not_be_drawn_in_order() -> None:
    assert [label for label, _, _ in windows("""
        step 11 |           -----
        step 9  | -----
        step 10 |      -----
        s7 k    | ===  ===  ===
    """)] == ["ProfilerStep#9", "ProfilerStep#10", "ProfilerStep#11"]  # fmt: skip


def test_work_without_extent_still_has_a_window() -> None:
    trace = draw("s7 k | !")
    assert steps_of(trace).edges.tolist() == [0, 1]


@pytest.mark.parametrize("name", ["5", "ProfilerStep#5"])
def test_a_step_by_itself_has_the_work_that_it_launched(name: str) -> None:
    run = select_step(draw_run(STEPS, STEPS), name)
    for trace in run.traces:
        work = gpu_work(trace)
        # b 4-7 was launched in step 4, which ends with it
        assert list(zip(work.start // 1000, work.end // 1000, strict=True)) == [(8, 10)]
        steps = steps_of(trace)
        assert (steps.labels, steps.edges.tolist(), steps.marked) == (
            ["ProfilerStep#5"],
            [7000, 10_000],
            True,
        )


def test_all_steps_together_hold_all_work_once() -> None:
    run = draw_run(STEPS)
    whole = gpu_work(run.traces[0]).union().total
    parts = [gpu_work(select_step(run, step).traces[0]).union().total for step in "456"]
    assert sum(parts) == whole


def test_an_unknown_step_lists_the_known_ones() -> None:
    with pytest.raises(TracelensError, match=r"drawn\.json: no step '9' \(has: ProfilerStep#4, .*#6\)"):
        select_step(draw_run(STEPS), "9")


def test_a_trace_without_marks_has_no_step() -> None:
    with pytest.raises(TracelensError, match="no step marks"):
        select_step(draw_run("s7 k | ==", "op f | =="), "1")


@pytest.mark.parametrize(
    ("labels", "whole"),
    [
        ([], range(0)),
        ([WHOLE], range(1)),
        (["ProfilerStep#1", "ProfilerStep#2"], range(2)),
        ([BEFORE, "ProfilerStep#1", AFTER], range(1, 2)),
        ([BEFORE], range(1)),
    ],
    ids=("nothing", "no marks", "steps", "around", "selected"),
)
def test_what_counts_as_a_step(labels: list[str], whole: range) -> None:
    edges, nothing = np.arange(len(labels) + 1), np.empty(0, np.int64)
    assert Steps(labels, edges, edges, nothing, nothing, True).whole == whole
