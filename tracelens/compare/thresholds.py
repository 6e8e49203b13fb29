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
    "computation.time<=1.003",
    "kernel.count<=1.01",
    "comm.bytes<=1.01",
    f"{PACE}<=1.01",
    "step.time<=1.01",
    "exposed_comm.fraction<=+0.01",
    "idle.fraction<=+0.01",
    "moe.blocking_calls<=+0.5",
    "memory.peak<=1.02",
)
"""Rules used by default; a rule whose metric is missing becomes a skip.

The step is judged in parts: what the GPU computes repeats to 0.2% from run to run, so its limit is small and
one run a side decides; the host and the waiting vary by 10% and more. The precise parts come first.
Small parts of a step are limited relative to the step: 10% more of almost nothing does not matter.
"""

UNCHANGED = 0.04
"""Probability with which a noisy part of an unchanged program is left undecided by a default rule. Three such
parts (step, communication, idle) that agree with each other leave fewer than 10% of unchanged pairs so."""

CLEAR_SHARE, CLEAR_WAITING = 0.2, 0.8
"""A change by this share of the step decides, however few the runs: nobody who sees a step 20% longer calls
it noise, and runs of programs whose GPU waits for 10 to 30% of the step lie up to 0.16 apart. Where the GPU
waits for most of the step it takes more, the second times the waiting share: eight runs of a program that
computes for 7% of its step lie up to 0.61 apart, and the steps of each hardly differ."""

MOST_RUNS = 20
"""Runs per side up to which a gate says how many would decide; more is no advice."""

WIDER_TAIL = 0.005
"""Probability of each tail at which Welch's and the pooled spread of steps are compared: that of the first
rule's interval at the default confidence."""


class SigmaRange(NamedTuple):
    """Plausible standard deviations, relative to the mean; of fractions absolute."""

    low: float
    high: float


class Plausible(NamedTuple):
    """Plausible noise of a class of metrics; the classes say what the ranges were measured on."""

    between: SigmaRange  # of runs of one program
    within: SigmaRange  # of the steps of a run
    # Bounds of the range between runs, times what the steps of a run vary by.
    carried: SigmaRange = SigmaRange(0.5, 2.0)
    falling: float = 3.0  # power with which a σ above the range becomes less likely

    def times(self, factor: float) -> Plausible:
        """The noise of values that are larger by this factor."""
        between, within = (SigmaRange(*(factor * end for end in ends)) for ends in self[:2])
        return Plausible(between, within, self.carried, self.falling)


PACE_NOISE = Plausible(between=SigmaRange(0.0005, 0.005), within=SigmaRange(0.0001, 0.005))
"""Without the profiler: four runs lie 0.15% apart, a σ of 0.1%."""

GPU_WORK_NOISE = Plausible(
    between=SigmaRange(0.0002, 0.0015),
    within=SigmaRange(0.0001, 0.01),
    carried=SigmaRange(0.1, 0.5),
    falling=8.0,
)
"""What the GPU computes: equal calls take equal time, only clocks and caches differ. Four runs of one program
lie 0.06% apart, three of another on two GPUs 0.2%, a σ of 0.03% and 0.12%; steps vary by 0.03 to 0.1%.
What steps vary by more is their input, and the same steps of two runs have the same."""

GPU_PART_NOISE = Plausible(
    between=SigmaRange(0.0005, 0.006),
    within=SigmaRange(0.0002, 0.02),
    carried=SigmaRange(0.1, 1.0),
    falling=5.0,
)
"""One op, kernel or class: short kernels vary more than their sum, 0.06 to 0.5% from run to run."""

WAITING_SIGMA = 0.15
"""σ between runs of a step in which the GPU only waits, for the host or for other ranks; of others it goes
with the root of the share that waits. Eight runs each: 0.11 and 0.13 where 93% waits, 0.03 and 0.06 where 14
to 20% do. Without the profiler it goes with the square: 0.10 and 0.14 where 90% waits, 0.008 where 10 to 20%
do."""

CLOCK_RANGE = 0.05
"""Kernels of all classes that slow down alike, by no more than this, are those of a GPU at another clock.
Eight runs of a program on one GPU that reaches its power limit lie 2.4% apart, and the steps of each vary by
0.1 to 2.5%."""

CLOCK_CLASS_SHARE = 0.005
"""Classes of kernels below this share of the GPU work say nothing of the clock."""

TRACED_NOISE = Plausible(between=SigmaRange(0.002, 0.03), within=SigmaRange(0.002, 0.1))
"""The step and what the host decides, in traces: four runs lie 3.3% apart, a σ of 1.6%; steps vary by 0.2 to
20%. Also of shares of the step, absolute."""

WAITING_NOISE = Plausible(between=SigmaRange(0.005, 0.3), within=SigmaRange(0.005, 0.5))
"""Times that wait for something, the host or other ranks: in three runs of two ranks communication has a σ
of 26%, idle time of 45%, and steps vary by 1 to 20%."""

COUNTED_NOISE = Plausible(between=SigmaRange(0.00001, 0.003), within=SigmaRange(0.0001, 0.03))
"""Counts: from nearly nothing, as most are equal from run to run, to a tenth of what times vary by."""

BYTES_NOISE = Plausible(between=SigmaRange(0.00001, 0.003), within=SigmaRange(0.0001, 0.03))
"""Sizes: like counts; what is sent and allocated follows the routing of tokens."""

HISTORY_VERSIONS, HISTORY_FREEDOM = 3, 2
"""Versions in a baseline from which on their differences tell the noise, if its runs of one version have
fewer degrees of freedom than the second."""
