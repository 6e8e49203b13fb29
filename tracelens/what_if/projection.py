"""Projects the step time of a recorded run under changes.

    run -> build -> Recorded(graph, collectives, windows)            what happened, and what waited for what
                    scenario(context, edit, argument) -> assumptions  what changes
                    schedule(graph, edit, delays) -> Times           when everything then starts and ends
                    StepReplay.steady(edit), critical_path(...)      the step, and what it then waits for

A scenario is a function registered with `@scenario(name)`, as in the modules of `opportunities`. It gets

- `context.recorded.graph`: nodes and edges as numpy arrays, see `graph.Graph`; `graph.rank`, `graph.work`
  and `graph.event` lead from a node to a rank's activity and to the row of its event;
- `context.read(function)`: for each rank what function(trace, device) made of it, in the process where its
  trace was: the rows of activities or events and what is known of them. Each such function stands in `reads`
  of the decorator;
- `context.once(function, argument)`: what function(context, argument) made, whatever the edit: scenarios are
  applied several times, on top of others;
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
from collections.abc import Callable, Sequence
from contextlib import suppress

from msgspec import Struct

from tracelens.analysis import share
from tracelens.analysis.comm import AlignedRun, RankCommunication, align, rank_communication
from tracelens.analysis.common import choose_device, noted, own_device
from tracelens.devices import Device
from tracelens.errors import TracelensError
from tracelens.guard import Failure, guard
from tracelens.packing import PackedApart
from tracelens.registry import purpose
from tracelens.table import Result, Skip, Table
from tracelens.trace import Run, Scope, Trace
from tracelens.what_if.graph import RankPart, build, join, rank_part
from tracelens.what_if.replay import Projector, ReplayedStep, ScenarioOutcome, reliability_warning
from tracelens.what_if.scenario import (
    SCENARIOS,
    NotApplicable,
    ScenarioContext,
    default_requests,
    parse_request,
    read_rank,
)

SUBJECT = "savings by replay"


class ReplayPart(Struct, frozen=True):
    """What replays need of one rank beside its part of the graph."""

    communication: RankCommunication | None  # of all its GPU work, where analyzers share that of some
    step: str | None  # that analyzers look at, None for all


def whatif(
    run: Run,
    scenarios: Sequence[str] = (),
    *,
    step: str | int | None = None,
    device: str | None = None,
    device_file: str | os.PathLike[str] | None = None,
    unprofiled_step_ms: float | None = None,
    progress: Callable[[str], None] = lambda _: None,
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
        is known) and recorded_ns, the host_time_factor between them, the number of recorded steps; and the
        step as timed without the profiler, unprofiled_ns, if it was.

    Raises:
        TracelensError: no such scenario, argument or step; a rank without GPU work.
    """
    if unprofiled_step_ms is not None and not 0 < unprofiled_step_ms < 1e9:
        raise TracelensError(f"unprofiled_step_ms must be a time in ms, not {unprofiled_step_ms!r}")
    requests = [parse_request(text) for text in scenarios] or default_requests()
    recorded = build(run, device, None if device_file is None else os.fspath(device_file))
    label = None if step is None else str(step)
    context = ScenarioContext(recorded, run.traces)
    projector = Projector(recorded, context, label, unprofiled_step_ms=unprofiled_step_ms)
    replay = ReplayedStep(projector)
    outcomes: list[ScenarioOutcome] = []
    skips = [*recorded.collectives.aligned.skips, *recorded.skips]
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
    tables = replay.tables(outcomes)
    if outcomes:
        skips += [
            Skip(f"the rest of {trace.meta.path}", problem)
            for trace in run.traces
            for problem in trace.meta.problems
        ]
        if projector.share.limit:
            skips.append(Skip("profiler's share of the step", projector.share.limit))
        if projector.single_step_reason:
            text = f"{projector.single_step_reason}; low and high cover unexplained delays only"
            skips.append(Skip("step-to-step variation", text))
        if text := reliability_warning(tables["explained"]):
            skips.append(Skip("full critical path", text))
    result = Result(
        "whatif",
        "What if",
        tables,
        doc=purpose(whatif),
        skips=tuple(skips),
        meta={
            "step": projector.window.label,
            "base_ns": projector.base_ns,
            "recorded_ns": projector.recorded_ns,
            **(
                {} if projector.share.known_ns is None else {"unprofiled_ns": round(projector.share.known_ns)}
            ),
            "host_time_factor": projector.share.factor,
            "recorded_steps": len(recorded.windows),
        },
        command="tracelens project whatif PATH...",
    )
    return noted(result, [trace.meta for trace in run.traces])


