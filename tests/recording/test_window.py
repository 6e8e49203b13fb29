"""Which steps are recorded, against a loop that counts and against torch's own schedule."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.errors import TracelensError
from tracelens.recording import WARMUP, RecordingWindow

WINDOWS = st.builds(
    RecordingWindow, wait=st.integers(0, 6), warmup=st.integers(0, 4), steps=st.integers(1, 5)
)


@given(WINDOWS)
def test_phases_follow_each_other(window: RecordingWindow) -> None:
    phases = [window.phase(step) for step in range(window.end + 2)]
    expected = ["wait"] * window.wait + ["warmup"] * window.warmup + ["record"] * window.steps + ["done"] * 2
    assert phases == expected


@pytest.mark.torch
@given(WINDOWS)
@pytest.mark.filterwarnings("ignore:Profiler won't be using warmup")
def test_as_torch_schedules_it(window: RecordingWindow) -> None:
    profiler = pytest.importorskip("torch.profiler", reason="recording needs torch")
    action = profiler.ProfilerAction
    names = {"wait": action.NONE, "warmup": action.WARMUP, "record": action.RECORD, "done": action.NONE}
    theirs = profiler.schedule(wait=window.wait, warmup=window.warmup, active=window.steps, repeat=1)
    for step in range(window.end + 2):
        last = step == window.end - 1
        assert theirs(step) == (action.RECORD_AND_SAVE if last else names[window.phase(step)])


@given(WINDOWS, st.integers(0, 20))
def test_recorded_steps_are_those_that_were_finished(window: RecordingWindow, finished: int) -> None:
    expected = [step for step in range(finished) if window.phase(step) == "record"]
    assert list(window.recorded(finished)) == expected


@given(st.integers(0, 30), st.integers(1, 10), st.integers(0, 8))
def test_the_other_spelling(start: int, steps: int, warmup: int) -> None:
    window = RecordingWindow.between(start, start + steps, warmup)
    assert [step for step in range(window.end + 3) if window.phase(step) == "record"] == [
        *range(start, start + steps)
    ]
    assert window.warmup == min(warmup, start)


def test_defaults_leave_the_start_of_the_training_out() -> None:
    assert (RecordingWindow().first, RecordingWindow().end) == (7, 10)
    assert RecordingWindow.between(10, 12).wait == 10 - WARMUP


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"wait": -1}, "wait must be a whole number, 0 or more, not -1"),
        ({"warmup": 1.5}, "warmup must be a whole number, 0 or more, not 1.5"),
        ({"steps": 0}, "steps must be a whole number, 1 or more, not 0"),
        ({"steps": True}, "steps must be a whole number, 1 or more, not True"),
        ({"wait": "5"}, "wait must be a whole number, 0 or more, not '5'"),
    ],
)
def test_what_is_no_window(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(TracelensError) as caught:
        RecordingWindow(**arguments)
    assert str(caught.value) == message


@pytest.mark.parametrize(("start", "end"), [(4, 4), (4, 2), (-1, 2)])
def test_an_empty_window(start: int, end: int) -> None:
    with pytest.raises(TracelensError, match=f"no step to record from {start} to {end}"):
        RecordingWindow.between(start, end)
