"""Properties of the replay, on random drawings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tracelens
from tests.analysis.drawings import Drawing, drawings
from tests.builders import draw_run
from tests.what_if.replays import assert_identity
from tracelens.what_if import Edit, ScenarioContext
from tracelens.what_if.graph import build
from tracelens.what_if.replay import schedule

SAMPLES = Path(__file__).parents[2] / "sample_traces"
DELAYS: tuple[schedule.Delays, ...] = ("typical", "low", "high")

pytestmark = pytest.mark.usefixtures("each_core")


@given(drawings)
def test_nothing_changed_nothing_moved(drawing: Drawing) -> None:
    assert_identity(draw_run(drawing.text))


@given(drawings, drawings)
def test_nor_on_two_ranks(first: Drawing, second: Drawing) -> None:
    assert_identity(draw_run(*(Drawing(d.work, d.calls, d.spans, []).text for d in (first, second))))


@given(drawings, st.data())
def test_what_takes_less_time_delays_nothing(drawing: Drawing, data: st.DataObject) -> None:
    """Any node and edge made shorter: no node is later than before, and low <= typical <= high."""
    recorded = assert_identity(draw_run(drawing.text))
    graph = recorded.graph
    shorter = st.floats(0, 1)
    edit = Edit.of(graph)
    for values in (edit.dur, edit.lag):
        chosen = data.draw(st.dictionaries(st.integers(0, max(len(values) - 1, 0)), shorter, max_size=4))
        for index, factor in chosen.items():
            if index < len(values) and values[index] > 0:
                values[index] = int(values[index] * factor)
    dropped = data.draw(st.sets(st.integers(0, max(len(edit.kept) - 1, 0)), max_size=2))
    more = Edit(edit.dur.copy(), edit.delay.copy(), edit.lag.copy(), edit.kept.copy())
    for index in dropped:
        if index < len(edit.kept) and (graph.dst[edit.kept] == graph.dst[index]).sum() > 1:
            more.kept[index] = False
    low, typical, high = (schedule.schedule(graph, more, delays) for delays in ("low", "typical", "high"))
    assert (low.end <= typical.end).all()
    assert (typical.end <= high.end).all()
    assert (high.end <= graph.end).all()


@given(drawings, st.data())
def test_what_takes_longer_hastens_nothing(drawing: Drawing, data: st.DataObject) -> None:
    graph = assert_identity(draw_run(drawing.text)).graph
    edit = Edit.of(graph)
    node = data.draw(st.integers(0, len(graph) - 1))
    edit.dur[node] += data.draw(st.integers(1, 10_000))
    low, typical, high = (schedule.schedule(graph, edit, delays) for delays in ("low", "typical", "high"))
    assert (graph.end <= low.end).all()
    assert (low.end <= typical.end).all()
    assert (typical.end <= high.end).all()


@given(drawings, st.data())
def test_other_lags_of_an_edit_are_replayed_as_an_edit_of_their_own(
    drawing: Drawing, data: st.DataObject
) -> None:
    recorded = build(draw_run(drawing.text))
    graph, edit = recorded.graph, Edit.of(recorded.graph)
    for values in (edit.dur, edit.delay):
        for row in data.draw(st.sets(st.integers(0, len(graph) - 1), max_size=3)):
            values[row] //= 2
    for edge in data.draw(st.sets(st.integers(0, max(len(edit.kept) - 1, 0)), max_size=2)):
        edit.kept[edge : edge + 1] = False
    segment = schedule.ReplaySegment(graph, data.draw(st.sampled_from([None, *recorded.windows])))
    edited, shorter = schedule.EditedSegment(segment, edit), edit.lag // 2
    for delays in DELAYS:
        edited.schedule(delays)
        other = Edit(edit.dur, edit.delay, shorter, edit.kept)
        expected = schedule.EditedSegment(segment, other).schedule(delays).times
        for ours, theirs in zip(edited.with_lag(shorter).schedule(delays).times, expected, strict=True):
            np.testing.assert_array_equal(ours, theirs)
        assert (
            edited.schedule(delays).times.end == schedule.schedule(graph, edit, delays, segment).end
        ).all()


@given(drawings)
def test_what_waits_for_nothing_any_more_stays_though_it_was_early(drawing: Drawing) -> None:
    recorded = build(draw_run(drawing.text))
    graph, edit = recorded.graph, Edit.of(recorded.graph)
    edit.kept[:] = False
    for window in (None, *recorded.windows):
        edited = schedule.EditedSegment(schedule.ReplaySegment(graph, window), edit)
        early = np.ones(edited.reduction.rows, dtype=bool)
        assert (edited.schedule(early=early).times.end == graph.end).all()


@given(drawings, st.data())
def test_a_repetition_is_what_a_replay_from_the_begin_gives(drawing: Drawing, data: st.DataObject) -> None:
    recorded = build(draw_run(drawing.text))
    graph, edit = recorded.graph, Edit.of(recorded.graph)
    for values in (edit.dur, edit.lag, edit.delay):
        for row in data.draw(st.sets(st.integers(0, max(len(values) - 1, 0)), max_size=3)):
            values[row : row + 1] //= 2
    for edge in data.draw(st.sets(st.integers(0, max(len(edit.kept) - 1, 0)), max_size=2)):
        edit.kept[edge : edge + 1] = False
    segment = schedule.ReplaySegment(graph, data.draw(st.sampled_from([None, *recorded.windows])))
    edited = schedule.EditedSegment(segment, edit)
    delays = data.draw(st.sampled_from(DELAYS))
    replay = edited.schedule(delays)
    early = np.zeros(edited.reduction.rows, dtype=bool)
    for _ in range(3):
        early, shift = early | replay.early, np.zeros(graph.lanes, dtype=np.int64)
        for row in data.draw(st.sets(st.integers(0, len(early)), max_size=3)):
            early[row : row + 1] = True
        for lane in data.draw(st.sets(st.integers(0, graph.lanes), max_size=2)):
            shift[lane : lane + 1] = data.draw(st.integers(-10_000, 10_000))
        replay = edited.repeat(replay, shift, early)
        for ours, theirs in zip(replay.times, edited.schedule(delays, shift, early).times, strict=True):
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    ("shift_ns", "least", "most"), [(0, 0, 0), (5_000, 100, 500), (90_000, 4_000, 5_000)]
)
def test_few_and_many_rows_follow_from_what_is_done_later(shift_ns: int, least: int, most: int) -> None:
    recorded = build(tracelens.load(SAMPLES / "ladder/ep4/00_baseline"))
    graph, edit = recorded.graph, Edit.of(recorded.graph)
    edit.dur //= 2
    edited = schedule.EditedSegment(schedule.ReplaySegment(graph, recorded.windows[0]), edit)
    before, shift = edited.schedule(), np.full(graph.lanes, shift_ns)
    early = np.zeros(edited.reduction.rows, dtype=bool)
    after = edited.repeat(before, shift, early)
    assert least <= np.count_nonzero(after.all_ends != before.all_ends) <= most
    expected = edited.schedule(shift=shift, early=early)
    np.testing.assert_array_equal(after.all_ends, expected.all_ends)


def test_what_no_edit_changes_is_made_once() -> None:
    made: list[str] = []

    def nodes(context: ScenarioContext, argument: str) -> int:
        made.append(argument)
        return len(context.graph)

    context = ScenarioContext(build(draw_run("s7 a | --")))
    assert [context.once(nodes, argument) for argument in "aba"] == [len(context.graph)] * 3
    assert made == ["a", "b"]
