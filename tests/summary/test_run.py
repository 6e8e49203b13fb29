"""Verdict and tiles of a run: every form of them, and what they say where something is missing."""

from __future__ import annotations

import pytest

from tests.builders import aligned, draw
from tests.summary import sample
from tests.summary.sample import MS, names, summary, tile
from tracelens import report
from tracelens.analysis.common import HOST
from tracelens.rendering.summary import run_summary
from tracelens.table import Report, Skip, Summary
from tracelens.trace import make_run

LOOP = ("Expert loop: one GEMM per expert", "grouped_gemm", 30.0, "medium")


def clauses(made: Summary) -> list[str]:
    return made.verdict.removesuffix(".").split("; ")


def test_the_step_is_the_median_one_and_its_range_is_over_steps() -> None:
    made = summary(sample.steps([100, 140, 120], [102, 142, 122]))
    step = tile(made, "step_time")
    assert (step.value, step.low, step.high) == (121 * MS, 101 * MS, 141 * MS)
    assert step.note == "the shorter of 2 steps after the first: 121 ms and 141 ms, ± 20 ms"
    assert clauses(made)[0] == "121 ms a recorded step on 2 x H200"


def test_of_two_steps_the_shorter_one_counts_as_in_projections() -> None:
    made = summary(sample.steps([58, 66]))
    assert tile(made, "step_time").value == 58 * MS
    assert tile(made, "step_time").note == "the shorter of 2 steps: 58 ms and 66 ms"


def test_of_more_steps_the_median_counts_without_stubs() -> None:
    def note(*steps_ms: int) -> str:
        return tile(summary(sample.steps([*steps_ms])), "step_time").note.partition(", ±")[0]

    assert note(90, 60, 61, 62) == "median of 3 steps after the first"
    assert note(90, 60, 61, 62, 63) == "median of 4 steps after the first"
    assert note(90, 60, 61, 62, 2) == "median of 3 steps after the first, without 1 stub"
    assert note(90, 60, 2) == "the step after the first, without 1 stub"


def test_a_single_step_has_no_range() -> None:
    step = tile(summary(sample.steps([100])), "step_time")
    assert (step.low, step.high, step.note) == (None, None, "single step")


def test_steps_that_not_all_ranks_recorded_do_not_count() -> None:
    made = summary(sample.steps([100, 900], [100]))
    assert tile(made, "step_time").value == 100 * MS


@pytest.mark.parametrize(
    ("shares", "causes", "text"),
    [
        ({"computation": 0.8, "idle": 0.05}, {"launch_overhead": 5}, "80% of the time goes to computation"),
        (
            {"computation": 0.6, "idle": 0.4},
            {"launch_overhead": 30, "dispatch": 10},
            "60% of the time goes to computation, 30% to waiting for the host",
        ),
        (
            {"computation": 0.3, "idle": 0.5},
            {"CPU_ops": 40, "dispatch": 10},
            "40% of the time goes to waiting for the host",
        ),
        # Less than half of it is the host's, or that half is the profiler's.
        (
            {"computation": 0.3, "idle": 0.5},
            {"launch_overhead": 20, "dispatch": 30},
            "50% of the time is idle",
        ),
        ({"computation": 0.3, "idle": 0.5}, {"profiler": 50}, "50% of the time is idle"),
        (
            {"computation": 0.6, "idle": 0.2},
            {"dispatch": 20},
            "60% of the time goes to computation, 20% is idle",
        ),
        ({"computation": 0.2, "comm": 0.6}, {}, "60% of the time goes to exposed communication"),
    ],
)
def test_the_largest_part_of_the_step(shares: dict[str, float], causes: dict[str, float], text: str) -> None:
    made = summary(sample.steps([100], **shares), sample.idle(**causes))  # type: ignore[arg-type]
    assert clauses(made)[1] == text


@pytest.mark.parametrize(("sync_ms", "waits"), [(40, True), (20, False)])
def test_waiting_for_ranks_is_named_where_it_is_most_of_the_communication(
    sync_ms: float, waits: bool
) -> None:
    ranks = [(60, sync_ms, 0), (60, sync_ms, 0)]
    made = summary(sample.steps([100], [100], comm=0.6, computation=0.2), *sample.communication(*ranks))
    assert ("mostly waiting for other ranks" in made.verdict) == waits


