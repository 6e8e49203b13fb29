"""Projects the memory per GPU of a run, by component and pipeline rank, and the devices it fits on.

    memory(config)                                   # one layout
    memory({"EP8": config, "EP16": other}, devices=[device("mi300x")])
    worst(config).total                              # one number, in well under 10 ms

By default it counts every tensor of the reference workload at the peak of a step: `tape` finds the peak,
`dense`, `routing` and `experts` list what each op allocates and saves, `stage` what a rank has in flight.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tracelens.devices import Device
from tracelens.planner.config import OPTIMISED, Config
from tracelens.planner.memory.amd_guide import guide_stage
from tracelens.planner.memory.assumptions import Assumptions
from tracelens.planner.memory.fits import Room, room
from tracelens.planner.memory.megatron import OutOfMemory
from tracelens.planner.memory.stage import Stage, Stages
from tracelens.planner.memory.tables import fits_table, memory_table, ranks_table
from tracelens.registry import purpose
from tracelens.table import Result, Skip

DEFAULT = Assumptions()


def memory(
    configs: Config | Mapping[str, Config],
    assumptions: Assumptions = DEFAULT,
    devices: Sequence[Device] = (),
    reserve: int | None = None,
) -> Result:
    """How much memory does each GPU need, for what, and on which devices does it fit?

    Args:
        configs: one run, or several layouts by name.
        assumptions: beyond the configurations.
        devices: to check the fit on.
        reserve: bytes of each device to keep free; None for 4 GiB, or with framework=amd-guide for everything
            above the nameplate.

    Returns:
        tables `fits` (one row per layout and device), `memory` (one row per layout, pipeline rank and
        component, worst rank first) and `ranks` (one row per pipeline rank: its peak and when it occurs).
        meta: layouts, framework, worst_bytes (of the worst layout), toggles (those of OPTIMISED that some
        layout has at their baseline, or else all), optimised_bytes (if some are at their baseline:
        worst_bytes with all of them optimized).

    Raises:
        TracelensError: a layout that the framework does not support; a device of unknown memory, or
            without memory beyond the reserve.
    """
    named = {_describe(configs): configs} if isinstance(configs, Config) else dict(configs)
    stages_of = {name: stages(config, assumptions) for name, config in named.items()}
    rooms = [(device, room(device, assumptions.framework, reserve)) for device in devices]

    def needed(layout: str, usable: int) -> int:
        return _needed(named[layout], assumptions, next(iter(stages_of[layout].values())), usable)

    tables = {"fits": fits_table(stages_of, rooms, needed)} if rooms else {}
    tables |= {"memory": memory_table(stages_of), "ranks": ranks_table(named, stages_of)}
    return Result(
        "memory",
        "Memory per GPU",
        tables,
        doc=purpose(memory),
        skips=tuple(_skips(named.values(), assumptions, rooms)),
        meta={
            "layouts": list(stages_of),
            "framework": assumptions.framework,
            "worst_bytes": max(stage.total for ranks in stages_of.values() for stage in ranks.values()),
            **_toggles(named.values(), assumptions),
        },
        command="tracelens project memory",
    )


def stages(config: Config, assumptions: Assumptions = DEFAULT) -> dict[int, Stage]:
    """Memory by pipeline rank, fullest first.

    In Megatron-core with what the allocator reserves: simulated for the fullest rank, in proportion to their
    activations for the others.
    """
    if assumptions.framework == "amd-guide":
        return {0: guide_stage(config, assumptions)}
    ranks = Stages(config, assumptions)
    by_rank = {pp_rank: ranks.stage(pp_rank) for pp_rank in range(config.layout.pp)}
    by_rank = _fullest_first(by_rank)
    if assumptions.framework != "megatron" or config.toggles.overlap_exchange != "off":
        return by_rank
    fullest, *others = by_rank.values()
    simulated = ranks.reserved(fullest)
    share = (simulated.total - fullest.total) / max(1, fullest.total - fullest.moments["between"])
    idle = [round(share * (stage.total - stage.moments["between"])) for stage in others]
    reserved = [simulated, *(stage.with_idle(size) for stage, size in zip(others, idle, strict=True))]
    return _fullest_first(dict(zip(by_rank, reserved, strict=True)))


def _fullest_first(by_rank: Mapping[int, Stage]) -> dict[int, Stage]:
    return dict(sorted(by_rank.items(), key=lambda item: -item[1].total))


def _needed(config: Config, assumptions: Assumptions, stage: Stage, usable: int) -> int:
    """Bytes of the fullest rank; an allocator without room returns idle segments before it fails."""
    if assumptions.framework != "megatron" or stage.total <= usable:
        return stage.total
    try:
        ranks = Stages(config, assumptions)
        return ranks.reserved(ranks.stage(stage.rank // config.layout.stage_ranks), usable).total
    except OutOfMemory:
        return stage.total


def worst(config: Config, assumptions: Assumptions = DEFAULT) -> Stage:
    """The pipeline rank that needs most memory."""
    return next(iter(stages(config, assumptions).values()))


def _toggles(configs: Collection[Config], assumptions: Assumptions) -> dict[str, Any]:
    """Entries of meta on OPTIMISED toggles and what they would save."""
    if assumptions.framework == "amd-guide":
        return {}
    plain = {name: value for config in configs for name, value in config.toggles.unoptimised.items()}
    first = next(iter(configs)).toggles
    shown = plain or {name: getattr(first, name) for name in OPTIMISED}
    meta = {"toggles": " ".join(f"{name}={value}" for name, value in shown.items())}
    if not plain:
        return meta
    better = [replace(config, toggles=config.toggles.optimised()) for config in configs]
    return meta | {"optimised_bytes": max(worst(config, assumptions).total for config in better)}


def _describe(config: Config) -> str:
    layout = config.layout
    sizes = {"pp": layout.pp, "vpp": layout.vpp, "ep": layout.experts_over, "cp": layout.cp, "tp": layout.tp}
    split = [f"{name}={size}" for name, size in sizes.items() if size > 1]
    return " ".join([f"{layout.ranks} GPUs" if layout.ranks > 1 else "1 GPU", *split])


def _skips(
    configs: Collection[Config], assumptions: Assumptions, rooms: Sequence[tuple[Device, Room]]
) -> Iterator[Skip]:
    if assumptions.framework == "amd-guide":
        yield Skip("pipeline ranks from 1 on", "framework=amd-guide covers the first rank only")
    elif assumptions.framework == "megatron" and any(
        config.toggles.overlap_exchange != "off" for config in configs
    ):
        yield Skip("memory that the allocator reserves", "not simulated with overlap_exchange=1f1b")
    elif assumptions.framework == "workload" and any(config.model.moe_layers for config in configs):
        yield Skip(
            "memory of other frameworks",
            "counts what the reference workload's ops save; --framework megatron counts Megatron-core's",
        )
    if any(config.toggles.dispatch == "deepep" for config in configs):
        yield Skip("buffers of DeepEP", "not counted: the library allocates them from the driver")
    if any(config.toggles.experts == "multistream" for config in configs):
        yield Skip("experts=multistream", "side streams free memory later than counted here")
    if unknown := [device.name for device, memory_room in rooms if not memory_room.reported]:
        names = ", ".join(unknown)
        yield Skip(f"driver-reported memory of {names}", "unknown; the nameplate is used instead")
