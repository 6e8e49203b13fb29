"""Step windows."""

from __future__ import annotations

import numpy as np
import pytest

from tests.builders import draw, draw_run
from tracelens.errors import TracelensError
from tracelens.trace.activities import gpu_work
from tracelens.trace.steps import AFTER, BEFORE, WHOLE, Steps, find_steps, select_step

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
    found = find_steps(trace, trace.work)
    edges = [edge // 1000 for edge in found.edges.tolist()]
    assert len(edges) == len(found.labels) + 1
    return list(zip(found.labels, edges[:-1], edges[1:], strict=True))


def test_without_marks_the_whole_trace_is_one_window() -> None:
    assert windows("""
        launch | a b
        s7 k   |   aa  bbb
    """) == [("(whole trace)", 2, 9)]


def test_a_step_lasts_until_the_next_mark_and_the_last_until_its_work_is_done() -> None:
    assert windows("""
        step 4 | -----
        step 5 |      -----
        launch | a b  c   d
        s7 k   |  aa bbb cc dddd
    """) == [("ProfilerStep#4", 0, 5), ("ProfilerStep#5", 5, 15)]


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
    assert find_steps(trace, trace.work).edges.tolist() == [0, 1]


@pytest.mark.parametrize("name", ["5", "ProfilerStep#5"])
def test_one_step_cuts_the_work_that_crosses_its_borders(name: str) -> None:
    run = select_step(draw_run(STEPS, STEPS), name)
    for trace in run.traces:
        work = gpu_work(trace)
        # b 4-7 is cut at 5; c 8-10 ends with the step
        assert list(zip(work.start // 1000, work.end // 1000, strict=True)) == [(5, 7), (8, 10)]
        found = find_steps(trace, work)
        assert (found.labels, found.edges.tolist(), found.marked) == (
            ["ProfilerStep#5"],
            [5000, 10_000],
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
    assert Steps(labels, np.arange(len(labels) + 1), True).whole == whole
