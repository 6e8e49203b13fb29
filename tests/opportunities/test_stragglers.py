"""Waiting for late ranks by cause, on the drawings of the analyzer's tests. A column is 10 us."""

from __future__ import annotations

from typing import Any

import pytest

from tests.analysis.stragglers.test_stragglers import COLUMN, LATE, LONG, ORDINARY, ranks
from tracelens import analyze
from tracelens.findings import DETECTORS, Detection
from tracelens.opportunities.stragglers import EXPLAINED
from tracelens.trace import Run
from tracelens.units import duration

stragglers = DETECTORS.get("stragglers")
stragglers_load = DETECTORS.get("stragglers_load")
stragglers_noise = DETECTORS.get("stragglers_noise")
stragglers_unexplained = DETECTORS.get("stragglers_unexplained")


def outcome(detector: Any, run: Run) -> Any:
    return detector.of_run({name: analyze(run, name) for name in detector.needs})


def four(cause: str, first: str = ORDINARY) -> Run:
    """Ranks 1 and 2 as usual, rank 3 late."""
    return ranks(first, ORDINARY, ORDINARY, LATE[cause], ns_per_char=LONG.get(cause, COLUMN))


def of(detection: Detection, measure: str) -> float:
    (value,) = (quantity.value for quantity in detection.quantities if quantity.measure == measure)
    return value


@pytest.mark.parametrize("cause", EXPLAINED)
def test_the_others_lose_what_they_wait(cause: str) -> None:
    late, column = 8 if cause in ("slow_kernels", "extra_work") else 7, LONG.get(cause, COLUMN)
    detections = outcome(stragglers, four(cause))
    assert {rank: detection.saving_ns for rank, detection in detections.items()} == dict.fromkeys(
        range(3), late * column
    )
    detection = detections[1]
    # They arrive at 9.
    assert [part.tolist() for part in detection.where] == [[9 * column], [(9 + late) * column]]
    assert of(detection, f"waiting for {cause.replace('_', ' ')}") == late * column
    assert of(detection, "all exposed waiting") == late * column
    assert of(detection, "share for the worst rank") == 1
    assert detection.evidence.endswith("most for rank 3 (100%); too few steps to tell this from noise")
    assert detection.confidence == "low"


def test_a_late_rank_is_named_in_title_and_fix() -> None:
    detection = outcome(stragglers, four("slow_kernels"))[1]
    assert detection.title == "Ranks wait for rank 3, whose GPU is slower"
    assert detection.fix == "rank 3, whose GPU is slower, at the pace of the others"
    assert detection.scenario == "median_pace=3"


def test_uneven_load_has_a_detector_of_its_own() -> None:
    for detector in (stragglers, stragglers_unexplained):
        assert (
            outcome(detector, four("token_load")) == "the waiting in collectives has other causes: token_load"
        )
    detections = outcome(stragglers_load, four("token_load"))
    assert {
        rank: (detection.saving_ns, detection.confidence) for rank, detection in detections.items()
    } == dict.fromkeys(range(3), (8 * COLUMN, "medium"))
    assert outcome(stragglers_load, four("unknown")) == "the waiting in collectives has other causes: unknown"


def test_what_has_no_visible_cause_is_an_upper_bound() -> None:
    run = four("unknown")
    assert outcome(stragglers, run) == "the waiting in collectives has other causes: unknown"
    detections = outcome(stragglers_unexplained, run)
    assert {
        rank: (detection.saving_ns, detection.confidence) for rank, detection in detections.items()
    } == dict.fromkeys(range(3), (7 * COLUMN, "low"))


def in_turn(*late: int) -> Run:
    """At each all-reduce another rank launches late."""
    texts = []
    for rank in range(4):
        rows = ["    launch      | ", "    op REDUCE   | ", "    s9 nccl_All |   "]
        for number, last in enumerate(late):
            begin = 4 if last == rank else 0
            letter = chr(ord("a") + number)
            rows[0] += " " * begin + letter + " " * (11 - begin)
            rows[1] += " " * begin + "-" + " " * (11 - begin)
            rows[2] += " " * begin + letter * (10 - begin) + "  "
        texts.append("\n".join(rows))
    return ranks(*texts)


