"""Real runs with less and less GPU work: no step gets longer, down to what the host takes alone."""

from __future__ import annotations

import numpy as np
import pytest

from tests.conformance.corpus import Case, every_run, of_each_kind
from tracelens.arrays import Int
from tracelens.errors import TracelensError
from tracelens.trace import union
from tracelens.what_if import (
    Edge,
    Edit,
    Node,
    NotApplicable,
    Projector,
    ReplayedStep,
    ScenarioContext,
    parse_request,
)
from tracelens.what_if.graph import build

FACTORS = [1, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0]

# Latencies that the bounds leave out, at most: of a kernel's start, and of a launch behind a blocking call.
KERNEL_NS, WAIT_NS = 10_000, 100_000


@pytest.fixture(scope="module")
def replay(case: Case) -> ReplayedStep:
    try:
        recorded = build(case.run)
    except TracelensError as error:
        pytest.skip(str(error))
    return ReplayedStep(Projector(recorded, ScenarioContext(recorded, case.run.traces)))


def test_there_are_thirty_traces() -> None:
    assert len(every_run()) >= 30


@of_each_kind
def test_less_gpu_work_is_no_longer_step(replay: ReplayedStep) -> None:
    """On each rank, with unexplained delays kept, typical, and removed."""
    for delays in ("low", "typical", "high"):
        durs = []
        for factor in FACTORS:
            edit = Edit.of(replay.graph)
            edit.dur = np.rint(edit.dur * factor).astype(np.int64)
            durs.append(replay.projector.step.steady(edit, delays).dur.tolist())
        assert durs[0] == replay.projector.base.tolist()
        assert (np.diff(np.array(durs), axis=0) <= 0).all()


@of_each_kind
def test_the_scenario_is_monotone(replay: ReplayedStep) -> None:
    try:
        steps = [
            replay.scenario(parse_request(f"scale:*={factor:g}")).whatif["projected_ns"] for factor in FACTORS
        ]
    except NotApplicable as reason:
        pytest.skip(str(reason))
    assert steps[0] == replay.projector.base_ns
    assert steps == sorted(steps, reverse=True)


def one_rank(replay: ReplayedStep) -> ReplayedStep:
    """Of several ranks, one also waits for the others; without marks nobody knows the host's part."""
    (rank, *others) = replay.graph.ranks
    if others or rank.cpu_only or replay.projector.window.begin[0].mark < 0:
        pytest.skip("several ranks, no GPU, or no step marks")
    return replay


@of_each_kind
def test_without_gpu_work_the_host_alone_is_left(replay: ReplayedStep) -> None:
    """From mark to mark without waiting, or from the begin of the step if the host ran ahead until then."""
    graph, window = one_rank(replay).graph, replay.projector.window
    begin, end = window.borders(graph.start, graph.end)[0]
    first, last = (int(graph.start[border.mark]) for border in (window.begin[0], window.end[0]))
    calls = (graph.edge == Edge.HOST) & (graph.kind[graph.dst] == Node.WAITED)
    returned = graph.start[graph.dst[calls]]
    idle_from = graph.start[graph.src[calls]] + graph.lag[calls]
    mine = (returned > first) & (returned <= last)

    def waited(since: int) -> int:
        return int(np.maximum(returned[mine] - np.maximum(idle_from[mine], since), 0).sum())

    host_ns = min(last - first, int(end - begin)) - waited(first)
    bound = max(host_ns, last - int(begin) - waited(int(begin)), 0)
    edit = Edit.of(graph)
    edit.dur[:] = 0
    dur = int(replay.projector.step.steady(edit).dur[0])
    latencies = KERNEL_NS + int(mine.sum()) * WAIT_NS
    assert dur >= bound - 0.02 * replay.projector.base_ns
    assert dur <= bound + max(
        min(latencies, 0.02 * replay.projector.base_ns), 0.01 * replay.projector.base_ns
    )


@of_each_kind
def test_without_host_time_the_gpu_alone_is_left(replay: ReplayedStep) -> None:
    """No longer than all GPU work one after the other, and no shorter than that of the busiest stream."""
    graph, window = one_rank(replay).graph, replay.projector.window
    work = replay.projector.context.traces[0].work
    inside = (window.step_of == window.number) & (graph.kind == Node.WORK)
    if inside.sum() < 100 or float(replay.explained().array("unexplained_fraction").max()) > 0.1:
        pytest.skip("hardly any GPU work, or delays that nothing explains")
    lane, dur = work.lane[graph.work[inside]], graph.dur[inside]
    busiest = max(
        _busy(graph.start[inside][lane == number], dur[lane == number]) for number in set(lane.tolist())
    )
    waits = int(((graph.kind == Node.WAITED) & (window.step_of == window.number)).sum())
    bound = replay.scenario(parse_request("launch_free")).whatif["projected_ns"]
    assert busiest * 0.99 <= bound
    assert bound <= int(dur.sum()) + int(inside.sum()) * KERNEL_NS + waits * WAIT_NS


def _busy(start: Int, dur: Int) -> int:
    """Length of the union of intervals, ns."""
    covered = union(start, start + dur)
    return int((covered.end - covered.start).sum())
