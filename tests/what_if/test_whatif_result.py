"""The tables of a what-if: critical path, what is explained, and the order of scenarios."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given

from tests.analysis.drawings import Drawing, drawings
from tests.builders import aligned, draw_run, events, records, write
from tests.what_if.replays import interval, run_of
from tracelens import load
from tracelens.what_if import Edit, whatif
from tracelens.what_if.graph import build
from tracelens.what_if.replay.schedule import schedule

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
    result = whatif(run_of(WAITS), ["no_blocking", "scale:*gemm_second*=0.5", "identity"])
    assert result["whatif"]["scenario"].tolist() == ["no_blocking", "scale:*gemm_second*=0.5", "identity"]
    path = result["critical_path"]
    measured = path[path["scenario"] == "(measured)"]
    assert records(measured, "category", "dur_ns", "delta_ns") == [
        ("gemm", 18_000, 0),
        ("kernel start", 6_000, 0),
        ("host", 3_000, 0),
    ]
    assert measured["fraction_of_step"].sum() == pytest.approx(1)
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
        result["bottlenecks"], "scenario", "rank", "category", "name", "count", "dur_ns", "fraction_of_step"
    )
    # First what each step is most, then what comes second.
    assert rows[:4] == [
        ("(measured)", 0, "gemm", "gemm_second", 1, 11_000, 11 / 27),
        ("identity", 0, "gemm", "gemm_second", 1, 11_000, 11 / 27),
        ("(measured)", 0, "gemm", "gemm_first", 1, 7_000, 7 / 27),
        ("identity", 0, "gemm", "gemm_first", 1, 7_000, 7 / 27),
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
    result = whatif(run, ["identity", "scale:*tri*=0.5", "launch_free"])
    explained = records(result["explained"], "replay", "replayed_ns", "unexplained_fraction")
    assert explained == [
        ("as measured", 28_000, 4 / 28),
        ("durations only", 26_000, 4 / 28),
    ]
    assert result["explained"]["error"].tolist() == pytest.approx([0, 26 / 28 - 1])
    # The third kernel is not before the fourth launch, so the delay stays whatever that kernel takes. With
    # half the host time that launch is at 9, and its kernel starts at 11: the usual delay is none.
    (row,) = result["whatif"][result["whatif"]["scenario"] == "scale:*tri*=0.5"].itertuples()
    assert (row.low_ns, row.projected_ns, row.high_ns) == (15_000, 28_000, 28_000)
    # All launches at once: kernels at 2, 4, 6, 8. The last has its delay, or not; the usual one is none.
    (row,) = result["whatif"][result["whatif"]["scenario"] == "launch_free"].itertuples()
    assert (row.low_ns, row.projected_ns, row.high_ns) == (12_000, 12_000, 16_000)


def test_the_step_of_each_rank() -> None:
    run = run_of(
        "step 0  | ----\nlaunch  | a\ns7 gemm |  aaaaa", "step 0  | ----\nlaunch  | a\ns7 gemm |  aaaaaaaaa"
    )
    result = whatif(run, ["scale:*gemm*=2"])
    assert records(result["ranks"]) == [
        ("scale:*gemm*=2", 0, 6_000, 11_000),
        ("scale:*gemm*=2", 1, 10_000, 19_000),
    ]
    assert records(result["whatif"], "base_ns", "projected_ns") == [(8_000, 15_000)]


def test_the_interval_holds_all_recorded_steps_but_the_first() -> None:
    """Steps of 8, 10, 14 and 20 columns: the host's, who starts one kernel in each, and waits for it."""
    run = run_of("""
        step 0                       | --------
        step 1                       |         ----------
        step 2                       |                   --------------
        step 3                       |                                 --------------------
        launch                       | z       a         b             c
        launch cudaStreamSynchronize |  ---     ---       -------       -------------
        s7 gemm                      |   zz      aa        bbbbbb        cccccccccccc
    """)
    result = whatif(run, ["identity", "scale:*gemm*=0.5", "no_blocking"])
    assert (result.meta["step"], result.meta["base_ns"]) == ("ProfilerStep#2", 14_000)
    assert (result.meta["recorded_ns"], result.meta["recorded_steps"]) == (14_000, 4)
    assert interval(result, "identity") == (10, 14, 20)
    # Half of 6 and of 12 columns less; the shortest of the calls is taken for the host's own time in each.
    # With half the host time the second step, of which 6 columns are the host's, takes 8.
    assert interval(result, "scale:*gemm*=0.5") == (8, 11, 14)
    assert not [skip for skip in result.skips if skip.subject == "step-to-step variation"]
    last = whatif(run, ["identity"], step="3")
    assert interval(last, "identity") == (10, 20, 20)


