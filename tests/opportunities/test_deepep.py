"""A host that spins until DeepEP's notify_dispatch has counted, and one that does not. A column is 1 us."""

from __future__ import annotations

import pytest

from tests.builders import aligned, draw
from tracelens.findings import DETECTORS, Detection, Outcome, RankContext

deepep_busy_wait = DETECTORS.get("deepep_busy_wait")


NOTIFY = "void deep_ep::intranode::notify_dispatch<8>(int const*, int*)"
DISPATCH = "void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*)"

SPINS = """
    launch    | n      d
    s7 NOTIFY |   nnnn
    s7 DISPATCH |          dddd
    s7 gemm   | ==
"""


def outcome(text: str, notify: str = NOTIFY, dispatch: str = DISPATCH, ns_per_char: int = 1000) -> Outcome:
    drawing = aligned(text.replace("NOTIFY", notify).replace("DISPATCH", dispatch))
    return deepep_busy_wait.of_rank(RankContext(draw(drawing, ns_per_char=ns_per_char), None))


def of(detection: Outcome, measure: str) -> float:
    assert isinstance(detection, Detection)
    (value,) = (quantity.value for quantity in detection.quantities if quantity.measure == measure)
    return value


@pytest.mark.parametrize(
    ("notify", "dispatch"),
    [
        (NOTIFY, DISPATCH),
        (
            "void primus_turbo::deep_ep::internode::notify_dispatch<false, 8>(int)",
            "primus_turbo::dispatch<8>(int)",
        ),
        ("notify_dispatch", "dispatch"),
    ],
)
def test_the_gpu_idles_from_the_end_of_the_counting_to_the_dispatch(notify: str, dispatch: str) -> None:
    # The launch call ends at 1, the counting at 6; the dispatch is launched at 7 and runs from 9.
    detection = outcome(SPINS, notify, dispatch)
    assert isinstance(detection, Detection)
    assert detection.saving_ns == 3_000
    assert [part.tolist() for part in detection.where] == [[6_000], [9_000]]
    assert of(detection, "spins per step") == of(detection, "dispatches per step") == 1
    assert of(detection, "host time spun") == 5_000
    assert of(detection, "GPU idle after notify_dispatch") == 3_000
    assert detection.confidence == "high"


def test_a_gpu_that_has_other_work_loses_nothing_by_it() -> None:
    detection = outcome(SPINS.replace("| ==\n", "| ==    =\n"))
    assert isinstance(detection, Detection)
    assert detection.saving_ns == 2_000
    assert of(detection, "host time spun") == 5_000


def test_savings_are_of_one_step() -> None:
    steps = """
    step 1    | ---------------
    step 2    |                ---------------
    launch    | n      d       m      e
    s7 NOTIFY |   nnnn           mmmm
    s7 DISPATCH |          dddd           eeee
    """
    detection = outcome(steps)
    assert isinstance(detection, Detection)
    assert detection.saving_ns == 3_000
    assert of(detection, "spins per step") == 1


def test_a_host_that_goes_on_before_the_end_does_not_wait() -> None:
    early = SPINS.replace("| n      d", "| n   d   ")
    assert outcome(early) == "the host moves on while notify_dispatch runs, in all 1 dispatches"


def test_a_host_that_does_something_meanwhile_does_not_spin() -> None:
    assert isinstance(outcome(SPINS + "    op aten::empty | ...---\n".replace(".", " ")), str)
    # That of another thread says nothing.
    other = SPINS + "    op aten::empty tid=5 |    ---\n"
    assert isinstance(outcome(other), Detection)


def test_a_host_that_comes_back_much_later_was_doing_something_else() -> None:
    # 0.5 ms after the counting had ended: columns of 500 us.
    assert isinstance(outcome(SPINS, ns_per_char=500_000), str)


def test_a_dispatch_of_another_thread_is_not_the_one() -> None:
    text = """
    launch    | n
    launch tid=2 |        d
    s7 NOTIFY |   nnnn
    s7 DISPATCH |          dddd
    """
    assert outcome(text) == "no launch calls of notify_dispatch and the dispatch that follows"


def test_a_dispatch_with_known_sizes() -> None:
    cached = "void deep_ep::intranode::cached_notify_dispatch<8>(int const*, int*)"
    assert outcome(SPINS, cached) == "no DeepEP kernel notify_dispatch"


def test_work_without_launch_calls() -> None:
    text = "s7 NOTIFY | ====\n s7 DISPATCH |        ==="
    assert outcome(text) == "no launch calls of notify_dispatch and the dispatch that follows"


@pytest.mark.parametrize("text", ["s7 gemm | ===", "python f | ==", "launch | a\ns7 dispatch |  aa"])
def test_no_deepep(text: str) -> None:
    assert outcome(text) == "no DeepEP kernel notify_dispatch"
