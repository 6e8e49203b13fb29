"""Many kernels that take less time than their launch. A column is 1 us."""

from __future__ import annotations

import pytest

from tests.builders import draw
from tracelens.findings import DETECTORS, Detection, RankContext

small_kernels = DETECTORS.get("small_kernels")


EAGER = """
    step 1                  | --------------------
    launch                  | a b c
    s7 k                    |     aa  bb  cc
"""
GRAPHED = (
    EAGER.replace("a b c", "a    ")
    .replace("bb  cc", "aa  aa")
    .replace("launch                ", "launch cudaGraphLaunch")
)


@pytest.mark.parametrize(("text", "in_graphs"), [(EAGER, False), (GRAPHED, True)])
def test_kernels_that_a_graph_launches_already(text: str, in_graphs: bool) -> None:
    detection = small_kernels.of_rank(RankContext(draw(text), None))
    assert isinstance(detection, Detection)
    assert detection.in_graphs == in_graphs
    assert ("100% of them in graphs" in detection.evidence) == in_graphs
    assert detection.saving_ns == 4_000  # the gaps before the second and the third kernel
