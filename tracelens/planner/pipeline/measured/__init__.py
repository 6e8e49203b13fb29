"""Measured times of the passes of a pipeline: of its chunks, and of layers where annotations name them.

Each pipeline of a run is measured step by step, with its messages and the gaps between passes. The times also
serve schedules and partitions that the run did not use.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tracelens.analysis.comm import align_run
from tracelens.analysis.pipeline import (
    FORWARD,
    MicrobatchPass,
    Passes,
    Shape,
    lane_of,
    numbered,
    passes,
    pipelines,
    stage_messages,
    window_of,
)
from tracelens.arrays import Float, Int, lookup
from tracelens.errors import TracelensError
from tracelens.planner.pipeline.schedules import BACKWARD, Pass, Schedule, singles
from tracelens.planner.pipeline.simulate import (
    ChunkTimes,
    Costs,
    Fixed,
    Layers,
    Times,
    TimesSource,
    even_shares,
)
from tracelens.planner.step_time import LayerTimes
from tracelens.table import Skip, nearest
from tracelens.trace import Run, Trace, gpu_work, interval_of, union


class PipelineMeasurement(NamedTuple):
    """The pipelines of a run."""

    lines: tuple[MeasuredPipeline, ...]  # each pipeline in each step
    size: Shape  # of all of them
    chunks: ChunkTimes  # times of its chunks
    layers: LayerTimes | None  # times of its layers, None if no annotations name them
    shares: tuple[int, ...]  # layers of each chunk, empty if no annotations name them
    costs: Costs  # messages and gaps between the passes
    rest_ns: int  # median time of a step outside of the pipeline phase
    skips: tuple[Skip, ...]  # what could not be measured

    @property
    def phase_ns(self) -> int:
        """Median over pipelines and steps."""
        return int(np.median([line.phase_ns for line in self.lines]))


_PART = re.compile(
    r"(?P<layer>L\d+)(?:\.(?P<inner>\w+))?(?:\..*)?|(?P<embedding>embedding)\b.*|(?:head|loss)\b.*"
)


class LayerWalls(NamedTuple):
    """Wall time of the parts of the model on one rank."""

    # part (L0, L1, ..., embedding, head) to mean forward and backward per micro-batch
    ns: Mapping[str, tuple[float, float]]
    kinds: Mapping[str, frozenset[str]]  # layer to the names of its annotations, which identify its kind
    chunk_of: Mapping[str, int]  # layer to its chunk of the model


@dataclass(frozen=True)
class MeasuredPipeline:
    """One pipeline in one step."""

    ranks: tuple[int, ...]  # of its stages
    step: str  # name of the step
    size: Shape  # stages, micro-batches, chunks
    schedule: Schedule  # the order that was recorded
    forward: Int  # ns, (chunk of the model, micro-batch)
    backward: Int  # likewise
    phase_ns: int  # from its first forward to its last backward
    rest_ns: int  # of the step outside of that: optimizer, gradient reduction, data
    costs: Costs  # messages and gaps between the passes

    def times(self) -> Times:
        """Each pass as measured."""
        return self._times(self.forward, self.backward)

    def mean_times(self) -> Times:
        """Each pass at the mean of its chunk."""
        width = self.size.micro_batches
        means = (np.rint(ns.mean(axis=1)).astype(np.int64) for ns in (self.forward, self.backward))
        return self._times(*(np.tile(ns[:, None], (1, width)) for ns in means))

    def _times(self, forward: Int, backward: Int) -> Times:
        none = np.zeros_like(forward)
        costs = self.costs
        return Times(
            forward=forward,
            backward=backward,
            weight=none,
            forward_comm=none,
            backward_comm=none,
            forward_transit=costs.forward_transit,
            backward_transit=costs.backward_transit,
            gap=costs.gap,
        )


def measure(run: Run) -> PipelineMeasurement:
    """Times of passes, of gaps between them and of the rest of the step; needs all ranks of a pipeline.

    A chunk's time is the mean over micro-batches, which keeps the sum, and the median over pipelines and
    steps. It is wall time from the first to the last GPU work of a pass, including waits for the host and for
    other ranks.

    Raises:
        TracelensError: no pipeline is recorded from its first to its last stage.
    """
    skips: list[Skip] = []
    ranks = [passes(trace) for trace in run.traces]
    lines = list(lines_of(ranks, align_run(run).shift, skips))
    if not lines:
        why = f" ({skips[0].subject}: {skips[0].reason})" if skips else ""
        raise TracelensError(
            "no complete pipeline in the trace: pass the ranks of all stages, with the forward and "
            f"backward passes of a step{why}"
        )
    size = lines[0].size
    if different := [line for line in lines if line.size != size]:
        raise TracelensError(
            f"the pipelines of ranks {lines[0].ranks} and {different[0].ranks} differ in stages, "
            "micro-batches or chunks"
        )
    forward = np.median([line.forward.mean(axis=1) for line in lines], axis=0)
    backward = np.median([line.backward.mean(axis=1) for line in lines], axis=0)
    traced = [(trace, passed.spans) for trace, passed in zip(run.traces, ranks, strict=True) if passed.spans]
    comm_share = np.median(np.array([exposed(trace, spans) for trace, spans in traced]), axis=0)
    chunks = ChunkTimes(
        forward=np.rint(forward).astype(np.int64),
        backward=np.rint(backward).astype(np.int64),
        forward_comm=np.rint(forward * comm_share[0]).astype(np.int64),
        backward_comm=np.rint(backward * comm_share[1]).astype(np.int64),
    )
    walls = [layer_walls(trace, spans) for trace, spans in traced]
    layers = _layers(walls, comm_share)
    if layers is None:
        skips.append(
            Skip(
                "times of layers", "the trace has no annotations L0, L1, ...; only times of chunks are known"
            )
        )
    shares: tuple[int, ...] = ()
    if layers is not None:
        chunk_of = {name: chunk for rank_walls in walls for name, chunk in rank_walls.chunk_of.items()}
        shares = tuple(np.bincount(list(chunk_of.values()), minlength=size.stages * size.chunks).tolist())
    gaps = np.median(np.array([line.costs.gap for line in lines]), axis=0)
    return PipelineMeasurement(
        lines=tuple(lines),
        size=size,
        chunks=chunks,
        layers=layers,
        shares=shares,
        costs=Costs(
            forward_transit=int(np.median([line.costs.forward_transit for line in lines])),
            backward_transit=int(np.median([line.costs.backward_transit for line in lines])),
            gap=tuple(int(ns) for ns in gaps),
        ),
        rest_ns=int(np.median([line.rest_ns for line in lines])),
        skips=tuple(skips),
    )


def _layers(walls: Sequence[LayerWalls], comm_share: Float) -> LayerTimes | None:
    """Times of all layers, each at the mean of its kind; None if not all are named."""
    parts: dict[str, list[tuple[float, float]]] = {}
    kinds: dict[str, frozenset[str]] = {}
    for rank_walls in walls:
        for name, ns in rank_walls.ns.items():
            parts.setdefault(name, []).append(ns)
        kinds |= rank_walls.kinds
    count = len(kinds)
    if not count or set(kinds) != {f"L{number}" for number in range(count)}:
        return None
    part_ns = {name: np.mean(np.array(samples), axis=0) for name, samples in parts.items()}
    names = [f"L{number}" for number in range(count)]
    alike = [[part_ns[name_] for name_ in names if kinds[name_] == kinds[name]] for name in names]
    table = np.array([np.mean(samples, axis=0) for samples in alike])
    columns = np.rint(np.concatenate((table, table * comm_share), axis=1)).astype(np.int64).T
    embedding, head = (part_ns.get(name, np.zeros(2)).tolist() for name in ("embedding", "head"))
    return LayerTimes(
        forward=columns[0],
        backward=columns[1],
        forward_comm=columns[2],
        backward_comm=columns[3],
        embedding=(round(embedding[0]), round(embedding[1])),
        head=(round(head[0]), round(head[1])),
    )


def measured_source(
    measured: PipelineMeasurement,
    stages: int,
    chunks: Collection[int],
    layers: int = 0,
    repartition: bool = False,
) -> TimesSource:
    """Times of chunks: the measured ones if the partition is the run's own, else from times of layers.

    Args:
        measured: of the run.
        stages: PP to simulate.
        chunks: VPP of each schedule to simulate.
        layers: of the model, if no annotations name them; 0 if unknown.
        repartition: whether the partition of layers differs from the run's.

    Raises:
        TracelensError: `layers` contradicts the trace, or is needed and unknown.
    """
    size = measured.size
    named = len(measured.layers.forward) if measured.layers is not None else 0
    if named and layers and named != layers:
        raise TracelensError(f"the trace names {named} layers, not {layers}: leave --layers out")
    if not repartition and stages == size.stages and set(chunks) == {size.chunks}:
        return Fixed(measured.chunks, measured.shares)
    if measured.layers is not None:
        return Layers(measured.layers)
    if repartition and not layers:
        raise TracelensError(
            "another partition needs times of layers, and the trace has no annotations L0, L1, ...: give the "
            "number of layers (--layers) to split the times of chunks evenly"
        )
    if not layers:
        return Fixed(measured.chunks)
    # Each chunk's time split evenly over its layers, embedding and head included.
    shares = np.array(even_shares(layers, size.stages, size.chunks))
    forward, backward, forward_comm, backward_comm = (
        np.repeat(np.rint(ns / shares).astype(np.int64), shares) for ns in measured.chunks
    )
    return Layers(LayerTimes(forward, backward, forward_comm, backward_comm))


def measured_costs(measured: PipelineMeasurement, stages: int) -> Costs:
    """Costs of messages and gaps; with another number of stages the mean gap on each."""
    costs = measured.costs
    if stages == measured.size.stages:
        return costs
    return costs._replace(gap=(round(float(np.mean(costs.gap))),) * stages)


def layer_walls(trace: Trace, spans: Sequence[MicrobatchPass]) -> LayerWalls:
    """Wall time of each part of the model in the passes of a rank, which are on its own clock.

    Each moment of a pass counts for the part whose work ends next, waits before it included, so that the
    parts of a pass add up to it.
    """
    events, work = trace.arrays, gpu_work(trace)
    # Parts of the model, the part of each event name (-1 for none), and the annotations in each layer.
    names: dict[str, int] = {}
    inner: dict[str, set[str]] = {}
    part_of_name = np.full(len(events.names), -1, dtype=np.int64)
    for code, text in enumerate(events.names):
        match = _PART.fullmatch(text)
        if match is None:
            continue
        name = match["layer"] or match["embedding"] or "head"
        part_of_name[code] = names.setdefault(name, len(names))
        if match["layer"]:
            inner.setdefault(name, set()).update({match["inner"]} - {None, "B"})
    is_part = events.where("annotation") & (part_of_name[events.name] >= 0)
    around = nearest(events.parent, events.depth, is_part)

    def part_of(event: Int) -> Int:
        scope = lookup(around, event, -1)
        return lookup(part_of_name, lookup(events.name, scope, -1), -1)

    part = part_of(work.forward)
    part = np.where(part >= 0, part, part_of(work.host_call))
    spans = sorted(spans, key=lambda span: span.start)
    start, end = (
        np.array([getattr(span, name) for span in spans], dtype=np.int64) for name in ("start", "end")
    )
    pass_index = interval_of(start, end, work.start)
    rows = np.flatnonzero((pass_index >= 0) & (part >= 0))
    rows = rows[np.lexsort((work.end[rows], pass_index[rows]))]
    pass_index, part, stop = pass_index[rows], part[rows], work.end[rows]
    stop = np.minimum(stop, end[pass_index])
    first = np.append(True, np.diff(pass_index) != 0)[: len(pass_index)]
    last = np.append(first[1:], True)[: len(pass_index)]
    stop[last] = end[pass_index[last]]
    before = np.where(first, start[pass_index], np.append(0, stop[:-1])[: len(pass_index)])
    part_ns = np.zeros((len(spans), len(names)), dtype=np.int64)
    np.add.at(part_ns, (pass_index, part), stop - before)
    forward = np.array([span.phase == FORWARD for span in spans])
    # A part runs only in the passes of its own chunk: means are per micro-batch, not per pass.
    count = max(len({(span.step, span.micro_batch) for span in spans}), 1)
    means = (part_ns[forward].sum(axis=0) / count, part_ns[~forward].sum(axis=0) / count)
    ns = {
        name: (float(forward_ns), float(backward_ns))
        for name, forward_ns, backward_ns in zip(names, *means, strict=True)
        if forward_ns + backward_ns > 0
    }
    virtual = np.array([span.virtual for span in spans], dtype=np.int64)
    chunk_of = {
        name: int(virtual[part_ns[:, code].argmax()]) for code, name in enumerate(names) if name in inner
    }
    kinds = {name: frozenset(scopes) for name, scopes in inner.items() if name in ns}
    return LayerWalls(ns, kinds, {name: chunk_of[name] for name in kinds})


def exposed(trace: Trace, spans: Sequence[MicrobatchPass]) -> tuple[float, float]:
    """Exposed communication as a share of a rank's forwards and of its backwards."""
    work = gpu_work(trace)
    # Messages between stages wait for the other stage, beside computation of this one.
    messages = stage_messages(trace)
    work = work.take(~np.isin(work.event, messages.kernel))
    start, end = (
        np.array([getattr(span, name) for span in spans], dtype=np.int64) for name in ("start", "end")
    )
    busy = union(work.start, work.end).covered(start, end)
    not_comm = work.union("computation", "memcpy", "memset").covered(start, end)
    forward = np.array([span.phase == FORWARD for span in spans])
    wall = end - start
    shares = [
        float((busy - not_comm)[rows].sum() / max(int(wall[rows].sum()), 1)) for rows in (forward, ~forward)
    ]
    return shares[0], shares[1]


