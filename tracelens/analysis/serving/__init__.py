"""Serving: prefill and decode steps of an engine, batches, global steps of all ranks."""

from tracelens.analysis.serving.steps import (
    LEAST_WORK,
    PHASES,
    GlobalStep,
    RankSteps,
    at_step,
    by_one_clock,
    global_steps,
    rank_steps,
    select_phase,
)

__all__ = [
    "LEAST_WORK",
    "PHASES",
    "GlobalStep",
    "RankSteps",
    "at_step",
    "by_one_clock",
    "global_steps",
    "rank_steps",
    "select_phase",
]
