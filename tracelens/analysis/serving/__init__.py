"""Serving: prefill and decode steps of an engine, batches, global steps of all ranks."""

from tracelens.analysis.serving.global_steps import LEAST_WORK, GlobalStep, by_one_clock, global_steps
from tracelens.analysis.serving.phases import PHASES, select_phase
from tracelens.analysis.serving.steps import RankSteps, rank_steps

__all__ = [
    "LEAST_WORK",
    "PHASES",
    "GlobalStep",
    "RankSteps",
    "by_one_clock",
    "global_steps",
    "rank_steps",
    "select_phase",
]
