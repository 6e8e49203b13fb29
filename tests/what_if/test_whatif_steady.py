"""The step repeated until it takes as long as before: the next one begins with what it leaves behind."""

from __future__ import annotations

import numpy as np
import pytest

from tests.builders import draw_run
from tests.what_if.replays import projected, run_of
from tracelens.arrays import Int
from tracelens.what_if import Edge, Edit
from tracelens.what_if.graph import Recorded, build
from tracelens.what_if.replay.schedule import StepReplay

RECORD = "op record_param_comms collective=allreduce group=1 ranks=[0,1] size=2 in=8 out=8 dtype=Float"
PAUSES = f"""
    step 0 | ------------
    step 1 |             ------------
    step 2 |                         ------------
    {RECORD} | -           -           -
    launch | a           b           c
    launch cudaStreamSynchronize |  ----        ----        ----
    s7 ncclDevKernel_AllReduce |  aaa         bbb         ccc
"""
"""Steps of 12 columns, of which the last 7 are a pause."""
WAITS = f"""
    step 0 | -----
    step 1 |      ------------
    step 2 |                  ------------
    {RECORD} | -    -           -
    launch | a    b           c
    launch cudaStreamSynchronize |  ---  ----------  ----------
    s7 ncclDevKernel_AllReduce |  aaa  bbbbbbbbbb  cccccccccc
"""
"""The other rank: its steps 1 and 2 begin when its kernel is done, and wait for the pause of the first."""


def steady(recorded: Recorded, edit: Edit, step: int) -> Int:
    """The edited step on each rank, columns."""
    return StepReplay(recorded.graph, recorded.windows[step]).steady(edit).dur // 1_000


def without_pauses(recorded: Recorded) -> Edit:
    graph = recorded.graph
    edit = Edit.of(graph)
    pauses = (graph.edge == Edge.HOST) & (graph.rank[graph.dst] == 0) & (graph.lag >= 6_000)
    assert pauses.sum() == 3
    edit.lag[pauses] -= 6_000
    return edit


def test_a_pause_at_the_end_of_a_step_is_not_waited_for_in_the_next() -> None:
    """The pauses of rank 0 go, all but a column: both ranks take 6 columns less, not only the first."""
    recorded = build(run_of(PAUSES, WAITS))
    for step in (1, 2):
        assert steady(recorded, Edit.of(recorded.graph), step).tolist() == [12, 12]
        assert steady(recorded, without_pauses(recorded), step).tolist() == [6, 6]


def test_the_first_step_follows_what_is_not_recorded() -> None:
    """It is not repeated, and stands for no other step."""
    recorded = build(run_of(PAUSES, WAITS))
    assert steady(recorded, without_pauses(recorded), 0).tolist() == [6, 5]
    assert projected(run_of(PAUSES, WAITS), "identity") == 12


@pytest.mark.parametrize("delays", ["low", "typical", "high"])
@pytest.mark.parametrize("factor", [0.0, 0.3, 0.7, 1.0, 1.5])
def test_ranks_in_lockstep_change_together(factor: float, delays: str) -> None:
    recorded = build(run_of(PAUSES, WAITS))
    edit = Edit.of(recorded.graph)
    edit.dur = np.rint(edit.dur * factor).astype(np.int64)
    replay = StepReplay(recorded.graph, recorded.windows[2])
    first, second = replay.steady(edit, delays).dur  # type: ignore[arg-type]
    assert first == second


LEAD = """
    step 0  | -
    step 1  |  -
    step 2  |   -
    launch  | abc
    s7 one  |  aaaaaaaaaaaaaaaa
    s7 two  |                  bbbbbbbbbbbbbbbb
    s7 tri  |                                  cccccccccccccccc
"""
"""16 columns of GPU work a step, of which the host takes one: it is 30 ahead when the GPU begins the last."""


@pytest.mark.parametrize(("factor", "expected"), [(1, 16), (0.5, 8), (0.125, 2), (0.05, 1), (0, 1)])
def test_a_host_loses_its_lead_however_long_it_takes(factor: float, expected: float) -> None:
    run = draw_run(LEAD)
    assert projected(run, f"scale:*={factor:g}", step="2") == pytest.approx(expected, abs=0.05)
