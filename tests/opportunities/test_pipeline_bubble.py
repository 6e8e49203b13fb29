"""Ramp, imbalance and messages of pipelines drawn by hand. A column is 1 us."""

from __future__ import annotations

from typing import Any

import pytest

from tests.analysis.pipeline.test_pipeline import FOUR, LATE, SLOW, UNIFORM
from tests.analysis.schedules import stage, stages
from tests.builders import draw_run
from tracelens import analyze
from tracelens.findings import DETECTORS, Detection
from tracelens.trace import Run, make_run

pipeline_imbalance = DETECTORS.get("pipeline_imbalance")
pipeline_p2p = DETECTORS.get("pipeline_p2p")
pipeline_ramp = DETECTORS.get("pipeline_ramp")


pipeline_slow_host = DETECTORS.get("pipeline_slow_host")


DETECTORS = [pipeline_ramp, pipeline_imbalance, pipeline_p2p, pipeline_slow_host]


def outcome(detector: Any, run: Run) -> Any:
    return detector.of_run({name: analyze(run, name) for name in detector.needs})


def savings(detections: dict[int, Detection]) -> dict[int, float]:
    return {rank: detection.saving_ns for rank, detection in detections.items()}


def of(detection: Detection, measure: str) -> float:
    (value,) = (quantity.value for quantity in detection.quantities if quantity.measure == measure)
    return value


def test_twice_the_chunks_halve_the_ramp() -> None:
    # Two stages and micro-batches: of 12 us each idles 4, all of them ramp.
    detections = outcome(pipeline_ramp, stages(*UNIFORM))
    assert savings(detections) == {0: 2_000, 1: 2_000}
    detection = detections[0]
    measures = (
        "ramp",
        "bubble",
        "bubble of the pipeline's phase",
        "stages",
        "micro-batches",
        "chunks per stage",
    )
    assert [of(detection, name) for name in measures] == [4_000, 4_000, 4 / 12, 2, 2, 1]
    # Stage 0 idles at 4-6 and 8-10, stage 1 at 0-2 and 10-12.
    assert [part.tolist() for part in detection.where] == [[4_000, 8_000], [6_000, 10_000]]
    assert [part.tolist() for part in detections[1].where] == [[0, 10_000], [2_000, 12_000]]
    # (PP - 1) / (PP - 1 + GA VPP) = 1/3, and 1/5 with two chunks.
    assert "theory 33.3%, with 2 chunks 20.0%" in detection.evidence
    assert detection.confidence == "medium"


def test_four_stages() -> None:
    detections = outcome(pipeline_ramp, stages(*FOUR))
    assert savings(detections) == dict.fromkeys(range(4), 4_500)


def test_what_runs_beside_the_ramp_is_not_won() -> None:
    # Stage 1 reduces gradients in the last two of its four idle columns.
    detections = outcome(pipeline_ramp, stages("0011..aa..bb", "..00aa11bb=="))
    assert savings(detections) == {0: 2_000, 1: 1_000}


def test_the_place_is_by_the_clock_of_the_rank() -> None:
    # The clock of rank 1 has its base 5 ms before that of rank 0.
    base = 1_700_000_000_000_000_000
    run = make_run(
        [
            stage(UNIFORM[0], 0, 2, baseTimeNanoseconds=base),
            stage(UNIFORM[1], 1, 2, baseTimeNanoseconds=base - 5_000_000, shift_ns=5_000_000),
        ]
    )
    detections = outcome(pipeline_ramp, run)
    assert savings(detections) == {0: 2_000, 1: 2_000}
    assert detections[0].where.start.tolist() == [4_000, 8_000]
    assert detections[1].where.start.tolist() == [5_000_000, 5_010_000]


def test_savings_are_of_one_step() -> None:
    twice = ["0011..aa..bb0011..aa..bb", "..00aa11bb....00aa11bb.."]
    steps = [("ProfilerStep#1", -1, 11.5), ("ProfilerStep#2", 11.5, 24)]
    detections = outcome(pipeline_ramp, stages(*twice, steps=steps))
    assert savings(detections) == {0: 2_000, 1: 2_000}
    assert detections[0].where.total == 8_000


def test_a_slow_stage() -> None:
    # Stage 0 waits from 7 to 9; it has 8 us to do, stage 1 has 16.
    detections = outcome(pipeline_imbalance, stages(*SLOW))
    assert savings(detections) == {0: 2_000}
    assert [part.tolist() for part in detections[0].where] == [[7_000], [9_000]]
    assert "8.00 µs on it and 16.0 µs on stage 1" in detections[0].evidence


def test_no_more_is_won_than_the_slowest_stage_has_more_to_do() -> None:
    # As before, but the last backward of stage 0 takes 8 columns: 15 us of work against 16.
    detections = outcome(pipeline_imbalance, stages("01...a2..b3..c...dddddddd", SLOW[1]))
    assert savings(detections) == {0: 1_000}
    assert detections[0].where.total == 2_000
    assert (
        "1.00 µs more work, which a better partition spreads over the stages; the rest varies by micro-batch"
        in detections[0].evidence
    )


def test_a_stage_whose_gpu_idles_inside_its_passes_has_a_slow_host() -> None:
    # Stage 1 has the 8 us of GPU work of stage 0, but half of each forward its GPU idles.
    run = stages("01..a2.b3.c..d", ".00a11b22c33d.", slow_host=[1])
    detections = outcome(pipeline_slow_host, run)
    assert savings(detections) == {0: 1_000}
    assert of(detections[0], "idle inside the slowest stage's passes") == 4_000
    assert outcome(pipeline_imbalance, run) == "the slowest stage has no more GPU work than the others"
    # One with more work has not.
    assert isinstance(outcome(pipeline_slow_host, stages(*SLOW)), str)


def test_stages_of_equal_work_have_no_imbalance_to_mend() -> None:
    # Stage 1 waits for the delay of stage 0, which has as much to do.
    assert outcome(pipeline_imbalance, stages(*LATE)) == "all stages have equal work"


def test_a_late_message() -> None:
    # The gradient of micro-batch 1 is under way from 10 to 13.
    detections = outcome(pipeline_p2p, stages(*LATE))
    assert savings(detections) == {0: 3_000}
    assert [part.tolist() for part in detections[0].where] == [[10_000], [13_000]]
    assert "stage 0 of 2 waits 3.00 µs per step" in detections[0].evidence


def test_an_even_pipeline_has_a_ramp_only() -> None:
    assert outcome(pipeline_imbalance, stages(*UNIFORM)) == "no idle time due to imbalance"
    assert outcome(pipeline_p2p, stages(*UNIFORM)) == "no idle time due to p2p wait"


@pytest.mark.parametrize("detector", DETECTORS, ids=lambda item: item.name)
def test_without_a_pipeline(detector: Any) -> None:
    assert outcome(detector, draw_run("s7 gemm | ===")).startswith("no pipeline")
    assert outcome(detector, draw_run("op f | ===")).startswith("no pipeline")


@pytest.mark.parametrize("detector", DETECTORS, ids=lambda item: item.name)
def test_a_pipeline_of_one_stage(detector: Any) -> None:
    run = stages("0011aabb", scopes="{kind} stage{stage} micro_batch{micro_batch}", messages=False)
    assert isinstance(outcome(detector, run), str)
