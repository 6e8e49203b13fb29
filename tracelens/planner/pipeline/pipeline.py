"""Simulates pipeline schedules: step time, bubble, and activations in flight.

    setting = Setting(("1f1b", "interleaved"), stages=8, microbatches=32, chunks=4)
    pipeline(setting, Uniform(2_000_000, 4_000_000))

A schedule is data (`schedule.Schedule`: the passes of each stage in order) from a generator in `schedules`, a
file or a trace; times come from a `sources.Source`. `simulate.simulate` runs every pass as soon as its stage
is free and its inputs have arrived.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tracelens.errors import TracelensError
from tracelens.planner.pipeline.partition import Shares, best_partition
from tracelens.planner.pipeline.schedule import Schedule
from tracelens.planner.pipeline.schedule_file import find_chunks, find_schedule
from tracelens.planner.pipeline.schedules import SCHEDULES, make_schedule
from tracelens.planner.pipeline.simulate import simulate
from tracelens.planner.pipeline.sources import Fixed, Layers, Source, even_shares, sums
from tracelens.planner.pipeline.tables import Case, in_flight, partition, spans, stages, summary
from tracelens.planner.pipeline.times import FREE, Costs, make_times
from tracelens.planner.pipeline.verify import CHUNK_MEANS, LAYER_MEANS, fit, verify
from tracelens.registry import purpose
from tracelens.table import Result, Skip

if TYPE_CHECKING:
    from tracelens.planner.memory import Kept
    from tracelens.planner.pipeline.measured import Measured

_MOST_PASSES = 4_000_000
_MOST_STAGES = 1024
_QUICK_PASSES = 10_000
"""Size of a simulation that runs many times."""


@dataclass(frozen=True)
class Setting:
    """The schedules to simulate.

    Attributes:
        schedules: names, see `schedules.SCHEDULES`, or .csv files, see `schedule_file`; all are compared with
            the first one.
        stages: PP.
        microbatches: per step.
        chunks: VPP, for schedules that allow any number.
        group: micro-batches per turn of interleaved schedules; 0 for one per stage.
        layout: layers of each chunk in model order, as in 3,4,4,3; "" for an even split.
        best: search for the best partition.
        costs: of messages, and of gaps between passes.
        rest_ns: of a step outside of the pipeline phase, -1 if unknown.
        activation_bytes: per micro-batch in all chunks of a stage, mean over stages; -1 if not given.
        kept: activations per micro-batch in each part of the model; None if unknown.
        times_from: description of the source of times.
    """

    schedules: Sequence[str]
    stages: int
    microbatches: int
    chunks: int = 1
    group: int = 0
    layout: str = ""
    best: bool = False
    costs: Costs = FREE
    rest_ns: int = -1
    activation_bytes: int = -1
    kept: Kept | None = None
    times_from: str = ""


def pipeline(setting: Setting, source: Source, measured: Measured | None = None) -> Result:
    """How long do pipeline schedules take, how large is the bubble, and how much is in flight?

    Args:
        setting: schedules and sizes.
        source: times of the chunks.
        measured: the run that the times are from, if any; it is simulated as a check.

    Returns:
        result `pipeline_schedule`: tables `summary`, `stages`, `partition`, `check` (of a measured run),
        `spans` and `in_flight`. meta: stages, microbatches, times (their source), simulation (error on a
        measured run), and times of messages.

    Raises:
        UnknownName: no such schedule.
        TracelensError: invalid numbers for a schedule or partition.
    """
    if not setting.schedules:
        raise TracelensError(f"name at least one schedule: {', '.join(SCHEDULES)}")
    if setting.layout and setting.best:
        raise TracelensError("give either a partition or --best-partition, not both")
    cases = [_case(setting, source, name) for name in dict.fromkeys(setting.schedules)]
    skips = list(measured.skips) if measured else []
    if not cases[0].chunk_bytes:
        skips.append(
            Skip(
                "bytes in flight", "unknown: give the activations per micro-batch and stage (--activation-gb)"
            )
        )
    tables = {
        "summary": summary(cases, setting.rest_ns),
        "stages": stages(cases),
        "partition": partition(cases),
    }
    meta = {
        "stages": setting.stages,
        "microbatches": setting.microbatches,
        "times": setting.times_from or "given",
    }
    if measured is not None:
        tables["check"] = verify(measured)
        means = CHUNK_MEANS if isinstance(source, Fixed) else LAYER_MEANS
        meta["simulation"] = fit(tables["check"], means)
    tables |= {"spans": spans(cases), "in_flight": in_flight(cases)}
    return Result(
        "pipeline_schedule",
        "Pipeline schedules",
        tables,
        doc=purpose(pipeline),
        skips=tuple(skips),
        meta=meta
        | {
            "forward_message_ns": setting.costs.forward_transit,
            "backward_message_ns": setting.costs.backward_transit,
        },
        command="tracelens project pipeline",
    )


def _case(setting: Setting, source: Source, name: str) -> Case:
    if setting.stages > _MOST_STAGES:
        raise TracelensError(f"{setting.stages:,} stages exceed the limit of {_MOST_STAGES:,}")
    chunks = find_chunks(name, setting.chunks)
    if (passes := 2 * setting.stages * chunks * setting.microbatches) > _MOST_PASSES:
        raise TracelensError(
            f"{passes:,} passes of {name} exceed the limit of {_MOST_PASSES:,}: use fewer micro-batches"
        )
    schedule = find_schedule(name, setting.stages, setting.microbatches, chunks, setting.group)
    shares = _shares(setting, source, schedule)
    times = source.chunks(schedule.stages, schedule.count, shares)
    played = simulate(schedule, make_times(times, schedule.stages, schedule.microbatches, setting.costs))
    return Case(
        name, played, times, shares, _sizes(setting, shares or (1,) * schedule.count, schedule.stages)
    )


def _sizes(setting: Setting, parts: Shares, stages: int) -> tuple[int, ...]:
    """Activations of a micro-batch in each chunk; empty if unknown."""
    if setting.activation_bytes >= 0:
        total_bytes = setting.activation_bytes * stages
        return tuple(round(total_bytes * part / sum(parts)) for part in parts)
    if setting.kept is None:
        return ()
    kept = setting.kept
    return tuple(sums(np.array(kept.layers), parts, kept.embedding, kept.head).tolist())


def _shares(setting: Setting, source: Source, schedule: Schedule) -> Shares:
    """Layers of each chunk; empty if unknown."""
    layout = setting.layout
    if isinstance(source, Fixed):
        return source.shares
    if layout and not source.layers:
        # Without a model, the layout tells the number of layers.
        parts = layout.split(",")
        if all(part.strip().isdecimal() for part in parts):
            return even_shares(sum(map(int, parts)), schedule.stages, schedule.chunks, layout)
    if not source.layers and not layout:
        if setting.best:
            raise TracelensError(
                "the best partition needs times of layers: give --model and --device, or a trace whose "
                "annotations name layers (L0, L1, ...)"
            )
        return ()
    even = even_shares(source.layers, schedule.stages, schedule.chunks, layout)
    if not setting.best:
        return even
    if not isinstance(source, Layers):
        raise TracelensError("equal layers need no --best-partition: even shares are the best")
    quick = _makespan(setting, source, _shortened(setting, schedule))
    return best_partition(
        source.times, schedule.positions, [even], quick, _makespan(setting, source, schedule)
    )


def _shortened(setting: Setting, schedule: Schedule) -> Schedule:
    """The schedule with fewer micro-batches (whole turns), to simulate many partitions."""
    turn = max(setting.group, setting.stages)
    count = max(2, _QUICK_PASSES // (2 * schedule.count * turn)) * turn
    if schedule.name not in SCHEDULES or count >= schedule.microbatches:
        return schedule
    return make_schedule(schedule.name, schedule.stages, count, schedule.chunks, setting.group)


def _makespan(setting: Setting, source: Source, schedule: Schedule) -> Callable[[Shares], int]:
    def makespan(shares: Shares) -> int:
        chunks = source.chunks(schedule.stages, schedule.count, shares)
        times = make_times(chunks, schedule.stages, schedule.microbatches, setting.costs)
        return simulate(schedule, times).makespan

    return makespan
