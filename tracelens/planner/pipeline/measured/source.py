"""Times for schedules that a run did not use, from its measured times."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from tracelens.errors import TracelensError
from tracelens.planner.pipeline.measured.measured import Measured
from tracelens.planner.pipeline.sources import Fixed, Layers, Source, even_shares
from tracelens.planner.pipeline.times import Costs
from tracelens.planner.step_time import LayerTimes


def measured_source(
    measured: Measured, stages: int, chunks: Collection[int], layers: int = 0, repartition: bool = False
) -> Source:
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
    return Layers(_spread(measured, layers)) if layers else Fixed(measured.chunks)


def _spread(measured: Measured, layers: int) -> LayerTimes:
    """Each chunk's time split evenly over its layers, embedding and head included."""
    size = measured.size
    shares = np.array(even_shares(layers, size.stages, size.chunks))
    forward, backward, forward_comm, backward_comm = (
        np.repeat(np.rint(ns / shares).astype(np.int64), shares) for ns in measured.chunks
    )
    return LayerTimes(forward, backward, forward_comm, backward_comm)


def measured_costs(measured: Measured, stages: int) -> Costs:
    """Costs of messages and gaps; with another number of stages the mean gap on each."""
    costs = measured.costs
    if stages == measured.size.stages:
        return costs
    return costs._replace(gap=(round(float(np.mean(costs.gap))),) * stages)
