"""Measured times of the passes of a pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tracelens.analysis.comm import align_run
from tracelens.analysis.pipeline import Shape, passes
from tracelens.arrays import Float
from tracelens.errors import TracelensError
from tracelens.planner.pipeline.measured.layers import LayerWalls, exposed, layer_walls
from tracelens.planner.pipeline.measured.lines import Line, lines_of
from tracelens.planner.pipeline.times import ChunkTimes, Costs
from tracelens.planner.step_time import LayerTimes
from tracelens.table import Skip
from tracelens.trace import Run


class Measured(NamedTuple):
    """The pipelines of a run.

    Attributes:
        lines: each pipeline in each step.
        size: of all of them.
        chunks: times of its chunks.
        layers: times of its layers, None if no annotations name them.
        shares: layers of each chunk, empty if no annotations name them.
        costs: messages and gaps between the passes.
        rest_ns: median time of a step outside of the pipeline phase.
        skips: what could not be measured.
    """

    lines: tuple[Line, ...]
    size: Shape
    chunks: ChunkTimes
    layers: LayerTimes | None
    shares: tuple[int, ...]
    costs: Costs
    rest_ns: int
    skips: tuple[Skip, ...]

    @property
    def phase_ns(self) -> int:
        """Median over pipelines and steps."""
        return int(np.median([line.phase_ns for line in self.lines]))


def measure(run: Run) -> Measured:
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
    forward, backward = (
        np.median([getattr(line, name).mean(axis=1) for line in lines], axis=0)
        for name in ("forward", "backward")
    )
    traced = [(trace, passed.spans) for trace, passed in zip(run.traces, ranks, strict=True) if passed.spans]
    shares = [exposed(trace, spans) for trace, spans in traced]
    comm_share = np.median(np.array(shares), axis=0)
    chunks = ChunkTimes(
        *(
            np.rint(ns).astype(np.int64)
            for ns in (forward, backward, forward * comm_share[0], backward * comm_share[1])
        )
    )
    walls = [layer_walls(trace, spans) for trace, spans in traced]
    layers = _layers(walls, comm_share)
    if layers is None:
        skips.append(
            Skip(
                "times of layers", "the trace has no annotations L0, L1, ...; only times of chunks are known"
            )
        )
    return Measured(
        tuple(lines),
        size,
        chunks,
        layers,
        _shares(walls, size) if layers is not None else (),
        _costs([line.costs for line in lines]),
        int(np.median([line.rest_ns for line in lines])),
        tuple(skips),
    )


def _costs(costs: Sequence[Costs]) -> Costs:
    """Medians over pipelines and steps."""
    gaps = np.median(np.array([cost.gap for cost in costs]), axis=0)
    forward, backward = (
        int(np.median([getattr(cost, name) for cost in costs]))
        for name in ("forward_transit", "backward_transit")
    )
    return Costs(forward, backward, tuple(int(ns) for ns in gaps))


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
    forward, backward, *comm = np.rint(np.concatenate((table, table * comm_share), axis=1)).astype(np.int64).T
    embedding, head = (part_ns.get(name, np.zeros(2)).tolist() for name in ("embedding", "head"))
    return LayerTimes(
        forward,
        backward,
        comm[0],
        comm[1],
        (round(embedding[0]), round(embedding[1])),
        (round(head[0]), round(head[1])),
    )


def _shares(walls: Sequence[LayerWalls], size: Shape) -> tuple[int, ...]:
    chunk_of = [chunk for rank_walls in walls for chunk in rank_walls.chunk_of.items()]
    counts = np.bincount([chunk for _, chunk in dict(chunk_of).items()], minlength=size.stages * size.chunks)
    return tuple(counts.tolist())
