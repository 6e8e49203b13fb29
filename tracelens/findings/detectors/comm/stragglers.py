"""Ranks that only wait in collectives because another one is late."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tracelens.analysis.comm import SEND_RECV
from tracelens.analysis.stragglers import duration
from tracelens.arrays import Bool
from tracelens.findings.detectors.detector import Confidence, Detection, Quantity, detector
from tracelens.findings.step_counts import in_steps, step_count
from tracelens.table import Result, Table
from tracelens.trace import union

EXPLAINED = ("slow_kernels", "late_launch", "blocking_call", "garbage_collection")
"""Causes that can be removed on the late rank."""

UNEVEN = ("token_load",)

UNEXPLAINED = ("inherited", "unknown")


@detector(
    "stragglers",
    title="Ranks wait for late ranks",
    remedy="Where the late rank launches late: NUMA binding, HSA_KERNARG_POOL_SIZE=12582912, fewer or "
    "captured launches; in blocking calls: drop the sync (.item(), D2H copies; Primus "
    "--turbo_sync_free_moe_stage); in garbage collection: Megatron --manual-gc --manual-gc-interval on all "
    "ranks; slow kernels: look at clocks, power cap, temperature and neighbours of that GPU.",
    needs=("collectives", "stragglers"),
    host_remedy="Look at what the late rank was in between its ops (`stragglers`, `idle`): Python, data "
    "loading, garbage collection (collect by hand, on all ranks at once); slower ops: cores shared with "
    "other processes, number of threads, clocks, NUMA binding.",
)
def stragglers(results: Mapping[str, Result]) -> Mapping[int, Detection] | str:
    """GPUs idle in collectives for a rank that its own host or its slower GPU makes late."""
    return _waiting(results, EXPLAINED, "medium", beyond=True)


@detector(
    "stragglers_load",
    title="Ranks wait for ranks with more work",
    remedy="Spread the work evenly: balance the routing of tokens (auxiliary loss, router bias, placement of "
    "experts by load), sequences by length, layers by their time.",
    needs=("collectives", "stragglers"),
)
def stragglers_load(results: Mapping[str, Result]) -> Mapping[int, Detection] | str:
    """GPUs idle in collectives for a rank that has more to compute: larger shapes or more calls."""
    # All waiting, as mean of the ranks, is what the longest work takes more than the mean.
    return _waiting(results, UNEVEN, "medium", beyond=None)


@detector(
    "stragglers_unexplained",
    title="Ranks wait for ranks that are late for no visible reason",
    remedy="Record all ranks with shapes and Python stacks, and from a step on in which they start together; "
    "the `stragglers` tables name the late ranks and where their lateness came from.",
    needs=("collectives", "stragglers"),
)
def stragglers_unexplained(results: Mapping[str, Result]) -> Mapping[int, Detection] | str:
    """GPUs idle in collectives for a rank whose lateness was brought along or has no recorded cause."""
    return _waiting(results, UNEXPLAINED, "low", beyond=True)


@detector(
    "stragglers_noise",
    title="Ranks wait for each other, and no rank stands out",
    remedy="Look for what strikes ranks at different times: garbage collection (Megatron --manual-gc "
    "--manual-gc-interval on all ranks), launches (NUMA binding, HSA_KERNARG_POOL_SIZE=12582912), clocks. A "
    "recording of more steps tells a straggler from chance.",
    needs=("collectives", "stragglers"),
    host_remedy="Look for what strikes ranks at different times: cores shared between ranks or with other "
    "processes, garbage collection, data loading. A recording of more steps tells a straggler from chance.",
)
def stragglers_noise(results: Mapping[str, Result]) -> Mapping[int, Detection] | str:
    """GPUs idle in collectives for now one rank and now another, or for less than equal GPUs differ by."""
    return _waiting(results, (*EXPLAINED, *UNEXPLAINED), "low", beyond=False)


def _waiting(
    results: Mapping[str, Result], causes: Sequence[str], confidence: Confidence, *, beyond: bool | None
) -> Mapping[int, Detection] | str:
    """Signals of the ranks that wait for one of these causes.

    Args:
        results: of the analyzers.
        causes: that count.
        confidence: of the signals.
        beyond: for ranks that are late beyond noise, or for the others; None for all.
    """
    lost = results["stragglers"].data["lost"]
    # What a stage of a pipeline waits in a receive is the pipeline's bubble.
    counted = in_steps(lost) & np.array([name != SEND_RECV for name in lost.texts("collective")], dtype=bool)
    if not counted.any():
        if len(results["collectives"].data["members"]):
            return "no rank does nothing but wait in a collective"
        return "no collective was recorded on several ranks, which alone shows who waited for whom"
    cause = np.array(lost.texts("cause"))
    chosen = counted & np.isin(cause, causes)
    if not chosen.any():
        others = ", ".join(sorted(set(cause[counted].tolist())))
        return f"what ranks wait for in collectives is {others}"
    if beyond is not None:
        table = results["stragglers"].data["stragglers"]
        out = table.array("rank")[table.array("beyond_noise").astype(bool)]
        chosen &= np.isin(lost.array("late_rank"), out) == beyond
        if not chosen.any():
            return f"{'no' if beyond else 'each'} rank that is waited for so is late beyond noise"
    steps = step_count(results)
    ranks = np.unique(lost.array("rank")[chosen]).tolist()
    named = beyond is not False
    return {rank: _signal(lost, rank, (counted, chosen), causes, steps, confidence, named) for rank in ranks}


def _signal(
    lost: Table,
    rank: int,
    masks: tuple[Bool, Bool],
    causes: Sequence[str],
    steps: int,
    confidence: Confidence,
    named: bool,
) -> Detection:
    """What a rank loses; `masks` are the rows that count and those with one of the causes."""
    counted, chosen = (mask & (lost.array("rank") == rank) for mask in masks)
    start, dur, late = (lost.array(name) for name in ("own_ts_ns", "dur_ns", "late_rank"))
    cause = np.array(lost.texts("cause"))
    by_cause = {name: float(dur[chosen & (cause == name)].sum()) / steps for name in causes}
    by_cause = {name: ns for name, ns in sorted(by_cause.items(), key=lambda item: -item[1]) if ns}
    saving, total = sum(by_cause.values()), float(dur[counted].sum()) / steps
    blamed = {int(one): int(dur[chosen & (late == one)].sum()) for one in np.unique(late[chosen])}
    worst = max(blamed, key=lambda one: blamed[one])
    share = blamed[worst] / max(sum(blamed.values()), 1)
    listed = ", ".join(f"{name.replace('_', ' ')} {duration(ns)}" for name, ns in by_cause.items())
    return Detection(
        (
            Quantity("waiting for these causes", saving, "ns"),
            *(Quantity(f"waiting for {name.replace('_', ' ')}", ns, "ns") for name, ns in by_cause.items()),
            Quantity("all waiting with nothing beside", total, "ns"),
            Quantity("waits a step", int(chosen.sum()) / steps, "count"),
            Quantity("share for the worst rank", share, "fraction"),
        ),
        saving,
        union(start[chosen], start[chosen] + dur[chosen]),
        f"of {duration(total)} a step in which it does nothing but wait in collectives: {listed}; "
        + (f"most for rank {worst} ({share:.0%})" if named else "for no rank beyond noise"),
        confidence,
    )
