"""Ops that keep the GPU waiting: those that compute on the host, and those on their way to a launch."""

from __future__ import annotations

import pytest

from tests.builders import aligned, draw
from tracelens.findings import DETECTORS, Detection, RankContext

cpu_ops = DETECTORS.get("cpu_ops")
COLUMN = 100_000

# The GPU is idle from 4 to 23 or so; the host is in the inner op from 3 to 22, but for its launches.
DRAWING = """
    step 0         | ------------------------------
    op outer_op    |   ---------------------
    op inner_op    |    -------------------
    launch         | a                    LATE
    s7 gemm        |   aa                 FIRST
    s9 KERNEL      |                      SECOND
"""


def detect(late: str, first: str, second: str, kernel: str = "other") -> Detection:
    text = DRAWING.replace("LATE", late).replace("FIRST", first).replace("SECOND", second)
    detection = cpu_ops.of_rank(
        RankContext(draw(aligned(text.replace("KERNEL", kernel)), ns_per_char=COLUMN), None)
    )
    assert isinstance(detection, Detection), detection
    return detection


@pytest.mark.parametrize(
    ("case", "cause", "confidence"),
    [
        (("   b", "     bb", ""), "launches nothing", "medium"),  # launched behind both ops
        (("b", "  bb", ""), "launches", "medium"),
        (("b", "", "  bb", "ncclDevKernel_ReduceScatter"), "communicates", "medium"),
    ],
)
def test_what_launches_is_no_work_of_the_cpu(case: tuple[str, ...], cause: str, confidence: str) -> None:
    detection = detect(*case)
    assert (detection.cause, detection.confidence) == (cause, confidence)
    assert bool(detection.title) == bool(detection.fix) == (cause != "launches nothing")
    fitting = [remedy.text for remedy in cpu_ops.remedies if cause in remedy.cause]
    assert len(fitting) == 1
    assert ("out of the step" in fitting[0]) == (cause == "launches nothing")