def lines_of(
    ranks: Sequence[Passes], shift: Mapping[int, int], skips: list[Skip]
) -> Iterator[MeasuredPipeline]:
    """Each pipeline in each step; `shift` is that of AlignedRun, `skips` gets those only partly recorded."""
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
            size = line.size
            walls = {
                phase: np.zeros((size.stages * size.chunks, size.micro_batches), dtype=np.int64)
                for phase in (FORWARD, BACKWARD)
            }
            for span in (span for lane in line.lanes for span in lane.spans):
                walls[span.phase][span.virtual, span.micro_batch] += span.end - span.start
            passed = [sorted(lane.spans, key=lambda span: span.start) for lane in line.lanes]
            begin = min(spans[0].start for spans in passed)
            end = max(span.end for spans in passed for span in spans)
            windows = [window_of(stage, label) for stage in ordered]
            rest = [high - low - (min(high, end) - max(low, begin)) for low, high in windows]
            # The recorded order as a schedule; split backwards count as one, at their first half.
            positions = tuple(tuple(sorted({span.virtual for span in spans})) for spans in passed)
            orders = []
            for spans, chunks in zip(passed, positions, strict=True):
                of_stage = (Pass(span.phase, chunks.index(span.virtual), span.micro_batch) for span in spans)
                orders.append(singles(list(dict.fromkeys(of_stage))))
            yield MeasuredPipeline(
                ranks=tuple(lane.rank for lane in line.lanes),
                step=label,
                size=size,
                schedule=Schedule("as recorded", positions, size.micro_batches, tuple(orders)),
                forward=walls[FORWARD],
                backward=walls[BACKWARD],
                phase_ns=end - begin,
                rest_ns=int(np.median(rest)),
                costs=_between(passed, size.stages * size.chunks),
            )


