"""The GPU waits for launches. A column is 10 us."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders import aligned, draw, draw_run
from tracelens import load
from tracelens.analysis.common import NO_LAUNCH
from tracelens.findings import DETECTORS, Detection, Outcome, RankContext
from tracelens.what_if import whatif

launch_bound = DETECTORS.get("launch_bound")
silent_host = DETECTORS.get("silent_host")


COLUMN = 10_000
SAMPLES = Path(__file__).parents[2] / "sample_traces"

# The gap from 4 to 10 is the host's: b is launched at 8. That from 20 to 21 is not: d was launched at 10.
LATE = """
    step 1 |  -----------------------
    launch |  a      bcd
    s7 k   |  aaa      bbbbbbbccc ddd
"""


def outcome(text: str, ns_per_char: int = COLUMN) -> Outcome:
    return launch_bound.of_rank(RankContext(draw(text, ns_per_char=ns_per_char), None))


def detect(text: str, ns_per_char: int = COLUMN) -> Detection:
    detection = outcome(text, ns_per_char)
    assert isinstance(detection, Detection), detection
    return detection


def with_row(label: str, line: str) -> str:
    return aligned(f"{LATE}{label} | {line}")


def test_what_late_launches_cost() -> None:
    detection = detect(LATE)
    assert (detection.where.start.tolist(), detection.where.end.tolist()) == ([4 * COLUMN], [10 * COLUMN])
    # 6 columns less the one that is left in front of work that was queued for long.
    assert detection.saving_ns == 5 * COLUMN
    assert detection.confidence == "low"
    assert {name: value for name, value, _ in detection.quantities} == {
        "waiting for a launch, share": 6 / 23,
        # From 4 to 8 nothing is launched, from 8 to 9 only b, from 20 to 21 only d; GPU work spans 1 to 24.
        "idle with at most one launch queued, share": pytest.approx(6 / 23),
        "late launches per step": 1.0,
        "dispatch floor per gap": COLUMN,
        "launch call, p50": COLUMN,
        "launch call, p99": COLUMN,
        "launch to start on an idle GPU, p50": 2 * COLUMN,
        "launch to start on an idle GPU, p99": 2 * COLUMN,
    }
    assert detection.evidence.startswith(
        "the GPU waits for launches 26.1% of the time, in 1 gaps per step; "
        "launch call: p50 10.0 µs, p99 10.0 µs, launch to start on an idle GPU: p50 20.0 µs, p99 20.0 µs; "
        "dispatch floor: 10.0 µs per gap."
    )


def test_the_same_launched_in_time() -> None:
    assert outcome(LATE.replace("a      bcd", "a b     cd")) == "the GPU waits for launches 0.0% of the time"


def test_rocm_is_told_by_its_calls() -> None:
    assert "on ROCm" not in detect(LATE).evidence
    assert "on ROCm" in detect(aligned(LATE.replace("launch", "launch hipLaunchKernel"))).evidence


def test_two_steps_halve_it() -> None:
    both = with_row("step 2", " " * 24 + "-" * 23)
    assert detect(both).saving_ns == 5 * COLUMN / 2


def test_without_work_that_was_queued_for_long_a_small_gap_is_left() -> None:
    detection = detect("""
        launch | a       b
        s7 k   |  aaa      bbb
    """)
    assert detection.saving_ns == 6 * COLUMN - 1000


@pytest.mark.parametrize(
    ("label", "line"),
    [
        ("launch cudaStreamSynchronize", "    --"),
    ],
)
def test_what_holds_the_host_is_not_launching(label: str, line: str) -> None:
    assert outcome(with_row(label, line)) == "the GPU waits for launches 0.0% of the time"


@pytest.mark.parametrize(
    ("label", "line"),
    [
        ("launch cudaStreamSynchronize", "  --"),  # over before the gap
        ("launch cudaStreamSynchronize tid=2", "    --"),  # of another thread
    ],
)
def test_what_does_not_hold_the_host(label: str, line: str) -> None:
    assert detect(with_row(label, line)).saving_ns == 5 * COLUMN


def test_garbage_collection_counts_for_itself() -> None:
    assert detect(with_row("python Python GC", "    --")).saving_ns == 3 * COLUMN


def test_a_small_share_is_no_problem() -> None:
    # Two columns of 400.
    text = f"""
        step 1 |  {"-" * 400}
        launch |  a   b
        s7 k   |  aaa  {"b" * 395}
    """
    assert outcome(text) == "the GPU waits for launches 0.5% of the time"


def test_the_sample_whose_host_sleeps_is_silent_on_that_rank_only() -> None:
    run = load(SAMPLES / "faults" / "host_delay")
    detections = [silent_host.of_rank(RankContext(trace, None)) for trace in run.traces]
    # 20 ms are injected into each of four layers; some of it the GPU has work for.
    silent = [outcome.saving_ns / 1e6 if isinstance(outcome, Detection) else 0.0 for outcome in detections]
    assert silent[0] < 2
    assert 65 < silent[1] < 80


def test_a_host_that_does_the_work_itself_pauses_too() -> None:
    """A column is 0.1 ms: steps of 20 columns, of which the host spends 8 in nothing recorded."""
    steps = [f"step {number} | {' ' * 20 * number}{'-' * 20}" for number in range(3)]
    text = "\n".join([*steps, f"op aten::mm | {('------        ----- ') * 3}"])
    run = draw_run(aligned(text), ns_per_char=100_000)
    detection = silent_host.of_rank(RankContext(run.traces[0], None))
    assert isinstance(detection, Detection)
    assert detection.saving_ns == 800_000
    assert detection.title.startswith("Silent host")
    assert "GPU" not in detection.title + detection.evidence
    row = whatif(run, ["no_idle=silent_host"])["whatif"].iloc[0]
    assert (row["base_ns"], row["projected_ns"]) == (2_000_000, 1_200_000)


def test_without_what_it_takes() -> None:
    assert outcome("python train.py(3): f | ----") == "no GPU work"
    assert outcome("op aten::mm | --   --") == NO_LAUNCH
    assert outcome("s7 k | ==   ==") == "no GPU work has its launch call in the trace"


def test_gaps_of_a_microsecond_follow_from_launching_at_all() -> None:
    # Half a microsecond a column. b is launched within a gap of 1 us, c within one of 1.5 us; d is launched
    # as its gap begins, in time.
    detection = detect(
        """
        launch | a     b    c   d
        s7 k   |  aaaa  bbb   cc   ddd
        """,
        ns_per_char=500,
    )
    assert (detection.where.start.tolist(), detection.where.end.tolist()) == ([5_000, 7_500], [6_500, 9_000])


def test_work_that_was_launched_just_in_time_does_not_tell_what_gap_is_left() -> None:
    # d, launched at 17, would have had no time to be ready at 20; so 1 us is left.
    just = LATE.replace("a      bcd", "a      bc       d")
    assert detect(just).saving_ns == 6 * COLUMN - 1000


def test_at_least_a_microsecond_is_left() -> None:
    # A column is 0.5 us here, and so long is the gap in front of c, which was launched 55 us before.
    detection = detect(
        f"""
        launch | a         bc
        s7 k   |  aaa        {"b" * 110} ccc
        """,
        ns_per_char=500,
    )
    assert detection.saving_ns == 8 * 500 - 1000


def test_only_launches_of_kernels_are_timed() -> None:
    detection = detect(aligned(f"{LATE}launch cudaMemcpyAsync | {' ' * 12}eeeeee\ns7 copy | {' ' * 24}ee"))
    assert ("launch call, p99", COLUMN, "ns") in detection.quantities