def test_tiles_are_means_of_the_ranks_with_their_range() -> None:
    made = summary(
        sample.steps([100], [100], comm=0.4, computation=0.4, idle=0.2, peaks={0: 10 * 2**30, 1: 30 * 2**30}),
        *sample.communication((40, 10, 0), (40, 30, 0)),
        sample.utilisation(0.25, 0.35),
        sample.idle(launch_overhead=15, dispatch=5),
        setup={"tokens": 8192},
    )
    assert names(made) == [
        "step_time",
        "tokens_per_s",
        "mfu",
        "exposed_communication",
        "waiting_for_ranks",
        "idle",
        "peak_memory",
        "trust",
    ]
    assert tile(made, "tokens_per_s").value == 81_920
    mfu = tile(made, "mfu")
    assert (mfu.value, mfu.low, mfu.high, mfu.section) == (pytest.approx(0.3), 0.25, 0.35, "roofline")
    assert tile(made, "exposed_communication").value == pytest.approx(0.4)
    waiting = tile(made, "waiting_for_ranks")
    assert (waiting.value, waiting.low, waiting.high) == (pytest.approx(0.2), 0.1, 0.3)
    assert "50% of exposed communication" in waiting.note
    assert tile(made, "idle").note == "of the step; mostly launch overhead"
    peak = tile(made, "peak_memory")
    assert (peak.value, peak.low, peak.high) == (30 * 2**30, 10 * 2**30, 30 * 2**30)
    assert tile(made, "trust").text == "complete"


def test_shares_are_those_of_the_step_that_stands_for_the_run() -> None:
    """The first of several steps, here all of it waiting, is in none of them."""
    rows = [
        {
            "rank": 0,
            "step": f"ProfilerStep#{number}",
            "dur_ns": dur,
            "computation_ns": dur - idle,
            "comm_ns": 0,
            "exposed_comm_ns": 0,
            "idle_ns": idle,
        }
        for number, (dur, idle) in enumerate([(300, 300), (100, 20), (100, 20), (120, 80)])
    ]
    made = summary(sample.result("steps", steps=rows))
    assert tile(made, "idle").value == pytest.approx(0.2)
    assert tile(made, "idle").note == "of the step"


@pytest.mark.parametrize(
    ("mfu", "mbu", "shown"),
    [(0.03, 0.4, True), (0.3, 0.25, False), (0.3, -1.0, False), (-1.0, 0.3, True), (0.03, 0.1, False)],
)
def test_the_bandwidth_is_told_where_it_is_nearer_its_limit(mfu: float, mbu: float, shown: bool) -> None:
    made = summary(sample.steps([100]), sample.utilisation(mfu, mbu=mbu))
    assert ("mbu" in names(made)) == shown
    if shown:
        assert tile(made, "mbu").value == pytest.approx(mbu)


def test_sections_that_a_report_lacks_have_neither_tiles_nor_links() -> None:
    made = summary(sample.steps([100], idle=0.2))
    assert names(made) == ["step_time", "tokens_per_s", "idle", "peak_memory", "trust"]
    assert tile(made, "idle").section == ""


def test_what_is_unknown_has_a_reason_and_no_value() -> None:
    skips = [Skip("rank 0: MFU of ProfilerStep#0", "no cost model for 90% of the time: graph replay; more")]
    made = summary(sample.steps([100]), sample.utilisation(-1.0, skips=skips))
    for name, note in (("tokens_per_s", "tokens="), ("peak_memory", "profile_memory")):
        assert tile(made, name).value is None
        assert note in tile(made, name).note
    assert tile(made, "mfu").value is None
    assert tile(made, "mfu").note == "no cost model for 90% of the time: graph replay"
    assert not {"MFU", "tokens"} & set(made.verdict.split())


def test_without_a_device_utilisation_is_unknown_for_the_reason_of_the_roofline() -> None:
    trace = draw(
        aligned("""
        step 1                                                     | ----
        op aten::mm shapes=[[64,32],[32,16]] types=["float","float"] | --
        launch                                                     | a
        s7 gemm                                                    |  aa
    """)
    )
    made = report(make_run([trace])).summary
    assert made is not None
    assert tile(made, "mfu").note == "the trace names no device"


def test_no_flops_are_no_utilisation_of_zero() -> None:
    made = summary(sample.steps([100]), sample.utilisation(0.0))
    assert tile(made, "mfu").value is None


def test_one_rank_of_several_knows_no_waiting() -> None:
    made = summary(sample.steps([100], comm=0.3), *sample.communication((30, 0, 30)), setup={"ranks": 8})
    assert tile(made, "waiting_for_ranks").value is None
    assert "all ranks" in tile(made, "waiting_for_ranks").note
    assert clauses(made)[0] == "100 ms a recorded step on 8 x H200 (1 rank read)"


def test_unmatched_collectives_are_no_waiting_of_zero() -> None:
    ranks = [(30, 0, 30), (30, 0, 30)]
    made = summary(sample.steps([100], [100], comm=0.3), *sample.communication(*ranks))
    assert tile(made, "waiting_for_ranks").value is None
    assert "not matched" in tile(made, "waiting_for_ranks").note


