"""Launch latency, queue depth, launch-bound time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.builders import draw, draw_run, events, read, records
from tracelens import analyze
from tracelens.table import Result
from tracelens.trace import make_run

LATE = 1_712_195_495_519_689_500
"""Nanoseconds since 1970, as older profilers write them: beyond what a double holds."""


def launches(text: str, ns_per_char: int = 1000, start_ns: int = 0, **options: Any) -> Result:
    trace = draw(text, ns_per_char=ns_per_char, start_ns=start_ns)
    return analyze(make_run([trace]), "launches", **options)


def summary(result: Result) -> dict[str, tuple[int, int, float]]:
    by_metric = records(result["launches"], "metric", "count", "dur_ns", "fraction")
    return {metric: (count, dur, fraction) for metric, count, dur, fraction in by_metric}


def test_summary_by_hand() -> None:
    by_metric = summary(launches("""
                | 0    5    10   15   20   25   30
        launch  | a b              cd
        s7 k    |    aaaa bb                ccc
        s7 copy |                              dddddddddd
        s7 k    |          ==
    """))  # fmt: skip
    assert by_metric["launched"] == (4, None, 4 / 5)
    # a 0 to 3, b 2 to 8, c 17 to 26, d 18 to 29: latencies of 3, 6, 9 and 11
    assert by_metric["latency p50"] == (None, 7500, None)
    assert by_metric["started before its launch"] == (0, None, 0.0)
    # Kernels are 4, 2 and 3 columns: all under 10 us; the copy is none and the third has no call.
    assert by_metric["small kernels"] == (3, 9000, 1.0)
    assert by_metric["small kernels, time"] == (3, 9000, 1.0)


def test_launch_bound_is_idle_with_at_most_one_launch_under_way() -> None:
    by_metric = summary(launches("""
               | 0    5    10   15   20   25
        launch | a        b  c      de
        s7 k   |   aa        bb    cc   dd ee
    """))  # fmt: skip
    # gaps: 4-12 nothing queued until b at 9, then b alone: all 8 count.
    #       14-18 c, launched at 12, waits alone: 4 more.
    #       20-23 d and e are queued from 20 on: 0 ... c ends at 20, d is launched at 19, e at 20.
    #       25-26 e alone: 1.
    assert by_metric["launch bound"][1] == 13_000
    assert by_metric["launch bound"][2] == 13 / 26


def test_idle_before_the_first_launch_in_the_trace_is_launch_bound() -> None:
    by_metric = summary(launches("""
        launch |        a
        s7 k   | ==        aa
    """))  # fmt: skip
    # 2-9: nothing was launched before 7, then one call
    assert by_metric["launch bound"] == (None, 8000, 8 / 12)


def test_kernels_that_start_before_their_launch() -> None:
    result = launches("""
        launch |    a  b
        s7 k   |  aa    bb
    """)
    assert summary(result)["started before its launch"] == (1, None, 0.5)
    assert records(result["latency_histogram"], "bucket", "count")[0] == ("before its launch", 1)


@pytest.mark.parametrize(
    ("latency", "bucket"),
    [
        (0, "0-2 µs"),
        (1999, "0-2 µs"),
        (2000, "2-5 µs"),
        (5000, "5-10 µs"),
        (99_999, "50-100 µs"),
        (100_000, "0.1-1 ms"),
        (10_000_000, "over 10 ms"),
    ],
)
def test_histogram_borders(latency: int, bucket: str) -> None:
    found = events("""
        launch | a
        s7 k   | a
    """, ns_per_char=10)  # fmt: skip
    kernel = next(event for event in found if event["cat"] == "kernel")
    kernel["ts"] += latency / 1000
    table = analyze(make_run([read(found)]), "launches")["latency_histogram"]
    assert records(table[table["count"] > 0], "bucket", "fraction_of_launches") == [(bucket, 1.0)]


def test_calls() -> None:
    table = launches("""
        launch hipLaunchKernel |  aa bbbb  c
        launch hipMemcpyAsync  |             dddddd
        launch hipEventRecord  |                      -----
        s7 k                   |    aaa    bb  cc
        s7 copy                |                    dd
    """)["calls"]
    # Calls that launched nothing are not launch calls.
    shown = ("name", "count", "sum_ns", "mean_ns", "median_ns", "p99_ns", "max_ns")
    assert records(table, *shown) == [
        ("hipLaunchKernel", 3, 7000, 7000 / 3, 2000.0, 4000, 4000),
        ("hipMemcpyAsync", 1, 6000, 6000.0, 6000.0, 6000, 6000),
    ]


def test_a_graph_launch_is_one_call() -> None:
    result = launches("""
        launch cudaGraphLaunch | a
        s7 k                   |   aa aa aa
    """)
    assert records(result["calls"], "name", "count") == [("cudaGraphLaunch", 1)]
    assert summary(result)["launched"][0] == 3


@pytest.mark.parametrize("start_ns", [0, LATE])
def test_queue_depth(start_ns: int) -> None:
    # 40 ns a column: the 360 ns take less than the 400 bins, so each bin is 1 ns.
    table = launches("""
               | 0    5
        launch | abc
        s7 k   |    aab
        s8 k   |      cccc
    """, ns_per_char=40, start_ns=start_ns)["queue"]  # fmt: skip
    depth = np.zeros(400, dtype=np.int64)
    for begin, end in ((0, 5), (1, 6), (2, 9)):
        depth[begin * 40 : end * 40] += 1
    span = 9 * 40
    assert len(table) == span
    assert table["depth_max"].tolist() == depth[:span].tolist()
    assert table["depth_mean"].tolist() == depth[:span].tolist()
    # The first GPU work starts at 3.
    assert table["ts_ns"].tolist() == list(range(-3 * 40, 6 * 40))


@pytest.mark.parametrize("start_ns", [0, LATE])
def test_mean_queue_depth_adds_up(start_ns: int) -> None:
    trace = draw("""
        launch | a  b c     d   e
        s7 k   |   a  bbb cc       eeeeeeee
        s8 k   |                 ddd
    """, ns_per_char=7919, start_ns=start_ns)  # fmt: skip
    table = analyze(make_run([trace]), "launches")["queue"]
    # From launch to end: a 0-3, b 3-8, c 5-11, d 11-19, e 15-26; times count from the first kernel, at 2.
    waiting = (3 + 5 + 6 + 8 + 11) * 7919
    width = np.diff([*table["ts_ns"].tolist(), (26 - 2) * 7919])
    assert (width * table["depth_mean"]).sum() == pytest.approx(waiting)


def test_no_launch_calls() -> None:
    result = launches("s7 k | ==")
    assert all(len(table) == 0 for table in result.tables.values())
    assert [skip.subject for skip in result.skips] == ["rank 0"]


def test_scope_linked() -> None:
    text = """
        launch | a
        s7 k   |   aa ==
    """
    assert summary(launches(text))["launched"][2] == 0.5
    assert summary(launches(text, scope="linked"))["launched"][2] == 1.0


def test_only_copies() -> None:
    by_metric = summary(launches("""
        launch  | a
        s7 copy |   aa
    """))  # fmt: skip
    assert by_metric["small kernels"] == (0, 0, 0.0)
    assert by_metric["small kernels, time"] == (0, 0, 0.0)


def test_each_rank_has_its_rows() -> None:
    drawing = """
        launch | a
        s7 k   |   aa
    """
    result = analyze(draw_run(drawing, drawing), "launches")
    for name, table in result.tables.items():
        assert table["rank"].unique().tolist() == [0, 1], name
