"""Schedules: each micro-batch through each chunk once, idle time and memory as the closed forms say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.analysis.schedules import played
from tests.planner.pipeline.drawn import bars, drawn, even, in_flight
from tracelens.errors import TracelensError, UnknownName
from tracelens.planner import fractions
from tracelens.planner import in_flight as closed_in_flight
from tracelens.planner.pipeline import (
    PHASES,
    SCHEDULES,
    Costs,
    Played,
    Schedule,
    check,
    chunks_of,
    make_schedule,
    make_times,
    simulate,
)


def play(schedule: Schedule, forward: int = 1, backward: int = 2, **costs: float) -> Played:
    times = make_times(
        even(schedule.count, forward, backward), schedule.stages, schedule.micro_batches, Costs(**costs)
    )
    return simulate(schedule, times)


def peaks(schedule: Schedule) -> list[int]:
    return [int(in_flight(slots).max()) for slots in schedule.orders]


def windows(simulated: Played) -> list[int]:
    """Of each stage, the time from its first to its last pass."""
    rows = [simulated.of(stage) for stage in range(simulated.schedule.stages)]
    return [int(simulated.end[row].max() - simulated.start[row].min()) for row in rows]


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    """Any schedule that can be made."""
    name = draw(st.sampled_from(list(SCHEDULES)))
    stages = draw(st.integers(1, 7))
    chunks = chunks_of(name, draw(st.integers(1, 4)))
    group = draw(st.integers(stages, stages + 3))
    rest = draw(st.sampled_from([0, *range(stages, group)]))
    micro_batches = group * draw(st.integers(1, 3)) + rest
    if SCHEDULES[name].chunks != "any":
        micro_batches = draw(st.integers(1, 20))
    return make_schedule(name, stages, micro_batches, chunks, group)


@given(schedules(), st.integers(0, 9), st.integers(1, 9), st.integers(0, 5))
def test_each_pass_runs_once_and_after_what_it_needs(
    schedule: Schedule, forward: int, backward: int, transit: int
) -> None:
    check(schedule)
    simulated = play(schedule, forward, backward, forward_transit=transit, backward_transit=transit)
    ends = {}
    rows = zip(
        simulated.stage.tolist(),
        (PHASES[code] for code in simulated.phase.tolist()),
        simulated.position.tolist(),
        simulated.micro_batch.tolist(),
        simulated.start.tolist(),
        simulated.end.tolist(),
        strict=True,
    )
    passes = list(rows)
    for stage, phase, place, micro_batch, _, end in passes:
        ends[phase, place, micro_batch] = end, stage
    assert len(ends) == len(passes) == schedule.count * schedule.micro_batches * (2 + schedule.splits)
    last = schedule.count - 1
    back = "input" if schedule.splits else "backward"
    for stage, phase, place, micro_batch, start, _ in passes:
        needs = {
            "forward": ("forward", place - 1) if place else None,
            "weight": ("input", place),
            back: (back, place + 1) if place < last else ("forward", last),
        }[phase]
        if needs is not None:
            end, other = ends[(*needs, micro_batch)]
            assert start >= end + transit * (other != stage)
    for stage in range(schedule.stages):
        rows_of = simulated.of(stage)
        assert (simulated.start[rows_of][1:] >= simulated.start[rows_of][:-1]).all()


@pytest.mark.parametrize("chunks", [1, 2, 3, 5, 8])
@pytest.mark.parametrize(
    "stages",
    [2, 3, 4, 7, 8, 13, *(pytest.param(size, marks=pytest.mark.slow) for size in (5, 6, 12, 16, 24, 32))],
)
def test_interleaved_1f1b_is_its_closed_form(stages: int, chunks: int) -> None:
    for rounds, forward, backward in ((1, 3, 7), (2, 5, 2)):
        micro_batches = rounds * stages
        schedule = make_schedule("interleaved", stages, micro_batches, chunks)
        simulated = play(schedule, forward, backward)
        both = forward + backward
        assert simulated.makespan == (micro_batches * chunks + stages - 1) * both
        idle = [simulated.makespan - simulated.busy(stage) for stage in range(stages)]
        assert idle == [(stages - 1) * both] * stages
        whole, ideal = fractions(stages, micro_batches, chunks)
        assert idle[0] == whole * simulated.makespan == ideal * simulated.busy(0)
        assert peaks(schedule) == [
            closed_in_flight(stages, stage, micro_batches, chunks) for stage in range(stages)
        ]


@given(
    st.sampled_from(["gpipe", "1f1b"]),
    st.integers(1, 9),
    st.integers(1, 25),
    st.integers(0, 30),
    st.integers(1, 30),
)
def test_one_chunk_a_stage_is_its_closed_form(
    name: str, stages: int, micro_batches: int, forward: int, backward: int
) -> None:
    schedule = make_schedule(name, stages, micro_batches)
    assert play(schedule, forward, backward).makespan == (micro_batches + stages - 1) * (forward + backward)
    held = {
        "gpipe": [micro_batches] * stages,
        "1f1b": [min(stages - stage, micro_batches) for stage in range(stages)],
    }
    assert peaks(schedule) == held[name]


@given(st.data(), st.integers(1, 6), st.integers(2, 5), st.integers(0, 30), st.integers(1, 30))
def test_longer_turns_keep_the_closed_form(
    data: st.DataObject, stages: int, chunks: int, forward: int, backward: int
) -> None:
    group = data.draw(st.integers(stages, stages + 4))
    rest = data.draw(st.sampled_from([0, *range(stages, group)]))
    micro_batches = group * data.draw(st.integers(1, 3)) + rest
    schedule = make_schedule("interleaved", stages, micro_batches, chunks, group)
    expected = (micro_batches * chunks + stages - 1) * (forward + backward)
    assert play(schedule, forward, backward).makespan == expected
    assert peaks(schedule) == [
        min(2 * (stages - stage - 1) + (chunks - 1) * group + 1, micro_batches * chunks)
        for stage in range(stages)
    ]


@given(st.integers(1, 5), st.integers(1, 3), st.integers(1, 3), st.integers(1, 4), st.integers(1, 4))
def test_agrees_with_another_player(
    stages: int, rounds: int, chunks: int, forward: int, backward: int
) -> None:
    micro_batches = rounds * stages
    simulated = play(make_schedule("interleaved", stages, micro_batches, chunks), forward, backward)
    other = played(stages, micro_batches, chunks, forward, backward)
    assert bars(simulated) == [
        [(piece.kind, piece.micro_batch, piece.start, piece.end) for piece in lane] for lane in other
    ]


def test_one_forward_one_backward_by_hand() -> None:
    assert bars(play(make_schedule("1f1b", 3, 4))) == drawn(
        "012....aa3bb.cc.dd",
        ".01..aa2bb3cc.dd",
        "..0aa1bb2cc3dd",
    )


def test_zb_h1_by_hand() -> None:
    assert bars(play(make_schedule("zb-h1", 2, 3))) == drawn("01.aA2bBcC", ".0a1bA2cBC")


def test_zb_v_by_hand() -> None:
    # Down through chunks 0 and up through chunks 1; the other stage's two forwards follow each other.
    assert bars(play(make_schedule("zb-v", 2, 1, 2)))[:1] == drawn("0..0aA..aA")


def test_neighbouring_chunks_on_one_stage_need_no_message() -> None:
    simulated = play(make_schedule("zb-v", 2, 1, 2), forward_transit=1, backward_transit=1)
    # Two messages down and up again, none at the turn on stage 1.
    assert bars(simulated)[:1] == drawn("0....0aA....aA")


@given(st.integers(1, 9), st.integers(0, 20))
def test_zero_bubble_schedules_with_equal_thirds(stages: int, more: int) -> None:
    micro_batches = stages + more
    h1 = make_schedule("zb-h1", stages, micro_batches)
    # (p - 1) (F + I - W) of idle time, a third of that of 1F1B, at the memory of its first stage.
    assert play(h1).makespan == 3 * micro_batches + stages - 1
    assert max(peaks(h1)) == stages
    micro_batches = 2 * stages - 1 + more
    h2 = make_schedule("zb-h2", stages, micro_batches)
    assert windows(play(h2)) == [3 * micro_batches] * stages
    assert max(peaks(h2)) == 2 * stages - 1
    v = make_schedule("zb-v", stages, micro_batches, 2)
    assert windows(play(v)) == [6 * micro_batches] * stages
    assert max(peaks(v)) == 2 * stages


@pytest.mark.parametrize("stages", [2, 4, 8])
def test_overlap_adds_one_forward_and_runs_at_the_rate_of_pairs(stages: int) -> None:
    micro_batches, chunks = 4 * stages, 2
    plain = make_schedule("interleaved", stages, micro_batches, chunks)
    beside = make_schedule("interleaved-overlap", stages, micro_batches, chunks)
    assert peaks(beside) == [min(held + 1, micro_batches * chunks) for held in peaks(plain)]
    # Half of each pass is exchanged: in a pair, computation of one lies under the exchange of the other.
    times = make_times(even(beside.count, 10, 20, 0.5), stages, micro_batches)
    simulated = simulate(beside, times)
    last = simulated.of(stages - 1)
    pairs = micro_batches * chunks - (chunks - 1) * stages - 1
    assert int((simulated.end - simulated.start)[last].max()) == 20
    steady = (
        simulated.end[last & (simulated.phase == 0)].max()
        - simulated.start[last & (simulated.phase == 1)].min()
    )
    assert steady == 20 * pairs
    assert simulated.makespan < simulate(plain, times).makespan


@given(st.integers(1, 8), st.integers(0, 20), st.integers(1, 4), st.integers(0, 20), st.integers(1, 20))
def test_pairs_without_exchanges_are_as_long_as_what_they_are_made_of(
    stages: int, more: int, chunks: int, forward: int, backward: int
) -> None:
    """The order in which they run costs nothing: the makespan is the closed form of 1F1B."""
    micro_batches = stages * (1 + more // stages)
    name = "interleaved-overlap" if chunks > 1 else "1f1b-overlap"
    schedule = make_schedule(name, stages, micro_batches, chunks)
    expected = (micro_batches * chunks + stages - 1) * (forward + backward)
    assert play(schedule, forward, backward).makespan == expected
    assert peaks(schedule) == [
        min(2 * (stages - stage - 1) + (chunks - 1) * stages + 2, micro_batches * chunks)
        for stage in range(stages)
    ]


def test_overlapped_1f1b_by_hand() -> None:
    times = make_times(even(2, 2, 2, 1 / 2), 2, 4)
    # Half of each pass is exchanged, so that a pair takes as long as one of its passes.
    simulated = simulate(make_schedule("1f1b-overlap", 2, 4), times)
    assert bars(simulated)[0] == [
        ("F", 0, 0, 2),
        ("F", 1, 2, 4),
        ("F", 2, 4, 6),
        ("F", 3, 6, 8),
        ("B", 0, 6, 8),
        ("B", 1, 8, 10),
        ("B", 2, 10, 12),
        ("B", 3, 12, 14),
    ]
    assert bars(simulated)[1] == [
        ("F", 0, 2, 4),
        ("F", 1, 4, 6),
        ("B", 0, 4, 6),
        ("F", 2, 6, 8),
        ("B", 1, 6, 8),
        ("F", 3, 8, 10),
        ("B", 2, 8, 10),
        ("B", 3, 10, 12),
    ]


@pytest.mark.parametrize(
    ("name", "numbers", "problem"),
    [
        ("interleaved", (4, 6, 2), "a turn of 6 would"),
        ("interleaved", (4, 3, 2), "4 micro-batches would"),
        ("interleaved", (4, 13, 2, 6), "16 micro-batches would"),
        ("interleaved", (4, 8, 2, 2), "each turn needs 4"),
        ("gpipe", (4, 8, 2), "has 1 chunk"),
        ("zb-v", (4, 8, 1), "has 2 chunk"),
        ("1f1b", (0, 8), "at least 1"),
    ],
)
def test_what_cannot_be_made_is_refused(name: str, numbers: tuple[int, ...], problem: str) -> None:
    with pytest.raises(TracelensError, match=problem):
        make_schedule(name, *numbers)


def test_a_misspelt_schedule_gets_a_hint() -> None:
    with pytest.raises(UnknownName, match="did you mean 'interleaved'"):
        make_schedule("interleavd", 2, 2)
