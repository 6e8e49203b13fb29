"""The profiler's share of host time: projections start from the step without the profiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.what_if.replays import interval, run_of
from tracelens.errors import TracelensError
from tracelens.table import Result
from tracelens.trace import PacePart, Run, make_run
from tracelens.what_if import whatif
from tracelens.what_if.replay import profiler_share

LEAST = 1 / 3  # of the recorded host time is the program's own
CLOSE = (
    0.005  # to the known step, where the host decides most of it: the usual share of host time counts, too
)

# The host launches a kernel every 6 columns, and each is over before the next begins: 18 columns of host
# time, a latency of 2 and a kernel of 4. With less than two thirds of the host time the GPU decides: 18.
LAUNCH_BOUND = """
    step 0  | ------------------------
    launch  | a     b     c     d
    s7 gemm |   aaaa  bbbb  cccc  dddd
"""
# Kernels of 9 columns, one behind the other; of the host's time only the first launch counts.
GPU_BOUND = """
    step 0  | --------
    launch  |    abcd
    s7 gemm |     aaaaaaaaabbbbbbbbbcccccccccddddddddd
"""


def paced(text: str, *step_columns: float) -> Run:
    """A run whose ranks took so many columns a step without the profiler."""
    traces = run_of(*[text] * len(step_columns)).traces
    parts = [(PacePart("before", 2, 10, round(columns * 10_000)),) for columns in step_columns]
    return make_run(
        replace(trace, meta=replace(trace.meta, pace=part)) for trace, part in zip(traces, parts, strict=True)
    )


def reason(result: Result) -> str:
    (text,) = [skip.reason for skip in result.skips if skip.subject == "profiler's share of the step"] or [""]
    return str(text)


def test_projections_start_from_the_step_without_the_profiler() -> None:
    """24 columns recorded, 20 without the profiler: the host's 18 become 14."""
    result = whatif(paced(LAUNCH_BOUND, 20), ["identity", "host=1.5"])
    assert result.meta["recorded_ns"] == 24_000
    assert result.meta["base_ns"] == pytest.approx(20_000, rel=CLOSE)
    assert result.meta["host_time_factor"] == pytest.approx(14 / 18, abs=0.004)
    table = result["whatif"].set_index("scenario")
    assert table.loc["identity", "projected_ns"] == table.loc["identity", "base_ns"] == result.meta["base_ns"]
    assert table.loc["identity", "gain"] == 0
    # The host's 24 columns from mark to mark are 24 * 7/9 without the profiler.
    assert table.loc["host=1.5", "projected_ns"] == pytest.approx(1.5 * 24_000 * 7 / 9, rel=CLOSE)
    assert reason(result) == ""


def test_what_is_launch_bound_shrinks() -> None:
    saved = {}
    for columns in (24, 21, 19):
        run = paced(LAUNCH_BOUND, columns)
        result = whatif(run, ["launch_free"])
        _, projected, _ = interval(result, "launch_free")
        assert projected == 2 + 4 * 4
        saved[columns] = result.meta["base_ns"] / 1e3 - projected
    assert saved == pytest.approx({24: 6, 21: 3, 19: 1}, abs=0.15)


def test_the_recorded_step_stays_the_measure_of_the_graph() -> None:
    result = whatif(paced(LAUNCH_BOUND, 20), ["launch_free"])
    assert set(result["explained"]["base_ns"]) == {24_000}
    assert result["explained"]["error"].tolist()[0] == 0
    measured = result["critical_path"].query("scenario == '(measured)'")["dur_ns"].sum()
    assert measured == result.meta["base_ns"] == pytest.approx(20_000, rel=CLOSE)


def test_the_user_knows_better_than_the_trace() -> None:
    run = paced(LAUNCH_BOUND, 20)
    assert whatif(run, ["identity"], unprofiled_step_ms=0.021).meta["base_ns"] == pytest.approx(
        21_000, rel=CLOSE
    )
    for wrong in (0, -1, float("nan"), float("inf")):
        with pytest.raises(TracelensError, match="unprofiled_step_ms must be a time in ms"):
            whatif(run, ["identity"], unprofiled_step_ms=wrong)


def test_the_mean_of_the_ranks_that_timed_their_steps() -> None:
    run = paced(LAUNCH_BOUND, 20, 22)
    assert whatif(run, ["identity"]).meta["base_ns"] == pytest.approx(21_000, rel=CLOSE)


def test_a_step_that_the_gpu_decides_is_not_reached_and_says_so() -> None:
    result = whatif(paced(GPU_BOUND, 30), ["identity"])
    assert result.meta["recorded_ns"] == 40_000
    assert 38_000 <= result.meta["base_ns"] < 40_000
    assert result.meta["host_time_factor"] >= LEAST
    assert "30.0 µs without the profiler" in reason(result)
    assert "GPU-bound" in reason(result)


