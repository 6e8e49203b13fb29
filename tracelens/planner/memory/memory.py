"""Projects the memory per GPU of a run, by component and pipeline rank, and the devices it fits on.

    memory(config)                                   # one layout
    memory({"EP8": config, "EP16": other}, devices=[device("mi300x")])
    worst(config).total                              # one number, in well under 10 ms

By default it counts every tensor of the reference workload at the peak of a step: `planner.block` lists what
each op allocates and saves and finds the peak of each section, `stage` what a rank has in flight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from tracelens.bundled import bundled_toml
from tracelens.devices import Device
from tracelens.devices import device as bundled
from tracelens.errors import TracelensError
from tracelens.planner.config import OPTIMISED, Config
from tracelens.planner.memory.allocator import OutOfMemory
from tracelens.planner.memory.amd_guide import guide_stage
from tracelens.planner.memory.assumptions import Assumptions, FrameworkName
from tracelens.planner.memory.stage import StageMemory, Stages
from tracelens.registry import purpose
from tracelens.table import Column, Result, Schema, Skip, Table

DEFAULT = Assumptions()

COMPONENTS = {
    "parameters": "weights, padded to equal shards",
    "gradients": "gradients of all parameters",
    "main_parameters": "copies for the optimizer, this rank's shard",
    "optimizer": "optimizer states, this rank's shard",
    "activations.embedding": "embedding output",
    "activations.norms": "inputs of norms, including the residual stream",
    "activations.attention": "attention, from QKV projection to output projection",
    "activations.mlp": "MLPs of dense layers",
    "activations.router": "scores, weights and experts of each token",
    "activations.dispatch": "tokens sorted by expert, dispatched and combined",
    "activations.experts": "routed experts",
    "activations.shared": "shared expert",
    "activations.recomputed": "inputs of recomputed layers",
    "loss": "logits and what the loss saves",
    "buffers.worst_case": "padding rows of buffers sized for the worst routing",
    "buffers.pipeline": "activations and gradients exchanged with other stages",
    "buffers.tokens": "token ids of a step",
    "temporary": "gradients in flight, and scratch of the op at the peak",
    "libraries": "library workspaces",
    "allocator": "reserved by the allocator, in no tensor",
}
"""Component to its content, in display order."""
_LAYOUT = Column("layout", "category", doc="GPUs and parallel sizes, such as 64 GPUs ep=8")
MEMORY = Schema(
    "Memory by component",
    (
        _LAYOUT,
        Column("pp_rank", "int64", doc="pipeline rank"),
        Column("component", "category", doc="what holds the memory"),
        Column("bytes", "int64", "bytes", "at the peak of a step, on the fullest GPU of the stage"),
        Column("fraction_of_rank", "float64", "fraction", "share of the rank's bytes"),
        Column("contents", "category", doc="what the component consists of"),
    ),
    doc="Worst pipeline rank of each layout first; the rows of a rank add up to its peak.",
)
RANKS = Schema(
    "Pipeline ranks",
    (
        _LAYOUT,
        Column("pp_rank", "int64", doc="pipeline rank"),
        Column("layers", "str", doc="layers of the stage; + for embedding or head"),
        Column("in_flight", "int64", "count", "most micro-batch chunks in flight"),
        Column("peak_bytes", "int64", "bytes", "most bytes in use at once during a step"),
        Column("peak_phase", "category", doc="phase of the step with the peak"),
        Column("forward_bytes", "int64", "bytes", "peak of a forward", absent=-1),
        Column("backward_bytes", "int64", "bytes", "peak of a backward", absent=-1),
        Column("optimizer_bytes", "int64", "bytes", "peak of the optimizer step", absent=-1),
        Column("between_bytes", "int64", "bytes", "held between steps", absent=-1),
    ),
    doc="A dash: the framework's rules do not distinguish it.",
)
FITS = Schema(
    "Does it fit",
    (
        _LAYOUT,
        Column("device", "category", doc="device to fit on"),
        Column("fits", "category", doc="yes or no"),
        Column("needed_bytes", "int64", "bytes", "of the worst pipeline rank"),
        Column("free_bytes", "int64", "bytes", "left after the reserve; negative: missing"),
        Column("memory_bytes", "int64", "bytes", "of the device, as its driver reports"),
        Column("reserve_bytes", "int64", "bytes", "part of the memory not for training"),
        Column("nameplate_bytes", "int64", "bytes", "nominal memory of the device"),
    ),
    doc="What the allocator reserves counts with framework=megatron; otherwise leave headroom for it.",
)
TABLES = {"fits": FITS, "memory": MEMORY, "ranks": RANKS}

# Driver and communication contexts outside of torch's allocator took 0.8 GB on one H200 and 2.3 to 4.1 GB on
# each of two (tests/planner/memory/measured_memory.toml).
RESERVE_BYTES = 4 * 2**30

# The same of Primus on MI355X, with the scratch and workspaces of RCCL, HIP, Transformer Engine and Turbo:
# fitted on the smallest bar of figure 5 in AMD's MoE training guide (tracelens project published).
PRIMUS_RESERVE_BYTES = round(19.4 * 2**30)


class Room(NamedTuple):
    """Memory of a device."""

    bytes: int  # as reported by the driver, else the nameplate
    reported: bool  # whether the driver's figure is known
    reserve: int  # bytes kept free

    @property
    def usable(self) -> int:
        return self.bytes - self.reserve


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
    if isinstance(configs, Config):
        layout = configs.layout
        sizes = {
            "pp": layout.pp,
            "vpp": layout.vpp,
            "ep": layout.experts_over,
            "cp": layout.cp,
            "tp": layout.tp,
        }
        split = [f"{name}={size}" for name, size in sizes.items() if size > 1]
        name = " ".join([f"{layout.ranks} GPUs" if layout.ranks > 1 else "1 GPU", *split])
        named = {name: configs}
    else:
        named = dict(configs)
    stages_of = {name: stages(config, assumptions) for name, config in named.items()}
    rooms = [(device, room(device, assumptions.framework, reserve)) for device in devices]

    tables = {"fits": fits_table(named, assumptions, stages_of, rooms)} if rooms else {}
    tables |= {"memory": memory_table(stages_of), "ranks": ranks_table(named, stages_of)}
    skips: list[Skip] = []
    if assumptions.framework == "amd-guide":
        skips.append(Skip("pipeline ranks from 1 on", "framework=amd-guide covers the first rank only"))
    elif assumptions.framework == "megatron" and any(
        config.toggles.overlap_exchange != "off" for config in named.values()
    ):
        skips.append(Skip("memory that the allocator reserves", "not simulated with overlap_exchange=1f1b"))
    elif assumptions.framework == "workload" and any(config.model.moe_layers for config in named.values()):
        skips.append(
            Skip(
                "memory of other frameworks",
                "counts what the reference workload's ops save; --framework megatron counts Megatron-core's",
            )
        )
    if any(config.toggles.dispatch == "deepep" for config in named.values()):
        skips.append(Skip("buffers of DeepEP", "not counted: the library allocates them from the driver"))
    if any(config.toggles.experts == "multistream" for config in named.values()):
        skips.append(Skip("experts=multistream", "side streams free memory later than counted here"))
    if unknown := ", ".join(device.name for device, memory_room in rooms if not memory_room.reported):
        skips.append(Skip(f"driver-reported memory of {unknown}", "unknown; the nameplate is used instead"))
    meta: dict[str, Any] = {
        "layouts": list(stages_of),
        "framework": assumptions.framework,
        "worst_bytes": max(stage.total for ranks in stages_of.values() for stage in ranks.values()),
    }
    if assumptions.framework != "amd-guide":
        plain = {
            name: value for config in named.values() for name, value in config.toggles.unoptimised.items()
        }
        first = next(iter(named.values())).toggles
        shown = plain or {name: getattr(first, name) for name in OPTIMISED}
        meta["toggles"] = " ".join(f"{name}={value}" for name, value in shown.items())
        if plain:
            better = [replace(config, toggles=config.toggles.optimised()) for config in named.values()]
            meta["optimised_bytes"] = max(worst(config, assumptions).total for config in better)
    return Result(
        "memory",
        "Memory per GPU",
        tables,
        doc=purpose(memory),
        skips=tuple(skips),
        meta=meta,
        command="tracelens project memory",
    )


def stages(config: Config, assumptions: Assumptions = DEFAULT) -> dict[int, StageMemory]:
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


def _fullest_first(by_rank: Mapping[int, StageMemory]) -> dict[int, StageMemory]:
    return dict(sorted(by_rank.items(), key=lambda item: -item[1].total))


def worst(config: Config, assumptions: Assumptions = DEFAULT) -> StageMemory:
    """The pipeline rank that needs most memory."""
    return next(iter(stages(config, assumptions).values()))


def memory_table(stages_of: Mapping[str, Mapping[int, StageMemory]]) -> Table:
    """MEMORY of all layouts."""
    return MEMORY.from_rows(
        [
            {
                "layout": layout,
                "pp_rank": pp_rank,
                "component": name,
                "bytes": stage.held[name],
                "fraction_of_rank": stage.held[name] / stage.total,
                "contents": COMPONENTS[name],
            }
            for layout, ranks in stages_of.items()
            for pp_rank, stage in ranks.items()
            for name in sorted(stage.held, key=list(COMPONENTS).index)
        ]
    )


def ranks_table(configs: Mapping[str, Config], stages_of: Mapping[str, Mapping[int, StageMemory]]) -> Table:
    """RANKS of all layouts."""
    moments = ("forward", "backward", "optimizer", "between")
    rows = []
    for layout, ranks in stages_of.items():
        config = configs[layout]
        chunks = config.layout.chunks(config.model.layers)
        for pp_rank, stage in ranks.items():
            texts = []  # layers of the stage by chunk, as in +0-3, 12-15
            for number in range(pp_rank, len(chunks), config.layout.pp):
                layers = chunks[number]
                text = f"{layers.start}-{layers.stop - 1}" if len(layers) > 1 else "".join(map(str, layers))
                first, last = "+" if number == 0 else "", "+" if number == len(chunks) - 1 else ""
                texts.append(first + text + last)
            rows.append(
                {
                    "layout": layout,
                    "pp_rank": pp_rank,
                    "layers": ", ".join(texts),
                    "in_flight": stage.in_flight,
                    "peak_bytes": stage.total,
                    "peak_phase": stage.moment,
                    **{f"{moment}_bytes": stage.moments.get(moment, -1) for moment in moments},
                }
            )
    return RANKS.from_rows(rows)


def fits_table(
    configs: Mapping[str, Config],
    assumptions: Assumptions,
    stages_of: Mapping[str, Mapping[int, StageMemory]],
    rooms: Sequence[tuple[Device, Room]],
) -> Table:
    """FITS of all layouts on all devices, by their fullest rank."""
    rows = []
    for layout, by_rank in stages_of.items():
        config, stage = configs[layout], next(iter(by_rank.values()))
        for device, room in rooms:
            needed = stage.total
            if assumptions.framework == "megatron" and needed > room.usable:
                # An allocator without room returns idle segments before it fails.
                ranks = Stages(config, assumptions)
                fullest = ranks.stage(stage.rank // config.layout.stage_ranks)
                with suppress(OutOfMemory):
                    needed = ranks.reserved(fullest, room.usable).total
            rows.append(
                {
                    "layout": layout,
                    "device": device.name,
                    "fits": "yes" if needed <= room.usable else "no",
                    "needed_bytes": needed,
                    "free_bytes": room.usable - needed,
                    "memory_bytes": room.bytes,
                    "reserve_bytes": room.reserve,
                    "nameplate_bytes": device.hbm_bytes,
                }
            )
    return FITS.from_rows(rows)


def room(device: Device, framework: FrameworkName, reserve: int | None) -> Room:
    """Memory of a device for training.

    Args:
        device: with its nameplate memory.
        framework: "amd-guide" compares with the nameplate: by default everything above it is reserve.
        reserve: bytes to keep free instead of the default.

    Raises:
        TracelensError: the device's memory is unknown, or the reserve leaves nothing of it.
    """
    if not device.hbm_bytes:
        raise TracelensError(f"the memory of {device.name} is unknown: add hbm_bytes to its device file")
    if reserve is not None and reserve < 0:
        raise TracelensError(f"reserve must be 0 bytes or more, not {reserve}")
    drivers = bundled_toml(Path(__file__).with_name("drivers.toml"))
    reported = drivers.get(device.name, {}).get("bytes", 0)
    if reported and device.hbm_bytes != bundled(device.name).hbm_bytes:
        # A device file of the user with another memory size.
        reported = 0
    device_bytes = reported or device.hbm_bytes
    default_reserve = device_bytes - device.hbm_bytes if framework == "amd-guide" else RESERVE_BYTES
    device_room = Room(device_bytes, bool(reported), default_reserve if reserve is None else reserve)
    if device_room.usable <= 0:
        raise TracelensError(
            f"the reserve leaves nothing of the {device_bytes / 2**30:.0f} GiB of {device.name}"
        )
    return device_room
