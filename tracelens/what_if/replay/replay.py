"""Replays one step of a run under several scenarios, and makes the rows of the what-if tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tracelens.table import Table, sums
from tracelens.what_if.graph import Edit, Recorded
from tracelens.what_if.replay.check import (
    KINDS,
    as_derived,
    durations_only,
    kind_of,
    predicted_starts,
    unmatched,
)
from tracelens.what_if.replay.labels import labels
from tracelens.what_if.replay.path import UNEXPLAINED, critical_path
from tracelens.what_if.replay.projector import Projector, mean_ns, spans
from tracelens.what_if.replay.schedule import schedule
from tracelens.what_if.replay.step import Extent
from tracelens.what_if.replay.tables import (
    ASSUMPTIONS,
    BOTTLENECKS,
    CRITICAL_PATH,
    EXPLAINED,
    MEASURED,
    STEP_RANKS,
    TRUST,
    WHATIF,
    bottleneck_rows,
    interleaved,
    path_rows,
    trust_row,
)
from tracelens.what_if.scenario import ScenarioRequest

Rows = dict[str, Any]

DOUBTFUL = 0.1
"""Largest trusted share of a step; recordings of all ranks and several steps stay within 1/40."""

REPLAYS = {
    "as measured": "nothing changed, unexplained delays kept",
    "durations only": "durations as recorded (GPU work, transfers, the host between its calls); every gap "
    "is the median of its kind, and nothing waits without a recorded cause",
}


class Outcome(NamedTuple):
    """The result of one scenario: rows of the tables of these names."""

    projected_ns: int  # of the step
    whatif: Rows
    assumptions: Rows
    critical_path: Rows  # one row per category
    bottlenecks: Rows  # one row per name
    ranks: Rows  # one row per rank


class Replay:
    """One step of a run, replayed.

    Attributes:
        projector: the step under scenarios.
        recorded: critical path of the recorded step, ns by category.
        derived: the step replayed from durations alone.
        unexplained: of each rank, time on its critical path that nothing explains, ns by kind of node.
    """

    def __init__(self, projector: Projector) -> None:
        recorded = projector.context.recorded
        self.graph, self.projector = recorded.graph, projector
        self.names = labels(recorded)
        same, base = Edit.of(self.graph), self.projector.share.base(self.graph)
        self.before: Mapping[str, int] = {}
        as_recorded = self._path(MEASURED, same, self.projector.step.extents(same))
        self.recorded: Mapping[str, int] = as_recorded[-1]
        self.path, self.bottlenecks, self.before = (
            as_recorded
            if self.projector.share.factor == 1
            else self._path(MEASURED, base, self.projector.step.extents(base))
        )
        self.path["delta_ns"] = [0] * len(self.before)
        gaps = durations_only(self.graph)
        self.derived = self.projector.step.extents(gaps)
        self.unexplained = self._unexplained(recorded, gaps)

    def scenario(self, request: ScenarioRequest) -> Outcome:
        """Replay the step under one scenario, or several together; raises as `Projector.project`."""
        projection = self.projector.project(request)
        path, bottlenecks, parts = self._path(request.text, projection.edit, projection.typical)
        typical = spans(projection.typical)
        row = {
            "scenario": request.text,
            "base_ns": self.projector.base_ns,
            "projected_ns": projection.step_ns,
            "low_ns": projection.low_ns,
            "high_ns": projection.high_ns,
            "rerun_low_ns": projection.rerun_ns[0],
            "rerun_high_ns": projection.rerun_ns[1],
            "gain": self.projector.base_ns / max(projection.step_ns, 1) - 1,
            "bottleneck": next(iter(parts), ""),
        }
        assumption_row = {
            "scenario": request.text,
            "change": " ".join(dict.fromkeys(item.doc for item, _ in request.parts)),
            "assumption": "; ".join(dict.fromkeys(projection.assumed)),
        }
        ranks = {
            "scenario": [request.text] * len(typical),
            "rank": np.array([rank.number for rank in self.graph.ranks]),
            "base_ns": self.projector.base,
            "projected_ns": typical,
        }
        return Outcome(projection.step_ns, _single(row), _single(assumption_row), path, bottlenecks, ranks)

    def explained(self) -> Table:
        """EXPLAINED: the step replayed unchanged, and from durations alone."""
        recorded_ns = self.projector.recorded_ns
        replayed_ns = [recorded_ns, mean_ns(spans(self.derived))]
        path_ns, ranks_ns = max(sum(self.recorded.values()), 1), max(int(self.projector.recorded.sum()), 1)
        unexplained_ns = sum(sum(parts.values()) for parts in self.unexplained)
        return EXPLAINED.table(
            {
                "replay": list(REPLAYS),
                "base_ns": [recorded_ns] * len(replayed_ns),
                "replayed_ns": replayed_ns,
                "error": [ns / max(recorded_ns, 1) - 1 for ns in replayed_ns],
                "unexplained_fraction": [
                    self.recorded.get(UNEXPLAINED, 0) / path_ns,
                    unexplained_ns / ranks_ns,
                ],
                "meaning": list(REPLAYS.values()),
            }
        )

    def trust(self) -> Table:
        """TRUST: predicted starts against recorded ones, and what of the step nothing explains."""
        times = schedule(self.graph, durations_only(self.graph), "typical", self.projector.step.segment)
        rows = predicted_starts(self.graph, self.projector.step.segment.computed, times)
        return TRUST.from_rows(
            trust_row(
                starts,
                self.graph.ranks[starts.rank].number,
                self.unexplained[starts.rank].get(starts.kind, 0),
                int(self.projector.recorded[starts.rank]),
            )
            for starts in rows
        )

    def tables(self, outcomes: Sequence[Outcome]) -> dict[str, Table]:
        """All tables; scenarios best first, the measured path before the projected ones."""
        ordered = sorted(outcomes, key=lambda outcome: outcome.projected_ns)
        return {
            "whatif": WHATIF.concat([outcome.whatif for outcome in ordered]),
            "assumptions": ASSUMPTIONS.concat([outcome.assumptions for outcome in ordered]),
            "critical_path": interleaved(
                CRITICAL_PATH, [self.path, *(outcome.critical_path for outcome in ordered)]
            ),
            "bottlenecks": interleaved(
                BOTTLENECKS, [self.bottlenecks, *(outcome.bottlenecks for outcome in ordered)]
            ),
            "explained": self.explained(),
            "trust": self.trust(),
            "ranks": STEP_RANKS.concat([outcome.ranks for outcome in ordered]),
        }

    def _unexplained(self, recorded: Recorded, gaps: Edit) -> list[dict[str, int]]:
        """Unexplained time on the critical path of each rank's recorded step, ns by kind of node."""
        times, kind = as_derived(self.graph, gaps), kind_of(self.graph)
        waits_unseen = unmatched(recorded)
        result = []
        for rank, extent in enumerate(self.projector.step.whole(times)):
            path = critical_path(self.graph, self.names, rank, extent, gaps.lag)
            node, category, start, end = path.pieces
            own = category == self.names.category.codes[node]
            counted = (category == path.categories.index(UNEXPLAINED)) | (own & waits_unseen[node])
            ns = sums(kind[node[counted]], (end - start)[counted], len(KINDS))
            result.append(dict(zip(KINDS, ns.tolist(), strict=True)))
        return result

    def _path(self, name: str, edit: Edit, extents: Sequence[Extent]) -> tuple[Rows, Rows, dict[str, int]]:
        """Rows of CRITICAL_PATH and of BOTTLENECKS, and the path's parts by category, most first."""
        last = max(range(len(extents)), key=lambda rank: extents[rank].end)
        path = critical_path(self.graph, self.names, last, extents[last], edit.lag)
        ranks = [rank.number for rank in self.graph.ranks]
        rows = path_rows(name, path, self.before)
        return rows, bottleneck_rows(name, path, self.names, ranks, self.graph.rank), path.by_category()


def doubt(explained: Table) -> float:
    """Share of the step that the graph does not explain or that its replay misses, from EXPLAINED."""
    missed, unexplained = explained.array("error"), explained.array("unexplained_fraction")
    return max(float(unexplained.max()), float(np.abs(missed).max()))


def reliability_warning(explained: Table) -> str:
    """Why projections are unreliable, from EXPLAINED; "" if the graph explains the step."""
    missed, unexplained = explained.array("error"), float(explained.array("unexplained_fraction").max())
    reasons = []
    if unexplained > DOUBTFUL:
        reasons.append(f"{unexplained:.0%} of the critical path is unexplained")
    if abs(off := float(missed[np.abs(missed).argmax()])) > DOUBTFUL:
        reasons.append(f"the replay is off by {off:+.0%}")
    if not reasons:
        return ""
    advice = "record all ranks with launch calls over several steps"
    return f"projections are unreliable: {' and '.join(reasons)}; {advice}"


def _single(row: Mapping[str, Any]) -> Rows:
    return {name: [value] for name, value in row.items()}