def test_a_step_that_is_no_shorter_without_the_profiler_stays_as_recorded() -> None:
    result = whatif(paced(LAUNCH_BOUND, 30), ["identity"])
    assert result.meta["base_ns"] == pytest.approx(24_000, rel=0.02)
    assert result.meta["host_time_factor"] >= 0.98
    assert "30.0 µs without the profiler" in reason(result)
    assert reason(whatif(paced(LAUNCH_BOUND, 24.2), ["identity"])) == ""  # within 2%


def test_where_it_is_not_known_the_interval_goes_down_to_half_the_host_time() -> None:
    result = whatif(run_of(LAUNCH_BOUND), ["identity", "launch_free"])
    assert result.meta["base_ns"] == 24_000
    low, projected, high = interval(result, "identity")
    assert (projected, high) == (24, 24)
    assert low == 2 + 4 * 4  # launches every 3 columns
    assert interval(result, "launch_free") == (18, 18, 18)
    assert "unknown" in reason(result)
    assert "--unprofiled-step-ms" in reason(result)


def test_intervals_of_a_known_share_widen_where_the_scenario_changes_the_host() -> None:
    """A launch each 5 columns without the profiler; the host is done with the step at 20."""
    result = whatif(paced(LAUNCH_BOUND, 21), ["identity", "scale:*gemm*=0.5", "host=0.9"])
    for scenario, step in (("identity", 21), ("scale:*gemm*=0.5", 20)):
        assert interval(result, scenario) == pytest.approx((step, step, step), abs=0.1)
    low, projected, high = interval(result, "host=0.9")
    assert projected == pytest.approx(6 + 0.9 * 15, abs=0.1)
    assert low == 18  # 0.65 of that: the GPU decides
    assert high == pytest.approx(6 + 0.9 * 15 * 18 / 15, abs=0.01)  # 1.25 would be more than was recorded


def test_a_cpu_only_run_stays_as_recorded() -> None:
    run = paced("step 0 | ----------\nop aten::mm |  ----  ---", 5)
    result = whatif(run, ["identity"])
    assert result.meta["base_ns"] == result.meta["recorded_ns"]
    assert "CPU-only" in reason(result)


GPU_NS, USUAL = 100_000, 0.57


def bound(host_ns: float, soft: float = 0.0) -> Callable[..., int]:
    """A step that the host or the GPU decides; `soft` of the shorter one comes on top."""
    return lambda factor, pauses=1.0: round(
        max(GPU_NS, factor * host_ns) + soft * min(GPU_NS, factor * host_ns)
    )


@pytest.mark.parametrize("host_ns", [0, 100_000, 140_000])
@pytest.mark.parametrize("off", [-0.02, 0, 0.02])
def test_a_step_that_the_gpu_decides_tells_nothing_of_its_host(host_ns: int, off: float) -> None:
    """Whether it took some percent more or less, host time is what it usually is, and may be much less."""
    share = profiler_share(GPU_NS * (1 + off), bound(host_ns))
    assert share.factor == pytest.approx(USUAL, abs=0.02)
    assert share.lower == 0.5


@pytest.mark.parametrize("factor", [0.4, 0.5, 0.6, 0.7, 0.9])
def test_a_step_that_the_host_decides_tells_its_share(factor: float) -> None:
    share = profiler_share(factor * 400_000, bound(400_000))
    assert share.factor == pytest.approx(factor, abs=0.001)
    assert share.lower == 0.65


def test_near_the_bound_of_the_gpu_the_usual_share_outweighs_some_percent() -> None:
    """The host takes 119 of 120 recorded us; 103 fit a factor of 0.86, 100 nearly as well."""
    share = profiler_share(1.03 * GPU_NS, bound(120_000))
    assert share.factor < 0.7
    share = profiler_share(1.15 * GPU_NS, bound(120_000))
    assert share.factor == pytest.approx(1.15 / 1.2, abs=0.01)


CURVES = st.lists(st.integers(0, 1000), min_size=2, max_size=30).map(
    lambda steps: np.cumsum(np.cumsum(steps)) + 1000
)


def along(curve: Any) -> Callable[[float], int]:
    """The step by factor: linear between the points of a convex curve that never falls."""
    return lambda factor: round(float(np.interp(factor, np.linspace(LEAST, 1, len(curve)), curve)))


@given(CURVES, st.floats(0.5, 1.5))
def test_the_share_lies_between_the_usual_and_the_one_that_fits(curve: Any, relative: float) -> None:
    replayed, calls = along(curve), []

    def counted(factor: float, pauses: float = 1.0) -> int:
        calls.append(factor)
        return replayed(factor)

    known_ns = relative * float(curve[-1])
    share = profiler_share(known_ns, counted)
    assert len(calls) <= 23
    fitting = [factor for factor in np.linspace(LEAST, 1, 2001) if replayed(factor) <= known_ns]
    fits = max(fitting, default=LEAST)
    assert min(USUAL, fits) - 0.01 <= share.factor <= max(USUAL, fits) + 0.01
