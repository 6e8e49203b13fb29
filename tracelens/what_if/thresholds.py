"""What the what-if judges by: each threshold with its unit and reason."""

from __future__ import annotations

# The graph: what counts as waiting for what

OVERLAP_NS = 2_000
"""Tolerated overlap of kernels on one stream: launches that do not wait, or rounded clocks."""

SHORT_NS = 2_000
"""An activity that starts this soon after its launch and its stream allow it waited for nothing else."""

SOON_NS = 20_000
"""An activity held up by another stream starts within this time of the end of what it waited for."""

PROMPT_NS = 10_000
"""Synchronising a stream returns within this time of the stream's last work; later, it waited for another."""

RETURN_NS = 50_000
"""A call returns within this time of what it waited for; if it takes longer, it also did something else."""

SYNCHRONIZE_NS, COPY_NS = 3_500, 5_000
"""Cost of a call of which the run has no example without a wait.

Under the profiler on A100, H100 and H200, medians of 14 recordings are 2.5 to 5.6 us for stream and event
synchronization with nothing to wait for, and of 7 recordings 3.0 to 8.9 us for an asynchronous copy."""

QUEUE_DEPTH = 256
"""Pieces of work queued on a stream below which no launch waits for room. An H100 has room for 1,022, a V100,
whose queue also holds events, for 350 to 1,000 kernels."""

STALLED_LAUNCH = 4
"""A launch that waits for room takes more than this many times the median of those that do not."""

BUSY_SHARE = 0.5
"""Least share of a thread's silence in which what it waited for was at work: another thread, or a collective
of the host. Less is a coincidence, more would miss waits that begin or end with time of their own."""

IDLE_SHARE = 0.1
"""Most that the other thread works right before and after such a silence, and the silent one during that
work: room for clocks and short calls, as shares of the time looked at."""

AROUND_NS = 100_000
"""How long before and after a silence its own thread must have been the only one at work."""

# The replay: how far a projection is trusted

DOUBTFUL = 0.1
"""Largest trusted share of a step that is unexplained or missed; recordings of all ranks and several steps
stay within 1/40."""

LEAST_HOST_SHARE = 1 / 3
"""Least share of the recorded host time that is the program's own; no recording had less."""

UNKNOWN_HOST_SHARE = 0.5
"""Least host time in intervals where the recording does not tell the factor, as a share of the recorded; 13
of the 15 recordings that tell it were above (see `projector`)."""

LOWER_HOST_SHARE, UPPER_HOST_SHARE = 0.65, 1.25
"""Host time in intervals where it does and the scenario changes it, as a share of the projected; never more
than recorded. From before a change to after it, the factor became 0.66 to 1.23 of itself (six pairs)."""

PAUSE_NS = 1_000_000
"""Time without a call up to which the profiler lengthens it, as it does by writing events; what is beyond is
a pause. In 15 recordings, without pauses of 15 to 60 ms the right step is left (`test_planted`). Scenarios
that fuse kernels leave pauses, and nobody can tell which of two silent threads is in one."""

USUAL_HOST_SHARE, HOST_SHARE_DEVIATION = 0.57, 0.1
"""Host time without the profiler, as a share of the recorded: median and deviation of 15 recordings that the
host decides (see `projector`). They deviate by 0.05, hosts and settings of other runs by more."""

REPLAY_DEVIATION = 0.03
"""Relative deviation of a replayed step that GPUs decide from the measured one: 0 to 3% in 20 recordings."""

PAUSE_DEVIATION = 0.1
"""Relative deviation of a pause from run to run: garbage collections of one program took 53 to 61 ms."""

NOTEWORTHY = 0.02
"""Relative distance of base and known step below which nobody needs to hear of it."""

RERUN_HOST_SHARE, RERUN_GPU_SHARE, RERUN_CHANGED_SHARE = 0.20, 0.05, 0.20
"""How much host time, GPU work, and GPU work whose duration a scenario sets, may differ from the replay's.

Steps of one process alone differ as much: by 15% and more where the host decides, by 5% where the GPU does.
"""

CALIBRATED = 1.5
"""How many times as far intervals for reruns reach as these shares say: so they hold 90% of 36 pairs of
recordings (split conformal prediction: 1.47, the 34th of 36 distances in units of the interval). Of 58 pairs
recorded afterwards 91% lie inside (docs/whatif-truth.md)."""
