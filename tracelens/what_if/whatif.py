"""What a recorded run's step time would be if something were otherwise.

    run -> build -> Recorded(graph, exchanges, windows)           what happened, and what waited for what
                    scenario(scene, edit, argument) -> assumption  what would be otherwise
                    schedule(graph, edit, delays) -> Times         when everything would start and end
                    window.spans(...), critical_path(...)          the step, and what it would wait for

A scenario is a function in a module of `scenarios/`, registered with `@scenario(name)`. It gets

- `scene.recorded.graph`: nodes and edges as numpy arrays, see `graph.Graph`; the run itself is
  `graph.run`, and `graph.rank` and `graph.work` lead from a node to its piece of `run.traces[rank].work`;
- `scene.recorded.exchanges.instances[graph.instance[node]]`: the collective of a meeting; the transfer is
  the meeting's duration;
- `labels(scene.recorded)`: names and kernel classes of all nodes;
- `edit`: `dur` and `delay` of each node, `lag` and `kept` of each edge, to be changed in place. Several
  scenarios may be asked for together, so change what is there (`edit.dur[nodes] //= 2`) and do not assume
  that it is as measured;
- `argument`: what the user wrote behind the name, "" for nothing.

It returns its assumptions as a sentence, and raises `NotApplicable` where the run has nothing of what it
changes, which becomes a Skip; a wrong argument is a TracelensError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tracelens.analysis.common import noted
from tracelens.guard import Failure, guard
from tracelens.registry import purpose
from tracelens.table import Result, Skip, Table
from tracelens.trace import Run
from tracelens.what_if.graph import build
from tracelens.what_if.replay import Outcome, Replay, doubt
from tracelens.what_if.scenario import NotApplicable, ScenarioContext, ScenarioRequest, usual, wish


def _quiet(_: str) -> None:
    """Report no progress."""


def whatif(
    run: Run,
    scenarios: Sequence[str] = (),
    *,
    step: str | None = None,
    device: str | None = None,
    device_file: str | None = None,
    progress: Callable[[str], None] = _quiet,
) -> Result:
    """What would a step of this run take if something were otherwise, and what would it wait for then?

    The whole recording is replayed, from the first to the last event, and one step of it is looked at: the
    one of median duration, or `step`; of a serving engine, whose steps are all different, all together.

    Args:
        run: all ranks of a job, not narrowed to a step.
        scenarios: as `name`, `name=value` or `name:what=value`, several that hold together joined by "+",
            applied from left to right; without any, all that need no argument of the user's.
        step: "2" for ProfilerStep#2, or the whole mark; "all" for all steps together.
        device: device of the recording, where the traces do not say it.
        device_file: TOML file that describes it.
        progress: called with a line of text before each scenario.

    Returns:
        tables `whatif` (best first), `assumptions`, `critical_path` and `bottlenecks` (as measured and for
        each scenario), `explained` and `ranks`. meta: step, base_ns of it, and how many steps there are.

    Raises:
        TracelensError: no such scenario, argument or step; a rank without GPU work.
    """
    wishes = [wish(text) for text in scenarios] or usual()
    recorded = build(run)
    replay = Replay(recorded, ScenarioContext(recorded, device, device_file), step)
    found, not_applicable = _outcomes(replay, wishes, progress)
    skips = [*recorded.exchanges.skips, *recorded.skips, *not_applicable]
    tables = replay.tables(found)
    if found:
        skips += _limits(run, replay, tables)
    result = Result(
        "whatif",
        "What if",
        tables,
        doc=purpose(whatif),
        skips=tuple(skips),
        meta={
            "step": replay.window.label,
            "base_ns": replay.base_ns,
            "recorded_steps": len(recorded.windows),
        },
        command="tracelens project whatif PATH...",
    )
    return noted(result, [trace.meta for trace in run.traces])


def _outcomes(
    replay: Replay, wishes: Sequence[ScenarioRequest], progress: Callable[[str], None]
) -> tuple[list[Outcome], list[Skip]]:
    """What each scenario comes to, and why others come to nothing."""
    outcomes, skips = [], []
    for each in wishes:
        progress(f"replaying {each.text}")
        subject = f"scenario {each.text}"
        try:
            outcome = guard(subject, replay.scenario, each)
        except NotApplicable as why:
            skips.append(Skip(subject, str(why)))
            continue
        if isinstance(outcome, Failure):
            skips.append(Skip(subject, outcome))
        else:
            outcomes.append(outcome)
    return outcomes, skips


def _limits(run: Run, replay: Replay, tables: Mapping[str, Table]) -> list[Skip]:
    """What keeps projections of this run from being sure."""
    skips = [
        Skip(f"the rest of {trace.meta.path}", problem)
        for trace in run.traces
        for problem in trace.meta.problems
    ]
    if replay.alone:
        text = f"{replay.alone}, so low and high hold unexplained delays only"
        skips.append(Skip("how much steps differ", text))
    if text := doubt(tables["explained"]):
        skips.append(Skip("all that the step waits for", text))
    return skips
