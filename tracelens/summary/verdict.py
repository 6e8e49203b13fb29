"""The verdict on a run: what it takes, where most of that goes, and what the first finding would change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tracelens.summary.figures import MOST, RunFigures, StepTimes
from tracelens.summary.tiles import Pace, cpu_only, doubt_names
from tracelens.summary.wording import about, hardware, percent, plural, three_digits
from tracelens.table import Table
from tracelens.units import duration

SAME = 0.02
"""A step within this of another one is as long; projections start from one that may be shorter."""

NOTABLE = 0.1
"""Share of the step from which another part of it is worth a word."""

WORTHWHILE = 0.02
"""Share of the step from which a saving is worth a word, and of one with low confidence."""
DOUBTED_WORTHWHILE = 0.05

REMEDIES = {
    "all_to_all_hidden": "hiding the all-to-all",
    "balanced": "balancing the experts",
    "balanced_stages": "balancing the stages",
    "data_loading_overlapped": "prefetching the data",
    "fused_loss": "a fused loss",
    "fused_permute": "fusing the permutation",
    "fused_router": "a fused router",
    "gemm_collective_overlap": "overlapping GEMMs with their collectives",
    "grouped_gemm": "grouped GEMM",
    "hierarchical_all_reduce": "a hierarchical all-reduce",
    "median_pace": "ranks at equal pace",
    "no_blocking": "removing the blocking calls",
    "no_garbage_collection": "keeping garbage collection out of the step",
    "no_recompute": "recomputing nothing",
    "prefill_delayer": "aligning the prefills",
    "step_graph": "launching the step as a graph",
    "sync_free": "MoE layers without blocking calls",
    "two_batch_overlap": "two-batch overlap",
    "vpp": "more chunks per stage",
}
"""Scenario to what it does, as the subject of a sentence."""


def run_verdict(figures: RunFigures, meta: Mapping[str, Any], times: StepTimes, pace: Pace) -> str:
    """One or two sentences about a run."""
    clauses = [
        _measured(figures, meta, times, pace),
        _largest_part(figures, meta),
        _saving(figures, times, pace),
    ]
    return f"{_doubt(meta)}{'; '.join(filter(None, clauses))}."


def _doubt(meta: Mapping[str, Any]) -> str:
    """What speaks against all that follows."""
    trust = meta.get("trust")
    if trust is None or trust["complete"] is not False:
        return ""
    names = doubt_names(trust)
    ranks = sorted(int(rank) for rank in trust["doubts"])
    where = (
        f" on rank {ranks[0]}" if len(ranks) == 1 and ranks[0] >= 0 and len(meta.get("ranks", ())) > 1 else ""
    )
    return f"Doubtful recording ({', '.join(names[:2])}{where}): the figures may be wrong. "


def _measured(figures: RunFigures, meta: Mapping[str, Any], times: StepTimes, pace: Pace) -> str:
    """The step, the tokens and the utilization, with and without the profiler as far as known."""
    mfu = None if cpu_only(meta) else figures.mfu()
    utilisation = f"MFU {percent(mfu.mean)}" if mfu else ""
    tokens = f"{three_digits(pace.tokens_per_s)} tokens/s" if pace.tokens_per_s else ""
    where = _where(figures, meta)
    if serving := _serving(figures, where):
        served = figures.served_tokens_per_s()
        return _listed(serving, f"{three_digits(served)} tokens/s" if served else "", utilisation)
    if not times.marked:
        return _listed(f"{duration(times.step_ns)} recorded on {where}, no steps marked", utilisation)
    if pace.step_ns and abs(pace.step_ns / times.step_ns - 1) > SAME:
        lead = _listed(f"{duration(pace.step_ns)} a step without the profiler on {where}", tokens)
        return f"{lead}; in the recording {_listed(duration(times.step_ns), utilisation)}"
    return _listed(f"{duration(times.step_ns)} a step on {where}", tokens, utilisation)


def _listed(*parts: str) -> str:
    return ", ".join(filter(None, parts))


def _where(figures: RunFigures, meta: Mapping[str, Any]) -> str:
    """Hardware and ranks of the job."""
    read = len(figures.ranks)
    of_job = max(int(meta.get("setup", {}).get("ranks", 0)), read)
    if cpu_only(meta):
        text = "one CPU" if of_job == 1 else f"{of_job} CPU ranks"
    else:
        text = hardware(meta.get("devices", ()), of_job)
    return text if read == of_job else f"{text} ({plural(read, 'rank')} read)"


def _serving(figures: RunFigures, where: str) -> str:
    """What the steps of a serving engine take."""
    # Steps without requests serve nobody.
    steps = {kind: each for kind, each in figures.serving_steps().items() if kind != "idle"}
    if not steps:
        return ""
    (kind, first), *rest = sorted(steps.items(), key=lambda item: -item[1].mean_ns * item[1].steps)
    summary = figures.table("serving", "summary")
    engine = summary.texts("engine")[0] if summary is not None else ""
    lead = f"{engine} on {where}" if engine else f"Serving on {where}"
    others = [f"{other} steps {duration(each.mean_ns)}" for other, each in rest[:1]]
    return _listed(f"{lead}: {kind} steps take {duration(first.mean_ns)}", *others)


class Part(NamedTuple):
    """A part of the recorded time.

    Attributes:
        size: by which it is the largest.
        share: of the time, that of its cause where that is known.
        verb: 'goes to' or 'is'.
        what: that it goes to.
    """

    size: float
    share: float
    verb: str
    what: str


def _largest_part(figures: RunFigures, meta: Mapping[str, Any]) -> str:
    """The largest part of the steps, and beside computation the next."""
    first, second, *_ = sorted(_parts(figures, meta), key=lambda part: -part.size)
    text = f"{percent(first.share)} of the time {first.verb} {first.what}"
    if first.what != COMPUTATION or second.share < NOTABLE:
        return text
    verb = second.verb.removeprefix("goes " if first.verb == second.verb else "")
    return f"{text}, {percent(second.share)} {verb} {second.what}"


COMPUTATION = "computation"


def _parts(figures: RunFigures, meta: Mapping[str, Any]) -> Iterator[Part]:
    """Computation, idle time and exposed communication."""
    computation, exposed = (figures.share(f"{name}_ns").mean for name in ("computation", "exposed_comm"))
    yield Part(computation, computation, "goes to", COMPUTATION)
    idle, host = figures.share("idle_ns").mean, figures.host_share()
    if host > MOST and not cpu_only(meta):
        yield Part(idle, idle * host, "goes to", "waiting for the host")
    else:
        yield Part(idle, idle, "is", "idle")
    waits = figures.waiting_in_exposed() > MOST and len(figures.ranks) > 1
    waiting = ", mostly waiting for other ranks" if waits else ""
    yield Part(exposed, exposed, "goes to", f"exposed communication{waiting}")


def _saving(figures: RunFigures, times: StepTimes, pace: Pace) -> str:
    """What the first finding that can be relied on would change."""
    table = figures.table("findings", "findings")
    base_ns = figures.meta("findings").get("base_ns", 0)
    if table is None or not base_ns:
        return ""
    confident = [row for row, text in enumerate(table.texts("confidence")) if text != "low"]
    row = next((row for row in confident if table.array("saving_ns")[row] > WORTHWHILE * base_ns), None)
    if row is not None:
        saving_ns = float(table.array("saving_ns")[row])
        step_ns = pace.step_ns or times.step_ns
        if times.marked and step_ns and abs(base_ns / step_ns - 1) <= SAME:
            return f"{_remedy(table, row)} would bring it to about {about(base_ns - saving_ns)}"
        return f"{_remedy(table, row)} would save about {percent(saving_ns / base_ns)}"
    saving_ns = float(table.array("saving_ns")[0])
    if saving_ns <= DOUBTED_WORTHWHILE * base_ns:
        return ""
    most = percent(min(float(table.array("high_ns")[0]) / base_ns, 1.0))
    return f"{_remedy(table, 0)} could save up to {most} (low confidence)"


def _remedy(table: Table, row: int) -> str:
    """What fixes a finding, as the subject of a sentence."""
    (scenario,), (title,) = table.texts("scenario", [row]), table.texts("finding", [row])
    known = REMEDIES.get(scenario.partition("=")[0].partition(":")[0])
    return known or f"fixing finding {row + 1} ({title.partition(':')[0]})"