def test_a_single_gpu_without_communication_has_no_tiles_of_it() -> None:
    made = summary(sample.steps([100]), sample.result("collectives"))
    assert not {"exposed_communication", "waiting_for_ranks"} & set(names(made))


def test_the_first_finding_sets_the_goal() -> None:
    low = ("Launch-bound: late launches", "step_graph", 50.0, "low")
    made = summary(sample.steps([100]), sample.findings(LOOP, low))
    assert clauses(made)[-1] == "grouped GEMM would probably bring it to about 70 ms"
    made = summary(sample.steps([100]), sample.findings(low, LOOP))
    assert clauses(made)[-1] == "launching the step as a graph might save about 50%"


@pytest.mark.parametrize(
    ("confidence", "more_ms", "text"),
    [
        ("medium", 12, "grouped GEMM would probably bring it to about 70 ms (alone to 58 ms)"),
        ("low", 12, "grouped GEMM might save about 30% (alone 42%)"),
        ("low", 1, "grouped GEMM might save about 30%"),
    ],
)
def test_what_the_first_remedy_saves_alone_is_told_where_it_is_more(
    confidence: str, more_ms: float, text: str
) -> None:
    found = sample.findings(("Expert loop", "grouped_gemm", 30.0, confidence), more_ms=more_ms)
    assert clauses(summary(sample.steps([100]), found))[-1] == text


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (("Expert loop", "grouped_gemm", 1.5, "high"), "grouped GEMM would save about 1.5%"),
        (("Loss: unfused", "", 4.0, "low"), "fixing finding 1 (Loss) might save about 4.0%"),
    ],
)
def test_the_first_finding_is_named_however_small(found: tuple[str, str, float, str], text: str) -> None:
    made = summary(sample.steps([100]), sample.findings(found))
    assert clauses(made)[2] == text


SMALL = ("Loss: unfused", "fused_loss", 4.0, "medium")


@pytest.mark.parametrize("found", [(), (SMALL,)])
def test_where_findings_say_little_the_ops_beyond_the_roofline_are_named(
    found: tuple[tuple[str, str, float, str], ...],
) -> None:
    ops = [("vllm::moe", 40, 8), ("vllm::moe", 20, 4), ("aten::mm", 30, 20)]
    made = summary(sample.steps([100]), sample.findings(*found), sample.roofline(*ops))
    assert "in vllm::moe: 67% of the GPU time at 20% of what" in clauses(made)[-1]


def test_large_findings_speak_for_themselves() -> None:
    made = summary(sample.steps([100]), sample.findings(LOOP), sample.roofline(("aten::mm", 100, 20)))
    assert "grouped GEMM" in clauses(made)[-1]


@pytest.mark.parametrize(
    ("shares", "meta", "words"),
    [
        ({"comm": 0.6, "computation": 0.1}, {"setup": {"ranks": 8}}, "record all ranks"),
        ({"comm": 0.6, "computation": 0.1}, {}, "`overlap`"),
        ({"idle": 0.7, "computation": 0.1}, {}, "the idle time"),
        ({}, {}, "is not known"),
    ],
)
def test_what_no_finding_explains_says_what_would_tell_more(
    shares: dict[str, float], meta: dict[str, object], words: str
) -> None:
    unknown = sample.roofline(("aten::mm", 100, 20), coverage=0.2)
    made = summary(sample.steps([100], **shares), sample.findings(), unknown, **meta)
    assert words in clauses(made)[-1]


def test_a_saving_of_another_step_is_a_share() -> None:
    made = summary(sample.steps([100]), sample.findings(LOOP, base_ms=150))
    assert clauses(made)[-1] == "grouped GEMM would probably save about 20%"


def test_a_remedy_without_a_known_scenario_is_the_number_of_its_finding() -> None:
    made = summary(
        sample.steps([100]),
        sample.findings(("Odd: a sign of a plugin", "scale:odd=0", 30.0, "high")),
    )
    assert clauses(made)[-1] == "fixing finding 1 (Odd) would bring it to about 70 ms"


def test_the_step_without_the_profiler_comes_first() -> None:
    made = summary(
        sample.steps([100]),
        sample.utilisation(0.06),
        sample.findings(LOOP, base_ms=80),
        step_without_profiler_ns=80 * MS,
        tokens_per_s=18_234.0,
    )
    assert clauses(made)[:2] == [
        "80 ms a step without the profiler on H200, 18,200 tokens/s".replace("80 ms", "80.0 ms"),
        "in the recording 100 ms, MFU 6.0%",
    ]
    assert clauses(made)[-1] == "grouped GEMM would probably bring it to about 50 ms"
    assert tile(made, "step_time").value == 100 * MS
    assert "without the profiler 80 ms" in tile(made, "step_time").note
    assert (tile(made, "tokens_per_s").value, tile(made, "tokens_per_s").note) == (
        18_234,
        "without the profiler",
    )


