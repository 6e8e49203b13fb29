"""The player: messages, waits of the host, pairs, and deadlocks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.planner.pipeline.drawn import bars, drawn, even
from tracelens.errors import TracelensError
from tracelens.planner.pipeline import (
    BACKWARD,
    FORWARD,
    INPUT,
    WEIGHT,
    ChunkTimes,
    Costs,
    Pass,
    Schedule,
    check,
    make_schedule,
    make_times,
    overlapped_ns,
    round_robin,
    simulate,
    singles,
)


def passes(text: str, chunk: int = 0) -> list[Pass]:
    """Passes from text such as "F0 B0"."""
    phases = {"F": FORWARD, "B": BACKWARD, "I": INPUT, "W": WEIGHT}
    return [Pass(phases[word[0]], chunk, int(word[1:])) for word in text.split()]


def handmade(*lines: str, micro_batches: int = 1) -> Schedule:
    orders = tuple(singles(passes(line)) for line in lines)
    return Schedule("handmade", round_robin(len(lines), 1), micro_batches, orders)


def test_messages_take_their_time_and_keep_no_stage_busy() -> None:
    times = make_times(even(2, 1, 2), 2, 3, Costs(forward_transit=1, backward_transit=3))
    played = simulate(make_schedule("1f1b", 2, 3), times)
    assert bars(played) == drawn("01......aa2bb.....cc", "..0aa1bb....2cc")
    assert played.makespan == 20
    assert [played.busy(stage) for stage in range(2)] == [9, 9]


def test_the_host_takes_its_time_between_passes() -> None:
    times = make_times(even(2, 1, 2), 2, 2, Costs(gap=(2, 0)))
    played = simulate(make_schedule("1f1b", 2, 2), times)
    assert bars(played) == drawn("0..1..aa..bb", ".0aa1bb")


def test_each_pass_may_take_another_time() -> None:
    times = make_times(ChunkTimes(*(np.array(ns) for ns in ([1, 3], [2, 4], [0, 0], [0, 0]))), 2, 2)
    played = simulate(make_schedule("gpipe", 2, 2), times)
    assert bars(played) == drawn("01.........aa..bb", ".000111aaaabbbb")


@given(
    st.lists(st.integers(0, 50), min_size=2, max_size=2), st.lists(st.integers(0, 50), min_size=2, max_size=2)
)
def test_a_pair_is_never_faster_than_what_it_is_made_of(computed: list[int], exchanged: list[int]) -> None:
    wholes = [one + other for one, other in zip(computed, exchanged, strict=True)]
    ns = overlapped_ns(wholes, exchanged)
    assert max(*wholes, sum(computed), sum(exchanged)) == ns <= sum(wholes)


def test_a_circle_of_waiting_stages_is_named() -> None:
    schedule = handmade("F0 B0 F1 B1", "F0 F1 B0 B1", micro_batches=2)
    with pytest.raises(TracelensError) as caught:
        simulate(schedule, make_times(even(2, 1, 1), 2, 2))
    assert str(caught.value) == (
        "schedule handmade deadlocks: stage 0 waits before its pass 1 (backward of micro-batch 0 in chunk "
        "0) for pass 2 of stage 1 (backward of micro-batch 0 in chunk 0); stage 1 waits before its pass 1 "
        "(forward of micro-batch 1 in chunk 0) for pass 2 of stage 0 (forward of micro-batch 1 in chunk 0)"
    )


def test_a_pass_that_nobody_runs_is_named() -> None:
    with pytest.raises(TracelensError, match=r"forward of micro-batch 0 in chunk 0 of stage 0, which never"):
        simulate(handmade("", "F0 B0"), make_times(even(2, 1, 1), 2, 1))


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (("F0 B0", "F0"), "stage 1 never runs backward of micro-batch 0"),
        (("F0 F0 B0", "F0 B0"), "stage 0 runs forward of micro-batch 0 in chunk 0 twice"),
        (("F0 F1 B0", "F0 B0"), "which is not one of its passes"),
        (("F0 I0", "F0 B0"), "stage 0 never runs weight gradients of micro-batch 0"),
        (("F0 I0 W0 B0", "F0 B0"), "which is not one of its passes"),
    ],
)
def test_schedules_are_checked(lines: tuple[str, ...], problem: str) -> None:
    with pytest.raises(TracelensError, match=problem):
        check(handmade(*lines))


def test_chunks_lie_on_one_stage_each() -> None:
    schedule = Schedule("twice", ((0,), (0,)), 1, (singles(passes("F0 B0")),) * 2)
    with pytest.raises(TracelensError, match="on one stage"):
        check(schedule)


@pytest.mark.parametrize("share", [-0.1, 1.1])
def test_shares_are_shares(share: float) -> None:
    with pytest.raises(TracelensError, match="0 to 1"):
        make_times(even(2, 1, 1), 2, 1, Costs(weight_share=share))
