"""Gradients are reduced beside the backward pass: lateness from before is told apart from new lateness."""

from __future__ import annotations

from tests.builders import aligned, draw_run, records
from tracelens import analyze

COLUMN = 100_000
REDUCE = "record_param_comms collective=allreduce group=0 ranks=[0,1] size=2 in=8 out=8 dtype=Float"

# The backward pass (b, d, f) takes 4 columns a piece; c, e, g reduce what it made, on a stream of their own.
EARLY = f"""
    op {REDUCE} |  - - -
    launch      | bcdefg
    s7 gemm     |   bbbbddddffff
    s9 nccl_All |       cccccccccccccccccccceeeegggg
"""
# The host loads data for 16 columns first.
LATE = f"""
    python dataloader.py(1): __next__ | ----------------
    op {REDUCE}                       |                  - - -
    launch                            |                 bcdefg
    s7 gemm                           |                   bbbbddddffff
    s9 nccl_All                       |                       ccc eee ggg
"""


def test_what_the_others_computed_meanwhile_is_no_delay_of_the_late_rank() -> None:
    run = draw_run(aligned(EARLY), aligned(LATE), ns_per_char=COLUMN)
    result = analyze(run, "stragglers")
    causes = records(result["causes"], "rank", "cause")
    assert causes[0] == (1, "data_loading")
    assert {cause for _, cause in causes} <= {"data_loading"}
