"""What diff, gate and ladder judge by: each threshold with its unit and reason."""

from __future__ import annotations

from typing import NamedTuple

# Diff and ladder

TAIL = 0.025
"""Probability of each tail of the interval of a difference; an interval that excludes 0 is beyond noise."""

SAME_CALLS = 0.98
"""Share of their calls in which the repeated parts of two recordings agree, at least. Lower, and two
programs count as repetitions of one; higher, and one changed call hides that they are."""

LONG_LIST, LONGER_TIMES = 16, 4
"""Lists of calls longer than the first and by more than this factor longer than the other did something else;
shorter ones may have gained calls. Equal names in them are no anchors."""

HALF_OF_LEAVES = 0.5
"""Least share of a node's leaves that is known from the other side, for the node to be a wrapper around them:
names such as aten::empty are everywhere."""

NAMED_SHARE = 0.02
"""Parts below this share of a rung's largest change are not named: they do not explain it."""

# Gate

CONFIDENCE = 0.99
"""Family-wise confidence level: probability that no rule fails if nothing changed."""

MISSED = 0.1
"""Highest probability with which a change just beyond a limit may pass: a test's usual type II error."""

ROUNDING = 1e-9
"""Relative rounding error allowed at a limit."""

PACE = "step.pace"
"""Metric: step time without the profiler, one value for each part of the loop that was timed so."""

DEFAULT_RULES = (
    f"{PACE}<=1.01",
    "step.time<=1.01",
    "exposed_comm.fraction<=+0.01",
    "idle.fraction<=+0.01",
    "kernel.count<=1.01",
    "moe.blocking_calls<=+0.5",
    "memory.peak<=1.02",
)
"""Rules used by default; a rule whose metric is missing becomes a skip.

Small parts of a step are limited relative to the step: 10% more of almost nothing does not matter.
"""

WIDER_TAIL = 0.005
"""Probability of each tail at which Welch's and the pooled spread of steps are compared: that of the first
rule's interval at the default confidence."""


class SigmaRange(NamedTuple):
    """Plausible standard deviations, relative to the mean; of fractions absolute."""

    low: float
    high: float


class Plausible(NamedTuple):
    """Plausible noise of a kind of metric; `noise` says what the ranges were measured on."""

    between: SigmaRange  # of runs of one program
    within: SigmaRange  # of the steps of a run


PACE_NOISE = Plausible(between=SigmaRange(0.0005, 0.005), within=SigmaRange(0.0001, 0.005))
"""Without the profiler: four runs lie 0.15% apart, a σ of 0.1%."""

TRACED_NOISE = Plausible(between=SigmaRange(0.002, 0.03), within=SigmaRange(0.002, 0.1))
"""In traces: four runs lie 3.3% apart, a σ of 1.6%; steps vary by 0.2 to 20%."""

COUNTED_NOISE = Plausible(between=SigmaRange(0.00001, 0.003), within=SigmaRange(0.0001, 0.03))
"""Counts and sizes: from nearly nothing, as most are equal from run to run, to a tenth of what times
vary by."""

HISTORY_VERSIONS, HISTORY_FREEDOM = 3, 2
"""Versions in a baseline from which on their differences tell the noise, if its runs of one version have
fewer degrees of freedom than the second."""
