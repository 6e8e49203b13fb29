"""Bytes of the fullest GPU of a run."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from operator import attrgetter

from tracelens.planner.config import Config, Layout, Model, Training
from tracelens.planner.memory import Assumptions, Stages, guide_stage, static

IDLE_SHARE = 0.1
"""What Megatron-core's allocator reserves beyond its tensors / activations and temporary tensors.

The simulation gives 4% to 14% for the layouts of tests/planner/memory/megatron_peaks.toml; it would take a
tenth of a second for each of the hundreds of layouts of a search.
"""


def footprint(config: Config, assumptions: Assumptions) -> int:
    """Bytes of the fullest GPU at the peak of a step.

    The first of several stages with equal layers has most in flight, so one of each kind is enough.
    """
    if assumptions.framework == "amd-guide":
        return guide_stage(config, assumptions).total
    stages = Stages(config, assumptions)
    worst = max((stages.stage(pp_rank) for pp_rank in _first_of_each_kind(config)), key=attrgetter("total"))
    if assumptions.framework != "megatron":
        return worst.total
    return worst.total + round(IDLE_SHARE * (worst.total - worst.moments["between"]))


@lru_cache(maxsize=4096)
def _static(model: Model, layout: Layout, training: Training, assumptions: Assumptions) -> int:
    """Model state of the first pipeline rank."""
    return sum(static(Config(model, layout, training=training), 0, assumptions).held.values())


def at_least(config: Config, assumptions: Assumptions) -> int:
    """A cheap lower bound of `footprint`, which many runs share; 0 for none."""
    if assumptions.framework == "amd-guide":
        return 0
    # Data- and context-parallel ranks hold the same parameters.
    layout = replace(config.layout, cp=1)
    training = replace(config.training, micro_batch=1, micro_batches=layout.pp)
    return _static(config.model, layout, training, assumptions)


def _first_of_each_kind(config: Config) -> list[int]:
    """The first pipeline stage of each kind of layers."""
    layout, dense = config.layout, config.model.dense_layers
    recomputed = frozenset(config.toggles.recompute_layer_ids)
    chunks = layout.chunks(config.model.layers)
    first_of_kind: dict[tuple[object, ...], int] = {}
    for pp_rank in range(layout.pp):
        held = tuple(
            tuple((layer < dense, layer in recomputed) for layer in chunk)
            for chunk in chunks[pp_rank :: layout.pp]
        )
        first_of_kind.setdefault((held, pp_rank == 0, pp_rank == layout.pp - 1), pp_rank)
    return list(first_of_kind.values())
