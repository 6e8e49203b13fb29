"""Ranks that only wait in collectives because another rank is late."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tracelens.analysis.comm import SEND_RECV
from tracelens.analysis.stragglers import NOISE, SIGNIFICANT, SMALL, TOO_FEW, UNTESTED
from tracelens.arrays import Bool
from tracelens.findings.detectors.detector import Confidence, Detection, Quantity, detector
from tracelens.findings.step_counts import in_steps, step_count
from tracelens.table import Result, Table
from tracelens.trace import union
from tracelens.units import duration

EXPLAINED = (
    "extra_work",
    "slow_kernels",
    "silent_host",
    "data_loading",
    "blocking_call",
    "garbage_collection",
    "collective_call",
    "late_launch",
)
"""Causes that can be removed on the late rank."""

UNEVEN = ("token_load",)

UNEXPLAINED = ("inherited", "unknown")

NOBODY = "no significant straggler"

_BLAMED = 0.1
"""A rank with a smaller share of the waiting is not worth a scenario."""
_MOST = 0.9
"""Waiting with this share of causes that a steady pace removes."""

_MEASURES = {
    "waiting for these causes": "exposed waiting in collectives, per step",
    "waiting for CAUSE": "part of it with this cause",
    "all exposed waiting": "exposed waiting in collectives for any cause, per step",
    "waits per step": "stretches of such waiting",
    "share for the worst rank": "part of the waiting that is for the rank most waited for",
}


@detector(
    "stragglers",
    scenario="median_pace",
    title="Ranks wait for late ranks",
    needs=("collectives", "stragglers"),
    measures=_MEASURES,
    threshold="waiting for a significant straggler, see `stragglers`, or too few steps to tell",
    limits="Needs the traces of the ranks of a group.",
)
def stragglers(results: Mapping[str, Result]) -> Mapping[int, Detection] | str:
    """GPUs wait in collectives for a rank that its host or a slower GPU makes late."""
    return _waiting(results, EXPLAINED, "medium", (SIGNIFICANT, TOO_FEW))


@detector(
    "stragglers_load",
    scenario="balanced",
    title="Ranks wait for ranks with more work",
    needs=("collectives", "stragglers"),
    measures=_MEASURES,
    threshold="any exposed waiting with this cause",
    limits="Assumes that the work can be spread evenly.",
)
def stragglers_load(results: Mapping[str, Result]) -> Mapping[int, Detection] | str:
    """GPUs wait in collectives for a rank that has more to compute: larger shapes or more calls."""
    # All waiting, as mean of the ranks, is what the longest work takes more than the mean.
    return _waiting(results, UNEVEN, "medium", None)


@detector(
    "stragglers_unexplained",
    title="Ranks wait for ranks that are late without a visible cause",
    needs=("collectives", "stragglers"),
    measures=_MEASURES,
    threshold="waiting for a significant straggler, see `stragglers`, or too few steps to tell",
    limits="The trace does not show the cause, so no scenario removes it.",
)
def stragglers_unexplained(results: Mapping[str, Result]) -> Mapping[int, Detection] | str:
    """GPUs wait in collectives for a rank whose lateness is inherited or has no recorded cause."""
    return _waiting(results, UNEXPLAINED, "low", (SIGNIFICANT, TOO_FEW))


@detector(
    "stragglers_noise",
    scenario="median_pace",
    title="Ranks wait for each other, without a significant straggler",
    needs=("collectives", "stragglers"),
    measures=_MEASURES,
    threshold="exposed waiting, none of it for a significant straggler",
    limits="Some waiting remains in any run, as ranks always differ a little.",
)
def stragglers_noise(results: Mapping[str, Result]) -> Mapping[int, Detection] | str:
    """GPUs wait in collectives for varying ranks, or for less time than identical GPUs differ by."""
    return _waiting(results, (*EXPLAINED, *UNEXPLAINED), "low", (NOISE, SMALL, UNTESTED))


def _waiting(
    results: Mapping[str, Result],
    causes: Sequence[str],
    confidence: Confidence,
    significance: Sequence[str] | None,
) -> Mapping[int, Detection] | str:
    """Detections of the ranks that wait for one of these causes.

    Args:
        results: of the analyzers.
        causes: that count.
        confidence: of the detections.
        significance: of the late rank for the cause, those that count; None for all.
    """
    lost = results["stragglers"].data["lost"]
    # What a stage of a pipeline waits in a receive is the pipeline's bubble.
    counted = in_steps(lost) & ~lost.coded("collective").equals(SEND_RECV)
    if not counted.any():
        if len(results["collectives"].data["participants"]):
            return "no exposed waiting in collectives"
        return "no collective is recorded on several ranks: waiting is unknown"
    cause = lost.coded("cause")
    for_causes = counted & cause.mask(causes.__contains__)
    if not for_causes.any():
        other_causes = ", ".join(sorted(set(cause.texts(counted))))
        return f"the waiting in collectives has other causes: {other_causes}"
    verdict = _verdicts(results["stragglers"])
    if significance is not None:
        for_causes &= np.isin(verdict, significance)
        if not for_causes.any():
            named = SIGNIFICANT in significance
            return NOBODY if named else "all waiting is for significant stragglers"
    certain = for_causes & (verdict == SIGNIFICANT)
    steps = step_count(results)
    ranks = np.unique(lost.array("rank")[for_causes]).tolist()
    rest = ""
    if significance is not None and SIGNIFICANT not in significance:
        rest = NOBODY
    elif significance is not None and not certain.any():
        confidence, rest = "low", "too few steps to tell this from noise"
    scenario = None
    if significance is not None:
        scenario = _all_paced(lost, for_causes, counted) if rest == NOBODY else _paced(lost, for_causes)
    masks = counted, for_causes
    return {
        rank: _detection(lost, rank, masks, causes, steps, confidence, rest)._replace(scenario=scenario)
        for rank in ranks
    }


def _paced(lost: Table, for_causes: Bool) -> str:
    """The what-if request in which the late ranks take no longer than the others; their own causes only."""
    if not for_causes.any() or not lost.coded("cause").mask(EXPLAINED.__contains__)[for_causes].all():
        return ""
    ranks, index = np.unique(lost.array("late_rank")[for_causes], return_inverse=True)
    blamed = np.bincount(index, weights=lost.array("dur_ns")[for_causes])
    worst = np.flatnonzero(blamed >= _BLAMED * blamed.sum())
    return "+".join(f"median_pace={ranks[row]}" for row in worst[np.argsort(-blamed[worst])].tolist())


def _all_paced(lost: Table, for_causes: Bool, counted: Bool) -> str:
    """The what-if request in which no rank is later than the others, if that is what ranks wait for.

    A rank that has more to do is later for a reason that a steady pace does not remove.
    """
    dur, cause = lost.array("dur_ns"), lost.coded("cause")
    random_ns = dur[for_causes & ~cause.equals("extra_work")].sum()
    return "median_pace" if random_ns >= _MOST * dur[counted].sum() else ""


def _verdicts(stragglers: Result) -> NDArray[np.str_]:
    """How significant the late rank is for the cause, by row of `lost`."""
    lost, table = stragglers.data["lost"], stragglers.data["causes"]
    rows = np.arange(len(table))
    pairs = zip(table.array("rank").tolist(), table.texts("cause", rows), strict=True)
    of_pair = dict(zip(pairs, table.texts("significance", rows), strict=True))
    # What a rank has from before is as significant as what else it is late for.
    ranks = stragglers.data["stragglers"]
    of_rank = dict(
        zip(ranks.array("rank").tolist(), ranks.texts("significance", np.arange(len(ranks))), strict=True)
    )
    of_pair = {pair: of_rank[pair[0]] if text == UNTESTED else text for pair, text in of_pair.items()}
    waits = zip(lost.array("late_rank").tolist(), lost.texts("cause", np.arange(len(lost))), strict=True)
    return np.array([of_pair.get(pair, UNTESTED) for pair in waits], dtype=np.str_)


def _detection(
    lost: Table,
    rank: int,
    masks: tuple[Bool, Bool],
    causes: Sequence[str],
    steps: int,
    confidence: Confidence,
    note: str,
) -> Detection:
    """What a rank loses.

    Args:
        lost: the table.
        rank: that waits.
        masks: the rows that count, and those with one of the causes.
        causes: in question.
        steps: number of steps.
        confidence: of the detection.
        note: what limits it, "" where nothing does.
    """
    counted, for_causes = (mask & (lost.array("rank") == rank) for mask in masks)
    start, dur, late = (lost.array(name) for name in ("local_ts_ns", "dur_ns", "late_rank"))
    cause = lost.coded("cause")
    by_cause = {name: float(dur[for_causes & cause.equals(name)].sum()) / steps for name in causes}
    by_cause = {name: ns for name, ns in sorted(by_cause.items(), key=lambda item: -item[1]) if ns}
    saving, total = sum(by_cause.values()), float(dur[counted].sum()) / steps
    blamed = {
        int(late_rank): int(dur[for_causes & (late == late_rank)].sum())
        for late_rank in np.unique(late[for_causes])
    }
    worst = max(blamed, key=lambda late_rank: blamed[late_rank])
    share = blamed[worst] / max(sum(blamed.values()), 1)
    listed = ", ".join(f"{name.replace('_', ' ')} {duration(ns)}" for name, ns in by_cause.items())
    return Detection(
        (
            Quantity("waiting for these causes", saving, "ns"),
            *(Quantity(f"waiting for {name.replace('_', ' ')}", ns, "ns") for name, ns in by_cause.items()),
            Quantity("all exposed waiting", total, "ns"),
            Quantity("waits per step", int(for_causes.sum()) / steps, "count"),
            Quantity("share for the worst rank", share, "fraction"),
        ),
        saving,
        union(start[for_causes], start[for_causes] + dur[for_causes]),
        f"{duration(total)} per step of exposed waiting in collectives, including {listed}; "
        + (note if note == NOBODY else f"most for rank {worst} ({share:.0%}){note and '; '}{note}"),
        confidence,
    )
