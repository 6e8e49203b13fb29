"""Simulates pipeline schedules: step time, bubble, and activations in flight.

    setting = Setting(("1f1b", "interleaved"), stages=8, micro_batches=32, chunks=4)
    pipeline(setting, Uniform(2_000_000, 4_000_000))

A schedule is data (`schedules.Schedule`: the passes of each stage in order) from a maker, a file or a trace;
times come from a `simulate.TimesSource`. `simulate.simulate` runs every pass as soon as its stage is free and
its inputs have arrived. A measured pipeline is simulated with its own times, to check the simulation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tracelens.arrays import Int
from tracelens.errors import TracelensError
from tracelens.planner.pipeline.schedules import (
    BACKWARD,
    FORWARD,
    PHASES,
    SCHEDULES,
    WEIGHT,
    Schedule,
    find_chunks,
    find_schedule,
    make_schedule,
)
from tracelens.planner.pipeline.simulate import (
    FREE,
    ChunkTimes,
    Costs,
    Fixed,
    Layers,
    Played,
    Shares,
    TimesSource,
    best_partition,
    even_shares,
    make_times,
    simulate,
    sums,
)
from tracelens.registry import purpose
from tracelens.table import Column, Result, Schema, Skip, Table

if TYPE_CHECKING:
    from tracelens.planner.memory import Kept
    from tracelens.planner.pipeline.measured import PipelineMeasurement

# Larger simulations are refused: each pass is a step of a Python loop and a row of the table `spans`.
_MOST_PASSES = 4_000_000
_MOST_STAGES = 1024
# Size of a simulation that runs for each of many partitions: a trade-off of time against accuracy.
_QUICK_PASSES = 10_000


@dataclass(frozen=True)
class Setting:
    """The schedules to simulate."""

    # names, see `schedules.SCHEDULES`, or .csv files, see `schedule_file`; all are compared with the first
    # one
    schedules: Sequence[str]
    stages: int  # PP
    micro_batches: int  # per step
    chunks: int = 1  # VPP, for schedules that allow any number
    group: int = 0  # micro-batches per turn of interleaved schedules; 0 for one per stage
    layout: str = ""  # layers of each chunk in model order, as in 3,4,4,3; "" for an even split
    best: bool = False  # search for the best partition
    costs: Costs = FREE  # of messages, and of gaps between passes
    rest_ns: int = -1  # of a step outside of the pipeline phase, -1 if unknown
    activation_bytes: int = -1  # per micro-batch in all chunks of a stage, mean over stages; -1 if not given
    kept: Kept | None = None  # activations per micro-batch in each part of the model; None if unknown
    times_from: str = ""  # description of the source of times


EACH_PASS, CHUNK_MEANS, LAYER_MEANS = "each pass", "mean of chunk", "mean of equal layers"
"""Pass times: as measured, or the means that other schedules and other partitions use."""

_SCHEDULE = Column("schedule", "category", doc="such as 1f1b or interleaved")
_STAGE = Column("stage", "int64", doc="position in the pipeline, from 0")
SUMMARY = Schema(
    "Schedules",
    (
        _SCHEDULE,
        Column("chunks", "int64", "count", "VPP, model chunks per stage"),
        Column("makespan_ns", "int64", "ns", "from the first forward to the last pass of any stage"),
        Column("step_ns", "int64", "ns", "makespan plus the measured rest of the step", absent=-1),
        Column("speedup", "float64", doc="makespan of the first schedule / this makespan"),
        Column("bubble_fraction", "float64", "fraction", "idle share of the makespan, mean over stages"),
        Column("bubble_ideal_ratio", "float64", "ratio", "idle time / busy time"),
        Column(
            "longest_ns",
            "int64",
            "ns",
            "longest time from the first to the last pass of a stage: the makespan if each stage starts the "
            "next step as soon as it is done",
        ),
        Column("peak_chunks", "int64", "count", "in flight, worst stage"),
        Column("peak_micro_batches", "float64", doc="peak_chunks / chunks"),
        Column("peak_bytes", "int64", "bytes", "activations in flight, worst stage", absent=-1),
    ),
    doc="The bubble is the idle time of stages, as a share of the makespan or, as in Megatron-LM, of "
    "the busy time. A micro-batch chunk is in flight from its forward to the end of its backward.",
)
STAGES = Schema(
    "Stages",
    (
        _SCHEDULE,
        _STAGE,
        Column("forward_ns", "int64", "ns", "all forwards; overlapped pairs in proportion"),
        Column("backward_ns", "int64", "ns", "all backwards"),
        Column("idle_ns", "int64", "ns", "of the makespan"),
        Column("idle_fraction", "float64", "fraction", "of the makespan"),
        Column("start_ns", "int64", "ns", "of the first pass"),
        Column("end_ns", "int64", "ns", "of the last pass"),
        Column("peak_chunks", "int64", "count", "in flight at once"),
        Column("peak_bytes", "int64", "bytes", "activations in flight at once", absent=-1),
    ),
    doc="Idle time is before, between and after the passes of a stage.",
    brief=True,
)
PARTITION = Schema(
    "Partition",
    (
        _SCHEDULE,
        Column("position", "int64", doc="position of the chunk in the model"),
        Column("stage", "int64", doc="stage that holds the chunk"),
        Column("chunk", "int64", doc="number on its stage"),
        Column("first_layer", "int64", doc="missing if the chunk has none, or layers are unknown", absent=-1),
        Column("layers", "int64", "count", "missing if unknown", absent=-1),
        Column("forward_ns", "int64", "ns", "per micro-batch, mean"),
        Column("backward_ns", "int64", "ns", "per micro-batch, mean"),
    ),
    doc="The first chunk includes the embedding, the last chunk head and loss.",
    brief=True,
)
SPANS = Schema(
    "Passes",
    (
        _SCHEDULE,
        Column("rank", "int64", doc="stage; one rank each"),
        _STAGE,
        Column("chunk", "int64", doc="number on its stage"),
        Column("micro_batch", "int64", doc="in the step, from 0"),
        Column("phase", "category", doc=", ".join(PHASES)),
        Column("ts_ns", "int64", "ns", "since the first forward"),
        Column("dur_ns", "int64", "ns", "duration of the pass"),
        Column("paired", "bool", doc="overlaps with another pass of the stage"),
    ),
    detail=True,
    key=(),
)
IN_FLIGHT = Schema(
    "In flight over time",
    (
        _SCHEDULE,
        Column("rank", "int64", doc="stage; one rank each"),
        Column("ts_ns", "int64", "ns", "start of this state"),
        Column("chunks", "int64", "count", "micro-batch chunks in flight"),
        Column("bytes", "int64", "bytes", "activations of these chunks, missing if unknown", absent=-1),
    ),
    detail=True,
    key=(),
)
CHECK = Schema(
    "Simulation check",
    (
        Column("ranks", "category", doc="ranks of the stages"),
        Column("step", "category", doc="recorded step that is simulated"),
        Column("times", "category", doc="pass times: measured, or means"),
        Column("measured_ns", "int64", "ns", "from the first forward to the last backward"),
        Column("simulated_ns", "int64", "ns", "the same by simulation"),
        Column("offset", "float64", "ratio", "simulated / measured - 1"),
    ),
    doc="Simulates the recorded order with the measured pass times; the offset is waiting that neither "
    "passes nor messages explain. The mean of equal layers shows how far to trust another partition, which "
    "assumes that layers of a kind take equally long on all ranks.",
)
TABLES = {
    "summary": SUMMARY,
    "stages": STAGES,
    "partition": PARTITION,
    "check": CHECK,
    "spans": SPANS,
    "in_flight": IN_FLIGHT,
}


class Case(NamedTuple):
    """A simulated schedule."""

    name: str  # of the schedule
    played: Played  # its passes
    chunks: ChunkTimes  # mean times of the chunks
    shares: Sequence[int]  # layers of each chunk, empty if unknown
    chunk_bytes: Sequence[int]  # activations of a micro-batch in each chunk, empty if unknown


class Held(NamedTuple):
    """Chunks and bytes in flight on a stage over time; one element per change."""

    time: Int
    chunks: Int
    bytes: Int


def pipeline(setting: Setting, source: TimesSource, measured: PipelineMeasurement | None = None) -> Result:
    """How long do pipeline schedules take, how large is the bubble, and how much is in flight?

    Args:
        setting: schedules and sizes.
        source: times of the chunks.
        measured: the run that the times are from, if any; it is simulated as a check.

    Returns:
        result `pipeline_schedule`: tables `summary`, `stages`, `partition`, `check` (of a measured run),
        `spans` and `in_flight`. meta: stages, micro_batches, times (their source), simulation (error on a
        measured run), and times of messages.

    Raises:
        UnknownName: no such schedule.
        TracelensError: invalid numbers for a schedule or partition.
    """
    if not setting.schedules:
        raise TracelensError(f"name at least one schedule: {', '.join(SCHEDULES)}")
    if setting.layout and setting.best:
        raise TracelensError("give either a partition or --best-partition, not both")
    cases: list[Case] = []
    for name in dict.fromkeys(setting.schedules):
        if setting.stages > _MOST_STAGES:
            raise TracelensError(f"{setting.stages:,} stages exceed the limit of {_MOST_STAGES:,}")
        chunks = find_chunks(name, setting.chunks)
        if (passes := 2 * setting.stages * chunks * setting.micro_batches) > _MOST_PASSES:
            raise TracelensError(
                f"{passes:,} passes of {name} exceed the limit of {_MOST_PASSES:,}: use fewer micro-batches"
            )
        schedule = find_schedule(name, setting.stages, setting.micro_batches, chunks, setting.group)
        shares = _shares(setting, source, schedule)
        times = source.chunks(schedule.stages, schedule.count, shares)
        played = simulate(schedule, make_times(times, schedule.stages, schedule.micro_batches, setting.costs))
        chunk_bytes: tuple[int, ...] = ()  # activations of a micro-batch in each chunk
        parts = shares or (1,) * schedule.count
        if setting.activation_bytes >= 0:
            total_bytes = setting.activation_bytes * schedule.stages
            chunk_bytes = tuple(round(total_bytes * part / sum(parts)) for part in parts)
        elif (kept := setting.kept) is not None:
            chunk_bytes = tuple(sums(np.array(kept.layers), parts, kept.embedding, kept.head).tolist())
        cases.append(Case(name, played, times, shares, chunk_bytes))
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
        "micro_batches": setting.micro_batches,
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


def _shares(setting: Setting, source: TimesSource, schedule: Schedule) -> Shares:
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
    # Many partitions are simulated with fewer micro-batches, in whole turns.
    short, turn = schedule, max(setting.group, setting.stages)
    count = max(2, _QUICK_PASSES // (2 * schedule.count * turn)) * turn
    if schedule.name in SCHEDULES and count < schedule.micro_batches:
        short = make_schedule(schedule.name, schedule.stages, count, schedule.chunks, setting.group)
    return best_partition(
        source.times,
        schedule.positions,
        [even],
        quick=_makespan(setting, source, short),
        makespan=_makespan(setting, source, schedule),
    )


def _makespan(setting: Setting, source: TimesSource, schedule: Schedule) -> Callable[[Shares], int]:
    def makespan(shares: Shares) -> int:
        chunks = source.chunks(schedule.stages, schedule.count, shares)
        times = make_times(chunks, schedule.stages, schedule.micro_batches, setting.costs)
        return simulate(schedule, times).makespan

    return makespan


def verify(measured: PipelineMeasurement) -> Table:
    """CHECK of all pipelines and steps."""
    rows = []
    for line in measured.lines:
        size = line.size
        times_of = {EACH_PASS: line.times(), CHUNK_MEANS: line.mean_times()}
        if measured.layers is not None:
            count = size.stages * size.chunks
            chunks = Layers(measured.layers).chunks(size.stages, count, measured.shares)
            times_of[LAYER_MEANS] = make_times(chunks, size.stages, size.micro_batches, measured.costs)
        for name, times in times_of.items():
            simulated = simulate(line.schedule, times).makespan
            rows.append(
                {
                    "ranks": ", ".join(map(str, line.ranks)),
                    "step": line.step,
                    "times": name,
                    "measured_ns": line.phase_ns,
                    "simulated_ns": simulated,
                    "offset": simulated / line.phase_ns - 1,
                }
            )
    return CHECK.from_rows(rows)


def fit(check: Table, times: str) -> str:
    """Deviation of the simulated from the measured phase as text, with CHUNK_MEANS or LAYER_MEANS."""
    of_kind = np.array([name == times for name in check.texts("times")], dtype=bool)
    offsets = check.array("offset")[of_kind]
    if not len(offsets):
        return "no check: layers were not measured"
    steps = len(set(check.texts("step")))
    worst = float(offsets[np.abs(offsets).argmax()])
    return f"{worst:+.1%} off the recorded phase" + (f" at most, in {steps} steps" if steps > 1 else "")


def held(case: Case, stage: int) -> Held:
    """What is in flight on a stage: each chunk from the start of its forward to the end of its backward."""
    played = case.played
    last = PHASES.index(WEIGHT if played.schedule.splits else BACKWARD)
    of_stage = played.of(stage)
    begun = of_stage & (played.phase == PHASES.index(FORWARD))
    ended = of_stage & (played.phase == last)
    size = np.array(case.chunk_bytes or [0] * played.schedule.count, dtype=np.int64)
    time = np.concatenate((played.start[begun], played.end[ended]))
    chunks = np.concatenate((np.ones(begun.sum(), np.int64), -np.ones(ended.sum(), np.int64)))
    sizes = np.concatenate((size[played.position[begun]], -size[played.position[ended]]))
    # At equal times the pass that ends comes first: it frees the memory for the pass that begins.
    order = np.lexsort((chunks, time))
    return Held(time[order], np.cumsum(chunks[order]), np.cumsum(sizes[order]))


def summary(cases: Sequence[Case], rest_ns: int) -> Table:
    """SUMMARY of all cases."""
    rows: list[dict[str, Any]] = []
    for case in cases:
        played, schedule = case.played, case.played.schedule
        busy = sum(played.busy(stage) for stage in range(schedule.stages))
        stage_ns = played.makespan * schedule.stages
        windows = [
            int(played.end[played.of(stage)].max() - played.start[played.of(stage)].min())
            for stage in range(schedule.stages)
        ]
        peaks = [held(case, stage) for stage in range(schedule.stages)]
        most = max(int(holding.chunks.max()) for holding in peaks)
        rows.append(
            {
                "schedule": case.name,
                "chunks": schedule.chunks,
                "makespan_ns": played.makespan,
                "speedup": cases[0].played.makespan / played.makespan,
                "step_ns": played.makespan + rest_ns if rest_ns >= 0 else -1,
                "bubble_fraction": (stage_ns - busy) / stage_ns,
                "bubble_ideal_ratio": (stage_ns - busy) / max(busy, 1),
                "longest_ns": max(windows),
                "peak_chunks": most,
                "peak_micro_batches": most / schedule.chunks,
                "peak_bytes": max(int(holding.bytes.max()) for holding in peaks) if case.chunk_bytes else -1,
            }
        )
    return SUMMARY.from_rows(rows)


def stages(cases: Sequence[Case]) -> Table:
    """STAGES of all cases."""
    rows: list[dict[str, Any]] = []
    for case in cases:
        played = case.played
        for stage in range(played.schedule.stages):
            of_stage = played.of(stage)
            busy = played.busy(stage)
            dur_ns = played.end - played.start
            forward = int(dur_ns[of_stage & (played.phase == PHASES.index(FORWARD))].sum())
            backward = int(dur_ns[of_stage & (played.phase != PHASES.index(FORWARD))].sum())
            # Overlapped pairs share their time in proportion to forward and backward.
            forward = round(busy * forward / max(forward + backward, 1))
            holding = held(case, stage)
            rows.append(
                {
                    "schedule": case.name,
                    "stage": stage,
                    "forward_ns": forward,
                    "backward_ns": busy - forward,
                    "idle_ns": played.makespan - busy,
                    "idle_fraction": (played.makespan - busy) / played.makespan,
                    "start_ns": int(played.start[of_stage].min()),
                    "end_ns": int(played.end[of_stage].max()),
                    "peak_chunks": int(holding.chunks.max()),
                    "peak_bytes": int(holding.bytes.max()) if case.chunk_bytes else -1,
                }
            )
    return STAGES.from_rows(rows)


def partition(cases: Sequence[Case]) -> Table:
    """PARTITION of all cases."""
    rows = []
    for case in cases:
        positions = case.played.schedule.positions
        chunk_at = {
            position: (stage, chunk)
            for stage, stage_positions in enumerate(positions)
            for chunk, position in enumerate(stage_positions)
        }
        first = 0
        for position in sorted(chunk_at):
            share = case.shares[position] if case.shares else -1
            rows.append(
                {
                    "schedule": case.name,
                    "position": position,
                    "stage": chunk_at[position][0],
                    "chunk": chunk_at[position][1],
                    "first_layer": first if share > 0 else -1,
                    "layers": share,
                    "forward_ns": int(case.chunks.forward[position]),
                    "backward_ns": int(case.chunks.backward[position]),
                }
            )
            first += max(share, 0)
    return PARTITION.from_rows(rows)


def spans(cases: Sequence[Case]) -> Table:
    """SPANS of all cases."""
    parts = []
    for case in cases:
        played = case.played
        key = np.stack((played.stage, played.start))
        _, group, size = np.unique(key, axis=1, return_inverse=True, return_counts=True)
        long = played.end > played.start
        parts.append(
            {
                "schedule": [case.name] * len(played.start),
                "rank": played.stage,
                "stage": played.stage,
                "chunk": played.chunk,
                "micro_batch": played.micro_batch,
                "phase": [PHASES[code] for code in played.phase.tolist()],
                "ts_ns": played.start,
                "dur_ns": played.end - played.start,
                "paired": (size[group.ravel()] > 1) & long,
            }
        )
    return SPANS.table(_stacked(parts))


def in_flight(cases: Sequence[Case]) -> Table:
    """IN_FLIGHT of all cases."""
    parts = []
    for case in cases:
        for stage in range(case.played.schedule.stages):
            holding = held(case, stage)
            parts.append(
                {
                    "schedule": [case.name] * len(holding.time),
                    "rank": np.full(len(holding.time), stage),
                    "ts_ns": holding.time,
                    "chunks": holding.chunks,
                    "bytes": holding.bytes if case.chunk_bytes else np.full(len(holding.time), -1),
                }
            )
    return IN_FLIGHT.table(_stacked(parts))


def _stacked(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        name: np.concatenate([part[name] for part in parts])
        if isinstance(parts[0][name], np.ndarray)
        else [value for part in parts for value in part[name]]
        for name in parts[0]
    }