@pytest.mark.parametrize(
    ("step", "why"),
    [(None, "only one step is recorded"), ("all", "all steps together were recorded only once")],
)
def test_one_step_does_not_say_how_much_steps_differ(step: str | None, why: str) -> None:
    result = whatif(run_of(WAITS), ["identity"], step=step)
    assert interval(result, "identity") == (25.5, 27, 27)  # low: with half the host time
    (reason,) = [skip.reason for skip in result.skips if skip.subject == "step-to-step variation"]
    assert reason.startswith(why)


BEGIN_MOVES = """
    step 0  | --------
    step 1  |         ----------------------------
    launch  | abcd                           e
    s7 one  |   aaaaaa
    s7 two  |         bb
    s7 tri  |           cc
    s7 four |                 dd
    s7 last |                                  ee
"""


def test_delays_that_stay_may_make_a_step_shorter() -> None:
    """The step begins when four is over, and ends when the host says so.

    With one half as long four is ready at 9: it ends at 11, or with its delay of 5 columns at 16.
    """
    run = run_of(BEGIN_MOVES)
    recorded = build(run)
    edit = Edit.of(recorded.graph)
    edit.dur[recorded.graph.dur == 6_000] = 3_000
    spans = {
        delays: int(recorded.windows[1].spans(times.start, times.end)[0])
        for delays, times in (
            (reading, schedule(recorded.graph, edit, reading)) for reading in ("low", "typical", "high")
        )
    }
    assert spans["high"] < spans["typical"] == spans["low"]
    for step in ("0", "1"):
        low, projected, high = interval(whatif(run, ["scale:*one*=0.5"], step=step), "scale:*one*=0.5")
        assert low <= projected <= high


@given(drawings, drawings)
def test_low_projected_and_high_are_in_order(first: Drawing, second: Drawing) -> None:
    run = draw_run(*(Drawing(d.work, d.calls, d.spans, [20, 30]).text for d in (first, second)))
    if not all(len(trace.work.event) for trace in run.traces):
        return
    names = ["identity", "no_blocking", "launch_free", "host=0.5", "host=2", "scale:*gemm*=0.5+no_blocking"]
    result = whatif(run, [*names, "no_garbage_collection", "scale:*copy*=3"], step="1")
    for row in result["whatif"].itertuples():
        assert row.low_ns <= row.projected_ns <= row.high_ns
        assert row.scenario != "identity" or row.projected_ns == row.base_ns


def test_a_step_of_which_nothing_is_left() -> None:
    """The GPU works before the step only, which the host fills with its own time."""
    run = run_of("""
        step 0 |       ----
        launch | a
        s7 gemm|  aa
    """)
    result = whatif(run, ["launch_free", "identity"])
    assert result["whatif"]["scenario"].tolist() == ["identity"]
    reasons = {skip.subject: skip.reason for skip in result.skips}
    assert reasons["scenario launch_free"].startswith("no step would be left")


def test_a_graph_that_explains_little_is_told() -> None:
    """Of 24 columns 16 pass before the second kernel, and nothing says why."""
    text = """
        step 0  | ----------------------
        launch  | ab
        s7 one  |  aa
        s7 two  |  {two}
    """
    late = whatif(run_of(text.format(two="                 bbbbbb")), ["identity"])
    (reason,) = [candidate.reason for candidate in late.skips if candidate.subject == "full critical path"]
    assert "of the critical path is unexplained" in reason
    soon = whatif(run_of(text.format(two="  bbbbbbbbbbbbbbbbbbbbb")), ["identity"])
    assert "full critical path" not in [candidate.subject for candidate in soon.skips]


def test_what_is_missing_of_a_file_is_told(tmp_path: Path) -> None:
    whole = tmp_path / "whole.json"
    write(whole, events(aligned(WAITS)), rank=0)
    path = tmp_path / "rank0.json"
    path.write_bytes(whole.read_bytes()[:-12])
    skips = whatif(load(path), ["identity"]).skips
    (reason,) = [candidate.reason for candidate in skips if candidate.subject == f"the rest of {path}"]
    assert reason.startswith("the file is cut off")
