"""Roofline of what a graph replays: counted where its capture is known, a reason where it is not."""

import pytest

import tracelens
from tests.builders import aligned, draw, records
from tracelens.trace.graphs import attributed
from tracelens.trace.run import make_run

CAPTURE = """
    launch hipStreamBeginCapture                | x
    op aten::mm shapes=[[64,64],[64,64]] types=["float","float"] |  -- -- -- -- -- --
    launch hipLaunchKernel kernel=gemm            |   a  b  c  d  e  f
    launch hipStreamEndCapture                  |                    y
"""


def test_a_node_that_does_not_align_has_a_reason_of_its_own() -> None:
    captured = draw(aligned(CAPTURE))
    replayed = draw("""
    launch hipGraphLaunch | a
    s7 gemm               |   aa aa aa    aa aa aa
    s7 foreign            |            aa
    """)
    run = make_run([attributed(replayed, [captured])])
    result = tracelens.analyze(run, "roofline", device="mi300x")
    assert records(result["uncovered"], "name", "reason", "count") == [
        ("foreign", "launched by a graph, and not aligned with its capture", 1)
    ]
    (row,) = records(result["roofline"], "name", "count", "dur_ns")
    assert row == ("aten::mm", 6, 12000)
    assert result.meta["coverage"] == pytest.approx(12 / 14)
