"""What mismatched phases, padding and exposed communication cost serving ranks. A column is 1 us."""

from __future__ import annotations

from typing import Any

import pytest

from tests.analysis.serving.test_serving import DECODE, PREFILL, rank, without_pure_decoding
from tests.builders import aligned, draw_run
from tracelens import analyze
from tracelens.findings import DETECTORS, JOB, Detection
from tracelens.opportunities.serving import NO_LABELS
from tracelens.trace import Run

serving_padding = DETECTORS.get("serving_padding")
serving_phases = DETECTORS.get("serving_phases")
serving_two_batch = DETECTORS.get("serving_two_batch")


DETECTORS = [serving_phases, serving_padding, serving_two_batch]
RECORD = "op record_param_comms collective=_allgather_base group=0 ranks=[0,1] size=2 in=8 out=16 dtype=Half"


def outcome(detector: Any, run: Run) -> Any:
    return detector.of_run({name: analyze(run, name) for name in detector.needs})


def of(detection: Detection, measure: str) -> float:
    (value,) = (quantity.value for quantity in detection.quantities if quantity.measure == measure)
    return value


def test_prefills_that_could_run_together() -> None:
    # Late by 6, 4 and 3 us over decoding in 4. Rank 1 accounts for 4 + 3: prefilling together saves 6.
    prefilling = rank((PREFILL, 10), (DECODE, 8), (DECODE, 7), (DECODE, 4))
    other = rank((DECODE, 10), (PREFILL, 8), (PREFILL, 7), (DECODE, 4))
    detections = outcome(
        serving_phases, draw_run(prefilling, other, rank((DECODE, 10), (DECODE, 8), (DECODE, 7), (DECODE, 4)))
    )
    assert list(detections) == [JOB]
    detection = detections[JOB]
    assert detection.saving_ns == 6_000
    assert of(detection, "delay of decoding") == 13_000
    assert of(detection, "phase mismatch, share of step time") == 25 / 29
    assert of(detection, "steps with ranks in different phases") == 3
    assert [part.tolist() for part in detection.where] == [[20_000], [45_000]]
    assert detection.confidence == "medium"


def test_one_rank_that_prefills_has_nobody_to_do_it_with() -> None:
    run = draw_run(rank((PREFILL, 10), (DECODE, 4)), rank((DECODE, 10), (DECODE, 4)))
    assert outcome(serving_phases, run)[JOB].saving_ns == 0


def test_ranks_in_one_phase() -> None:
    run = draw_run(*[rank((PREFILL, 8), (DECODE, 4))] * 2)
    assert outcome(serving_phases, run) == "all ranks with requests are in the same phase in every step"
    assert outcome(serving_padding, run) == "0% of the token slots are padding"


def test_without_a_step_of_pure_decoding() -> None:
    run = draw_run(rank((PREFILL, 8)), rank((DECODE, 8)))
    assert "no all-decode step" in outcome(serving_phases, run)


def test_without_a_step_of_pure_decoding_a_decoding_rank_s_own_work_is_the_reference() -> None:
    detection = outcome(serving_phases, draw_run(*without_pure_decoding()))[JOB]
    assert of(detection, "delay of decoding") == 7_000
    assert detection.saving_ns == 2_000
    assert detection.confidence == "low"


def test_padding_by_the_growth_of_steps() -> None:
    # 8 x 1024 slots take 10 us, 8 x 16 take 4: 6 us for 8064 slots. 8192 - 1136 of them were padding.
    decoding = rank((DECODE, 10), (DECODE, 4))
    detection = outcome(serving_padding, draw_run(rank((PREFILL, 10), (DECODE, 4)), *[decoding] * 7))[JOB]
    assert detection.saving_ns == pytest.approx(6_000 / 8_064 * (8_192 - 1_136))
    assert of(detection, "padding of the slots") == 1 - (1_136 + 128) / (8_192 + 128)
    assert (of(detection, "tokens"), of(detection, "slots")) == (1_264, 8_320)
    # The second step has no padding.
    assert [part.tolist() for part in detection.where] == [[20_000], [30_000]]
    assert detection.confidence == "low"


def test_padding_where_all_steps_are_alike() -> None:
    # The published 86%: 1 x 1024 + 7 x 16 tokens in 8 x 1024 slots.
    detection = outcome(serving_padding, draw_run(rank((PREFILL, 10)), *[rank((DECODE, 10))] * 7))[JOB]
    assert detection.saving_ns == pytest.approx(10_000 * (1 - 1_136 / 8_192))
    assert "86.1% padding" in detection.evidence
    assert "upper bound" in detection.evidence


