"""From when on lateness is explained, a cause is named and a rank counts as a straggler: one table."""

# What a late arrival is explained by.
SMALL_NS = 2_000  # waiting of all others together, ns, that needs no cause
EXPLAINED = 0.3  # share of the lateness that a cause accounts for at least: more causes named, or surer ones
AT_ONCE = 4096  # communication kernels before a late arrival that are searched for the longest: a bound
UNQUEUED_NS = (
    30_000  # a kernel that starts this soon after its launch call stood in no queue: the host decided
)
SAME_WORK = 0.5  # with a smaller share of work in common, sender and receiver were in different program parts
BEFORE = 32  # of so much work launched before a collective, the one that ended last may be what it waited for
LOOK_BACK = 64  # shared collectives searched for the last one that was over
# Work runs across a moment if it takes over half of so many ns before and after it: stamps in whole us, and
# kernels that begin 1 ns before another's recorded end, are off by a quarter of that at most.
ACROSS_NS = 4_000
COMPUTED_ON = 0.5  # share of the others that compute on beside communication where lateness is carried along

# What the host was doing.
# After a call that blocked, the host takes this long at most to launch again, ns. An idle GPU beyond that has
# another reason than the call.
RESTART_NS = 100_000
# A host that does the work itself does not wait where it reads a value, and one read takes no time. Where it
# reads so many in one gap it is in a loop of them, and that is what it does from the first to the last.
LOOP_READS = 10

# What its work was against that of the others.
SLOWER_RATIO = 1.05  # a GPU this much slower at equal work over the whole recording is so at unequal work
# A GPU is slow, however few steps are recorded, if calls with equal arguments take so much longer than on the
# other ranks in three quarters of its time in them. Of 138 ranks of 39 recordings without a slow GPU the most
# is 1.036 (a rank with twice the tokens); of the one whose GPU is slow, 1.9.
EQUAL_SLOWER, EQUAL_QUANTILE = 1.1, 0.25
EQUAL_CALLS = 24  # so many of them at least
OFTEN = 4  # calls of an op from which on their median is one
COMPARABLE = 0.1  # the others run an op alike where they spend this share of its time in it
BESIDE = 0.3  # own work that takes this share of what the rank's other kernels lose slows them down
MORE_CALLS_RATIO = 1.02  # by so much one rank's recording may be cut off at its borders, not another's

# Whether it stands out from noise. tests/analysis/stragglers/test_false_alarms.py measures false alarms and
# power at these values, with autocorrelated delays.
ALPHA = 0.01  # significance level, for any rank and kind of delay
ALIKE = 0.05  # share of a step that equal devices lose less than against each other, in the mean of all steps
CONFIDENCE = 0.95  # of the interval of an effect
TINY = 0.001  # share of a step; smaller delays are no opportunities for a false alarm
# A delay that recurs at the same places of the steps, in all of up to four and in three quarters of more,
# beyond what any other rank loses there, is no chance if it takes this share of a step. Of the ranks of 46
# recordings without such a fault the most is 0.058 for an idle GPU (two hosts that both sleep, 2 ms apart)
# and 0.092 for work (under FSDP); of 14 with one the least is 0.107. Late launches are left out: hosts differ
# by more from run to run (0.28). What stands still may do so anywhere in a step, of three and more behind the
# first, part of which precedes the recording. Of over 300 recordings, of two to eight ranks, the least with
# such a fault is 0.11 (four hosts on a busy core: 0.15 to 0.27), the most without one 0.075, and 0.043 of
# three steps.
RECURS, RECURS_QUANTILE = 0.1, 0.25
USUAL_WEIGHT = 5.0  # times that a delay counts less at a place where the others lose as much
# The variance of a mean of steps with a correlation of 1/2 from one to the next, (1 + r) / (1 - r), against
# that of independent ones.
CORRELATED = 3.0
FEW_STEPS = 3  # with more steps, the first is left out: part of its delay may precede the recording
MOST_STEPS = 4  # steps up to which recurrence is tested
MOST_RANKS = 32  # ranks that are compared then: those with most delay
# What p-values are multiplied by where both tests are made: neighboring steps are not quite independent, so
# that recurrence has a fifth of the level and the mean of the steps the rest.
RECURRENCE_FACTOR, MEAN_FACTOR = 5, 1.25
