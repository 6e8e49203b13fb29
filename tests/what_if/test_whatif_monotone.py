"""Less GPU work never makes a step longer: bounds of drawn runs, and properties of random ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.analysis.drawings import Drawing, drawings
from tests.builders import draw_run
from tests.what_if.replays import projected, run_of
from tracelens.trace import Run
from tracelens.what_if import Edit
from tracelens.what_if.graph import RunGraph, build
from tracelens.what_if.replay.schedule import StepReplay

RUNS_AHEAD = """
    step 0  | ------
    step 1  |       ------------
    launch  | abc       d
    s7 one  |   aaaaaaaa
    s7 two  |           bb
    s7 tri  |             cc
    s7 four |               dd
"""
"""Step 1 begins at 14, 8 columns after its mark, when the work launched before is done, and ends at 18."""


def test_a_step_does_not_get_longer_by_what_was_before_it() -> None:
    """With a faster GPU the step before is over earlier; this one takes what its host takes, but no longer.

    The host's part of step 1 was 12 columns, of which the GPU's backlog hid 8.
    """
    run = run_of(RUNS_AHEAD)
    steps = [projected(run, f"scale:*={factor}", step="1") for factor in (1, 0.9, 0.5, 0.1, 0)]
    assert steps[0] == 4
    assert steps == sorted(steps, reverse=True)


LEADS = """
    step 0  | ------
    step 1  |       ------
    step 2  |             ------
    launch  | a     b     c
    s7 one  |  aaaaaaaaaaaa
    s7 two  |              bbbbbbbbbbbb
    s7 tri  |                          cccccccccccc
"""


@pytest.mark.parametrize(("factor", "expected"), [(1, 12), (0.75, 9), (0.5, 6), (0.25, 6), (0, 6)])
def test_a_host_that_runs_ahead_bounds_the_step(factor: float, expected: float) -> None:
    """Steps take 12 columns of GPU work and 6 of the host, who is 7 ahead when the GPU begins step 1."""
    assert projected(run_of(LEADS), f"scale:*={factor:g}", step="1") == expected


BOUNDS = """
    step 0                       | -------------------------------
    launch                       | a     b              c
    launch cudaStreamSynchronize |        ------------        ---
    s7 first                     |   aaaaaaa
    s7 second                    |          bbbbbbbb
    s7 third                     |                        ccc
"""
"""The first call waits from 7 to 19, 2 columns more than the work; the second has nothing to wait for."""


def test_without_gpu_work_the_host_alone_is_left() -> None:
    """The wait of 12 columns costs 3, like the other call."""
    assert projected(run_of(BOUNDS), "scale:*=0") == 31 - 12 + 3


def test_without_host_time_the_gpu_alone_is_left() -> None:
    """Kernels from 2 to 17, the call returns at 19, the third launch's kernel runs from 21 to 24.

    The last call has to wait for that now, and returns 3 columns later, as such a call does.
    """
    assert projected(run_of(BOUNDS), "launch_free") == 2 + 15 + 2 + 2 + 3 + 3


_FACTORS = [1, 0.9, 0.75, 0.5, 0.25, 0.1, 0]


def _replays(run: Run) -> tuple[RunGraph, list[StepReplay]]:
    recorded = build(run)
    return recorded.graph, [StepReplay(recorded.graph, window) for window in recorded.windows]


def _drawn(*parts: Drawing) -> Run:
    run = draw_run(*(Drawing(d.work, d.calls, d.spans, [10, 15, 15]).text for d in parts))
    assume(all(len(trace.work.event) for trace in run.traces))
    return run


@given(drawings, drawings)
def test_less_gpu_work_is_no_longer_step(first: Drawing, second: Drawing) -> None:
    graph, steps = _replays(_drawn(first, second))
    for step in steps:
        for delays in ("low", "typical", "high"):
            durs = []
            for factor in _FACTORS:
                edit = Edit.of(graph)
                edit.dur = np.rint(edit.dur * factor).astype(np.int64)
                durs.append(step.steady(edit, delays).dur.tolist())
            base = step.window.spans(graph.start, graph.end).tolist()
            assert durs[0] == [max(dur, 0) for dur in base] or min(base) < 0
            assert (np.diff(np.array(durs), axis=0) <= 0).all()


@given(drawings, st.data())
def test_nor_is_less_of_anything(drawing: Drawing, data: st.DataObject) -> None:
    """Some nodes and edges shorter, then some more of them."""
    graph, steps = _replays(_drawn(drawing))
    edit = Edit.of(graph)
    durs = [[dur for step in steps for dur in step.steady(edit).dur.tolist()]]
    for _ in range(2):
        for values in (edit.dur, edit.lag):
            if not len(values):
                continue
            rows = data.draw(st.lists(st.integers(0, len(values) - 1), max_size=4))
            factor = data.draw(st.floats(0, 1))
            values[rows] = np.where(values[rows] > 0, (values[rows] * factor).astype(np.int64), values[rows])
        durs.append([dur for step in steps for dur in step.steady(edit).dur.tolist()])
    assert (np.diff(np.array(durs), axis=0) <= 0).all()
