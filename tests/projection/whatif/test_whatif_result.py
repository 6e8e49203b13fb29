"""The tables of a what-if: critical path, what is explained, and the order of scenarios."""

from __future__ import annotations

import pytest

from tests.builders import records
from tests.projection.whatif.replays import run_of
from tracelens.projection.whatif import whatif

WAITS = """
    step 0                       | ------------------------
    op aten::mm                  | ----------------
    launch                       |  a            b
    launch cudaStreamSynchronize |   ----------    --
    s7 gemm_first                |    aaaaaaa
    s7 gemm_second               |                 bbbbbbbbbbb
"""


def test_the_critical_path_adds_up_to_the_step() -> None:
    """The host until 1, a start until 3, the first kernel until 10, back to the host until 12, ...

    Then the host until 14, another start until 16, and the second kernel until 27.
    """
    result = whatif(run_of(WAITS), ["no_blocking", "scale:gemm_second=0.5", "identity"])
    assert result["whatif"]["scenario"].tolist() == ["no_blocking", "scale:gemm_second=0.5", "identity"]
    path = result["critical_path"]
    measured = path[path["scenario"] == "(measured)"]
    assert records(measured, "category", "dur_ns", "delta_ns") == [
        ("gemm", 18_000, 0),
        ("kernel start", 6_000, 0),
        ("host", 3_000, 0),
    ]
    assert measured["fraction"].sum() == pytest.approx(1)
    for row in result["whatif"].itertuples():
        assert path[path["scenario"] == row.scenario]["dur_ns"].sum() == row.projected_ns
        assert row.low_ns <= row.projected_ns <= row.high_ns
    # Without waiting, the second kernel follows the first one: 3 + 7 + 11.
    assert records(path[path["scenario"] == "no_blocking"], "category", "dur_ns", "delta_ns") == [
        ("gemm", 18_000, 0),
        ("kernel start", 2_000, -4_000),
        ("host", 1_000, -2_000),
    ]


def test_what_the_path_is_made_of() -> None:
    result = whatif(run_of(WAITS), ["identity"])
    rows = records(
        result["bottlenecks"], "scenario", "rank", "category", "name", "count", "dur_ns", "fraction"
    )
    assert rows[:2] == [
        ("(measured)", 0, "gemm", "gemm_second", 1, 11_000, 11 / 27),
        ("(measured)", 0, "gemm", "gemm_first", 1, 7_000, 7 / 27),
    ]
    assert ("(measured)", 0, "host", "aten::mm", 2, 3_000, 3 / 27) in rows


def test_delays_without_a_reason_are_told() -> None:
    """The last kernel starts 6 columns after its launch, all others 2, and nothing says why."""
    run = run_of("""
        step 0  | --------------------------
        launch  | a     b     c     d
        s7 one  |   aa
        s7 two  |         bb
        s7 tri  |               cc
        s7 four |                         dddd
    """)
    result = whatif(run, ["identity", "scale:tri=0.5", "launch_free"])
    explained = records(result["explained"], "replay", "replayed_ns", "unexplained_fraction")
    assert explained == [
        ("as measured", 28_000, 4 / 28),
        ("typical launches", 26_000, -1.0),
        ("no unexplained delays", 26_000, -1.0),
    ]
    assert result["explained"]["error"].tolist() == pytest.approx([0, 26 / 28 - 1, 26 / 28 - 1])
    # The third kernel is not before the fourth launch, so the delay stays whatever that kernel takes.
    (row,) = result["whatif"][result["whatif"]["scenario"] == "scale:tri=0.5"].itertuples()
    assert (row.low_ns, row.projected_ns, row.high_ns) == (28_000, 28_000, 28_000)
    # All launches at once: kernels at 2, 4, 6, 8. The last has its delay, or not; the usual one is none.
    (row,) = result["whatif"][result["whatif"]["scenario"] == "launch_free"].itertuples()
    assert (row.low_ns, row.projected_ns, row.high_ns) == (12_000, 12_000, 16_000)


def test_the_step_of_each_rank() -> None:
    run = run_of(
        "step 0  | ----\nlaunch  | a\ns7 gemm |  aaaaa", "step 0  | ----\nlaunch  | a\ns7 gemm |  aaaaaaaaa"
    )
    result = whatif(run, ["scale:gemm=2"])
    assert records(result["ranks"]) == [
        ("scale:gemm=2", 0, 6_000, 11_000),
        ("scale:gemm=2", 1, 10_000, 19_000),
    ]
    assert records(result["whatif"], "base_ns", "projected_ns") == [(8_000, 15_000)]
