"""Serving: prefill and decode steps of an engine, batches, global steps of all ranks."""

from tracelens.analysis.serving.global_steps import Common, by_one_clock, lockstep
from tracelens.analysis.serving.steps import rank_steps

__all__ = ["Common", "by_one_clock", "lockstep", "rank_steps"]
