"""Pipeline schedules: step time and bubble by simulation."""

from tracelens.planner.pipeline.pipeline import TABLES, Setting, pipeline
from tracelens.planner.pipeline.schedules import (
    BACKWARD,
    FORWARD,
    INPUT,
    PHASES,
    SCHEDULES,
    WEIGHT,
    Pass,
    Schedule,
    Slot,
    check,
    chunks_of,
    find_chunks,
    find_schedule,
    make_schedule,
    read_schedule,
    round_robin,
    singles,
)
from tracelens.planner.pipeline.simulate import (
    ChunkTimes,
    Costs,
    Fixed,
    Layers,
    Played,
    TimesSource,
    Uniform,
    activations,
    best_partition,
    even_shares,
    make_times,
    overlapped_ns,
    roofline,
    shortest,
    simulate,
)
