"""From what a run measured to the times of schedules that it did not run."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from tracelens.errors import TracelensError
from tracelens.planner.pipeline.measured.measured import Measured
from tracelens.planner.pipeline.sources import Fixed, Layers, Source, even_shares
from tracelens.planner.pipeline.times import Costs
from tracelens.planner.step_time import LayerTimes


def measured_source(
    measured: Measured, stages: int, chunks: Collection[int], layers: int = 0, other_cut: bool = False
) -> Source:
    """Times of chunks: the run's own where they are cut in its way, else from those of layers.

    Args:
        measured: of the run.
        stages: PP that is asked for.
        chunks: VPP of each schedule that is asked for.
        layers: of the model, where no scopes name them; 0 where not known.
        other_cut: whether the model is to be cut in another way than evenly.

    Raises:
        TracelensError: `layers` are not as many as the trace names, or not known for another cut.
    """
    size = measured.size
    named = len(measured.layers.forward) if measured.layers is not None else 0
    if named and layers and named != layers:
        raise TracelensError(f"the trace names {named} layers, not {layers}: leave --layers out")
    if not other_cut and stages == size.stages and set(chunks) == {size.chunks}:
        return Fixed(measured.chunks, measured.shares)
    if measured.layers is not None:
        return Layers(measured.layers)
    if other_cut and not layers:
        raise TracelensError(
            "another partition needs times of layers, and the trace has no scopes L0, L1, ...: give their "
            "number (--layers) to split the times of chunks evenly"
        )
    return Layers(_spread(measured, layers)) if layers else Fixed(measured.chunks)


def _spread(measured: Measured, layers: int) -> LayerTimes:
    """Each chunk's time evenly over its layers; embedding and head then count as part of theirs."""
    size = measured.size
    shares = np.array(even_shares(layers, size.stages, size.chunks))
    forward, backward, forward_comm, backward_comm = (
        np.repeat(np.rint(ns / shares).astype(np.int64), shares) for ns in measured.chunks
    )
    return LayerTimes(forward, backward, forward_comm, backward_comm)


def measured_costs(measured: Measured, stages: int) -> Costs:
    """Costs of messages and of what is between passes; of other stages than the run had, their mean gap."""
    costs = measured.costs
    if stages == measured.size.stages:
        return costs
    return costs._replace(gap=(round(float(np.mean(costs.gap))),) * stages)