def graph_part(trace: Trace, *, device: str | None = None, device_file: str | None = None) -> RankPart | Skip:
    """The part of one rank in the graph of the whole recording, or why it has none.

    The device is that of the recording, if the trace does not name it.
    """
    if trace.source is not None:
        step = trace.window.label if trace.window is not None else None
        return Skip(SUBJECT, f"replay needs the whole recording, not only its {step} steps; leave --step out")
    try:
        made = guard(
            f"{SUBJECT}, rank {trace.meta.rank}",
            rank_part,
            trace.whole,
            _recorded_on(trace, device, device_file),
        )
    except TracelensError as why:
        return Skip(SUBJECT, str(why))
    return Skip(SUBJECT, made) if isinstance(made, Failure) else made


@share("graph parts", part=graph_part)
def graph_parts(parts: Sequence[RankPart | Skip]) -> Sequence[RankPart] | Skip:
    """The parts of all ranks; a Skip says why there is no graph to replay."""
    missing = [part for part in parts if isinstance(part, Skip)]
    if missing:
        return next((skip for skip in missing if isinstance(skip.reason, Failure)), missing[0])
    return [part for part in parts if not isinstance(part, Skip)]


def _is_replayed(trace: Trace) -> bool:
    """Whether a trace has a part of the graph: it is of all that was recorded, in which there is work."""
    return trace.source is None and len(trace.whole.work.event) > 0


def replay_part(trace: Trace, *, scope: Scope = "all") -> ReplayPart | None:
    """What replays need of a trace beside `graph_part`; None where that has none for want of work.

    `scope` is which GPU work other analyzers count.
    """
    if not _is_replayed(trace):
        return None
    step = trace.window.label if trace.window is not None else None
    apart = step is not None or scope != "all"
    return ReplayPart(rank_communication(trace.whole) if apart else None, step)


@share("replays", part=replay_part, shared=("aligned run", "graph parts"))
def replays(
    parts: Sequence[ReplayPart | None],
    aligned: AlignedRun,
    graphs: Sequence[RankPart] | Skip,
    *,
    unprofiled_step_ms: float | None = None,
) -> Projector | Skip:
    """The projector before it knows what scenarios read; a Skip says why there is no graph to replay.

    `aligned` is the communication of all ranks, `unprofiled_step_ms` a step without the profiler, in place of
    what the traces say.
    """
    if isinstance(graphs, Skip):
        return graphs
    known = [part for part in parts if part is not None]

    def joined() -> Projector:
        own = [part.communication for part in known if part.communication is not None]
        recorded = join(graphs, align(own) if own else aligned)
        made = Projector(
            recorded, ScenarioContext(recorded), known[0].step, unprofiled_step_ms=unprofiled_step_ms
        )
        _prepare(made)  # perhaps while another process still reads what scenarios need
        return made

    try:
        made = guard(SUBJECT, joined)
    except TracelensError as why:
        return Skip(SUBJECT, str(why))
    return Skip(SUBJECT, made) if isinstance(made, Failure) else made


def _prepare(projector: Projector) -> None:
    """Replay the step as it is, before it is asked for; a failure is told to whoever asks again."""

    def explained() -> Table:
        return ReplayedStep(projector).explained()

    with suppress(TracelensError):
        guard("unchanged step", lambda: projector.unchanged.savings_ns(projector.unchanged))
        made = guard("trust in the graph", explained)
        projector.explained = None if isinstance(made, Failure) else made


def scenario_reads(
    trace: Trace, *, device: str | None = None, device_file: str | None = None
) -> PackedApart | None:
    """What scenarios read of one rank, few of which ask; None where there is nothing to replay.

    The device is that of the recording, if the trace does not name it.
    """
    if not _is_replayed(trace):
        return None
    functions = {
        function: None for _, item in SCENARIOS.items() if item.in_reports for function in item.reads
    }
    return PackedApart(read_rank(functions, trace.whole, _recorded_on(trace, device, device_file)))


# Slow, and so beside the graph's part where two processes look at a trace: each takes about half of the time.
@share("projector", part=scenario_reads, shared=("replays",), slow=True)
def projector(parts: Sequence[PackedApart | None], replays: Projector | Skip) -> Projector | Skip:
    """Projects the step of a run under scenarios; a Skip says why there is no graph to replay."""
    if isinstance(replays, Projector):
        replays.context.reads.extend(part for part in parts if part is not None)
    return replays


def _recorded_on(trace: Trace, device: str | None, device_file: str | None) -> Device | None:
    return choose_device(device, device_file) or own_device(trace)