def _between(ordered: Sequence[Sequence[MicrobatchPass]], count: int) -> Costs:
    """Message times (median where a stage waited for one), and gaps where it did not (mean)."""
    ends = {(span.phase, span.virtual, span.micro_batch): span.end for spans in ordered for span in spans}
    transit: dict[str, list[int]] = {FORWARD: [], BACKWARD: []}
    gaps: list[list[int]] = [[] for _ in ordered]
    for stage, spans in enumerate(ordered):
        for before, span in zip([None, *spans[:-1]], spans, strict=True):
            # The pass that this one needs the result of.
            if span.phase == FORWARD:
                source = FORWARD, span.virtual - 1, span.micro_batch
            elif span.virtual == count - 1:
                source = FORWARD, span.virtual, span.micro_batch
            else:
                source = BACKWARD, span.virtual + 1, span.micro_batch
            sent_ns = ends.get(source)
            if sent_ns is not None and (before is None or sent_ns > before.end):
                # Clocks of two ranks agree to about a microsecond at best.
                transit[span.phase].append(max(span.start - sent_ns, 0))
            elif before is not None:
                gaps[stage].append(max(span.start - before.end, 0))
    forward, backward = (int(np.median(transits)) if transits else 0 for transits in transit.values())
    return Costs(
        forward, backward, tuple(int(np.mean(stage_gaps)) if stage_gaps else 0 for stage_gaps in gaps)
    )