def test_padding_that_costs_no_time() -> None:
    # The step with more slots is the shorter one.
    run = draw_run(rank((PREFILL, 4), (DECODE, 9)), rank((DECODE, 4), (DECODE, 9)))
    assert outcome(serving_padding, run)[JOB].saving_ns == 0


def test_padding_needs_tokens() -> None:
    run = draw_run(rank(("step[MIXED bs=66]", 4)), rank(("step[DECODE bs=64]", 4)))
    assert outcome(serving_padding, run) == "no step in which all ranks label their tokens"


TBO = """
    scope prefill[bs=3 tok=1000 ctx=9 tbo=1] | ------------
    scope ub0[bs=2 tok=600] tid=2            |  ---
    scope ub1[bs=2 tok=400] tid=3            |   ---
    launch                                   |  a
    launch tid=2                             |   b
    launch tid=3                             |    c
    s7 gemm                                  |      aaaaaa
    s9 ncclDevKernel_AllGather               |        bbbbb
    s9 ncclDevKernel_ReduceScatter           |             ccccc
    s7 softmax                               |             cc
"""


def test_exposed_communication_under_two_batch_overlap() -> None:
    # From 6 to 18 there are 10 us of communication, 6 of them beside computation; 8 us compute.
    detections = outcome(serving_two_batch, draw_run(aligned(TBO)))
    assert {rank: detection.saving_ns for rank, detection in detections.items()} == {0: 4_000}
    detection = detections[0]
    assert of(detection, "exposed communication") == 4_000
    assert of(detection, "exposed communication, share of step time") == 4 / 12
    assert of(detection, "overlap efficiency") == 0.6
    assert of(detection, "token imbalance of the halves") == 0.2
    assert "including waiting for other ranks" in detection.evidence
    assert detection.confidence == "low"


def test_no_more_is_hidden_than_there_is_left_to_hide_it_under() -> None:
    drawing = aligned("""
        scope prefill[bs=3 tok=1000 ctx=9 tbo=1] | ---
        launch                                   |  ab
        s7 gemm                                  |     aa
        s9 ncclDevKernel_AllGather               |       bbbbbbbb
    """)
    assert outcome(serving_two_batch, draw_run(drawing))[0].saving_ns == 2_000


def test_communication_that_is_hidden() -> None:
    drawing = aligned(TBO.replace("|             cc\n", "|            ccccccc\n"))
    assert "under 10% of the two-batch overlap time" in outcome(serving_two_batch, draw_run(drawing))


def serving_rank(label: str, gather: str) -> str:
    """A step of a GEMM from 4 to 10 and an all-gather."""
    return aligned(f"""
        {RECORD}                   |  -
        scope {label}              | ---
        launch                     | ab
        s7 gemm                    |     aaaaaa
        s9 ncclDevKernel_AllGather | {gather}
    """)


def test_prefills_without_two_batch_overlap() -> None:
    # Both compute from 4 to 10. The data moves from 12 to 16; rank 0 has waited for it from 10 on.
    run = draw_run(serving_rank(PREFILL, "          bbbbbb"), serving_rank(PREFILL, "            bbbb"))
    detections = outcome(serving_two_batch, run)
    assert {rank: detection.saving_ns for rank, detection in detections.items()} == {0: 4_000, 1: 4_000}
    assert [part.tolist() for part in detections[0].where] == [[12_000], [16_000]]
    assert "excluding waiting for other ranks" in detections[0].evidence
    assert "without two-batch overlap" in detections[0].evidence


def test_decoding_is_not_split() -> None:
    run = draw_run(*[serving_rank(DECODE, "          bbbbbb")] * 2)
    assert outcome(serving_two_batch, run) == "no step with two-batch overlap, and no prefill to split"


def test_waiting_is_not_hidden_by_a_second_batch() -> None:
    # All but the last column of rank 0 is waiting; for rank 1 the message takes 1 us of 13.
    run = draw_run(serving_rank(PREFILL, "          bbbbbbb"), serving_rank(PREFILL, "                b"))
    assert "under 10% of the prefill time" in outcome(serving_two_batch, run)


@pytest.mark.parametrize("detector", DETECTORS, ids=lambda item: item.name)
@pytest.mark.parametrize("text", ["s7 gemm | ===", "op f | ==="])
def test_no_labels(detector: Any, text: str) -> None:
    assert outcome(detector, draw_run(text)) == NO_LABELS


@pytest.mark.parametrize("detector", DETECTORS[:2], ids=lambda item: item.name)
def test_one_rank(detector: Any) -> None:
    assert isinstance(outcome(detector, draw_run(rank((PREFILL, 8), (DECODE, 4)))), str)
