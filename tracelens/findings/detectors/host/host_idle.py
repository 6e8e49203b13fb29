"""The host keeps the GPU waiting with something else than launches: data, CPU ops, collectives, silence."""

from __future__ import annotations

from collections import Counter

import numpy as np

from tracelens.analysis.host import host_names
from tracelens.findings.detectors.detector import Detection, Outcome, Quantity, detector
from tracelens.findings.rank_context import RankContext
from tracelens.trace import steps_of, union
from tracelens.units import duration, milliseconds

_PLACES = 3
_MOST = 0.9

_IDLE = {
    "GPU idle per step": "idle time with this cause",
    "gaps per step": "gaps with time of this cause",
    "longest": "most time of this cause in one gap",
    "steps affected": "recorded steps with one of these gaps",
}


@detector(
    "silent_host",
    scenario="no_idle=silent_host",
    title="Silent host: the GPU waits while no CPU work is recorded",
    launching=True,
    measures=_IDLE,
    threshold="any idle time with this cause, see `idle`",
    limits="Without Python frames the trace does not show what the program does at that time.",
)
def silent_host(context: RankContext) -> Outcome:
    """The launching thread is in no recorded op or call for over 0.5 ms while the GPU is idle."""
    return _of_cause(context, "silent host", "the host is in no recorded op or call")


@detector(
    "data_loading",
    scenario="data_loading_overlapped",
    title="The GPU waits for the next batch",
    launching=True,
    measures=_IDLE,
    threshold="any idle time with this cause, see `idle`",
    limits="A loader counts only where the trace shows its calls by name.",
)
def data_loading(context: RankContext) -> Outcome:
    """The GPU is idle while the host fetches a batch."""
    return _of_cause(context, "data loading", "the host fetches the next batch")


@detector(
    "cpu_ops",
    scenario="no_idle=cpu_ops",
    title="CPU ops keep the GPU waiting",
    launching=True,
    measures=_IDLE,
    threshold="any idle time with this cause, see `idle`",
    limits="Work that runs once, such as the first call of a kernel, counts where the recording includes it.",
)
def cpu_ops(context: RankContext) -> Outcome:
    """Ops or calls that launch nothing take over 1 ms before the next launch while the GPU is idle."""
    return _of_cause(context, "CPU ops", "the host is busy in ops and calls")


@detector(
    "collective_calls",
    scenario="no_idle=collective_call",
    title="The host waits inside a collective call",
    launching=True,
    measures=_IDLE,
    threshold="any idle time with this cause, see `idle`",
    limits="Assumes that all of this time can go; what the host waits for may have to run.",
)
def collective_calls(context: RankContext) -> Outcome:
    """The GPU is idle while the host spends over 1 ms inside a collective call."""
    return _of_cause(context, "collective call", "the host is inside a collective call")


def _of_cause(context: RankContext, cause: str, what: str) -> Outcome:
    """The idle time of one cause, and where in the program it is."""
    if not len(context.work.event):
        return "no GPU work"
    pieces = context.idle_by(cause)
    where = union(pieces.start, pieces.end)
    if not where.total:
        return f"no idle time with this cause: {what}"
    gap_ns = np.bincount(pieces.gap, weights=pieces.dur)
    gaps = np.unique(pieces.gap)
    longest = int(gap_ns.max())
    steps = steps_of(context.trace)
    in_steps = len(np.unique(np.searchsorted(steps.edges, context.gaps.start[gaps], side="right")))
    idle_ns = context.per_step(float(where.total))
    return Detection(
        (
            Quantity("GPU idle per step", idle_ns, "ns"),
            Quantity("gaps per step", context.per_step(len(gaps)), "count"),
            Quantity("longest", float(longest), "ns"),
            Quantity("steps affected", float(in_steps), "count"),
        ),
        idle_ns,
        where,
        f"the GPU idles {milliseconds(idle_ns)}/step while {what} (up to {duration(longest)} in one gap, "
        f"in {in_steps} of {context.steps} recorded steps); {_places(context, cause)}",
        "high",
    )


def _places(context: RankContext, cause: str) -> str:
    """Where most of the time is spent: ops, frames, annotations; of a silent host what is around it."""
    pieces = context.idle_by(cause)
    host, op, texts = host_names(context.trace, pieces)
    hosts: Counter[str] = Counter()
    ops: dict[str, Counter[str]] = {}
    for host_code, op_code, ns in zip(host.tolist(), op.tolist(), pieces.dur.tolist(), strict=True):
        inside, around = texts[host_code], texts[op_code]
        name = inside or f"between {around.replace(' -> ', ' and ')}"
        hosts[name] += ns
        ops.setdefault(name, Counter())[around] += ns
    names: Counter[str] = Counter()
    for name, total in hosts.items():
        ((op_name, op_ns),) = ops[name].most_common(1)
        inner = op_name if op_ns >= _MOST * total and " -> " not in op_name else ""
        names[inner or name] += total
    return f"mostly {', '.join(f'{name} {duration(ns)}' for name, ns in names.most_common(_PLACES))}"