def test_ranks_that_are_late_in_turn_are_no_stragglers() -> None:
    run = in_turn(0, 1, 2, 3, 0, 1, 2, 3)
    for detector in (stragglers, stragglers_unexplained):
        seen = outcome(detector, run)
        assert seen.endswith(("no significant straggler", "other causes: late_launch, recording_began"))
    detections = outcome(stragglers_noise, run)
    # Each waits at six of eight; the one before it in turn is four columns behind at the next. At the first
    # nothing is recorded of what rank 0 did before.
    assert {rank: (detection.saving_ns, detection.confidence) for rank, detection in detections.items()} == {
        rank: ((6 if rank == 0 else 5) * 4 * COLUMN, "low") for rank in range(4)
    }
    assert detections[0].evidence.endswith("; no significant straggler")


def test_a_rank_that_is_always_late_is_a_straggler() -> None:
    run = in_turn(*[2] * 8)
    assert outcome(stragglers_noise, run) == "all waiting is for significant stragglers"
    assert set(outcome(stragglers, run)) == {0, 1, 3}
    assert outcome(stragglers, run)[0].evidence.endswith(
        "most for rank 2 (100%); too few steps to tell this from noise"
    )


def test_waiting_beside_computation_saves_nothing() -> None:
    # Rank 0 computes from 9 to 14 while it waits until 16.
    busy = ORDINARY.replace("launch      | abc", "launch      | abcx").replace(
        "      bbb\n", "      bbbxxxxx\n"
    )
    assert busy != ORDINARY
    detections = outcome(stragglers, four("late_launch", busy))
    assert detections[0].saving_ns == 2 * COLUMN
    assert detections[0].where.start.tolist() == [14 * COLUMN]
    assert detections[1].saving_ns == 7 * COLUMN


def test_savings_are_of_one_step() -> None:
    marks = "    step 1 | -----\n    step 2 |      ----------------\n"
    texts = [ORDINARY + marks] * 3 + [LATE["late_launch"] + marks]
    # Late in one of two steps.
    detections = outcome(stragglers_noise, ranks(*texts))
    assert detections[0].saving_ns == 3.5 * COLUMN
    assert detections[0].where.total == 7 * COLUMN


def test_what_lies_outside_of_the_steps_is_not_counted() -> None:
    # Only the first all-reduce, for which nobody waits, is launched in the step.
    run = ranks(*[ORDINARY + "    step 1 | -\n"] * 3, LATE["late_launch"] + "    step 1 | -\n")
    assert set(analyze(run, "stragglers")["lost"]["step"]) == {"(after the last step)"}
    assert outcome(stragglers, run) == "no exposed waiting in collectives"


def test_waiting_for_a_neighbour_in_the_pipeline_is_its_bubble() -> None:
    sender = """
    op SEND     |          -
    launch      |          a
    s9 nccl_All |           aaa
    """
    receiver = """
    op RECV     |  -
    launch      |  a
    s9 nccl_All |   aaaaaaaaaaa
    """
    run = ranks(sender, receiver)
    assert set(analyze(run, "stragglers")["lost"]["collective"]) == {"send/recv"}
    for detector in (stragglers, stragglers_unexplained):
        assert outcome(detector, run) == "no exposed waiting in collectives"


def test_ranks_that_arrive_together() -> None:
    run = ranks(ORDINARY, ORDINARY)
    assert outcome(stragglers, run) == "no exposed waiting in collectives"


@pytest.mark.parametrize("detector", [stragglers, stragglers_unexplained], ids=lambda item: item.name)
@pytest.mark.parametrize("text", [ORDINARY, "    s7 gemm | ===\n", "    op f | ===\n"])
def test_one_rank_alone(detector: Any, text: str) -> None:
    assert outcome(detector, ranks(text)).startswith("no collective is recorded on several ranks")


def test_waiting_for_nobody_in_particular_is_told_and_replayed_without_that_for_stragglers() -> None:
    run = in_turn(*[2] * 10, 0, *[2] * 5)
    straggler = outcome(stragglers, run)[1]
    detections = outcome(stragglers_noise, run)
    assert set(detections) == {1, 2, 3}
    noise = detections[1]
    assert (noise.saving_ns, of(noise, "all exposed waiting")) == (4 * COLUMN, 64 * COLUMN)
    own, total = (duration(of(noise, name)) for name in ("waiting for these causes", "all exposed waiting"))
    assert own in noise.evidence
    assert total not in noise.evidence
    # Rank 0 is late once, and not because it is a straggler: at a steady pace nobody waits for it.
    assert (straggler.scenario, noise.scenario) == ("median_pace=2", "median_pace=0")
