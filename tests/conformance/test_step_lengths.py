"""One definition of a step: whoever tells the length of a step tells the same one, to the nanosecond."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import tracelens
from tests.conformance.corpus import folder, run_params
from tests.reference.traces import FOLDERS
from tracelens.analysis.pipeline.microbatches import passes
from tracelens.compare.diff.sides import Side
from tracelens.errors import TracelensError
from tracelens.findings.rank_context import RankContext
from tracelens.trace import Run, select_step, steps_of
from tracelens.what_if.graph.build import build

ROOT = Path(__file__).resolve().parents[2]
FOREIGN = FOLDERS["foreign"]
SAMPLES = [
    path for path in sorted((ROOT / "sample_traces").glob("*/*")) if path.is_dir() and path.name != "ep4"
]
SAMPLES += [path for path in sorted((ROOT / "sample_traces" / "ladder" / "ep4").iterdir()) if path.is_dir()]


def foreign_runs() -> list[Path]:
    """Directories of ranks, and traces that are a run by themselves."""
    traces = [*FOREIGN.rglob("*.json.zst"), *FOREIGN.rglob("*.json.gz")]
    traces = [path for path in traces if "capture_traces" not in path.parts]
    return sorted({path.parent if path.name.startswith("rank") else path for path in traces})


def runs() -> list[Any]:
    corpus = folder()
    found = (
        [pytest.param(corpus / param.values[0], id=param.values[0]) for param in run_params()]
        if corpus
        else []
    )
    found += [pytest.param(path, id=path.relative_to(FOREIGN).as_posix()) for path in foreign_runs()]
    return found + [pytest.param(path, id=path.relative_to(ROOT).as_posix()) for path in SAMPLES]


@pytest.fixture(scope="module", params=runs())
def run(request: pytest.FixtureRequest) -> Run:
    return tracelens.load(request.param)


def lengths(table: pd.DataFrame, rank: int, step: str = "step", ns: str = "dur_ns") -> dict[str, int]:
    rows = table[table["rank"] == rank]
    return dict(zip(rows[step].astype(str), rows[ns].tolist(), strict=True))


def test_step_lengths(run: Run) -> None:
    results = {
        name: tracelens.analyze(run, name) for name in ("timeline", "breakdown", "steps", "roofline", "moe")
    }
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
        side, context = Side(trace), RankContext(trace, None)
        assert dict(zip(side.labels, side.step_ns.tolist(), strict=True)) == whole
        assert context.step_ns == sum(whole.values()) / len(whole)
        if spans := passes(trace).spans:
            of_pipeline = {window.label: window.end - window.start for window in passes(trace).steps}
            assert {span.step for span in spans} <= set(of_pipeline)
            assert not steps.marked or of_pipeline == windows


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
