"""Bytes of memory on each GPU of a run, before it runs: of what, on which pipeline rank, and where they fit.

    memory(config)                                   # one layout
    memory({"EP8": config, "EP16": other}, devices=[device("mi300x")])
    worst(config).total                              # one number, in well under 10 ms

By default every tensor counts that the reference workload holds at the peak of a step: `tape` tells how that
is found, `dense`, `routing` and `experts` what each op keeps and makes, `stage` what a rank has in flight.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tracelens.devices import Device
from tracelens.planner.config import OPTIMISED, Config
from tracelens.planner.memory.assumptions import Assumptions
from tracelens.planner.memory.brief import brief_stage
from tracelens.planner.memory.fits import room
from tracelens.planner.memory.stage import Stage, Stages
from tracelens.planner.memory.tables import fits_table, memory_table, ranks_table
from tracelens.registry import purpose
from tracelens.table import Result, Skip

__all__ = ["Assumptions", "Stage", "memory", "room", "stages", "worst"]

DEFAULT = Assumptions()


def memory(
    configs: Config | Mapping[str, Config],
    assumptions: Assumptions = DEFAULT,
    devices: Sequence[Device] = (),
    reserve: int | None = None,
) -> Result:
    """How much memory does each GPU need, what for, and on which devices is that much?

    Args:
        configs: what to train; several layouts by name.
        assumptions: what the configurations do not say.
        devices: to compare with.
        reserve: bytes of each device to leave free; None for 4 GiB, and with convention=brief for what the
            device has above its nameplate.

    Returns:
        tables `fits` (one row a layout and device), `memory` (one row a layout, pipeline rank and component,
        the rank with most first) and `ranks` (one row a pipeline rank: its peak and the moment of it).
        meta: layouts, convention, worst_bytes (of the layout with most), toggles (those of OPTIMISED that
        some layout has at their baseline, or that all have as optimised), optimised_bytes (where some are at
        their baseline: worst_bytes without that).

    Raises:
        TracelensError: a layout that cannot be, or is not for this convention; a device whose memory is not
            known, or of which the reserve leaves nothing.
    """
    named = {_told(configs): configs} if isinstance(configs, Config) else dict(configs)
    found = {name: stages(config, assumptions) for name, config in named.items()}
    skips = list(_skips(named, assumptions, devices))
    tables = {"fits": fits_table(found, devices, assumptions.convention, reserve)} if devices else {}
    tables |= {"memory": memory_table(found), "ranks": ranks_table(named, found)}
    return Result(
        "memory",
        "Memory of each GPU",
        tables,
        doc=purpose(memory),
        skips=tuple(skips),
        meta={
            "layouts": list(found),
            "convention": assumptions.convention,
            "worst_bytes": max(one.total for ranks in found.values() for one in ranks.values()),
            **_toggles(named.values(), assumptions),
        },
        command="tracelens project memory",
    )


def stages(config: Config, assumptions: Assumptions = DEFAULT) -> dict[int, Stage]:
    """Memory of each pipeline rank, by its number, the one with most first."""
    if assumptions.convention == "brief":
        return {0: brief_stage(config, assumptions)}
    ranks = Stages(config, assumptions)
    found = {place: ranks.stage(place) for place in range(config.layout.pp)}
    return dict(sorted(found.items(), key=lambda item: -item[1].total))


def worst(config: Config, assumptions: Assumptions = DEFAULT) -> Stage:
    """The pipeline rank that needs most memory."""
    return next(iter(stages(config, assumptions).values()))


def _toggles(configs: Collection[Config], assumptions: Assumptions) -> dict[str, Any]:
    """What of meta tells how the model computes."""
    if assumptions.convention == "brief":
        return {}
    plain = {name: value for config in configs for name, value in config.toggles.unoptimised.items()}
    first = next(iter(configs)).toggles
    shown = plain or {name: getattr(first, name) for name in OPTIMISED}
    told = {"toggles": " ".join(f"{name}={value}" for name, value in shown.items())}
    if not plain:
        return told
    better = [replace(one, toggles=one.toggles.optimised()) for one in configs]
    return told | {"optimised_bytes": max(worst(one, assumptions).total for one in better)}


def _told(config: Config) -> str:
    layout = config.layout
    sizes = {"pp": layout.pp, "vpp": layout.vpp, "ep": layout.experts_over, "cp": layout.cp, "tp": layout.tp}
    split = [f"{name}={size}" for name, size in sizes.items() if size > 1]
    return " ".join([f"{layout.ranks} GPUs" if layout.ranks > 1 else "1 GPU", *split])


def _skips(
    configs: Mapping[str, Config], assumptions: Assumptions, devices: Sequence[Device]
) -> Sequence[Skip]:
    found = []
    if assumptions.convention == "exact" and any(config.model.moe_layers for config in configs.values()):
        found.append(
            Skip(
                "memory of other frameworks",
                "what counts is what the reference workload's ops keep, among it the rows of tokens before "
                "and behind the experts; a framework that weighs them inside the experts keeps fewer",
            )
        )
    if any(config.toggles.dispatch == "deepep" for config in configs.values()):
        found.append(
            Skip(
                "buffers of DeepEP",
                "the library gets them from the driver, by hints that it has to be asked for",
            )
        )
    if any(config.toggles.experts == "multistream" for config in configs.values()):
        found.append(
            Skip(
                "experts=multistream",
                "memory of side streams is freed later than is counted here, when the device says so",
            )
        )
    if assumptions.convention == "brief":
        found.append(Skip("pipeline ranks from 1 on", "the charts of convention=brief are of the first rank"))
    unknown = [one.name for one in devices if not room(one, assumptions.convention, None).reported]
    if unknown:
        found.append(
            Skip(
                f"memory of {', '.join(unknown)} in real bytes",
                "no driver's report is at hand: the nameplate counts",
            )
        )
    return found
