"""What each rank lost anew on its way to each collective. A column is 1 ms."""

from __future__ import annotations

import numpy as np

from tests.analysis.stragglers.test_stragglers import LATE, ORDINARY, ranks, verdicts
from tests.builders import draw
from tracelens import analyze
from tracelens.analysis.comm import align_run
from tracelens.analysis.stragglers.causes import Comparison, Delays
from tracelens.analysis.stragglers.segments import OTHER, SILENT, WORK, segments

MS = 1_000_000


def delays(*texts: str) -> Delays:
    run = ranks(*texts, ns_per_char=MS)
    comparison = Comparison({trace.meta.rank: segments(trace) for trace in run.traces}, align_run(run))
    comparison.verdicts()
    return comparison.recorder.delays()


def of_rank(found: Delays, rank: int) -> dict[int, float]:
    """Columns by kind of delay."""
    total = found.ns[found.rank == rank].sum(axis=0) / MS
    return {int(kind): float(total[kind]) for kind in np.flatnonzero(total)}


def test_each_delay_has_its_kind() -> None:
    assert of_rank(delays(ORDINARY, ORDINARY, ORDINARY, LATE["slow_kernels"]), 3) == {WORK: 8}
    # The launch call of the last column would have come long before.
    assert of_rank(delays(ORDINARY, ORDINARY, ORDINARY, LATE["silent_host"]), 3) == {SILENT: 7}
    unknown = of_rank(delays(ORDINARY, ORDINARY, ORDINARY, LATE["unknown"]), 3)
    assert sum(unknown.values()) == 7
    assert unknown[OTHER] == 6


def test_ranks_that_are_not_last_are_measured_too() -> None:
    nearly = LATE["slow_kernels"].replace("bbbbbbbbbbb", "bbbbbbbb   ").replace("   ccccc", "cccccccc")
    found = delays(ORDINARY, ORDINARY, nearly, LATE["slow_kernels"])
    assert of_rank(found, 2) == {WORK: 5}
    # The others in the median: 3, 3 and 8 columns.
    assert of_rank(found, 3) == {WORK: 8}
    assert of_rank(found, 0) == {}


ASLEEP = """
    op REDUCE   | -                  -
    op MM       |  -           -
    launch      | ab           x     c
    s7 gemm     |       bbbbbbbbbxxxxxx
    s9 nccl_All |    aaa              ccc
"""
AWAKE = """
    op REDUCE   | -  -
    op MM       |  --
    launch      | abxc
    s7 gemm     |       bbbbbbbbbxxx
    s9 nccl_All |    aaa            ccccc
"""


def test_a_host_that_slept_while_its_gpu_was_busy_is_late_for_that() -> None:
    """The GPU has work until column 22, and idles for none: the host launches the all-reduce late."""
    late = ASLEEP.replace("xxxxxx", "xxx   ")
    result = analyze(ranks(AWAKE, AWAKE, AWAKE, late, ns_per_char=MS), "stragglers")
    assert verdicts(result)[0][::3] == (3, "silent_host")
    assert of_rank(delays(AWAKE, AWAKE, AWAKE, late), 3)[SILENT] >= 2


def test_a_host_that_works_itself_and_reads_nothing_waits_for_nothing() -> None:
    trace = draw("""
        op aten::mm           | ----      ----         ----
        op c10d::allreduce_   |      -          -          -
        scope gloo:all_reduce |       --         --          --
    """)
    assert trace.meta.cpu_only
    assert segments(trace).time.min() >= 0
