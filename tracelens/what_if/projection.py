"""Projects the step time of a recorded run under changes.

    run -> build -> Recorded(graph, collectives, windows)            what happened, and what waited for what
                    scenario(context, edit, argument) -> assumptions  what changes
                    schedule(graph, edit, delays) -> Times           when everything then starts and ends
                    StepReplay.extents(...), critical_path(...)      the step, and what it then waits for

A scenario is a function in a module of `scenarios/`, registered with `@scenario(name)`. It gets

- `context.recorded.graph`: nodes and edges as numpy arrays, see `graph.Graph`; `graph.rank`, `graph.work`
  and `graph.event` lead from a node to a rank's activity and to the row of its event;
- `context.read(function)`: for each rank what function(trace, device) made of it, in the process where its
  trace was: the rows of activities or events and what is known of them. Each such function stands in `reads`
  of the decorator;
- `context.recorded.collectives.matched[graph.collective[node]]`: the collective of a meeting; the transfer is
  the meeting's duration;
- `labels(context.recorded)`: names and kernel classes of all nodes;
- `edit`: `dur` and `delay` of each node, `lag` and `kept` of each edge, to change in place. Scenarios
  combine, so change current values (`edit.dur[nodes] //= 2`), not the measured ones;
- `argument`: the text after the name, "" for nothing.

It returns its assumptions as a sentence. It raises `NotApplicable`, which becomes a Skip, if the run has
nothing to change, and TracelensError for a wrong argument.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tracelens.analysis.common import noted
from tracelens.errors import TracelensError
from tracelens.guard import Failure, guard
from tracelens.registry import purpose
from tracelens.table import Result, Skip, Table
from tracelens.trace import Run
from tracelens.what_if.graph import build
from tracelens.what_if.replay import Outcome, Projector, Replay, reliability_warning
from tracelens.what_if.scenario import (
    NotApplicable,
    ScenarioContext,
    ScenarioRequest,
    default_requests,
    parse_request,
)


def _quiet(_: str) -> None:
    """Report no progress."""


def whatif(
    run: Run,
    scenarios: Sequence[str] = (),
    *,
    step: str | int | None = None,
    device: str | None = None,
    device_file: str | os.PathLike[str] | None = None,
    unprofiled_step_ms: float | None = None,
    progress: Callable[[str], None] = _quiet,
) -> Result:
    """How long would a step of this run take under each scenario, and what would it then wait for?

    Replays the whole recording and reports one step: the one of median duration, or `step`; of a serving
    engine, whose steps all differ, all steps together.

    Args:
        run: all ranks of a job, not narrowed to a step.
        scenarios: `name`, `name=value` or `name:what=value`, several joined by "+" and applied from left to
            right; by default all that need no argument from the user.
        step: "2" or 2 for ProfilerStep#2, or the full mark; "all" for all steps together.
        device: device of the recording, if the traces do not name it.
        device_file: TOML file that describes it.
        unprofiled_step_ms: the step without the profiler; by default as the recorder timed it, if it did.
            Host time is scaled so that the replay gives it, and all scenarios start from there.
        progress: called with a line of text before each scenario.

    Returns:
        tables `whatif` (best first), `assumptions`, `critical_path` and `bottlenecks` (as measured and per
        scenario), `explained`, `trust` and `ranks`. meta: step, its base_ns (without the profiler where that
        is known) and recorded_ns, the host_time_factor between them, the number of recorded steps.

    Raises:
        TracelensError: no such scenario, argument or step; a rank without GPU work.
    """
    if unprofiled_step_ms is not None and not 0 < unprofiled_step_ms < 1e9:
        raise TracelensError(f"unprofiled_step_ms must be a time in ms, not {unprofiled_step_ms!r}")
    requests = [parse_request(text) for text in scenarios] or default_requests()
    recorded = build(run, device, None if device_file is None else os.fspath(device_file))
    label = None if step is None else str(step)
    context = ScenarioContext(recorded, run.traces)
    replay = Replay(Projector(recorded, context, label, unprofiled_step_ms=unprofiled_step_ms))
    outcomes, not_applicable = _outcomes(replay, requests, progress)
    skips = [*recorded.collectives.aligned.skips, *recorded.skips, *not_applicable]
    tables = replay.tables(outcomes)
    if outcomes:
        skips += _limits(run, replay, tables)
    result = Result(
        "whatif",
        "What if",
        tables,
        doc=purpose(whatif),
        skips=tuple(skips),
        meta=_meta(replay.projector),
        command="tracelens project whatif PATH...",
    )
    return noted(result, [trace.meta for trace in run.traces])


def _meta(projector: Projector) -> dict[str, Any]:
    """Which step it is, and what scenarios start from."""
    return {
        "step": projector.window.label,
        "base_ns": projector.base_ns,
        "recorded_ns": projector.recorded_ns,
        "host_time_factor": projector.share.factor,
        "recorded_steps": len(projector.context.recorded.windows),
    }


def _outcomes(
    replay: Replay, requests: Sequence[ScenarioRequest], progress: Callable[[str], None]
) -> tuple[list[Outcome], list[Skip]]:
    """The outcome of each scenario, and why others have none."""
    outcomes, skips = [], []
    for request in requests:
        progress(f"replaying {request.text}")
        subject = f"scenario {request.text}"
        try:
            outcome = guard(subject, replay.scenario, request)
        except NotApplicable as why:
            skips.append(Skip(subject, str(why)))
            continue
        if isinstance(outcome, Failure):
            skips.append(Skip(subject, outcome))
        else:
            outcomes.append(outcome)
    return outcomes, skips


def _limits(run: Run, replay: Replay, tables: Mapping[str, Table]) -> list[Skip]:
    """What limits the projections of this run."""
    skips = [
        Skip(f"the rest of {trace.meta.path}", problem)
        for trace in run.traces
        for problem in trace.meta.problems
    ]
    if replay.projector.share.limit:
        skips.append(Skip("profiler's share of the step", replay.projector.share.limit))
    if replay.projector.single_step_reason:
        text = f"{replay.projector.single_step_reason}; low and high cover unexplained delays only"
        skips.append(Skip("step-to-step variation", text))
    if text := reliability_warning(tables["explained"]):
        skips.append(Skip("full critical path", text))
    return skips
