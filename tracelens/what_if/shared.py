"""The projector of a run as a shared input of analyzers, from small parts of its ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from tracelens.analysis import share
from tracelens.analysis.comm import AlignedRun, RankCommunication, align, rank_communication
from tracelens.analysis.common import choose_device, own_device
from tracelens.errors import TracelensError
from tracelens.guard import Failure, guard
from tracelens.table import Skip
from tracelens.trace import Scope, Trace
from tracelens.what_if.graph import RankPart, join, rank_part
from tracelens.what_if.replay import Projector
from tracelens.what_if.scenario import SCENARIOS, ScenarioContext, read_rank

SUBJECT = "savings by replay"


class ProjectorPart(NamedTuple):
    """What the projector needs of one rank.

    Attributes:
        graph: the rank's part of the graph.
        reads: what scenarios read of it.
        communication: of all its GPU work, where analyzers share that of some.
        step: that analyzers look at, None for all.
    """

    graph: RankPart
    reads: dict[str, Any]
    communication: RankCommunication | None
    step: str | None


def projector_part(
    trace: Trace, *, scope: Scope = "all", device: str | None = None, device_file: str | None = None
) -> ProjectorPart | Skip:
    """The part of one rank, or why it has none.

    Args:
        trace: of the rank; of one narrowed to a step the whole recording counts.
        scope: which GPU work other analyzers count.
        device: of the recording, if the trace does not name it.
        device_file: TOML file that describes it.
    """
    step = trace.window.label if trace.window is not None else None
    if trace.source is not None:
        return Skip(SUBJECT, f"replay needs the whole recording, not only its {step} steps; leave --step out")
    whole = trace.whole
    recorded_on = choose_device(device, device_file) or own_device(trace)
    subject = f"{SUBJECT}, rank {trace.meta.rank}"
    try:
        graph = guard(subject, rank_part, whole, recorded_on)
    except TracelensError as why:
        return Skip(SUBJECT, str(why))
    if isinstance(graph, Failure):
        return Skip(SUBJECT, graph)
    functions = {
        function: None for _, item in SCENARIOS.items() if item.in_reports for function in item.reads
    }
    apart = step is not None or scope != "all"
    return ProjectorPart(
        graph,
        read_rank(functions, whole, recorded_on),
        rank_communication(whole) if apart else None,
        step,
    )


@share("projector", part=projector_part, shared=("aligned run",))
def projector(
    parts: Sequence[ProjectorPart | Skip],
    aligned: AlignedRun,
    *,
    unprofiled_step_ms: float | None = None,
) -> Projector | Skip:
    """Projects the step of a run under scenarios; a Skip says why there is no graph to replay.

    Args:
        parts: from `projector_part`.
        aligned: the communication of all ranks.
        unprofiled_step_ms: a step without the profiler, in place of what the traces say.
    """
    known = [part for part in parts if not isinstance(part, Skip)]
    missing = [part for part in parts if isinstance(part, Skip)]
    if missing:
        return next((skip for skip in missing if isinstance(skip.reason, Failure)), missing[0])
    try:
        made = guard(SUBJECT, _projector, known, aligned, unprofiled_step_ms)
    except TracelensError as why:
        return Skip(SUBJECT, str(why))
    return Skip(SUBJECT, made) if isinstance(made, Failure) else made


def _projector(
    parts: Sequence[ProjectorPart], aligned: AlignedRun, unprofiled_step_ms: float | None
) -> Projector:
    own = [part.communication for part in parts if part.communication is not None]
    recorded = join([part.graph for part in parts], align(own) if own else aligned)
    context = ScenarioContext(recorded, reads=[part.reads for part in parts])
    return Projector(recorded, context, parts[0].step, unprofiled_step_ms=unprofiled_step_ms)
