"""One definition of a step: whoever tells the length of a step tells the same one, to the nanosecond."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from tests.conformance.corpus import Case, of_each_kind
from tracelens.analysis.pipeline import passes
from tracelens.compare.diff.sides import RankSide
from tracelens.errors import TracelensError
from tracelens.findings import RankContext
from tracelens.trace import Run, select_step, steps_of
from tracelens.what_if.graph import build


@pytest.fixture
def run(case: Case) -> Run:
    return case.run


def lengths(table: pd.DataFrame, rank: int, step: str = "step", ns: str = "dur_ns") -> dict[str, int]:
    rows = table[table["rank"] == rank]
    return dict(zip(rows[step].astype(str), rows[ns].tolist(), strict=True))


@of_each_kind
def test_step_lengths(case: Case) -> None:
    run = case.run
    results = {name: case.result(name) for name in ("timeline", "breakdown", "steps", "roofline", "moe")}
    metrics = results["steps"].data.get("metrics")
    for trace in run.traces:
        rank, steps = trace.meta.rank, steps_of(trace)
        if not len(trace.work.event):
            continue
        windows = dict(zip(steps.labels, np.diff(steps.edges).tolist(), strict=True))
        whole = {label: windows[label] for label in (steps.labels[index] for index in steps.whole)}
        if steps.marked:
            assert lengths(results["timeline"]["steps"], rank, ns="total_ns") == windows
        breakdown = results["breakdown"]["breakdown"]
        assert lengths(breakdown[breakdown["level"] == "step"], rank, "name", "exclusive_ns") == windows
        assert lengths(results["steps"]["steps"], rank) == whole
        assert lengths(results["roofline"]["utilisation"], rank) == windows
        if metrics is not None:
            gated = metrics.frame
            assert lengths(gated[gated["metric"] == "step.time"], rank, ns="value") == whole
        side, context = RankSide(trace), RankContext(trace, None)
        assert dict(zip(side.labels, side.step_ns.tolist(), strict=True)) == whole
        assert context.step_ns == sum(whole.values()) / len(whole)
        if spans := passes(trace).spans:
            of_pipeline = {window.label: window.end - window.start for window in passes(trace).steps}
            assert {span.step for span in spans} <= set(of_pipeline)
            assert not steps.marked or of_pipeline == windows


@of_each_kind
def test_parts_and_sums(run: Run) -> None:
    """Steps and what lies outside are the window; kernel time by step is the total, each counted once."""
    for trace in run.traces:
        work, steps = trace.work, steps_of(trace)
        if not len(work.event):
            continue
        assert (np.diff(steps.edges) >= 0).all()
        assert (np.diff(steps.marks) >= 0).all()
        assert steps.edges[0] <= work.start.min()
        assert steps.edges[-1] >= work.end.max()
        by_step = np.bincount(steps.of_work, weights=work.dur, minlength=len(steps.labels))
        assert int(by_step.sum()) == int(work.dur.sum())


@of_each_kind
def test_a_step_by_itself(run: Run) -> None:
    first = run.traces[0]
    steps = steps_of(first)
    if not steps.marked or len(first.work.event) == 0:
        pytest.skip("the recording is one step")
    for index in steps.whole:
        (trace,) = select_step(Run((first,)), steps.labels[index]).traces
        narrowed = steps_of(trace)
        assert narrowed.edges.tolist() == steps.edges[index : index + 2].tolist()
        assert narrowed.marks.tolist() == steps.marks[index : index + 2].tolist()


@of_each_kind
def test_what_if(run: Run) -> None:
    try:
        recorded = build(run)
    except TracelensError as error:
        pytest.skip(str(error))
    for number, trace in enumerate(run.traces):
        whole = steps_of(trace).only_whole()
        windows = dict(zip(whole.labels, np.diff(whole.edges).tolist(), strict=True))
        if not whole.marked:
            continue
        for span in recorded.windows:
            assert span.spans(recorded.graph.start, recorded.graph.end)[number] == windows[span.label]
