"""What hardware counters are judged by: each threshold with its unit and reason."""

HBM_BOUND = 0.8
"""Share of the HBM's peak (0-1) from which it limits a kernel: the fastest copies measured on an H100 reach
0.91, so at most an eighth is left."""

MATRIX_BOUND = 0.7
"""Share of the matrix units' peak (0-1) from which they limit a kernel: large GEMMs measured on an H100 reach
0.7 to 0.8."""

MATRIX_USED = 0.05
"""Share of the matrix units' peak (0-1) below which a kernel is none that multiplies matrices, or hardly."""

MATRIX_IDLE = 0.5
"""Share of the matrix units' peak (0-1) below which they idle most of the time."""

MEMORY_BUSY = 0.6
"""Share of the HBM's peak (0-1) from which others wait for it. Below it a kernel waits for latency, not for
bandwidth; Nsight Compute's own advice draws the line there, too."""

LOW_OCCUPANCY = 0.25
"""Share of the warps that a SM or CU can hold (0-1) below which loads in flight may be too few for HBM: with
16 bytes a thread and 600 ns of latency, an H100 needs 30 of its 64 warps, or half with two loads each."""

FILLED = 0.9
"""Workgroups per SM or CU below which units have nothing to do: persistent kernels leave up to 4 of 132 SMs
out, where clusters do not divide their number."""

BUSY = 0.75
"""Share of the time (0-1) that the mean SM has work, below which a last wave or uneven workgroups cost over a
quarter of it: with two waves, the second is half empty."""

RAMP_NS = 8_000
"""Duration (ns) below which SMs idle for over a quarter of it while a kernel starts and ends: about 1 us each
on an H100."""

NEAR_BOOST = 0.9
"""Share of the highest clock (0-1) below which the clock counts as lowered: boost itself varies by a few
percent from GPU to GPU and with temperature."""

CLOCK_NS = 20_000
"""Kernels below this duration do not tell the clock of an AMD GPU: cycles are counted from before a kernel
begins until after its end, some us more than it takes."""

CAUSE_SHARE = 0.5
"""Share of the time of a call's kernels (0-1) that one cause must explain to be named: no other can explain
as much."""
