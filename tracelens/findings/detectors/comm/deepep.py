"""DeepEP's dispatch with a host that spins until the GPU has counted the tokens to receive."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from tracelens.analysis.host import threads
from tracelens.arrays import Bool, Int
from tracelens.findings.detectors.detector import Detection, Outcome, Quantity, detector
from tracelens.findings.rank_context import RankContext
from tracelens.trace import STACK_KINDS, Union, cut, union
from tracelens.units import duration

# The function's own name, with or without namespaces, template arguments and parameters. The cached kinds
# (cached_notify_dispatch) know all sizes before.
_NOTIFY = re.compile(r"(?:^|[\s:])notify_dispatch(?:$|[<(])")
_DISPATCH = re.compile(r"(?:^|[\s:])dispatch(?:$|[<(])")

# The host reads the last counter and allocates what the dispatch writes into.
_RESTART_NS = 500_000


class _Pairs(NamedTuple):
    """Each notify_dispatch with the dispatch that follows it on the same thread, ns.

    Attributes:
        called: end of the launch call of the first.
        counted: end of the first on the GPU.
        dispatch_called: start of the launch call of the second.
        dispatched: start of the second on the GPU.
        quiet: whether the thread began nothing between `called` and `counted`.
    """

    called: Int
    counted: Int
    dispatch_called: Int
    dispatched: Int
    quiet: Bool


@detector(
    "deepep_busy_wait",
    title="DeepEP: the host spins until tokens are counted",
    launching=True,
    measures={
        "spins per step": "dispatches before which the host spins",
        "dispatches per step": "pairs of notify_dispatch and dispatch",
        "host time spun": "from the end of the launch call to the end of notify_dispatch, per step",
        "GPU idle after notify_dispatch": "until dispatch starts, per step",
    },
    threshold=f"dispatch is launched within {_RESTART_NS / 1e6:g} ms of the end of notify_dispatch",
    limits="Launches that are late afterwards, because the host has fallen behind, do not count.",
)
def deepep_busy_wait(context: RankContext) -> Outcome:
    """The host spins until DeepEP's `notify_dispatch` ends, and only then launches `dispatch`."""
    pairs = _pairs(context)
    if isinstance(pairs, str):
        return pairs
    # The spin ends with the counters, which are written as the first kernel ends.
    spins = pairs.quiet & (pairs.dispatch_called >= pairs.counted) & (pairs.counted > pairs.called)
    spins &= pairs.dispatch_called - pairs.counted < _RESTART_NS
    count = int(spins.sum())
    if not count:
        return f"the host moves on while notify_dispatch runs, in all {len(spins)} dispatches"
    spun = (pairs.counted - pairs.called)[spins]
    low, high = pairs.counted[spins], np.maximum(pairs.dispatched[spins], pairs.counted[spins])
    where = _idle(context, low, high)
    per_step, spun_ns = context.per_step(count), context.per_step(float(spun.sum()))
    idle_ns = context.per_step(float(where.total))
    return Detection(
        (
            Quantity("spins per step", per_step, "count"),
            Quantity("dispatches per step", context.per_step(len(spins)), "count"),
            Quantity("host time spun", spun_ns, "ns"),
            Quantity("GPU idle after notify_dispatch", idle_ns, "ns"),
        ),
        idle_ns,
        where,
        f"in {count} of {len(spins)} dispatches the host spins until notify_dispatch ends "
        f"({duration(spun_ns)} per step, without a sync call) and only then launches dispatch: the GPU "
        f"idles {duration(idle_ns)} per step, not counting later late launches",
        "high",
    )


def _pairs(context: RankContext) -> _Pairs | str:
    """The dispatches of a rank, or why there are none."""
    work, events = context.work, context.trace.arrays
    used = np.unique(work.name[work.is_kernel]).tolist()
    first = [code for code in used if _NOTIFY.search(work.names[code])]
    second = [code for code in used if _DISPATCH.search(work.names[code])]
    if not first:
        return "no DeepEP kernel notify_dispatch"
    rows = np.flatnonzero(work.is_kernel & np.isin(work.name, first + second) & (work.launch >= 0))
    thread = threads(context.trace)
    launch = work.launch[rows]
    order = np.lexsort((events.start[launch], thread[launch]))
    rows, launch = rows[order], launch[order]
    notifies = np.isin(work.name[rows], first)
    follows = notifies[:-1] & ~notifies[1:] & (thread[launch[:-1]] == thread[launch[1:]])
    index = np.flatnonzero(follows)
    if not len(index):
        return "no launch calls of notify_dispatch and the dispatch that follows"
    notify, dispatch = rows[index], rows[index + 1]
    notify_call, dispatch_call = launch[index], launch[index + 1]
    called, counted = events.end[notify_call], work.end[notify]
    return _Pairs(
        called,
        counted,
        events.start[dispatch_call],
        work.start[dispatch],
        _quiet(context, thread, notify_call, called, np.minimum(counted, events.start[dispatch_call])),
    )


def _quiet(context: RankContext, thread: Int, launch: Int, low: Int, high: Int) -> Bool:
    """Whether no event of the launch's thread begins between these times."""
    events = context.trace.arrays
    host = np.flatnonzero(events.where(*STACK_KINDS))
    quiet = np.ones(len(launch), dtype=bool)
    for number in np.unique(thread[launch]).tolist():
        starts = np.sort(events.start[host[thread[host] == number]])
        on_thread = thread[launch] == number
        before = np.searchsorted(starts, low[on_thread], side="left")
        quiet[on_thread] = before == np.searchsorted(starts, high[on_thread], side="left")
    return quiet


def _idle(context: RankContext, low: Int, high: Int) -> Union:
    """When the GPU did nothing between these times."""
    _, start, end = cut(low, high, context.busy.gaps())
    return union(start, end)
