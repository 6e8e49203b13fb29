"""Python's garbage collector inside of steps. A column is 10 us."""

from __future__ import annotations

import pytest

from tests.builders import aligned, draw
from tracelens.findings import DETECTORS, Detection, Outcome, RankContext

garbage_collection = DETECTORS.get("garbage_collection")


COLUMN = 10_000


def outcome(text: str) -> Outcome:
    return garbage_collection.of_rank(RankContext(draw(text, ns_per_char=COLUMN), None))


def detect(text: str) -> Detection:
    detection = outcome(text)
    assert isinstance(detection, Detection), detection
    return detection


def quantities(detection: Detection) -> dict[str, float]:
    return {name: value for name, value, _ in detection.quantities}


# Steps from 0 to 12 and from 12 to 20. Collections from 3 to 8 and from 14 to 15; the GPU is idle from 4 to
# 10 and from 16 to 18.
TWO_STEPS = aligned("""
    step 1                             | ------------
    step 2                             |             --------
    python train.py(9): step           | --------------------
    python <built-in function collect> |    -----
    python Python GC                   |    -----      -
    launch                             | a         b
    s7 k                               |  aaa      bbbbbb  ==
""")


def test_what_collections_cost() -> None:
    detection = detect(TWO_STEPS)
    # Of the first collection the GPU is idle from 4 to 8; during the second it works.
    assert detection.where.start.tolist() == [4 * COLUMN]
    assert detection.where.end.tolist() == [8 * COLUMN]
    assert detection.saving_ns == 4 * COLUMN / 2
    assert detection.confidence == "high"
    assert quantities(detection) == {
        "collecting": 6 * COLUMN / 2,
        "collections per step": 1.0,
        "collections called by the program": 0.5,
        "longest collection": 5 * COLUMN,
        "GPU idle while collecting": 4 * COLUMN / 2,
        "step-time variation": pytest.approx((16 - 4) / 10),
    }
    for figure in (
        "1.0 collections",
        "(50% called",
        "for 30.0 µs (longest 50.0 µs)",
        "20.0 µs of that",
        "120.0%",
    ):
        assert figure in detection.evidence


def test_the_same_without_collections() -> None:
    twin = "\n".join(line for line in TWO_STEPS.splitlines() if "collect" not in line and "GC" not in line)
    assert str(outcome(twin)).startswith("no garbage collection in the steps; to record it, use")


def test_collections_as_scopes_without_frames() -> None:
    """As tracelens.record marks them; who called them is then not known."""
    rows = TWO_STEPS.replace("python Python", "scope Python").splitlines()
    detection = detect(aligned("\n".join(row for row in rows if "python" not in row)))
    expected = quantities(detect(TWO_STEPS))
    del expected["collections called by the program"]
    assert quantities(detection) == expected
    assert detection.evidence.startswith("1.0 collections per step stall the host for 30.0 µs")


def test_an_op_of_that_name_is_no_collection() -> None:
    ops = TWO_STEPS.replace("python Python", "op Python").replace("python <built-in", "op <built-in")
    assert isinstance(outcome(aligned(ops)), str)


def test_hidden_behind_work_it_costs_nothing() -> None:
    detection = detect("""
        python Python GC |   ---
        launch           | a
        s7 k             |  aaaaaaaa
    """)
    assert detection.saving_ns == 0
    assert detection.where.total == 0
    # No step is marked, so there is no variation between steps.
    assert "step-time variation" not in quantities(detection)
    assert quantities(detection)["collecting"] == 3 * COLUMN


def test_only_what_lies_in_the_steps_counts() -> None:
    detection = detect("""
        step 1 tid=9     |       ------
        python Python GC | ---  ---
        launch           |         a
        s7 k             |          aaa
    """)
    # The first collection ends before the step; of the second, from 5 to 8, two columns are in it.
    assert quantities(detection)["collections per step"] == 1
    assert quantities(detection)["collecting"] == 2 * COLUMN
    assert quantities(detection)["longest collection"] == 3 * COLUMN
    assert detection.saving_ns == 2 * COLUMN


def test_without_gpu_work() -> None:
    assert outcome("python Python GC | ----") == "no GPU work"
