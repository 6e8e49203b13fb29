"""The GPU runs dry because the host launches its work too late."""

from __future__ import annotations

import numpy as np

from tracelens.analysis.host import GAP_NS
from tracelens.analysis.host import launch_bound as share_idle
from tracelens.arrays import Int
from tracelens.findings.detectors.detector import Detection, Outcome, Quantity, detector
from tracelens.findings.rank_context import RankContext
from tracelens.trace import union
from tracelens.units import duration

_SHARE = 0.01
"""Any eager program has some late launches; up to this share of the time they do not matter."""

_QUEUED_NS = 50_000
"""Work that was called so long before the work ahead of it ended has been ready to start at once: from a call
to the start on an idle GPU it takes 5 to 35 us."""


@detector(
    "launch_bound",
    scenario="step_graph",
    title="Launch-bound: the GPU waits for the host to launch",
    launching=True,
    symptom=True,
    measures={
        "waiting for a launch, share": "idle time before late launches / recorded time",
        "idle with at most one launch queued, share": "such idle time / recorded time",
        "late launches per step": "gaps that end with a late launch",
        "dispatch floor per gap": "median gap before work that was queued in time; it remains",
        "launch call, p50": "median CPU time of a launch call",
        "launch call, p99": "99th percentile of it",
        "launch to start on an idle GPU, p50": "median, from the launch call to the start",
        "launch to start on an idle GPU, p99": "99th percentile of it",
    },
    threshold=f"over {_SHARE:.0%} of the time",
    limits="The profiler slows the host down: compare with a step without it.",
)
def launch_bound(context: RankContext) -> Outcome:
    """The GPU is idle for over 1% of the time because the host launches its next kernel late."""
    if not len(context.work.event):
        return "no GPU work"
    launched = context.work.launch >= 0
    if not launched.any():
        return "no GPU work has its launch call in the trace"
    gaps = context.gaps
    # What is launched late starts late: the way from the call to the GPU is part of it.
    late = np.zeros(len(gaps.start), dtype=bool)
    causes = ("launch overhead", "queue refill") if context.is_launch_bound else ("launch overhead",)
    late[context.idle_by(*causes).gap] = True
    late &= gaps.after >= 0
    pieces = context.idle_by(*causes, "dispatch")
    pieces = pieces.take(late[pieces.gap])
    where = union(pieces.start, pieces.end)
    window = max(context.window[1] - context.window[0], 1)
    share = where.total / window
    if share <= _SHARE:
        return f"the GPU waits for launches {share:.1%} of the time"
    floor_ns = _usual_gap(context)
    number = context.per_step(int(late.sum()))
    dur = np.zeros(len(late), dtype=np.int64)
    np.add.at(dur, pieces.gap, pieces.dur)
    saving = context.per_step(float(np.maximum(dur[late] - floor_ns, 0).sum()))
    quantities, launch_times = _figures(context, gaps.after[late])
    with_work = context.work.take(launched)
    idle, span = share_idle(context.work, with_work, context.called[launched])
    return Detection(
        (
            Quantity("waiting for a launch, share", share, "fraction"),
            Quantity("idle with at most one launch queued, share", idle / span, "fraction"),
            Quantity("late launches per step", number, "count"),
            Quantity("dispatch floor per gap", floor_ns, "ns"),
            *quantities,
        ),
        saving,
        where,
        f"the GPU waits for launches {share:.1%} of the time, in {number:,.0f} gaps per step; "
        f"{launch_times}; dispatch floor: "
        f"{duration(floor_ns)} per gap. The profiler slows the host: compare with an unprofiled step",
        "low",
    )


def _usual_gap(context: RankContext) -> float:
    """Median gap in front of work that lay ready behind other work of its stream, ns; at least GAP_NS.

    On ROCm, where queued kernels are drawn end to end, it would be zero.
    """
    work, gaps = context.work, context.gaps
    after, before = np.maximum(gaps.after, 0), np.maximum(gaps.before, 0)
    queued = (gaps.after >= 0) & (gaps.before >= 0) & (work.launch[after] >= 0)
    queued &= (context.called[after] <= gaps.start - _QUEUED_NS) & (work.stream[after] == work.stream[before])
    dur = (gaps.end - gaps.start)[queued]
    return max(float(np.median(dur)), GAP_NS) if len(dur) else float(GAP_NS)


def _figures(context: RankContext, late: Int) -> tuple[list[Quantity], str]:
    """How long launching takes: the calls for kernels, and from a call to the start on an idle GPU.

    Args:
        context: of the rank.
        late: positions in its work of what ended the gaps.
    """
    events, work = context.trace.arrays, context.work
    call = np.unique(work.launch[(work.launch >= 0) & work.is_kernel])
    start = (work.start - context.called)[late]
    quantities, texts = [], []
    for measure, values in (
        ("launch call", events.end[call] - events.start[call]),
        ("launch to start on an idle GPU", start),
    ):
        if len(values):
            p50, p99 = (float(np.percentile(values, share)) for share in (50, 99))
            quantities += [Quantity(f"{measure}, p50", p50, "ns"), Quantity(f"{measure}, p99", p99, "ns")]
            texts.append(f"{measure}: p50 {duration(p50)}, p99 {duration(p99)}")
    names = {events.names[code] for code in np.unique(events.name[call])}
    if any(name.startswith("hip") for name in names):
        texts.append("on ROCm")
    return quantities, ", ".join(texts)