def test_parts_of_the_pace_that_differ_are_told() -> None:
    known = {"step_without_profiler_ns": 80 * MS, "step_without_profiler_range_ns": [70 * MS, 90 * MS]}
    made = summary(sample.steps([100]), **known)
    assert clauses(made)[0] == "80.0 ms (70.0 ms to 90.0 ms) a step without the profiler on H200"
    made = summary(sample.steps([100]), **known, options={"unprofiled_step_ms": 50.0})
    assert clauses(made)[0] == "50.0 ms a step without the profiler on H200"


def test_the_step_that_the_user_knows_counts_before_the_recorded_pace() -> None:
    made = summary(
        sample.steps([100]),
        step_without_profiler_ns=80 * MS,
        tokens_per_s=18_234.0,
        setup={"tokens": 1000},
        options={"unprofiled_step_ms": 50.0},
    )
    assert clauses(made)[0].startswith("50.0 ms a step without the profiler")
    assert tile(made, "tokens_per_s").value == 20_000


def test_a_recording_without_steps_says_how_long_it_is() -> None:
    made = summary(sample.steps([100], label="(whole trace)", idle=0.4))
    assert clauses(made)[0] == "100 ms recorded on H200, no steps marked"
    assert tile(made, "step_time").label == "Recorded time"
    assert tile(made, "idle").note == "of the recorded time"
    assert "tokens_per_s" not in names(made)


def test_a_serving_engine_has_its_kinds_of_steps() -> None:
    kinds = [(0, "prefill", 4, 80, 40_000), (0, "decode", 10, 20, 100), (1, "prefill", 2, 100, 30_000)]
    made = summary(sample.steps([100], [100], label="(whole trace)"), sample.serving(*kinds))
    assert (
        clauses(made)[0]
        == "vLLM on 2 x H200: prefill steps take 30.0 ms, decode steps 2.00 ms, 701,000 tokens/s"
    )
    prefill = tile(made, "prefill_step")
    assert (prefill.value, prefill.low, prefill.high) == (30 * MS, 20 * MS, 50 * MS)
    assert tile(made, "tokens_per_s").value == 701_000


def test_a_step_that_does_not_tell_its_tokens_makes_their_rate_unknown() -> None:
    kinds = [(0, "prefill", 4, 80, -1), (0, "decode", 10, 20, 100)]
    made = summary(sample.steps([100], label="(whole trace)"), sample.serving(*kinds))
    assert "tokens_per_s" not in names(made)


def test_a_cpu_only_run_names_no_gpu() -> None:
    made = summary(
        sample.steps([100], [100], idle=0.9, computation=0.1),
        sample.utilisation(-1.0),
        sample.idle(CPU_ops=90),
        devices=[HOST],
    )
    assert clauses(made) == ["100 ms a recorded step on 2 CPU ranks", "90% of the time is idle"]
    assert not {"mfu", "peak_memory"} & set(names(made))


def test_doubts_come_first() -> None:
    doubts = {
        "1": [
            {"doubt": "cut", "fraction_of_recorded_time": 0.1},
            {"doubt": "missing work", "fraction_of_recorded_time": 0.5},
        ]
    }
    made = summary(sample.steps([100], [100]), ranks=[0, 1], trust={"complete": False, "doubts": doubts})
    assert made.verdict.startswith("Doubtful recording (missing work, cut on rank 1)")
    assert (tile(made, "trust").text, tile(made, "trust").note) == ("doubtful", "missing work, cut")


def test_a_report_without_steps_has_no_summary() -> None:
    meta = {"devices": [], "ranks": [0]}
    assert run_summary([sample.utilisation(0.3)], meta, ()) is None
    assert run_summary([sample.result("steps")], meta, ()) is None


def test_a_bug_in_the_summary_is_named_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> str:
        raise ZeroDivisionError

    monkeypatch.setattr("tracelens.rendering.summary.run.run_verdict", broken)
    made = summary(sample.steps([100], [100]))
    assert "ZeroDivisionError" in made.verdict
    assert [failure.part for failure in Report((), summary=made).failures] == ["the summary"]


def test_a_replay_of_steps_that_take_no_time_brings_them_nowhere() -> None:
    made = summary(sample.steps([0], [0]), sample.findings(("Expert loop", "grouped_gemm", 50, "high")))
    assert "about" in made.verdict
