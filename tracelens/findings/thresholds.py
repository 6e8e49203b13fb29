"""What findings judge by: each threshold with its unit and reason."""

from __future__ import annotations

# Which savings are findings, and how far they are trusted

SHOWN = 0.005
"""Share of a step that a saving exceeds to be a finding: a trade-off, a list with all of them is long."""

LOW_DOUBT, MEDIUM_DOUBT = 0.5, 0.1
"""From this share of its time in doubtful stretches on, a finding has at most this confidence: a trade-off,
half of the time decides, a tenth matters."""

UNEXPLAINED_SHARE = 1 / 40
"""Up to this unexplained share of the step the graph explains it; recordings of all ranks and several steps
stay within."""

CAUSE_SHARE = 0.5
"""A cause that overlaps more than this share of a symptom's time explains it: most of it."""

OWN_TIME = 0.05
"""A saving that exceeds the time that its evidence is about by more than this share says where the rest lies:
means over ranks and steps differ by as much."""

# Host

LAUNCH_BOUND_SHARE = 0.1
"""Of the time of the steps: where the queue is mostly filled, the GPU waits for launches for less."""

LATE_LAUNCH_SHARE = 0.01
"""Any eager program has some late launches; up to this share of the time they do not matter."""

QUEUED_NS = 50_000
"""Work that was called so long before the work ahead of it ended has been ready to start at once: from a call
to the start on an idle GPU it takes 5 to 35 us."""

SURE_SHARE = 0.9
"""Share of the lost time that lies inside the blocking calls themselves, above which the saving is sure: the
rest is a queue that refills."""

MANY_CALLS = 10
"""Blocking calls outside MoE layers per step from which they are told even where they cost no time here: a
loss or a norm is read once or twice a step."""

SMALL_NS = 10_000
"""Kernels below this duration are small: a trade-off, about what the launch of each costs."""

MANY_SMALL_SHARE = 0.5
"""Below this share of the kernels small ones are the odd reduction and counter, as every program has them."""

MOSTLY_IN_GRAPHS = 0.5
"""Share of the kernels from which a run has its graphs already: most of it is not told to use them."""

# Steps

GROWTH_CHANCE = 0.01
"""Share of the orders of its steps that rise as much as a recording's, from which on it does not grow: of a
hundred steady recordings one is told to grow."""

GROWTH_SHARE = 0.02
"""Growth over a recording, as a share of its beginning, below which nobody looks for its cause: clocks that
settle make steps differ by as much."""

# Communication

HIDDEN_SHARE = 0.001
"""A smaller exposed share of the all-to-all is the edge between two kernels."""

RESTART_NS = 500_000
"""From the end of DeepEP's count to the launch of its dispatch: meanwhile a host that spins reads the last
counter and allocates what the dispatch writes into; a later launch is of a host that has fallen behind."""

BLAMED_SHARE = 0.1
"""A rank with a smaller share of the waiting is not worth a scenario."""

STEADY_SHARE = 0.9
"""Least share of the waiting that has causes which a steady pace removes, for that to be the scenario."""

# MoE layers and serving

LOOP_GEMMS = 4
"""This many GEMMs with weights of one size in one layer are a loop over experts."""

EVEN = 1.02
"""Busiest rank / mean up to which tokens are balanced: kernels of equal work differ by as much."""

UNEVEN = 1.5
"""Busiest rank / mean from which tokens are told to be uneven even where that costs no time here: such a rank
needs half as much memory and time again."""

PADDED_SHARE = 0.1
"""Less padding of the token slots than this is the odd request more on one rank."""

EXPOSED_SHARE = 0.1
"""A serving step that keeps a smaller share of its communication exposed has little to win."""

SLOW_HOST = 1.1
"""Host time of equal ops against the other ranks' from which a slow stage's host is called slower."""
