"""Replays in the native core: the same times as in Python, and no reading beyond the arrays."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.analysis.drawings import Drawing, drawings
from tests.builders import draw_run
from tracelens.arrays import Int
from tracelens.native import PURE, core
from tracelens.what_if import Edit
from tracelens.what_if.graph import build
from tracelens.what_if.replay import schedule


@pytest.fixture(scope="module", autouse=True)
def _native() -> None:
    if core() is None:
        pytest.skip("the native core is not built")


def replayed(
    edited: schedule.EditedSegment, delays: schedule.Delays, shift: Int, pure: str
) -> schedule.NodeTimes:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(PURE, pure)
        return edited.schedule(delays, shift).times


@given(drawings, st.data())
def test_both_cores_replay_to_the_same_times(drawing: Drawing, data: st.DataObject) -> None:
    recorded = build(draw_run(drawing.text))
    graph, edit = recorded.graph, Edit.of(recorded.graph)
    for values in (edit.dur, edit.lag, edit.delay):
        changes = st.dictionaries(st.integers(0, max(len(values) - 1, 0)), st.floats(0, 3), max_size=4)
        for row, factor in data.draw(changes).items():
            values[row : row + 1] = np.rint(values[row : row + 1] * factor)
    for edge in data.draw(st.sets(st.integers(0, max(len(edit.kept) - 1, 0)), max_size=3)):
        edit.kept[edge : edge + 1] = False
    window = data.draw(st.sampled_from([None, *recorded.windows]))
    edited = schedule.EditedSegment(schedule.ReplaySegment(graph, window), edit)
    kinds: tuple[schedule.Delays, ...] = ("low", "typical", "high")
    for delays in kinds:
        for shift_ns in (0, -5_000):
            shift = np.full(graph.lanes, shift_ns)
            both = zip(replayed(edited, delays, shift, "1"), replayed(edited, delays, shift, ""), strict=True)
            for ours, theirs in both:
                np.testing.assert_array_equal(ours, theirs)


COLUMNS = ("first", "first_lag", "second", "second_lag", "more", "ready", "recorded")


def rows(**columns: list[int]) -> list[np.ndarray]:
    """Arguments of a replay of two rows, behind one known end."""
    return [np.array(columns.get(name, [0, 0]), dtype=np.int64) for name in COLUMNS]


def replay(ends: list[int], **columns: list[int]) -> list[int]:
    native, filled = core(), np.array(ends, dtype=np.int64)
    assert native is not None
    native.replay(*rows(**columns), filled)
    return filled.tolist()


def test_a_row_ends_after_the_later_of_two() -> None:
    ends = replay([10, 0, 0], first=[0, 1], first_lag=[1, 2], second_lag=[5, 9], more=[3, 4])
    assert ends == [10, 18, 24]


def test_a_row_that_is_ready_late_enough_ends_no_sooner_than_it_did() -> None:
    assert replay([10, 0, 0], ready=[10, 11], recorded=[30, 30]) == [10, 30, 10]


@pytest.mark.parametrize(
    "columns",
    [
        pytest.param({"first": [1, 0]}, id="waits for itself"),
        pytest.param({"second": [0, 3]}, id="waits for what is not there"),
        pytest.param({"second": [0, -1]}, id="waits for what is before all"),
        pytest.param({"more": [0]}, id="columns of two lengths"),
        pytest.param({name: [0] * 4 for name in COLUMNS}, id="more rows than ends"),
    ],
)
def test_what_cannot_be_replayed(columns: dict[str, list[int]]) -> None:
    with pytest.raises(ValueError, match=r"rows|before it"):
        replay([0, 0, 0], **columns)
