"""The projector made of parts that have travelled: it projects what the traces themselves give."""

from __future__ import annotations

import gc
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import tracelens
from tests.what_if.replays import run_of
from tracelens.analysis import SHARED, Combining, in_order, with_required
from tracelens.errors import TracelensError
from tracelens.guard import Failure
from tracelens.table import Skip
from tracelens.trace import Run, select_step
from tracelens.what_if import SCENARIOS, NotApplicable, Projector, parse_request, whatif
from tracelens.what_if.scenario import default_requests

SAMPLES = Path(__file__).parents[2] / "sample_traces"
RUNS = ["one_gpu/loop", "ladder/ep4/00_baseline", "pipeline/plain", "serving/delayer_off", "cpu/tiny"]


def projector(run: Run, **options: Any) -> Projector | Skip:
    """The shared input, from parts that have been pickled one by one."""
    item = SHARED.get("projector")
    results: dict[str, Any] = {}
    for need in with_required([item])[:-1]:
        parts = [need.part_of(trace, **options) for trace in run.traces]
        results[need.name] = need.combine(parts, results, **options)
    parts = [pickle.loads(pickle.dumps(item.part_of(trace, **options))) for trace in run.traces]
    made: Projector | Skip = item.combine(parts, results, **options)
    return made


def outcomes(made: Projector | Skip) -> dict[str, tuple[int, int, int] | str]:
    """Projected, low and high step of each scenario with its usual arguments, or why there is none."""
    assert isinstance(made, Projector)
    result: dict[str, tuple[int, int, int] | str] = {}
    for request in default_requests():
        try:
            step = made.project(request)
        except NotApplicable as why:
            result[request.text] = str(why)
        else:
            result[request.text] = step.step_ns, step.low_ns, step.high_ns
    return result


def by_traces(run: Run, step: str | None = None) -> dict[str, tuple[int, int, int] | str]:
    """The same from `whatif`."""
    made = whatif(run, step=step)
    rows = {row.scenario: (row.projected_ns, row.low_ns, row.high_ns) for row in made["whatif"].itertuples()}
    reasons = {
        skip.subject.removeprefix("scenario "): skip.reason
        for skip in made.skips
        if skip.subject.startswith("scenario ")
    }
    return rows | reasons


@pytest.mark.parametrize("scope", ["all", "linked"])
@pytest.mark.parametrize("name", RUNS)
def test_parts_of_ranks_project_what_the_traces_do(name: str, scope: str) -> None:
    """Whatever other analyzers count: what-if always replays all GPU work."""
    run = tracelens.load(SAMPLES / name)
    assert outcomes(projector(run, scope=scope)) == by_traces(run)


def test_a_run_narrowed_to_a_step_projects_that_step() -> None:
    run = tracelens.load(SAMPLES / "ladder/ep4/00_baseline")
    step = tracelens.analyze(run, "steps")["steps"]["step"].iloc[0]
    assert outcomes(projector(select_step(run, step))) == by_traces(run, step)


def test_without_gpu_work_there_is_a_reason() -> None:
    run = run_of("step 1 | aaaa")
    made = projector(run)
    assert isinstance(made, Skip)
    with pytest.raises(TracelensError, match=re.escape(made.reason)):
        whatif(run)


def test_a_bug_is_a_reason_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("tracelens.what_if.projection.rank_part", broken)
    made = projector(tracelens.load(SAMPLES / "one_gpu/loop"))
    assert isinstance(made, Skip)
    assert isinstance(made.reason, Failure)
    assert made.reason.error == "ZeroDivisionError"


def test_what_cannot_be_read_costs_its_own_scenario_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(trace: object, device: object) -> None:
        raise ZeroDivisionError

    known = SCENARIOS.get("grouped_gemm")
    changed = replace(known, reads=(broken,), change=lambda context, *_: str(context.read(broken)))
    monkeypatch.setitem(SCENARIOS._items, "grouped_gemm", changed)
    made = outcomes(projector(tracelens.load(SAMPLES / "one_gpu/loop")))
    assert "ZeroDivisionError" in str(made["grouped_gemm"])
    assert isinstance(made["launch_free"], tuple)


def test_what_findings_do_not_ask_for_is_not_read() -> None:
    made = projector(tracelens.load(SAMPLES / "one_gpu/loop"))
    assert isinstance(made, Projector)
    with pytest.raises(NotApplicable, match="project whatif"):
        made.project(parse_request("device=mi355x"))


def test_every_read_of_a_scenario_is_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    """All scenarios give the same where only what they declare is at hand."""
    for name, item in SCENARIOS.items():
        monkeypatch.setitem(SCENARIOS._items, name, replace(item, in_reports=True))
    run = tracelens.load(SAMPLES / "ladder/ep4/00_baseline")
    made = projector(run)
    assert isinstance(made, Projector)
    for text in ("device=mi355x", "ranks=x4", "no_blocking=*item*", "grouped_gemm=0.5"):
        row = whatif(run, [text])["whatif"].iloc[0]
        assert made.project(parse_request(text)).step_ns == row["projected_ns"]


def test_it_is_let_go_when_nobody_needs_it() -> None:
    run, items = tracelens.load(SAMPLES / "one_gpu/loop"), in_order()
    parts = {item.name: [item.part_of(trace) for trace in run.traces] for item in with_required(items)}
    alive: dict[str, int] = {}

    def parts_of(name: str) -> list[Any]:
        gc.collect()
        alive[name] = sum(type(item) is Projector for item in gc.get_objects())
        return parts.pop(name)

    combining = Combining(items, parts_of)
    combining.combine(combining.missing)
    assert [result.analyzer for result in combining.results] == [item.name for item in items]
    assert not parts
    order = [*alive]
    assert alive["findings"] == alive["replays"] + 1
    assert {alive[name] for name in order[order.index("findings") + 1 :]} == {alive["replays"]}
