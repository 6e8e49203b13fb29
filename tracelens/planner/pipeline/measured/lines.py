"""The pipelines of a run, step by step: times of the passes, and gaps between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tracelens.analysis.pipeline import (
    FORWARD,
    Numbered,
    Passes,
    Shape,
    Span,
    Stage,
    lane_of,
    numbered,
    pipelines,
    window_of,
)
from tracelens.arrays import Int
from tracelens.planner.pipeline.schedule import BACKWARD, Pass, Schedule, singles
from tracelens.planner.pipeline.times import Costs, Times
from tracelens.table import Skip


@dataclass(frozen=True)
class Line:
    """One pipeline in one step.

    Attributes:
        ranks: of its stages.
        step: name of the step.
        size: stages, micro-batches, chunks.
        schedule: the order that was recorded.
        forward: ns, (chunk of the model, micro-batch).
        backward: likewise.
        phase_ns: from its first forward to its last backward.
        rest_ns: of the step outside of that: optimizer, gradient reduction, data.
        costs: messages and gaps between the passes.
    """

    ranks: tuple[int, ...]
    step: str
    size: Shape
    schedule: Schedule
    forward: Int
    backward: Int
    phase_ns: int
    rest_ns: int
    costs: Costs

    def times(self) -> Times:
        """Each pass as measured."""
        return self._times(self.forward, self.backward)

    def mean_times(self) -> Times:
        """Each pass at the mean of its chunk."""
        width = self.size.microbatches
        means = (np.rint(ns.mean(axis=1)).astype(np.int64) for ns in (self.forward, self.backward))
        return self._times(*(np.tile(ns[:, None], (1, width)) for ns in means))

    def _times(self, forward: Int, backward: Int) -> Times:
        none = np.zeros_like(forward)
        costs = self.costs
        return Times(
            forward, backward, none, none, none, costs.forward_transit, costs.backward_transit, costs.gap
        )


def lines_of(ranks: Sequence[Passes], shift: Mapping[int, int], skips: list[Skip]) -> Iterator[Line]:
    """Each pipeline in each step.

    Args:
        ranks: of the run.
        shift: of their clocks, see AlignedRun.
        skips: receives the pipelines and steps that are only partly recorded.
    """
    for stages, stages_of_line in pipelines(ranks, shift, skips):
        if {stage.stage for stage in stages_of_line} != set(range(stages)):
            skips.append(
                Skip(f"pipeline of rank {stages_of_line[0].part.rank}", "some of its stages are not recorded")
            )
            continue
        ordered = sorted(stages_of_line, key=lambda stage: stage.stage)
        for label in dict.fromkeys(span.step for stage in ordered for span in stage.part.spans):
            lanes = [lane_of(stage, label) for stage in ordered]
            subject = f"step {label} of the pipeline of rank {stages_of_line[0].part.rank}"
            line = numbered(lanes, stages) if all(lane.spans for lane in lanes) else ""
            if isinstance(line, str) or not all(lane.of(BACKWARD) for lane in lanes):
                skips.append(Skip(subject, "step only partly recorded"))
                continue
            if line.assumed:
                skips.append(Skip(f"chunks and micro-batches in {subject}", line.assumed))
            yield _line(label, ordered, line)


def _line(label: str, stages: Sequence[Stage], numbered_line: Numbered) -> Line:
    lanes, size = numbered_line.lanes, numbered_line.size
    count = size.stages * size.chunks
    walls = {phase: np.zeros((count, size.microbatches), dtype=np.int64) for phase in (FORWARD, BACKWARD)}
    for span in (span for lane in lanes for span in lane.spans):
        walls[span.phase][span.virtual, span.microbatch] += span.end - span.start
    ordered = [sorted(lane.spans, key=lambda span: span.start) for lane in lanes]
    begin = min(spans[0].start for spans in ordered)
    end = max(span.end for spans in ordered for span in spans)
    windows = [window_of(stage, label) for stage in stages]
    rest = [high - low - (min(high, end) - max(low, begin)) for low, high in windows]
    return Line(
        tuple(lane.rank for lane in lanes),
        label,
        size,
        _recorded(size, ordered),
        walls[FORWARD],
        walls[BACKWARD],
        end - begin,
        int(np.median(rest)),
        _between(ordered, count),
    )


def _recorded(size: Shape, ordered: Sequence[Sequence[Span]]) -> Schedule:
    """The recorded order as a schedule; split backwards count as one, at their first half."""
    positions = tuple(tuple(sorted({span.virtual for span in spans})) for spans in ordered)
    orders = []
    for spans, stage_positions in zip(ordered, positions, strict=True):
        passes_of = (Pass(span.phase, stage_positions.index(span.virtual), span.microbatch) for span in spans)
        orders.append(singles(list(dict.fromkeys(passes_of))))
    return Schedule("as recorded", positions, size.microbatches, tuple(orders))


def _between(ordered: Sequence[Sequence[Span]], count: int) -> Costs:
    """Message times (median where a stage waited for one), and gaps where it did not (mean)."""
    ends = {(span.phase, span.virtual, span.microbatch): span.end for spans in ordered for span in spans}
    transit: dict[str, list[int]] = {FORWARD: [], BACKWARD: []}
    gaps: list[list[int]] = [[] for _ in ordered]
    for stage, spans in enumerate(ordered):
        for before, span in zip([None, *spans[:-1]], spans, strict=True):
            sent_ns = ends.get(_source(span, count))
            if sent_ns is not None and (before is None or sent_ns > before.end):
                # Clocks of two ranks agree to about a microsecond at best.
                transit[span.phase].append(max(span.start - sent_ns, 0))
            elif before is not None:
                gaps[stage].append(max(span.start - before.end, 0))
    forward, backward = (int(np.median(transits)) if transits else 0 for transits in transit.values())
    return Costs(
        forward, backward, tuple(int(np.mean(stage_gaps)) if stage_gaps else 0 for stage_gaps in gaps)
    )


def _source(span: Span, count: int) -> tuple[str, int, int]:
    """The pass that this one needs the result of."""
    if span.phase == FORWARD:
        return FORWARD, span.virtual - 1, span.microbatch
    if span.virtual == count - 1:
        return FORWARD, span.virtual, span.microbatch
    return BACKWARD, span.virtual + 1, span.microbatch
