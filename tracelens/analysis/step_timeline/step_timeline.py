"""What every rank does at each moment of the steps: the data of the picture of a report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tracelens.analysis.analyzer import analyzer
from tracelens.analysis.comm import AlignedRun
from tracelens.analysis.step_timeline.marks import COMMON, marks, messages
from tracelens.analysis.step_timeline.rank import RankTimeline, rank_timeline
from tracelens.analysis.step_timeline.schemas import COMMUNICATION, SHARES, STATES, TABLES, TRACES, WAITING
from tracelens.analysis.step_timeline.selection import kernel_table, select_steps
from tracelens.analysis.step_timeline.states import States, coarser, merged, with_waiting
from tracelens.table import Result, Skip, result, sums
from tracelens.trace import Scope
from tracelens.units import duration

KERNELS_SHOWN = 600_000
"""Of all ranks together: some 20 bytes each in a page."""

STATES_SHOWN = 1_000_000
"""Likewise. Of more, short ones are put together, in the typical step last."""

_FINEST_NS = 1000


@analyzer(
    "step_timeline",
    title="The step on every rank",
    order=5,
    part=rank_timeline,
    shared=("aligned run",),
    needs=("moe", "pipeline", "serving", "stragglers"),
    tables=TABLES,
)
def step_timeline(
    parts: Sequence[RankTimeline],
    aligned: AlignedRun,
    results: Mapping[str, Result],
    *,
    scope: Scope = "all",
) -> Result:
    """What does each rank do at each moment of the step: compute, communicate, wait for others, or idle?

    Reading:
        In an HTML report, one lane per rank, by one clock. `shares` adds the lanes up: compare the ranks in
        one state.

    Limits:
        Waiting is known only in collectives that were matched across ranks.

    Args:
        parts: from `rank_timeline`.
        aligned: the run.
        results: of the analyzers whose passes, layers and waiting it shows.
        scope: "all", or "linked" for work whose launch call is in the trace.

    Returns:
        table `shares`; for the picture in an HTML page, all by one clock, `steps`, `states`, `kernels`,
        `traces`, `marks` and `messages`. meta: `typical_step`, which stands for the run.
    """
    skips = [Skip(f"rank {part.rank}", part.absent) for part in parts if part.absent]
    parts = [part for part in parts if not part.absent]
    if not parts:
        return result({"shares": SHARES.concat([])}, skips, scope=scope)
    shift = aligned.shift
    origin = min(int(part.edges[0]) + shift[part.rank] for part in parts)
    end = max(int(part.edges[-1]) + shift[part.rank] for part in parts)
    start = {COMMON: -origin} | {part.rank: shift[part.rank] - origin for part in parts}
    states, waiting_skips = _waiting(parts, results["stragglers"])
    selection = select_steps(parts, shift, KERNELS_SHOWN)
    drawn, coarse_skips = _drawn(parts, states, selection.typical)
    tables = {
        "shares": SHARES.concat(_shares(parts, states)),
        "steps": selection.table(origin),
        "states": STATES.concat([_state_rows(*lane, start) for lane in zip(parts, drawn, strict=True)]),
        "kernels": kernel_table(parts, selection, start),
        "traces": TRACES.from_rows(
            (part.rank, part.host, part.first_ns + start[part.rank]) for part in parts
        ),
        "marks": marks(results, parts, start),
    }
    if len(sent := messages(aligned, origin, end)):
        tables["messages"] = sent
    if not len(tables["marks"]):
        skips.append(Skip("steps, passes and layers", "none marked, see `timeline` and `moe`"))
    skips += [*waiting_skips, *coarse_skips, *selection.skips()]
    return result(tables, skips, scope=scope, typical_step=selection.typical)


def _waiting(parts: Sequence[RankTimeline], stragglers: Result) -> tuple[list[States], list[Skip]]:
    """The states of all ranks with their waiting for each other, as far as it is known."""
    lost = stragglers.data.get("lost")
    states = [part.states for part in parts]
    if lost is not None and len(lost):
        rank = lost.array("rank")
        of_rank = (lost.take(np.flatnonzero(rank == part.rank)) for part in parts)
        states = [
            merged(with_waiting(part.states, waits), part.edges)
            for part, waits in zip(parts, of_rank, strict=True)
        ]
    elif any(own.of(COMMUNICATION).any() for own in states):
        reason = "none known: needs matched collectives of at least two ranks"
        return states, [Skip(f"{WAITING} within {COMMUNICATION}", reason)]
    return states, []


def _shares(parts: Sequence[RankTimeline], states: Sequence[States]) -> list[dict[str, Any]]:
    """Rows of SHARES, on each rank the state first in which all of them spend most time."""
    totals = [_by_state(own) for own in states]
    together: Counter[str] = Counter()
    for of_rank in totals:
        together.update(of_rank)
    rows = []
    for part, of_rank in zip(parts, totals, strict=True):
        names = [state for state, _ in together.most_common() if state in of_rank]
        dur = np.array([of_rank[state] for state in names], dtype=np.int64)
        rows.append(
            {
                "rank": np.full(len(names), part.rank),
                "state": names,
                "dur_ns": dur,
                "fraction": dur / int(dur.sum()),
            }
        )
    return rows


def _by_state(states: States) -> dict[str, int]:
    """Time in each state, ns."""
    state = states.state
    totals = sums(state.codes.astype(np.int64), states.end - states.start, len(state.values))
    return dict(zip(state.values, totals.tolist(), strict=True))


def _drawn(
    parts: Sequence[RankTimeline], states: Sequence[States], typical: str
) -> tuple[Sequence[States], list[Skip]]:
    """The states, coarser if there are too many of them."""
    drawn = states
    for kept in (typical, None):
        steps = [part.labels.index(kept) if kept in part.labels else -1 for part in parts]
        bin_ns, longest_ns = _FINEST_NS, max(int(np.diff(part.edges).max()) for part in parts)
        while (count := sum(len(own.start) for own in drawn)) > STATES_SHOWN and bin_ns < 2 * longest_ns:
            lanes = zip(parts, states, steps, strict=True)
            drawn = [coarser(own, part.edges, bin_ns, step) for part, own, step in lanes]
            bin_ns *= 2
        if count <= STATES_SHOWN:
            break
    if drawn is states:
        return states, []
    subject = f"order of states within {duration(bin_ns // 2)}{f', except in {kept}' if kept else ''}"
    return drawn, [Skip(subject, f"the picture holds {STATES_SHOWN:,} states")]


def _state_rows(part: RankTimeline, states: States, start: Mapping[int, int]) -> dict[str, Any]:
    """Rows of STATES of one rank."""
    return {
        "rank": np.full(len(states.start), part.rank),
        "ts_ns": states.start + start[part.rank],
        "dur_ns": states.end - states.start,
        "state": states.state,
        "detail": states.detail,
    }
